"""What oneDNN computes wrongly or slowly on a CPU, and how it is kept from that: layouts, and strides in bfloat16.

On a CPU, oneDNN's gradient of the weights of a strided 1x1 convolution copies an image's pixels into a buffer of
(pixels x input channels) numbers, but counts its places there as if each pixel had a whole vector of channels (its
issue 6035; torch 2.13 has it). So it writes behind the buffer when there are fewer input channels than that and it does
not begin at the first pixel. Found with a forbidden page behind every buffer, on one machine with AVX-512:

- Fewer than 16 input channels, one thread: no size tried up to 484 output pixels (22 x 22) in float32 and 1024
  in bfloat16 overflowed; from 529 and 1600 on most did, but not all (it depends on output channels and batch too).
- Told to use AVX2 (ONEDNN_MAX_CPU_ISA), fewer than 8 input channels: from 4 x 4 on; 8 and 12 channels did not, but
  who is told what cannot be known here, so 16 is the limit then too.
- Two threads, 4 and 8 input channels, float32: from 8 x 8 on, mostly where they cannot share a batch evenly. Wider
  ones were not tried to the end, so the rule for several threads is the older, stricter one.

In float32, gradients of images, with the forward passes before them, and three grouped convolutions did not overflow;
in bfloat16 they were not tried.

Some weight gradients in bfloat16 are memory that nobody has written to (torch 2.13, AVX-512, both layouts): those of
strided convolutions of more than one pixel that pad maps narrower than their stride, for instance 3x3 with stride 2 on
maps of 1x1. All others tried were right: strides 1 to 4, kernels 2 to 7, maps up to 6x6, and any padded before.

The gradient of the maps of a strided depthwise convolution in bfloat16 is computed as a matrix product for every
channel (brgconv_strided), which takes 12 ms where others take 1: 128 maps of 16 x 16 with 16 channels, one thread. So
the stride is taken afterwards: the convolution has stride one, and every second place of its output is kept. What comes
out has the same bits. Gradients are the same sums in another order: one in some hundred thousand is rounded otherwise.
"""

import os
import platform
from collections.abc import Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.augmentations import generators_kept
from spacedkd.data.inputs import Inputs, in_dtype

AT_ONCE = {"bf16-mixed": 1024, "bf16-true": 1024}
AT_ONCE_EXACT = 256
"""output pixels of an image that are surely done at once with AVX-512; well below what was found, in float32"""
_OTHER_INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""with which torch and oneDNN are told to use less than the machine has, each without the other"""


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
    narrow = [m for m in strided if m.groups == 1 and m.in_channels < 16]
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability() and not any(map(os.environ.get, _OTHER_INSTRUCTIONS))
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


def mend_strides(model: nn.Module, device: torch.device, precision: str) -> None:
    """Have strided convolutions in bfloat16 computed in another way, where their gradients are not written, or slow."""
    if device.type != "cpu" or not precision.startswith("bf16"):
        return
    for part in model.modules():
        if not isinstance(part, nn.Conv2d) or max(part.stride) == 1:
            continue
        if part.groups == part.in_channels == part.out_channels > 1:
            part.register_forward_pre_hook(partial(_everywhere, part.stride))
            part.register_forward_hook(partial(_thinned, part.stride))
        elif part.padding_mode != "zeros" or isinstance(part.padding, str):
            continue
        elif max(part.kernel_size) > 1 and part.stride[1] > 1 and any(part.padding):
            part.register_forward_pre_hook(partial(_padded, part.padding))


def _everywhere(stride: tuple[int, ...], part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A stride of one for whoever will ask for gradients, in bfloat16."""
    reduced = torch.is_autocast_enabled("cpu") or inputs[0].dtype == torch.bfloat16
    part.stride = (1, 1) if reduced and torch.is_grad_enabled() else stride  # type: ignore[assignment]


def _thinned(stride: tuple[int, ...], part: nn.Module, inputs: tuple[Tensor, ...], found: Tensor) -> Tensor:
    """Every so many of the places of what was computed everywhere."""
    everywhere, part.stride = part.stride != stride, stride  # type: ignore[assignment]
    if not everywhere:
        return found
    layout = torch.channels_last if found.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    return found[..., :: stride[0], :: stride[1]].contiguous(memory_format=layout)


def _padded(padding: tuple[int, ...], part: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    maps, *others = inputs
    narrow = maps.shape[-1] < part.stride[1]  # type: ignore[index]
    part.padding = (0, 0) if narrow else padding  # type: ignore[assignment]
    height, width = padding
    return (F.pad(maps, (width, width, height, height)), *others) if narrow else None
