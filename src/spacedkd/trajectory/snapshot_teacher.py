"""Spaced KD in any training loop: the teacher's run saves snapshots, the student's run loads them step by step.

snapshots = Snapshots("runs/teacher", every=586, total=31280)                  # in the teacher's run
teacher = SnapshotTeacher("runs/teacher", interval=586, network=make_network)  # in the student's run
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from spacedkd.averages import Average, average_share, average_so_far
from spacedkd.config.spec import check_folder, read_spec
from spacedkd.models.batch_norm import recompute_batch_norm
from spacedkd.models.classifier import Logits
from spacedkd.models.pretrained import move_average
from spacedkd.runtime.errors import UserError, check_between, format_value, pluralize, whole_number
from spacedkd.runtime.processes import print_notice
from spacedkd.schedule import Duration, Schedule
from spacedkd.timeline import ENDLESS, TeacherUpdates
from spacedkd.trajectory.store import (
    FolderSnapshots,
    RunSnapshots,
    is_first_process,
    open_store,
    read_index,
    shorten,
    state_of,
    unwrapped,
)


class Snapshots:
    """Saves step-N.safetensors in a folder, at an interval of updates and at the end, for a `SnapshotTeacher` to read.

        snapshots = Snapshots("runs/teacher", every=586, total=31280)
        for step, (x, y) in enumerate(loader):
            ...
            optimizer.step()
            snapshots.after(step + 1, teacher)

    A file is never partly written. A run that resumes or restarts keeps the files that it has already written; if its
    weights differ from them, it is refused, unless `overwrite` is set. Of several processes the first one writes.

    Before the first file, a line says how many there will be and how large; where the disk cannot hold them, the run is
    refused. Of a network with adapters (PEFT) the trained parameters alone are saved.

    With `average="poly:2"` a snapshot holds the average of the network's weights over all updates so far; the network
    itself is not changed. `after` must then be called after every update, and `state_dict()` belongs into the trainer's
    checkpoint.
    """

    def __init__(
        self,
        folder: Path | str,
        every: Schedule | Duration | str | int | TeacherUpdates,
        *,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        overwrite: bool = False,
        trained_only: bool | None = None,
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
            overwrite: replace existing files that hold other weights.
            trained_only: save the parameters that require gradients, and all statistics, without frozen parameters;
                None does so for networks with adapters (PEFT).
            average: poly:2 or ema:0.999, for snapshots of averaged weights.
            batches: returns inputs of training batches, always the same, from which BatchNorm's statistics of an
                average are recomputed; without it they are averaged like the weights.
        """
        check_folder("folder", folder)
        self.folder = Path(folder)
        self._store = FolderSnapshots(self.folder, overwrite)
        self._updates = every if isinstance(every, TeacherUpdates) else TeacherUpdates(every, steps_per_epoch, total)
        self._trained_only, self._has_announced = trained_only, False
        if batches is not None and average is None:
            raise UserError("batches are for BatchNorm's statistics of an average: give average= too, or leave it out.")
        self._average = None if average is None else RunningAverage(average_so_far(average), batches)

    def due(self, updates: int) -> bool:
        """Return whether the student sees the network after this number of updates."""
        return self._updates.includes(updates)

    def after(self, updates: int, network: nn.Module) -> Path | None:
        """Save the network if a snapshot is due, and return its file; call this after every update."""
        if self._average is not None:
            self._average.update(whole_number("updates", updates), network)
        return self.save(updates, network) if self.due(updates) else None

    def save(self, updates: int, network: nn.Module) -> Path:
        """Save the network, even if no snapshot is due: for the end of a run whose length was not known."""
        updates = whole_number("updates", updates)
        network = unwrapped(network if self._average is None else self._average.after(updates))
        has_adapters = hasattr(network, "peft_config")
        trained_only = has_adapters if self._trained_only is None else self._trained_only
        if not self._has_announced and is_first_process():
            self._announce(updates, sum(tensor.nbytes for tensor in state_of(network, trained_only).values()))
        return self._store.save(updates, network, trained_only)

    def remove_after(self, updates: int) -> None:
        """Remove snapshots after more updates than these: what a run wrote after the checkpoint it resumes from."""
        self._store.remove_after(updates)

    def available(self) -> Mapping[int, Path]:
        """Return the snapshots in the folder: number of updates -> file."""
        return self._store.own_files()

    def _announce(self, updates: int, size: int) -> None:
        """Print how many snapshots are to be written and how large; refuse them where the disk is too small."""
        self._has_announced = True
        present = self._store.own_files()
        if self._updates.total is None:
            count, words = 1, f"a snapshot of {_megabytes(size)} whenever one is due"
        else:
            count = sum(update >= updates and update not in present for update in self._updates.needed())
            words = f"{pluralize(count, 'snapshot')} of {_megabytes(size)}, {_megabytes(count * size)} in all"
        free = shutil.disk_usage(
            next(path for path in (self.folder, *self.folder.absolute().parents) if path.is_dir())
        ).free
        if count * size > free:
            raise UserError(
                f"{self.folder} is to get {words}, and its disk has {_megabytes(free)} free: choose a longer interval, "
                "or another disk."
            )
        if count:
            print_notice(f"{self.folder} gets {words}")

    def state_dict(self) -> dict[str, Any]:
        """Return the average so far, for the trainer's checkpoint; empty where snapshots are not averaged."""
        return {} if self._average is None else self._average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the average of a checkpoint."""
        if self._average is not None:
            self._average.saved = state


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size < 1e9 else f"{size / 1e9:.3g} GB"


class RunningAverage:
    """The average of a network's weights while a user's loop trains it."""

    def __init__(self, average: Average, batches: Callable[[], Iterable[Any]] | None) -> None:
        self._share = average_share(average, 1, ENDLESS)
        self._batches = batches
        self._module: nn.Module | None = None
        self._updates = 0
        self.saved: Mapping[str, Any] = {}
        """the state of a checkpoint to continue from"""

    def update(self, updates: int, network: nn.Module) -> None:
        """Add the network's weights after `updates` updates to the average; a gap between updates is refused."""
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
        """Return the averaged network; with `batches`, BatchNorm's statistics are recomputed."""
        if self._module is None or self._updates != updates:
            raise UserError(f"The average after {pluralize(updates, 'update')} is not known: call after() instead.")
        if self._batches is not None:
            recompute_batch_norm(self._module, self._module, self._batches())
        return self._module

    def state_dict(self) -> dict[str, Any]:
        return {} if self._module is None else {"updates": self._updates, "average": self._module.state_dict()}


