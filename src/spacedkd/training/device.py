"""The devices a run is computed on: Fabric's start, precision, threads, seeds, frozen models, compiled blocks.

`start_fabric` also sets the switches that keep runs deterministic. `supports_channels_last` and
`patch_strided_convolutions` avoid what CPUs compute wrongly. What several processes need is in `distributed`.
"""

import logging
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from spacedkd.config.spec import EngineSpec, RunSpec
from spacedkd.data.generators import preserve_generators, seed_generators
from spacedkd.data.inputs import Inputs, cast_floats
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.processes import check_processes
from spacedkd.runtime.signals import STARTED_BY, end_with_first_rank
from spacedkd.training.distributed import (
    DDPStrategy,
    DoublePrecision,
    Fabric,
    MixedPrecision,
    Strategy,
    _FabricModule,
    fsdp_strategy,
    network_blocks,
    rendezvous_timeout,
    shard_frozen,
    uses_fsdp,
)


@contextmanager
def torch_settings_restored() -> Iterator[None]:
    """Restore torch's number of threads and the switches that `start_fabric` sets, also after an error."""
    deterministic, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn = torch.backends.cudnn
    benchmark, tf32, threads = cudnn.benchmark, cudnn.allow_tf32, torch.get_num_threads()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        cudnn.benchmark, cudnn.allow_tf32 = benchmark, tf32
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def start_fabric(spec: RunSpec, find_unused_parameters: bool) -> Fabric:
    """Return a launched Fabric for the spec; from here on this process is one of its ranks.

    Roles that share a model each leave some of its weights without gradients: then DDP must find unused parameters.
    Refuses devices that this machine does not have.
    """
    engine = spec.engine
    check_processes(engine.devices, engine.nodes)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it would print the precision, which the spec has
    if engine.deterministic:  # cuBLAS is deterministic with a fixed workspace only
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(engine.deterministic, warn_only=True)
    # Nothing reads memory before it is written, and to fill all of it with NaN first takes time at every step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not engine.deterministic
    torch.backends.cudnn.allow_tf32 = False  # 32-true means 32 bits
    try:
        fabric = Fabric(
            accelerator=engine.accelerator,
            devices=engine.devices,
            num_nodes=engine.nodes,
            strategy=_strategy(engine, find_unused_parameters),
            **_precision(spec),
        )
    except Exception as error:  # Fabric raises many kinds for hardware that is not there
        raise UserError(f"This machine cannot run that: {first_line(error)}") from None
    end_with_first_rank()
    os.environ[STARTED_BY] = str(os.getpid())  # read by the processes that Fabric starts now
    with rendezvous_timeout(engine.processes):
        fabric.launch()
    del os.environ[STARTED_BY]
    if engine.threads is not None:  # after Fabric, which sets a number of its own; the same on all ranks
        torch.set_num_threads(fabric.broadcast(engine.threads))
    return fabric


def _strategy(engine: EngineSpec, find_unused_parameters: bool) -> str | Strategy:
    if engine.processes == 1:
        return "auto"
    if engine.strategy == "fsdp":
        return fsdp_strategy(engine.processes)
    return DDPStrategy(find_unused_parameters=find_unused_parameters)


class Float16(MixedPrecision):
    """Fabric's 16-mixed, without its one loss scale for all models: every learner has a `LossScaler` of its own."""

    def __init__(self, device_type: str) -> None:
        super().__init__("16-mixed", device_type)
        self.scaler = None


def scales_losses(fabric: Fabric) -> bool:
    """Return whether learners scale their losses."""
    return isinstance(fabric.strategy.precision, Float16)


class Float64(DoublePrecision):
    """Fabric's 64-true, with outputs that stay in float64, so that losses are computed in it too."""

    def convert_output(self, data: Any) -> Any:
        return data


def _precision(spec: RunSpec) -> dict[str, Any]:
    if spec.precision == "64-true" and spec.engine.strategy != "fsdp":  # with which Fabric refuses this precision
        return {"plugins": [Float64()]}
    if spec.precision == "16-mixed":
        on_cpu = spec.engine.accelerator == "cpu" or not torch.cuda.is_available()
        if spec.engine.accelerator != "cpu" and on_cpu and torch.backends.mps.is_available():
            raise UserError("Precision 16-mixed is for CUDA devices, not for mps: give --precision 32-true.")
        return {"plugins": [Float16("cpu" if on_cpu else "cuda")]}
    return {"precision": spec.precision}


