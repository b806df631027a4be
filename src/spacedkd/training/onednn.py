"""Workarounds for convolutions that oneDNN, torch's library for CPUs, computes wrongly or slowly.

**Writes past a buffer (channels_last).** oneDNN's weight gradient of a strided 1x1 convolution copies an image's pixels
into a buffer of (pixels x input channels) numbers, but addresses it as if each pixel had a whole vector of channels
(oneDNN issue 6035; torch 2.13 has it). With fewer input channels than that it writes past the end, unless it starts at
the first pixel. Measured with a forbidden memory page behind every buffer, on one machine with AVX-512:

- Fewer than 16 input channels, one thread: no size tried up to 484 output pixels (22 x 22) in float32 and 1024 in
  bfloat16 overflowed; from 529 and 1600 on most did, but not all (it depends on output channels and batch too).
- Limited to AVX2 (ONEDNN_MAX_CPU_ISA), fewer than 8 input channels: from 4 x 4 on. 8 and 12 channels did not, but
  which library is limited to what cannot be known here, so the limit of 16 channels holds then too.
- Two threads, 4 and 8 input channels, float32: from 8 x 8 on, mostly where the threads cannot share a batch evenly.
  Wider ones were not tried to the end, so the rule for several threads is stricter.

In float32, gradients of images, with the forward passes before them, and three grouped convolutions did not overflow;
in bfloat16 they were not tried. `supports_channels_last` tells where the layout is safe.

**Gradients that are not written (bfloat16).** Some weight gradients are memory that nobody has written to (torch 2.13,
AVX-512, both layouts): those of strided convolutions with kernels larger than 1x1 that pad maps narrower than their
stride, for instance 3x3 with stride 2 on maps of 1x1. All others tried were right: strides 1 to 4, kernels 2 to 7, maps
up to 6x6, and any maps padded before. `patch_strided_convolutions` pads narrow maps before the convolution.

**Slow gradients (bfloat16).** The input gradient of a strided depthwise convolution is computed as a matrix product for
every channel (brgconv_strided), 12 ms where other convolutions take 1 (128 maps of 16 x 16, 16 channels, one
thread). `patch_strided_convolutions` computes such a convolution with stride one and keeps every second pixel of its
output. The output has the same bits. Gradients are the same sums in another order: one in some hundred thousand is
rounded otherwise.
"""

import os
import platform
from collections.abc import Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.inputs import Inputs, cast_floats
from spacedkd.data.transforms import preserve_generators

SAFE_PIXELS = {"bf16-mixed": 1024, "bf16-true": 1024}
SAFE_PIXELS_FLOAT32 = 256
"""output pixels of an image up to which AVX-512 stays within its buffers; in float32 well below what was measured"""
_INSTRUCTION_LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""variables that limit the instructions torch or oneDNN uses, each without the other"""


def supports_channels_last(
    model: nn.Module, device: torch.device, samples: Sequence[Inputs], precision: str = "32-true"
) -> bool:
    """Tell whether a model, called with inputs like these, may be in channels_last layout on this device."""
    if device.type != "cpu":
        return True
    strided = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1) != m.stride]
    if torch.get_num_threads() > 1:
        return not any(conv.in_channels % 16 or conv.out_channels % 16 for conv in strided)
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    narrow = [conv for conv in strided if conv.groups == 1 and conv.in_channels < 16]
    has_avx512 = "AVX512" in torch.backends.cpu.get_cpu_capability()
    if not narrow or not has_avx512 or any(map(os.environ.get, _INSTRUCTION_LIMITS)):
        return not narrow
    return _largest_output(model, narrow, samples) <= SAFE_PIXELS.get(precision, SAFE_PIXELS_FLOAT32)


def _largest_output(model: nn.Module, convolutions: Sequence[nn.Conv2d], samples: Sequence[Inputs]) -> float:
    """Return the largest height x width that these convolutions of a model put out; infinity where it cannot be run."""
    pixels = [0.0]
    names = [name for name, part in model.named_modules() if any(part is conv for conv in convolutions)]
    probe = deepcopy(model).eval()

    def record_size(part: nn.Module, inputs: object, output: Tensor) -> None:
        pixels.append(output.shape[-2] * output.shape[-1])

    for name in names:
        probe.get_submodule(name).register_forward_hook(record_size)
    dtype = next(probe.parameters()).dtype
    try:
        with preserve_generators(), torch.no_grad():
            for inputs in samples:
                probe(cast_floats(inputs, dtype))
    except Exception:  # a model that is called in another way: the sizes within it are unknown
        return torch.inf
    return max(pixels)


def patch_strided_convolutions(model: nn.Module, device: torch.device, precision: str) -> None:
    """Change how a model computes strided convolutions in bfloat16 on a CPU, where gradients are unwritten or slow."""
    if device.type != "cpu" or not precision.startswith("bf16"):
        return
    for part in model.modules():
        if not isinstance(part, nn.Conv2d) or max(part.stride) == 1:
            continue
        if part.groups == part.in_channels == part.out_channels > 1:
            part.register_forward_pre_hook(partial(_set_stride_one, part.stride))
            part.register_forward_hook(partial(_subsample_output, part.stride))
        elif part.padding_mode != "zeros" or isinstance(part.padding, str):
            continue
        elif max(part.kernel_size) > 1 and part.stride[1] > 1 and any(part.padding):
            part.register_forward_pre_hook(partial(_pad_narrow_input, part.padding))


def _set_stride_one(stride: tuple[int, ...], part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Give a depthwise convolution stride one where gradients will be computed in bfloat16."""
    in_bfloat16 = torch.is_autocast_enabled("cpu") or inputs[0].dtype == torch.bfloat16
    part.stride = (1, 1) if in_bfloat16 and torch.is_grad_enabled() else stride  # type: ignore[assignment]


def _subsample_output(stride: tuple[int, ...], part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Keep the pixels that the convolution's own stride would have computed, and give it that stride back."""
    had_stride_one, part.stride = part.stride != stride, stride  # type: ignore[assignment]
    if not had_stride_one:
        return output
    layout = torch.channels_last if output.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    return output[..., :: stride[0], :: stride[1]].contiguous(memory_format=layout)


def _pad_narrow_input(
    padding: tuple[int, ...], part: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...] | None:
    """Pad maps that are narrower than the stride here, and not in the convolution; leave others to it."""
    maps, *others = inputs
    is_narrow = maps.shape[-1] < part.stride[1]  # type: ignore[index]
    part.padding = (0, 0) if is_narrow else padding  # type: ignore[assignment]
    height, width = padding
    return (F.pad(maps, (width, width, height, height)), *others) if is_narrow else None
