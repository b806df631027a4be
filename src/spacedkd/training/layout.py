"""Whether a model may keep its channels last in memory.

On a CPU, oneDNN's gradient of the weights of a strided 1x1 convolution copies an image's pixels into a buffer of
(pixels x input channels) numbers, but counts its places there as if each pixel had a whole vector of channels (its
issue 6035; torch 2.13 has it). So it writes behind the buffer when there are fewer input channels than that and it does
not begin at the first pixel. Found with a forbidden page behind every buffer, on one machine with AVX-512:

- Fewer than 16 input channels, one thread: no size tried up to 484 output pixels (22 x 22) in float32 and 1024
  in bfloat16 overflowed; from 529 and 1600 on most did, but not all (it depends on output channels and batch too).
- Told to use AVX2 (ONEDNN_MAX_CPU_ISA), fewer than 8 input channels: from 4 x 4 on; 8 and 12 channels did not.
- Two threads, 4 and 8 input channels, float32: from 8 x 8 on, mostly where they cannot share a batch evenly. Wider
  ones were not tried to the end, so the rule for several threads is the older, stricter one.

In float32, gradients of images, with the forward passes before them, and three grouped convolutions did not overflow;
in bfloat16 they were not tried.
"""

import platform
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from spacedkd.data.augmentations import generators_kept
from spacedkd.data.inputs import Inputs, in_dtype

AT_ONCE = {"bf16-mixed": 1024, "bf16-true": 1024}
AT_ONCE_EXACT = 256
"""output pixels of an image that are surely done at once with AVX-512; well below what was found, in float32"""


def can_be_channels_last(
    model: nn.Module, device: torch.device, samples: Sequence[Inputs], precision: str = "32-true"
) -> bool:
    """Whether a model that is shown inputs like these keeps within its buffers in that layout, on this device."""
    if device.type != "cpu":
        return True
    strided = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1) != m.stride]
    if torch.get_num_threads() > 1:
        return not any(part.in_channels % 16 or part.out_channels % 16 for part in strided)
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    narrow = [m for m in strided if m.groups == 1 and m.in_channels < (16 if wide else 8)]
    if not narrow or not wide:
        return not narrow
    return most_pixels(model, narrow, samples) <= AT_ONCE.get(precision, AT_ONCE_EXACT)


def most_pixels(model: nn.Module, parts: Sequence[nn.Conv2d], samples: Sequence[Inputs]) -> float:
    """The largest height x width that some convolutions of a model give."""
    found = [0.0]
    names = [name for name, part in model.named_modules() if any(part is one for one in parts)]
    tried = deepcopy(model).eval()

    def look(part: nn.Module, inputs: object, output: Tensor) -> None:
        found.append(output.shape[-2] * output.shape[-1])

    for name in names:
        tried.get_submodule(name).register_forward_hook(look)
    kind = next(tried.parameters()).dtype
    try:
        with generators_kept(), torch.no_grad():
            for inputs in samples:
                tried(in_dtype(inputs, kind))
    except Exception:  # a model that is called in another way: nobody knows what its layers are shown
        return torch.inf
    return max(found)