def seed(device: torch.device, number: int) -> None:
    """Seed Python, numpy and torch on the CPU and on this device.

    `torch.manual_seed` seeds all kinds of devices, which takes most of a millisecond: too much for every step.
    """
    seed_generators(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)


def describe_machine(fabric: Fabric, spec: RunSpec) -> dict[str, Any]:
    """Return the description of this machine for result.json."""
    before = {"processes_before": [*spec.processes_before], "bit_equal": False} if spec.processes_before else {}
    if not spec.engine.deterministic:
        before |= {"deterministic": False, "bit_equal": False}
    return {
        "torch": torch.__version__,
        "device": str(fabric.device),
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        **before,
    }


# Models that do not learn in this process


def setup_frozen(fabric: Fabric, model: nn.Module) -> nn.Module:
    """Put a model that never learns on the device, without gradients.

    Its weights are in float32, or in float64 in a run of 64-true, and it computes under the run's autocast. They are
    never in bfloat16, in which small updates of a moving average would be rounded away.
    """
    dtype = torch.float64 if fabric.strategy.precision.precision == "64-true" else torch.float32
    model.to(dtype).requires_grad_(False)
    if uses_fsdp(fabric):
        shard_frozen(fabric, model)
    else:
        fabric.to_device(model)
    forward = model.forward

    def forward_in_precision(*views: Inputs, **kwargs: Any) -> Any:
        with fabric.autocast():
            output = forward(*(cast_floats(inputs, dtype) for inputs in views), **kwargs)
        return tuple(p._replace(logits=p.logits.to(dtype), features=p.features.to(dtype)) for p in output)

    model.forward = forward_in_precision
    return model


def setup_replayed(fabric: Fabric, model: nn.Module) -> nn.Module:
    """Put a model that is loaded from snapshots on the device.

    It is in the precision it was trained in, so that it predicts the same bits as a model that learns in this run.
    """
    precision = fabric.strategy.precision
    forward = fabric.to_device(precision.convert_module(model)).requires_grad_(False).forward

    def forward_in_precision(*views: Inputs, **kwargs: Any) -> Any:
        with precision.forward_context():  # in which torch's default dtype is the precision's
            output = forward(*precision.convert_input(views), **kwargs)
        return precision.convert_output(output)

    model.forward = forward_in_precision
    return model


def unwrap_ddp(fabric: Fabric, model: nn.Module, module: nn.Module) -> nn.Module:
    """Return a model that can learn without DDP, to call while it is frozen: DDP broadcasts buffers at every call."""
    has_ddp = isinstance(model._forward_module, DistributedDataParallel)
    return _FabricModule(module, fabric.strategy) if has_ddp else model


# Attention


def fused_attention(model: nn.Module) -> list[nn.Module]:
    """Return the attention layers of a model that compute it with one kernel of torch, as timm marks them."""
    return [part for part in model.modules() if getattr(part, "fused_attn", False) is True]


def set_plain_attention(models: Iterable[nn.Module]) -> None:
    """Let all models compute attention as two matrix products; refuse models that have no such layers.

    On CPUs in bfloat16 the backward pass of torch's kernel takes most of a step (torch 2.13): a DeiT-Tiny trains 1.4 to
    1.8 times as fast without it. In float32 both are as fast.
    """
    layers = [layer for model in models for layer in fused_attention(model)]
    if not layers:
        raise UserError("--attention plain needs a transformer of timm, and no network here is one: leave it out.")
    for layer in layers:
        layer.fused_attn = False  # type: ignore[assignment]


def slow_attention(models: Iterable[nn.Module], device: torch.device, precision: str) -> bool:
    """Return whether these models would train faster with plain attention."""
    return device.type == "cpu" and precision.startswith("bf16") and any(map(fused_attention, models))


# torch.compile

BACKEND = "inductor"
COMPILED_FORMS = 256
"""compiled forms of one block's code that are kept: for every mode, shape and width of a network"""