class SnapshotTeacher(nn.Module):
    """The frozen teacher of a student's run, read from the snapshots that the teacher's own run saves.

    At step t, counted from 0, it is the teacher after ceil((t+1)/s) s updates, at most `total`; with another schedule,
    after the updates of that schedule. `seek(t)` loads this snapshot if it is not loaded yet, and depends on t alone.

        teacher = SnapshotTeacher("runs/teacher", interval=586, network=make_network, total=31280)
        for step, (x, y) in enumerate(loader):
            loss = 0.7 * cross_entropy(z := student(x), y) + 0.3 * kl(z, teacher.seek(step)(x), temperature=3)

    A call returns the output of its network, without gradients and in eval mode, even after `train()`. Attributes of
    the network (`config`, `forward_features`, ...) are attributes of the teacher.

    The network's weights are not among the parameters, buffers or state_dict of the teacher. So a student may hold it
    as a submodule: optimizers, checkpoints and DDP do not see it, and `.to(device)` moves it. A copy (`deepcopy`) has
    weights of its own.
    """

    network: nn.Module
    """frozen network with the weights of the last `seek`; not a submodule in the sense of torch"""
    _loaded: nn.Module
    """module that snapshots are loaded into: the network, or, for a recorded run, the model around it"""
    updates: int | None
    """number of updates of the loaded weights; None before the first `seek`"""

    def __init__(
        self,
        folder: Path | str,
        interval: Schedule | Duration | str | int | TeacherUpdates,
        network: nn.Module | Callable[[], nn.Module] | None = None,
        *,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        prefix: str | None = None,
        wait: float = 0.0,
        dtype: torch.dtype | None = None,
        role: str | None = None,
        trust_code: bool = False,
    ) -> None:
        """Read the snapshots in a folder.

        Args:
            folder: step-N.safetensors, checkpoint-N/ or ...step=N.ckpt files, or a run with --record, whose spec has
                the network and the length.
            interval: the student's interval: steps, "1.5ep" with `steps_per_epoch`, or any schedule.
            network: a function that makes the teacher's network, or a network to copy; a run with --record needs none.
            total: the length of the run in steps, for a last block that is shorter than the interval.
            steps_per_epoch: the length of an epoch in steps.
            prefix: the prefix of the weights' names in the files, such as "model." in Lightning's.
            wait: the most seconds to wait for a snapshot that is still to come.
            dtype: the precision of the teacher, such as torch.bfloat16; inputs in floating point are converted to it.
            role: the role of a run with --record.
            trust_code: import user code that the run's spec names.
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
        self.total, self.steps_per_epoch = total, steps_per_epoch
        self.teacher_updates = (
            interval if isinstance(interval, TeacherUpdates) else TeacherUpdates(interval, steps_per_epoch, total)
        )
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UserError(f"dtype must be one of floating point, such as torch.bfloat16; got {format_value(dtype)}.")
        self._dtype = dtype
        # An ordinary assignment would make it a submodule, whose weights optimizers and checkpoints see.
        object.__setattr__(self, "network", made.requires_grad_(False).eval())
        object.__setattr__(self, "_loaded", loaded)
        self.updates = None
        self.training = False

    def seek(self, step: int) -> Self:
        """Load the weights for this step of the student, counted from 0, and return the teacher."""
        updates = self.teacher_updates.at(step)
        if updates != self.updates:
            tensors = self._store.read_when_available(updates, self.wait)
            if tensors is None:
                raise self._missing(updates, step)
            is_first = self.updates is None
            self._store.load(updates, self._loaded, self._prefix, tensors, check_frozen=is_first)
            if is_first and self._dtype is not None:  # not before: frozen parameters are compared as they were given
                self.network.to(self._dtype)
            self.updates = updates
        return self

    def check_snapshots(self, steps: range) -> None:
        """Refuse a run over these steps if a snapshot is missing; with `wait` it may still come."""
        present = {} if self.wait else self._store.available()
        for step in () if self.wait else steps:
            if (updates := self.teacher_updates.at(step)) not in present:
                raise self._missing(updates, step)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the network's output, without gradients."""
        if self.updates is None:
            raise UserError("A SnapshotTeacher must know the student's step before it is called: teacher.seek(step).")
        if self._dtype is not None:
            inputs, named = tuple(map(self._convert, inputs)), {k: self._convert(value) for k, value in named.items()}
        with torch.no_grad():
            return self.network(*inputs, **named)

    def _convert(self, value: Any) -> Any:
        is_floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self._dtype) if is_floating else value

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the network, if torch finds none; names like `__copy__` are never the network's."""
        if name.startswith("__") or "network" not in self.__dict__:
            return super().__getattr__(name)
        return getattr(self.network, name)

    def train(self, mode: bool = True) -> Self:
        """Do nothing: the teacher stays in eval mode."""
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply `.to()`, `.cuda()` and `.half()` to the network, also if a student that holds the teacher is moved."""
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
    """Return a network that only the teacher has; a given module may be the student, so it is copied."""
    made = deepcopy(network) if isinstance(network, nn.Module) else network() if callable(network) else network
    if not isinstance(made, nn.Module):
        raise UserError(f"network must be an nn.Module, or a function that makes one; got {type(made).__name__}.")
    return made


def _build_recorded(store: RunSnapshots, trust_code: bool) -> tuple[nn.Module, int]:
    """Return the model of a recorded role as its run builds it, and the steps of an epoch there."""
    spec = read_spec(store.run, trust_code)
    of_training = ("optimizer", "lr")  # not needed for a frozen network
    own = [name for name in spec.objects if name not in of_training]
    if own:
        raise UserError(
            f"{store.run} was given a {own[0]} of your own: give network=, a function that makes its network."
        )
    # They need libraries that snapshots of other trainers do without.
    from spacedkd.config.optimizer import OptimizerSpec, RateSpec
    from spacedkd.config.resolve import resolve
    from spacedkd.training.build import build_models

    run = resolve(replace(spec, rate=RateSpec(), optimizer=OptimizerSpec(), objects={}))
    learner = next(
        model
        for role, model in run.method.learners.items()
        if store.role == role or store.role.startswith(f"{role} average ")  # an average of its weights
    )
    return build_models(run)[learner], run.steps_per_epoch
