"""How much memory a run takes: its tensors, what its steps keep, and the process around them."""

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spacedkd.training.setup import Setup


@dataclass(frozen=True)
class Memory:
    """In bytes, as it was during real steps."""

    weights: int
    gradients: int
    optimizers: int
    activations: int
    """of the role that keeps most for its backward pass"""
    process: int
    """the most this process has had so far"""
    device: int | None
    """the most that was allocated on the GPU, if there is one"""


def memory_of(setup: Setup, activations: int) -> Memory:
    """What there is now, after steps of every role that keep at most so many bytes of activations."""
    modules = setup.modules().values()
    weights = {storage_of(t): _bytes(t) for module in modules for t in module.state_dict().values()}
    gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    slots = [
        slot for one in setup.learners.values() for state in one.optimizer.state.values() for slot in state.values()
    ]
    device = setup.fabric.device
    return Memory(
        weights=sum(weights.values()),
        gradients=sum(map(_bytes, gradients)),
        optimizers=sum(_bytes(slot) for slot in slots if isinstance(slot, Tensor)),
        activations=activations,
        process=peak_memory(),
        device=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )


def peak_memory() -> int:
    """The most bytes this process has had in memory so far.

    On Linux `ru_maxrss` would not do: a process that was started by a larger one inherits that one's.
    """
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def kept_for_backward(in_parts: bool = False) -> Iterator[dict[int, int]]:
    """Where in memory what is kept for a backward pass lies, and how many bytes it has.

    Of a batch that is computed in parts it is the last part: those before it have let go of theirs.
    """
    kept: dict[int, int] = {}
    gone_back = False

    def keep(tensor: Tensor) -> Tensor:
        nonlocal gone_back
        if gone_back and in_parts:
            kept.clear()
        gone_back = False
        kept[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def take(tensor: Tensor) -> Tensor:
        nonlocal gone_back
        gone_back = True
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, take):
        yield kept
