"""Spaced KD in any training loop: the teacher's run leaves snapshots, the student's run sees them step by step.

snapshots = Snapshots("runs/teacher", every=586, total=31280)                  # in the teacher's run
teacher = SnapshotTeacher("runs/teacher", interval=586, network=make_network)  # in the student's run
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from spacedkd.averages import Average, average_share, average_so_far
from spacedkd.config.optimizer import OptimizerSpec, RateSpec
from spacedkd.config.resolve import resolve
from spacedkd.config.spec import check_folder, read_spec
from spacedkd.models.batch_norm import recompute_batch_norm
from spacedkd.models.classifier import Logits
from spacedkd.models.pretrained import move_average
from spacedkd.runtime.errors import UserError, check_between, pluralize, whole_number
from spacedkd.schedule import Duration, Schedule
from spacedkd.timeline import ENDLESS, TeacherUpdates
from spacedkd.training.build import build_models
from spacedkd.trajectory.store import (
    FolderSnapshots,
    RunSnapshots,
    load_weights,
    open_store,
    read_index,
    shorten,
    unwrapped,
)


class Snapshots:
    """Saves step-N.safetensors in a folder, every so many updates and at the end, for a `SnapshotTeacher` to read.

        snapshots = Snapshots("runs/teacher", every=586, total=31280)
        for step, (x, y) in enumerate(loader):
            ...
            optimizer.step()
            snapshots.after(step + 1, teacher)

    Files are there whole or not at all. A run that was stopped and resumes, or restarts, finds its files and leaves
    them as they are; other weights in their place are refused unless `overwrite` says so. Of several processes the
    first one writes.

    With `average="poly:2"` a snapshot holds the average of the network's weights over all updates so far, and the
    network itself learns as ever. `after` must then be called after every update, and `state_dict()` belongs into the
    trainer's checkpoint.
    """

    def __init__(
        self,
        folder: Path | str,
        every: Schedule | Duration | str | int,
        *,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        overwrite: bool = False,
        average: str | None = None,
        batches: Callable[[], Iterable[Any]] | None = None,
    ) -> None:
        """Save snapshots in a folder.

        Args:
            folder: where they are saved.
            every: the student's interval: steps, "1.5ep" with `steps_per_epoch`, or any schedule, for instance
                `Spaced(586, speed=2)`.
            total: the length of the run in steps.
            steps_per_epoch: the length of an epoch in steps.
            overwrite: whether other weights are replaced.
            average: poly:2 or ema:0.999, for snapshots of averaged weights.
            batches: returns inputs of training batches, always the same, from which BatchNorm's statistics of an
                average are recomputed; without it they are averaged like the weights.
        """
        check_folder("folder", folder)
        self.folder = Path(folder)
        self._store = FolderSnapshots(self.folder, overwrite)
        self._updates = TeacherUpdates(every, steps_per_epoch, total)
        if batches is not None and average is None:
            raise UserError("batches are for BatchNorm's statistics of an average: give average= too, or leave it out.")
        self._average = None if average is None else RunningAverage(average_so_far(average), batches)

    def due(self, updates: int) -> bool:
        """Return whether the student sees the network after so many updates."""
        return self._updates.includes(updates)

    def after(self, updates: int, network: nn.Module) -> Path | None:
        """Save the network if that is due; to be called after every update. Returns the file, where there is one."""
        if self._average is not None:
            self._average.update(whole_number("updates", updates), network)
        return self.save(updates, network) if self.due(updates) else None

    def save(self, updates: int, network: nn.Module) -> Path:
        """Save the network, whether that is due or not: at the end of a run whose length was not known."""
        updates = whole_number("updates", updates)
        return self._store.save(updates, network if self._average is None else self._average.after(updates))

    def state_dict(self) -> dict[str, Any]:
        """Return the average so far, for the trainer's checkpoint; empty where snapshots are not averaged."""
        return {} if self._average is None else self._average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the average of a checkpoint."""
        if self._average is not None:
            self._average.saved = state


class RunningAverage:
    """The average of a network's weights while somebody's loop trains it."""

    def __init__(self, average: Average, batches: Callable[[], Iterable[Any]] | None) -> None:
        self._share = average_share(average, 1, ENDLESS)
        self._batches = batches
        self._module: nn.Module | None = None
        self._updates = 0
        self.saved: Mapping[str, Any] = {}
        """the state of a checkpoint to continue from"""

    def update(self, updates: int, network: nn.Module) -> None:
        """Take the network's weights after so many updates; one that follows on no known average is refused."""
        source = unwrapped(network)
        if self._module is None or self.saved:
            self._module = deepcopy(source).requires_grad_(False).eval()
            self._updates = int(self.saved.get("updates", 0))
            if self.saved:
                self._module.load_state_dict(self.saved["average"])
            self.saved = {}
        if updates == self._updates:  # counted already: gradients were accumulated
            return
        if updates != self._updates + 1:
            raise UserError(
                f"The average of weights is known after {pluralize(self._updates, 'update')}, and update {updates} is "
                "the next: call after() after every update, and on a resume give load_state_dict() what state_dict() "
                "returned at the checkpoint."
            )
        move_average(self._module, source, self._share(updates - 1))
        self._updates = updates

    def after(self, updates: int) -> nn.Module:
        """Return the averaged network, with BatchNorm's statistics as they belong to it."""
        if self._module is None or self._updates != updates:
            raise UserError(f"The average after {pluralize(updates, 'update')} is not known: call after() instead.")
        if self._batches is not None:
            recompute_batch_norm(self._module, self._module, self._batches())
        return self._module

    def state_dict(self) -> dict[str, Any]:
        return {} if self._module is None else {"updates": self._updates, "average": self._module.state_dict()}


