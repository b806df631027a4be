"""Networks compiled block by block.

A block's `forward` alone is compiled, and what stands around it is not: hooks of early exits and hints, counts of
passes, DDP. Blocks of one kind share what was compiled for them, whichever role they belong to; torch compiles again
for another mode (learning or standing still) or shape, and keeps them all, so that a change of roles costs nothing.
"""

import logging
import os
import platform
from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from spacedkd.config.spec import EngineSpec, RunSpec
from spacedkd.data.inputs import Inputs, cast_floats
from spacedkd.data.transforms import preserve_generators, seed_generators
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.processes import check_processes
from spacedkd.runtime.signals import STARTED_BY, end_with_first_rank
from spacedkd.training.distributed import fsdp_strategy, network_blocks, rendezvous_timeout, shard_frozen, uses_fsdp
from spacedkd.training.fabric import DDPStrategy, DoublePrecision, Fabric, Strategy, _FabricModule

# The machine a run is computed on: devices, precision, threads, and the switches that keep it exact.


def start_fabric(spec: RunSpec, find_unused_parameters: bool) -> Fabric:
    """A launched Fabric for the spec; from here on this process is one of its ranks.

    Where roles share a model, each of them leaves some of its weights without gradients: the ranks must look which.
    """
    engine = spec.engine
    check_processes(engine.devices, engine.nodes)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # the spec already says the precision
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing reads memory before it is written, and to fill all of it with NaN first takes time at every step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False  # 32-true means 32
    try:
        fabric = Fabric(
            accelerator=engine.accelerator,
            devices=engine.devices,
            num_nodes=engine.nodes,
            strategy=_strategy(engine, find_unused_parameters),
            **_precision(spec),
        )
    except Exception as error:  # Fabric raises many kinds for hardware that is not there
        raise UserError(f"This machine cannot do that: {(str(error).splitlines() or [repr(error)])[0]}") from None
    end_with_first_rank()
    os.environ[STARTED_BY] = str(os.getpid())  # for the processes that are started now
    with rendezvous_timeout(engine.processes):
        fabric.launch()
    del os.environ[STARTED_BY]
    if engine.threads is not None:  # after Fabric, which thinks of a number itself; the same for all
        torch.set_num_threads(fabric.broadcast(engine.threads))
    return fabric


def _strategy(engine: EngineSpec, find_unused_parameters: bool) -> str | Strategy:
    if engine.processes == 1:
        return "auto"
    if engine.strategy == "fsdp":
        return fsdp_strategy(engine.processes)
    return DDPStrategy(find_unused_parameters=find_unused_parameters)


class Float64(DoublePrecision):
    """Fabric's 64-true, in which what a model says stays in float64: losses are computed in it, too."""

    def convert_output(self, data: Any) -> Any:
        return data


def _precision(spec: RunSpec) -> dict[str, Any]:
    if spec.precision == "64-true" and spec.engine.strategy != "fsdp":  # which Fabric refuses
        return {"plugins": [Float64()]}
    return {"precision": spec.precision}


def seed(device: torch.device, number: int) -> None:
    """Seed what is drawn on the CPU and on this device, as `torch.manual_seed` would, but without all other kinds.

    Those take it most of a millisecond, which would be lost with every step. A network may draw from numpy and Python.
    """
    seed_generators(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)


def setup_frozen(fabric: Fabric, model: nn.Module) -> nn.Module:
    """A model that never learns: on the device, but with no gradients to share.

    It computes in float32 or, in a run of 64-true, in float64, under the run's autocast; never in bare bfloat16, in
    which a moving average would stand still.
    """
    exact = torch.float64 if fabric.strategy.precision.precision == "64-true" else torch.float32
    model.to(exact).requires_grad_(False)
    if uses_fsdp(fabric):
        shard_frozen(fabric, model)
    else:
        fabric.to_device(model)
    forward = model.forward

    def in_precision(*views: Inputs, **kwargs: Any) -> Any:
        with fabric.autocast():
            output = forward(*(cast_floats(inputs, exact) for inputs in views), **kwargs)
        return tuple(p._replace(logits=p.logits.to(exact), features=p.features.to(exact)) for p in output)

    model.forward = in_precision
    return model


