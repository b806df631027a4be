"""The machine a run is computed on: devices, precision, threads, and the switches that keep it exact."""

import logging
import os
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from spacedkd.data.augmentations import seed_generators
from spacedkd.data.inputs import Inputs, in_dtype
from spacedkd.errors import UserError
from spacedkd.spec import EngineSpec, RunSpec
from spacedkd.started import check_processes
from spacedkd.stopping import STARTED_BY, end_with_first_rank
from spacedkd.training.fabric import DDPStrategy, DoublePrecision, Fabric, Strategy, _FabricModule
from spacedkd.training.sharding import is_sharding, shard, sharding
from spacedkd.training.together import joining


def best_precision(accelerator: str) -> str:
    """bf16-mixed where the hardware computes in bfloat16, else plain float32."""
    if accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if accelerator in ("auto", "cpu") and not torch.backends.mps.is_available():
        return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"
    return "32-true"


def start(spec: RunSpec, parts_learn_in_turn: bool) -> Fabric:
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
            strategy=_strategy(engine, parts_learn_in_turn),
            **_precision(spec),
        )
    except Exception as error:  # Fabric raises many kinds for hardware that is not there
        raise UserError(f"This machine cannot do that: {(str(error).splitlines() or [repr(error)])[0]}") from None
    end_with_first_rank()
    os.environ[STARTED_BY] = str(os.getpid())  # for the processes that are started now
    with joining(engine.processes):
        fabric.launch()
    del os.environ[STARTED_BY]
    if engine.threads is not None:  # after Fabric, which thinks of a number itself; the same for all
        torch.set_num_threads(fabric.broadcast(engine.threads))
    return fabric


def _strategy(engine: EngineSpec, parts_learn_in_turn: bool) -> str | Strategy:
    if engine.processes == 1:
        return "auto"
    if engine.strategy == "fsdp":
        return sharding(engine.processes)
    return DDPStrategy(find_unused_parameters=parts_learn_in_turn)


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


def add_frozen(fabric: Fabric, model: nn.Module) -> nn.Module:
    """A model that never learns: on the device, but with no gradients to share.

    It computes in float32 or, in a run of 64-true, in float64, under the run's autocast; never in bare bfloat16, in
    which a moving average would stand still.
    """
    exact = torch.float64 if fabric.strategy.precision.precision == "64-true" else torch.float32
    model.to(exact).requires_grad_(False)
    if is_sharding(fabric):
        shard(fabric, model)
    else:
        fabric.to_device(model)
    forward = model.forward

    def in_precision(*views: Inputs, **kwargs: Any) -> Any:
        with fabric.autocast():
            output = forward(*(in_dtype(inputs, exact) for inputs in views), **kwargs)
        return tuple(p._replace(logits=p.logits.to(exact), features=p.features.to(exact)) for p in output)

    model.forward = in_precision
    return model


def add_followed(fabric: Fabric, model: nn.Module) -> nn.Module:
    """A model that learns elsewhere: in the precision it learns in, so that it says what it would have said here."""
    precision = fabric.strategy.precision
    forward = fabric.to_device(precision.convert_module(model)).requires_grad_(False).forward

    def in_precision(*views: Inputs, **kwargs: Any) -> Any:
        with precision.forward_context():  # in which even the usual type is that of the precision
            output = forward(*precision.convert_input(views), **kwargs)
        return precision.convert_output(output)

    model.forward = in_precision
    return model


def without_ddp(fabric: Fabric, model: nn.Module, module: nn.Module) -> nn.Module:
    """A model that can learn, as it is called while it does not: through DDP every call would broadcast its buffers."""
    shares_gradients = isinstance(model._forward_module, DistributedDataParallel)
    return _FabricModule(module, fabric.strategy) if shares_gradients else model


def share_buffers(module: nn.Module) -> None:
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


def describe(fabric: Fabric, spec: RunSpec) -> dict[str, Any]:
    """What a result should say of the machine it was made on."""
    before = {"processes_before": [*spec.processes_before], "bit_equal": False} if spec.processes_before else {}
    return {
        "torch": torch.__version__,
        "device": str(fabric.device),
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        **before,
    }
