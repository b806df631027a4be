"""The devices a run is computed on: Fabric's start, precision, threads, seeds, frozen models, compiled blocks.

`start_fabric` also sets the switches that keep runs deterministic. What CPUs compute wrongly is in `onednn`, what
several processes need in `distributed`.
"""

import logging
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from spacedkd.config.spec import EngineSpec, RunSpec
from spacedkd.data.inputs import Inputs, cast_floats
from spacedkd.data.transforms import seed_generators
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.processes import check_processes
from spacedkd.runtime.signals import STARTED_BY, end_with_first_rank
from spacedkd.training.distributed import fsdp_strategy, network_blocks, rendezvous_timeout, shard_frozen, uses_fsdp
from spacedkd.training.fabric import DDPStrategy, DoublePrecision, Fabric, Strategy, _FabricModule


def start_fabric(spec: RunSpec, find_unused_parameters: bool) -> Fabric:
    """Return a launched Fabric for the spec; from here on this process is one of its ranks.

    Roles that share a model each leave some of its weights without gradients: then DDP must find unused parameters.
    Refuses devices that this machine does not have.
    """
    engine = spec.engine
    check_processes(engine.devices, engine.nodes)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it would print the precision, which the spec has
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with a fixed workspace only
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing reads memory before it is written, and to fill all of it with NaN first takes time at every step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
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
        raise UserError(f"This machine cannot do that: {(str(error).splitlines() or [repr(error)])[0]}") from None
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


class Float64(DoublePrecision):
    """Fabric's 64-true, with outputs that stay in float64, so that losses are computed in it too."""

    def convert_output(self, data: Any) -> Any:
        return data


def _precision(spec: RunSpec) -> dict[str, Any]:
    if spec.precision == "64-true" and spec.engine.strategy != "fsdp":  # with which Fabric refuses this precision
        return {"plugins": [Float64()]}
    return {"precision": spec.precision}


def seed(device: torch.device, number: int) -> None:
    """Seed Python, numpy and torch on the CPU and on this device.

    `torch.manual_seed` seeds all kinds of devices, which takes most of a millisecond: too much for every step.
    """
    seed_generators(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)


def describe_machine(fabric: Fabric, spec: RunSpec) -> dict[str, Any]:
    """Return what result.json says about the machine a run was trained on."""
    before = {"processes_before": [*spec.processes_before], "bit_equal": False} if spec.processes_before else {}
    return {
        "torch": torch.__version__,
        "device": str(fabric.device),
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        **before,
    }


# Models that do not learn in this process, and what ranks exchange about them


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
    """Return what to call while a model that can learn is frozen: DDP would broadcast its buffers at every call."""
    has_ddp = isinstance(model._forward_module, DistributedDataParallel)
    return _FabricModule(module, fabric.strategy) if has_ddp else model


def broadcast_buffers(module: nn.Module) -> None:
    """Give all ranks the first rank's buffers of a module, in one broadcast for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for buffer in module.buffers():
        by_dtype.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_dtype.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        distributed.broadcast(flat, 0)
        for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))


def gather_rows(fabric: Fabric, rows: Tensor) -> Tensor:
    """Return the rows of all ranks, one rank after the other; ranks may have different numbers of rows."""
    if fabric.world_size == 1:
        return rows
    counts = _all_gather(torch.tensor(len(rows), device=rows.device), fabric.world_size)
    padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
    padded[: len(rows)] = rows.detach()
    gathered = _all_gather(padded, fabric.world_size)
    return torch.cat([part[: int(count)] for part, count in zip(gathered, counts, strict=True)])


def _all_gather(tensor: Tensor, ranks: int) -> list[Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(ranks)]
    distributed.all_gather(gathered, tensor)
    return gathered


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