class SnapshotTeacher(nn.Module):
    """The frozen teacher of a student's run, read from the snapshots that the teacher's own run leaves.

    At step t, counted from 0, it is the teacher after ceil((t+1)/s) s updates, at most `total`, or after as many as
    another schedule says: `seek(t)` reads that snapshot when it is another than before, and depends on nothing but t.

        teacher = SnapshotTeacher("runs/teacher", interval=586, network=make_network, total=31280)
        for step, (x, y) in enumerate(loader):
            loss = 0.7 * cross_entropy(z := student(x), y) + 0.3 * kl(z, teacher.seek(step)(x), temperature=3)

    It answers as its network does, without gradients and in eval mode, whatever `train()` says, and has what its
    network has (`config`, `forward_features`, ...). Its weights are none of its parameters, buffers or state: a student
    that holds it as a part has the optimizer, the checkpoints and the DDP of a student without it, and moves it along
    with `.to(device)`. A copy (`deepcopy`) has weights of its own.
    """

    network: nn.Module
    """frozen, with the weights of the last `seek`; not among the modules of whoever holds the teacher"""
    _loaded: nn.Module
    """the module that the weights of a snapshot belong to: the network, or, of a recorded run, the model around it"""
    updates: int | None
    """how many the weights have had; None before the first `seek`"""

    def __init__(
        self,
        folder: Path | str,
        interval: Schedule | Duration | str | int,
        network: nn.Module | Callable[[], nn.Module] | None = None,
        *,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        prefix: str | None = None,
        wait: float = 0.0,
        role: str | None = None,
        trust_code: bool = False,
    ) -> None:
        """Read snapshots in `folder` into a network: a function that makes it, or one to copy.

        `folder` holds step-N.safetensors, checkpoint-N/ or ...step=N.ckpt, or is a run with --record, whose spec says
        the network (code that it names is imported only with `trust_code`), how long it is, and by which `role`.

        `interval` is steps, a length such as "1.5ep" with `steps_per_epoch`, or any schedule; `total` is the length of
        the run, which a last block shorter than the interval needs to know. Names in the files begin with `prefix`, as
        Lightning's do with "model.". A snapshot that is still to come is waited for, `wait` seconds at the most.
        """
        super().__init__()
        check_folder("folder", folder)
        check_between("wait", wait, 0)
        self.folder, self.wait = Path(folder), wait
        self._store = open_store(self.folder, role, wait)
        if isinstance(self._store, RunSnapshots):
            total = total or read_index(self._store.run)[self._store.role].settings["steps to learn"]
        self._prefix = self._store.network_prefix if prefix is None else prefix
        if network is not None:
            made = loaded = _make(network)
        elif isinstance(self._store, RunSnapshots):
            if prefix is not None:
                raise UserError(f"The run in {folder} knows its network and the names in it: leave prefix= out.")
            loaded, epoch = _build_recorded(self._store, trust_code)
            made, self._prefix, steps_per_epoch = Logits(loaded), "", steps_per_epoch or epoch
        else:
            raise UserError(f"The weights in {folder} need a network: give network=, a function that makes it.")
        self.teacher_updates = TeacherUpdates(interval, steps_per_epoch, total)
        # Not as torch would, which would make it a part, with parameters for optimizers and tensors for checkpoints.
        object.__setattr__(self, "network", made.requires_grad_(False).eval())
        object.__setattr__(self, "_loaded", loaded)
        self.updates = None
        self.training = False

    def seek(self, step: int) -> Self:
        """Load the weights that belong to this step of the student, counted from 0, and return the teacher."""
        updates = self.teacher_updates.at(step)
        if updates != self.updates:
            tensors = self._store.read_when_available(updates, self.wait)
            if tensors is None:
                raise self._missing(updates, step)
            load_weights(self._loaded, tensors, self._prefix, self._store.find(updates) or self.folder)
            self.updates = updates
        return self

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the network gives for its inputs, without gradients."""
        if self.updates is None:
            raise UserError("A SnapshotTeacher must know the student's step before it is called: teacher.seek(step).")
        with torch.no_grad():
            return self.network(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        """Return what torch finds in no other way; Python's own names, as of copying, are never the network's."""
        if name.startswith("__") or "network" not in self.__dict__:
            return super().__getattr__(name)
        return getattr(self.network, name)

    def train(self, mode: bool = True) -> Self:
        """Do nothing: the teacher stays in eval mode."""
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Do what `.to()`, `.cuda()` and `.half()` do, also when the teacher is a part of what is moved."""
        self.network._apply(fn, recurse)
        return super()._apply(fn, recurse)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{str(self.folder)!r}, {type(self.network).__name__}, updates={self.updates}"

    def _missing(self, updates: int, step: int) -> UserError:
        way_out = self._store.missing_for_good(updates)
        if way_out is None:
            way_out = (
                "train the teacher further with this interval, give wait=SECONDS while it is trained, or total= if it "
                "ends"
            )
            if updates == self.teacher_updates.total:
                way_out = (
                    "it is that of the last block, which may be shorter than the interval. Save the teacher at the end "
                    "of its run too, or give wait=SECONDS while it is trained"
                )
            way_out += f" (waited {self.wait:g} s)" if self.wait else ""
        return UserError(
            f"{self.folder} has no snapshot after {pluralize(updates, 'update')}, which step {step} needs; it has "
            f"those after {shorten(self._store.available())}: {way_out}."
        )


def _make(network: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """Return a network of the teacher's own; one that was given may be the student, and is copied."""
    made = deepcopy(network) if isinstance(network, nn.Module) else network() if callable(network) else network
    if not isinstance(made, nn.Module):
        raise UserError(f"network must be an nn.Module, or a function that makes one; got {type(made).__name__}.")
    return made


def _build_recorded(store: RunSnapshots, trust_code: bool) -> tuple[nn.Module, int]:
    """Return the model of a recorded role as its run builds it, and the steps of an epoch there."""
    spec = read_spec(store.run, trust_code)
    how_trained = ("optimizer", "lr")  # which does not matter any more
    own = [name for name in spec.objects if name not in how_trained]
    if own:
        raise UserError(
            f"{store.run} was given a {own[0]} of your own: give network=, a function that makes its network."
        )
    run = resolve(replace(spec, rate=RateSpec(), optimizer=OptimizerSpec(), objects={}))
    learner = next(
        model
        for role, model in run.method.learners.items()
        if store.role == role or store.role.startswith(f"{role} average ")  # an average of its weights
    )
    return build_models(run)[learner], run.steps_per_epoch
