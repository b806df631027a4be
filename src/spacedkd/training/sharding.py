"""Networks whose weights are spread over devices (FSDP2): each keeps a part, and has a block whole while it computes.

Every model is wrapped by itself, those that stand still too. What is saved is whole, so that any number of devices, or
one, can read it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from spacedkd.training.fabric import Fabric, ModelParallelStrategy


def sharding(processes: int) -> ModelParallelStrategy:
    """Fabric's strategy for it, with as many parts as there are processes."""
    return ModelParallelStrategy(_sharded, data_parallel_size=processes, tensor_parallel_size=1)


def is_sharding(fabric: Fabric) -> bool:
    return isinstance(fabric.strategy, ModelParallelStrategy)


def shard(fabric: Fabric, model: nn.Module) -> None:
    """Spread a model that will not learn; memories have no weights and stay whole."""
    assert isinstance(fabric.strategy, ModelParallelStrategy)
    if any(True for _ in model.parameters()):
        _sharded(model, fabric.strategy.device_mesh)
    else:
        fabric.to_device(model)


def _sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for part in [*blocks(model), model]:
        # The outermost too gives its weights back after a pass: whoever reads them then reads parts.
        fully_shard(part, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return model


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What stands in a network's outermost rows of modules: the blocks of a transformer or of a ResNet's stages."""
    for child in model.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from (part for part in child if any(True for _ in part.parameters()))
        else:
            yield from blocks(child)


def whole(tensor: Tensor, keep: bool = True) -> Tensor:
    """All parts of a tensor in one, on the CPU; every process must ask, and those that do not `keep` it get nothing."""
    if not isinstance(tensor, DTensor):
        return tensor
    found: Tensor = tensor.full_tensor()
    return found.cpu() if keep else found.new_empty(0)


def spread_like(tensor: Tensor, other: Any) -> Tensor:
    """A whole tensor, which every process has, in parts where `other` is; else as it is."""
    if not isinstance(other, DTensor):
        return tensor
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def spread(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """A whole state as a model takes it."""
    like = model.state_dict()
    return {name: spread_like(tensor, like.get(name)) for name, tensor in state.items()}
