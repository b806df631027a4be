"""Snapshots of a network while any loop trains it: step-N.safetensors, its weights and statistics after N updates."""

from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spacedkd.config.spec import check_folder
from spacedkd.runs import tensor_file
from spacedkd.runtime import processes
from spacedkd.runtime.errors import UserError, whole_number
from spacedkd.runtime.files import make_durable, naming
from spacedkd.schedule import Duration, Spaced
from spacedkd.timeline import TeacherUpdates
from spacedkd.trajectory import formats


class Snapshots:
    """Leaves step-N.safetensors in a folder, every so many updates and at the end, for a `SnapshotTeacher` to read.

        snapshots = Snapshots("runs/teacher", every=586, total=31280)
        for step, (x, y) in enumerate(loader):
            ...
            optimizer.step()
            snapshots.after(step + 1, teacher)

    Files are there whole or not at all. A run that was stopped and goes on, or begins again, finds its files and leaves
    them as they are; other weights in their place are refused unless `overwrite` says so. Of several processes the
    first one writes.
    """

    def __init__(
        self,
        folder: Path | str,
        every: Duration | str | int,
        *,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        overwrite: bool = False,
    ) -> None:
        """`every` is the student's interval: steps, or "1.5ep" with `steps_per_epoch`; `total` is the run's length."""
        check_folder("folder", folder)
        self.folder, self.overwrite = Path(folder), overwrite
        self._updates = TeacherUpdates(every if isinstance(every, str) else Spaced(every), steps_per_epoch, total)

    def due(self, updates: int) -> bool:
        """Whether a student of this interval looks at the network after so many updates."""
        return self._updates.includes(updates)

    def after(self, updates: int, network: nn.Module) -> Path | None:
        """To be called after every update, with their number; gives the file, where there is one."""
        return self.save(updates, network) if self.due(updates) else None

    def save(self, updates: int, network: nn.Module) -> Path:
        """Keep the network as it is, whether that is due or not: at the end of a run whose length was not known."""
        updates = whole_number("updates", updates)
        file = self.folder / f"step-{updates}.safetensors"
        if not _writes():
            return file
        tensors = tensor_file.on_host(_state(network))
        if file.exists() and not self.overwrite:
            _check_same(file, tensors)
            return file
        with naming(self.folder):
            make_durable(self.folder)
        tensor_file.write(file, tensors, {"updates": str(updates)})
        return file


def _writes() -> bool:
    alone = not (distributed.is_available() and distributed.is_initialized())
    return (processes.rank() if alone else distributed.get_rank()) == 0


def _state(network: nn.Module) -> dict[str, Tensor]:
    """Weights and statistics by the names they have without DDP and torch.compile."""
    while isinstance(network, DistributedDataParallel) or hasattr(network, "_orig_mod"):
        network = network.module if isinstance(network, DistributedDataParallel) else network._orig_mod  # type: ignore[assignment]
    state = network.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor) or isinstance(value, DTensor):
            kind = "spread over processes" if isinstance(value, DTensor) else type(value).__name__
            raise UserError(f"{name} of {type(network).__name__} is {kind}: a snapshot holds whole tensors alone.")
    return state


def _check_same(file: Path, tensors: dict[str, Tensor]) -> None:
    """Refuse to mix the paths of two runs: a student would follow neither."""
    there = formats.read(file)
    if there.keys() != tensors.keys() or not all(_same(there[name], tensors[name]) for name in tensors):
        raise UserError(
            f"{file} holds other weights than this run has after as many updates: it is of another run, or a resume "
            "did not give the same bits. Choose another folder, delete this one, or give overwrite=True."
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal bits, NaN included."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