def setup_replayed(fabric: Fabric, model: nn.Module) -> nn.Module:
    """A model that learns elsewhere: in the precision it learns in, so that it says what it would have said here."""
    precision = fabric.strategy.precision
    forward = fabric.to_device(precision.convert_module(model)).requires_grad_(False).forward

    def in_precision(*views: Inputs, **kwargs: Any) -> Any:
        with precision.forward_context():  # in which even the usual type is that of the precision
            output = forward(*precision.convert_input(views), **kwargs)
        return precision.convert_output(output)

    model.forward = in_precision
    return model


def unwrap_ddp(fabric: Fabric, model: nn.Module, module: nn.Module) -> nn.Module:
    """A model that can learn, as it is called while it does not: through DDP every call would broadcast its buffers."""
    shares_gradients = isinstance(model._forward_module, DistributedDataParallel)
    return _FabricModule(module, fabric.strategy) if shares_gradients else model


def broadcast_buffers(module: nn.Module) -> None:
    """Give all ranks the first one's buffers of a module, all of one type at once."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for buffer in module.buffers():
        by_type.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_type.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        distributed.broadcast(flat, 0)
        for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))


def gather_rows(fabric: Fabric, rows: Tensor) -> Tensor:
    """The rows of all processes, one process after the other; they may have different numbers of them."""
    if fabric.world_size == 1:
        return rows
    counts = _of_all(torch.tensor(len(rows), device=rows.device), fabric.world_size)
    padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
    padded[: len(rows)] = rows.detach()
    gathered = _of_all(padded, fabric.world_size)
    return torch.cat([part[: int(count)] for part, count in zip(gathered, counts, strict=True)])


def _of_all(tensor: Tensor, ranks: int) -> list[Tensor]:
    found = [torch.empty_like(tensor) for _ in range(ranks)]
    distributed.all_gather(found, tensor)
    return found


def describe_machine(fabric: Fabric, spec: RunSpec) -> dict[str, Any]:
    """What a result should say of the machine it was made on."""
    before = {"processes_before": [*spec.processes_before], "bit_equal": False} if spec.processes_before else {}
    return {
        "torch": torch.__version__,
        "device": str(fabric.device),
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        **before,
    }


# What oneDNN computes wrongly or slowly on a CPU, and how it is kept from that: layouts, and strides in bfloat16.

SAFE_PIXELS = {"bf16-mixed": 1024, "bf16-true": 1024}
SAFE_PIXELS_FLOAT32 = 256
"""output pixels of an image that are surely done at once with AVX-512; well below what was found, in float32"""
_OTHER_INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""with which torch and oneDNN are told to use less than the machine has, each without the other"""


def supports_channels_last(
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
    return largest_output_pixels(model, narrow, samples) <= SAFE_PIXELS.get(precision, SAFE_PIXELS_FLOAT32)


def largest_output_pixels(model: nn.Module, parts: Sequence[nn.Conv2d], samples: Sequence[Inputs]) -> float:
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
        with preserve_generators(), torch.no_grad():
            for inputs in samples:
                tried(cast_floats(inputs, kind))
    except Exception:  # a model that is called in another way: nobody knows what its layers are shown
        return torch.inf
    return max(found)


def patch_strided_convolutions(model: nn.Module, device: torch.device, precision: str) -> None:
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


# Networks compiled block by block.

BACKEND = "inductor"
COMPILED_FORMS = 256
"""forms of one block's code that are kept: for every mode, shape and width of a network"""


def compile_blocks(models: Iterable[nn.Module], device: torch.device) -> None:
    """Compile every block of these models when it is first called."""
    _check_compiler(device)
    torch._dynamo.config.recompile_limit = COMPILED_FORMS
    torch._dynamo.config.accumulated_recompile_limit = 4 * COMPILED_FORMS
    found = [block for model in models for block in network_blocks(model)]
    if not found:
        raise UserError("--compile finds no blocks, parts of an nn.Sequential or nn.ModuleList: leave it out.")
    for block in found:
        block.forward = torch.compile(block.forward, backend=BACKEND)


def _check_compiler(device: torch.device) -> None:
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