def compile_blocks(models: Iterable[nn.Module], device: torch.device) -> None:
    """Compile every block of these models when it is first called; refuse models without blocks.

    Only a block's `forward` is compiled, so that hooks of early exits and hints, counts of passes and DDP stay outside.
    Blocks of one class share compiled code, whichever role they belong to. torch compiles again for another mode
    (learning or frozen) or shape and keeps all forms, so that a change of roles costs nothing.
    """
    _check_compiler(device)
    torch._dynamo.config.recompile_limit = COMPILED_FORMS
    torch._dynamo.config.accumulated_recompile_limit = 4 * COMPILED_FORMS
    blocks = [block for model in models for block in network_blocks(model)]
    if not blocks:
        raise UserError("--compile finds no blocks, parts of an nn.Sequential or nn.ModuleList: leave it out.")
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=BACKEND)


def _check_compiler(device: torch.device) -> None:
    """Refuse a machine that lacks the compiler torch.compile needs."""
    if BACKEND != "inductor":
        return
    if device.type != "cpu":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise UserError(f"--compile needs triton on {device.type}, which is not installed here: leave it out.")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:
        raise UserError(f"--compile needs a C++ compiler such as g++: {first_line(error)}. Leave it out.") from None


# Convolutions that oneDNN, torch's library for CPUs, computes wrongly or slowly

SAFE_PIXELS = {"bf16-mixed": 1024, "bf16-true": 1024}
SAFE_PIXELS_FLOAT32 = 256


"""output pixels of an image up to which AVX-512 stays within its buffers; in float32 well below what was measured"""
_INSTRUCTION_LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""variables that limit the instructions torch or oneDNN uses, each without the other"""


def supports_channels_last(
    model: nn.Module, device: torch.device, samples: Sequence[Inputs], precision: str = "32-true"
) -> bool:
    """Return whether a model, called with inputs like these, may be in channels_last layout on this device.

    On CPUs oneDNN may write past a buffer. Its weight gradient of a strided 1x1 convolution copies an image's pixels
    into a buffer of (pixels x input channels) numbers, but addresses it as if each pixel had a whole vector of channels
    (oneDNN issue 6035; torch 2.13 has it). With fewer input channels than that it writes past the end, unless it starts
    at the first pixel. Measured with a forbidden memory page behind every buffer, on one machine with AVX-512:

    - Fewer than 16 input channels, one thread: no size tried up to 484 output pixels (22 x 22) in float32 and 1024 in
      bfloat16 overflowed; from 529 and 1600 on most did, but not all (it depends on output channels and batch too).
    - Limited to AVX2 (ONEDNN_MAX_CPU_ISA), fewer than 8 input channels: from 4 x 4 on. 8 and 12 channels did not, but
      which library is limited to what cannot be known here, so the limit of 16 channels holds then too.
    - Two threads, 4 and 8 input channels, float32: from 8 x 8 on, mostly where the threads cannot share a batch evenly.
      Wider ones were not tried to the end, so the rule for several threads is stricter.

    In float32, gradients of images, with the forward passes before them, and three grouped convolutions did not
    overflow; in bfloat16 they were not tried.
    """
    if device.type != "cpu":
        return True
    if precision == "16-mixed":  # not tried in float16
        return False
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
    """Change how a model computes strided convolutions in bfloat16 on a CPU, where gradients are unwritten or slow.

    Unwritten: some weight gradients are uninitialised memory (torch 2.13, AVX-512, both layouts). They are
    those of strided convolutions with kernels larger than 1x1 that pad maps narrower than their stride, for instance
    3x3 with stride 2 on maps of 1x1. All others tried were right: strides 1 to 4, kernels 2 to 7, maps up to 6x6, and
    any maps padded before. So narrow maps are padded before the convolution.

    Slow: the input gradient of a strided depthwise convolution is computed as a matrix product for every channel
    (brgconv_strided), 12 ms where other convolutions take 1 (128 maps of 16 x 16, 16 channels, one thread). So such a
    convolution is computed with stride one, and every second pixel of its output is kept. The output has the same bits.
    Gradients are the same sums in another order: one in some hundred thousand is rounded otherwise.
    """
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
