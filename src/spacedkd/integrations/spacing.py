"""Spaced KD in any trainer, as two ordinary runs: the teacher's run, then the student's. `Spacing` serves both.

    spacing = Spacing("runs/teacher", every="1.5ep")
    Trainer(callbacks=[spacing.lightning.teacher(part="network")])      # or spacing.transformers.teacher()
    Trainer(callbacks=[spacing.lightning.student(make_network)])        # or spacing.transformers.student()
    for step, batch in spacing.steps(loader, epochs=90, save=network):  # in a training loop of your own
        ...

It combines `Snapshots`, which the teacher's run writes, and `SnapshotTeacher`, which reads them in the student's run.
"""

from __future__ import annotations

import copy
import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from spacedkd.data.dataloader import SeededBatchSampler, rank_and_processes
from spacedkd.data.generators import preserve_generators
from spacedkd.runtime.documents import read_small_json
from spacedkd.runtime.errors import Damaged, UserError, format_value, pluralize, whole_number
from spacedkd.runtime.files import make_durable, write_errors, write_json
from spacedkd.runtime.processes import print_notice
from spacedkd.schedule import Duration, Schedule
from spacedkd.timeline import TeacherUpdates, parse_interval
from spacedkd.trajectory.snapshot_teacher import Snapshots, SnapshotTeacher
from spacedkd.trajectory.store import RECORD, is_first_process

if TYPE_CHECKING:
    from spacedkd.integrations.lightning import LightningCallbacks
    from spacedkd.integrations.transformers import TransformersCallbacks

FIRST_ROWS = 8
"""number of dataset rows that the fingerprint of a run's batches has"""


class RunTiming(TeacherUpdates):
    """The teacher's updates at each step of the student, in a run whose length is known when it starts."""

    def __init__(self, interval: Schedule | Duration | str | int) -> None:
        self.interval, self.total = parse_interval(interval), None
        self.is_known = False

    def start(self, steps_per_epoch: int | None, total: int | None) -> None:
        """Compute the updates for a run of this length."""
        self.__dict__.pop("_updates_seen", None)  # those of a run before
        super().__init__(self.interval, steps_per_epoch, total)
        self.is_known = True

    def at(self, step: int) -> int:
        self._check_known()
        return super().at(step)

    def includes(self, update: int) -> bool:
        self._check_known()
        return super().includes(update)

    def _check_known(self) -> None:
        if not self.is_known:
            raise UserError(
                "The run that this Spacing serves has not started: give its trainer callbacks=[spacing.lightning."
                "student()] or [spacing.transformers.student()], or loop over spacing.steps(loader)."
            )


class Spacing:
    """Spaced KD in any trainer, for both runs: the teacher's saves snapshots, and the student's reads them.

    The length of the run and of an epoch are the trainer's. The folder also gets spacing.json: the length of the
    teacher's run and a fingerprint of its batches (seed, size, count, first rows, digest of the first batch); the
    student's run is refused where its own differ. A teacher's run that resumes removes the snapshots that were written
    after the step it resumes from.
    """

    def __init__(
        self,
        folder: Path | str,
        every: Schedule | Duration | str | int,
        *,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        same_batches: bool = True,
        **options: Any,
    ) -> None:
        """Make the object for one teacher's run and its students' runs; nothing is read or written yet.

        Args:
            folder: of the snapshots. The student also reads checkpoints of Hugging Face (checkpoint-N/) or Lightning
                (...step=N.ckpt), or a run with --record.
            every: the interval: steps, "1.5ep", "10%", "online", "offline", or any schedule.
            total: the run's number of steps (updates), where neither a trainer nor a loader knows it.
            steps_per_epoch: the number of steps of an epoch, likewise.
            same_batches: refuse a student whose batches are not those of the teacher.
            options: those of `Snapshots`: overwrite, trained_only, average, batches.
        """
        self._timing = RunTiming(every)
        self.snapshots = Snapshots(folder, self._timing, **options)
        self.folder = self.snapshots.folder
        # Weak, so that the teacher of one student is not read any more for the next one.
        self._teachers = WeakSet[SnapshotTeacher]()
        self._total = None if total is None else whole_number("total", total, 1)
        self._epoch = None if steps_per_epoch is None else whole_number("steps_per_epoch", steps_per_epoch, 1)
        self._overwrite, self._same_batches = options.get("overwrite", False), same_batches
        self._record: dict[str, Any] | None = None
        self._is_student = self._has_warned = False
        self._position: Position | None = None
        self._loop: Loop | None = None

    @property
    def teachers(self) -> list[SnapshotTeacher]:
        """The teachers that were made and are still in use."""
        return [*self._teachers]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_teachers": self.teachers}  # Lightning may pickle its callbacks

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_teachers": WeakSet(state["_teachers"])})

    @property
    def total(self) -> int | None:
        """The number of steps of the run, as far as it is known."""
        return self._timing.total

    # For trainers

    @property
    def lightning(self) -> LightningCallbacks:
        """The callbacks for Lightning's Trainer."""
        from spacedkd.integrations.lightning import LightningCallbacks

        return LightningCallbacks(self)

    @property
    def transformers(self) -> TransformersCallbacks:
        """The callbacks for Hugging Face's Trainer, and all that inherit from it, such as TRL's."""
        from spacedkd.integrations.transformers import TransformersCallbacks

        return TransformersCallbacks(self)

    def teacher(self, network: nn.Module | Callable[[], nn.Module] | None = None, **options: Any) -> SnapshotTeacher:
        """Return the frozen teacher of the student's run, whose weights this object keeps at the student's step.

        `network` is a function that makes the teacher's network, or a network to copy; a run with --record needs none.
        `options` are those of `SnapshotTeacher`: prefix, wait, dtype, role, trust_code.
        """
        made = SnapshotTeacher(
            self.folder, self._timing, network, total=self._total, steps_per_epoch=self._epoch, **options
        )
        self._teachers.add(made)
        return made

    def start_teacher(self, run: TrainerRun, done: int) -> None:
        """Start the teacher's run, or resume it after `done` updates; snapshots of a later step are removed."""
        run.check_shared()
        total, epoch = self._length(run)
        self._timing.start(epoch, total)
        self._is_student, self._record = False, self._read_record()
        if self._overwrite and not done:
            self.snapshots.remove_after(0)
            self._record = None
        fingerprint = run.fingerprint(done)
        record = {"total": total, "batches": fingerprint}
        if not done and not self.snapshots.available():
            self._record = None  # of a run that ended before its first snapshot
        if self._record is not None:
            self._check_batches(fingerprint)
            before = self._record["total"]
            if not done and None not in (before, total) and before != total:
                raise UserError(
                    f"{self.folder} has the snapshots of a run of {_steps(before)}, and this one has {_steps(total)}: "
                    "choose another folder, or give Spacing overwrite=True."
                )
            record["batches"] = {**self._record["batches"], **fingerprint}
        if done:
            self.snapshots.remove_after(done)
        self._write_record(record)

    def start_student(self, run: TrainerRun, done: int) -> None:
        """Start the student's run, or resume it after `done` updates; other batches, or more steps, are refused."""
        run.check_shared()
        total, epoch = self._length(run)
        self._is_student, self._record = True, self._read_record()
        if self._record is not None:
            self._check_batches(run.fingerprint(done))
        elif not self._has_warned:
            self._has_warned = True
            print_notice(f"{self.folder} does not say which batches its teacher learned: give the student the same")
        recorded_total = None if self._record is None else self._record["total"]
        lengths = [recorded_total, *(teacher.total for teacher in self.teachers)]
        teacher_total = next((length for length in lengths if length is not None), None)
        if None not in (total, teacher_total) and total > teacher_total:  # type: ignore[operator]
            raise UserError(
                f"The student's run has {_steps(total)}, and the teacher's in {self.folder} has "
                f"{_steps(teacher_total)}: make them equal."
            )
        epochs = [teacher.steps_per_epoch for teacher in self.teachers if teacher.steps_per_epoch is not None]
        self._timing.start(next(iter(epochs), epoch), teacher_total or total)
        for teacher in self.teachers if total else ():
            teacher.check_snapshots(range(done, total or 0))

    def see_first_batch(self, batch: Any) -> None:
        """Compare the first batch of a run with the teacher's, or, in the teacher's run, record it."""
        digests: list[Any] = [None] * _processes()
        if len(digests) == 1:
            own: dict[str, Any] = {"digest of the first batch": digest_of(batch)}
        else:
            distributed.all_gather_object(digests, digest_of(batch))  # so that all processes are refused, or none
            own = {f"digest of the first batch in each of {len(digests)} processes": digests}
        if self._record is not None:
            self._check_batches(own)
        if not self._is_student and self._record is not None:
            self._write_record({**self._record, "batches": {**self._record["batches"], **own}})

    def seek(self, step: int) -> None:
        """Give every teacher the weights of a step of the student."""
        for teacher in self.teachers:
            teacher.seek(step)

    def end_teacher(self, updates: int) -> None:
        """Record how many updates the teacher's run has made, where it is not known before or the run ends early."""
        if self._record is not None and self._record["total"] != updates:
            self._write_record({**self._record, "total": updates})
        _wait_for_all()

    # For a user's training loop

    def steps(
        self,
        loader: Iterable[Any],
        *,
        save: nn.Module | None = None,
        epochs: int | None = None,
        accumulate: int | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield (step, batch) for a training loop; a step is the number of updates that were made before the batch.

        Args:
            loader: a `seeded_loader` of all steps, or any sized loader, which is an epoch.
            save: the network of the teacher's run, of which snapshots are saved; left out in the student's run, where
                `teacher(...)` has made the teacher.
            epochs: how many times the loader is iterated.
            accumulate: batches of an update. Without it an update is a batch, and optimizers that step less often are
                refused.
        """
        if save is not None and not isinstance(save, nn.Module):
            raise UserError(f"save must be the network that the teacher's run trains; got {format_value(save)}.")
        if save is None and not self.teachers:
            raise UserError(
                "Whose run is this? Give steps(loader, save=network) in the teacher's, and call spacing.teacher(make) "
                "before it in the student's."
            )
        passes = Passes(loader, epochs, accumulate, self._total)
        position = self._take_position(save is not None, passes)
        if not position.is_started:
            run = TrainerRun(passes.total, passes.steps_per_epoch, loader, passes.accumulate)
            (self.start_student if save is None else self.start_teacher)(run, position.updates)
            position.is_started = True
        self._loop = loop = Loop(self, save, accumulate, position)
        with loop.count_optimizer_steps():
            for batch in passes.batches(position):
                if position.updates >= passes.total:
                    break
                if position.batches == 0:
                    self.see_first_batch(batch)
                if save is None:
                    self.seek(position.updates)
                loop.is_in_body, loop.has_stepped = True, False
                yield position.updates, batch
                loop.end_of_body()
                if position.updates >= passes.total:
                    break
        if position.updates >= passes.total:
            position.is_complete, self._loop = True, None  # the next loop is another run
            _wait_for_all()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the states of all random generators, for a checkpoint of a user's loop.

        Call it at the end of the loop's body, after the optimizer's step. Of several processes each has its own.
        """
        if self._loop is not None:
            self._loop.end_of_body()
        position = self._position or Position()
        return {
            "batches": position.batches,
            "updates": position.updates,
            "batches since the update": position.since_update,
            "rank": _rank(),
            "generators": all_generator_states(position.own_generators),
            "generators at the start of the pass": position.at_pass_start,
            "snapshots": self.snapshots.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next loop over `steps` begins where it was taken."""
        own_rank = state["rank"] == _rank()
        if not own_rank and not _accelerate_is_used():  # which keeps the states of all processes itself
            warnings.warn(
                f"This state is that of process {state['rank']}, so the generators of process {_rank()} are not "
                "restored: save the state_dict() of each process.",
                stacklevel=2,
            )
        self._position = Position(
            batches=int(state["batches"]),
            updates=int(state["updates"]),
            since_update=int(state["batches since the update"]),
            at_pass_start=state["generators at the start of the pass"] if own_rank else None,
            to_restore=state["generators"] if own_rank else None,
        )
        self._loop = None
        self.snapshots.load_state_dict(state["snapshots"])

    def _take_position(self, is_teacher: bool, passes: Passes) -> Position:
        """Return the position where a loop begins: a loaded state, the end of the last pass, or the loader's start."""
        position = self._position
        is_loaded = position is not None and not position.is_started
        is_in_run = position is not None and position.is_teacher == is_teacher and not position.is_complete
        if position is None or not (is_loaded or (is_in_run and not passes.is_whole_run)):
            position = Position(batches=passes.start, updates=passes.start // passes.accumulate)
        elif passes.start not in (0, position.batches):
            raise UserError(
                f"The loader begins at step {passes.start}, and the loaded state is after {position.batches} batches: "
                "let the loader begin at 0."
            )
        position.is_teacher, position.own_generators = is_teacher, passes.own_generators
        self._position = position
        return position

    # The record of the teacher's run

    def _length(self, run: TrainerRun) -> tuple[int | None, int | None]:
        """Return the total and the steps per epoch of a run; a given total may be longer than this part of the run."""
        if self._total is not None and run.total is not None and run.total > self._total:
            raise UserError(f"total={self._total} says how long the run is, and this one has {_steps(run.total)}.")
        return self._total or run.total, self._epoch or run.steps_per_epoch

    def _read_record(self) -> dict[str, Any] | None:
        file = self.folder / RECORD
        if not file.is_file():
            return None
        record = read_small_json(file)
        if not isinstance(record.get("batches"), dict) or not isinstance(record.get("total"), int | None):
            raise Damaged(f"{file} is damaged: it has no total or no batches. Delete it, and batches are not compared.")
        return record

    def _write_record(self, record: dict[str, Any]) -> None:
        self._record = record
        if is_first_process():
            with write_errors(self.folder):
                make_durable(self.folder)
                write_json(self.folder / RECORD, record)

    def _check_batches(self, own: Mapping[str, Any]) -> None:
        """Refuse batches that differ from those of the teacher's run, by the name of what differs."""
        assert self._record is not None
        theirs = self._record["batches"]
        different = [name for name in own if name in theirs and theirs[name] != own[name]]
        if different and self._same_batches:
            words = "; ".join(f"{name}: {own[name]} here, {theirs[name]} there" for name in different)
            raise UserError(
                f"The batches of this run are not those of the teacher's run in {self.folder}: {words}. Give both the "
                "same, for instance by seeded_loader(dataset, batch_size, seed), or say Spacing(..., "
                "same_batches=False)."
            )


def _steps(total: int | None) -> str:
    return "unknown length" if total is None else pluralize(total, "step")


# A training run, and the fingerprint of its batches


@dataclass(frozen=True)
class TrainerRun:
    """A run of a user's trainer or loop: its length, and the loader of its batches."""

    total: int | None
    """updates of the whole run; None where the trainer does not know it"""
    steps_per_epoch: int | None
    loader: Any
    accumulate: int = 1
    """batches of an update, in each process"""

    def fingerprint(self, done: int) -> dict[str, Any]:
        """Return the facts about a run's batches that its loader has, by name; no batch is loaded.

        After a resume the first rows are left out: the loader may have drawn them already.
        """
        sampler = base_sampler(self.loader)
        facts = {
            "seed": _seed(sampler),
            "batch size": _batch_size(self.loader),
            "batches per update": self.accumulate,
            "items": _length_of(getattr(self.loader, "dataset", None)),
            "steps per epoch": self.steps_per_epoch,
            "first rows": None if done else _first_rows(sampler),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def check_shared(self) -> None:
        """Refuse a loader that gives the same batches, or unrelated ones, to each of several processes."""
        sampler, is_plain_loader = base_sampler(self.loader), type(self.loader) is DataLoader
        if _processes() > 1 and is_plain_loader and type(sampler) in (RandomSampler, SequentialSampler):
            if hasattr(self.loader.batch_sampler, "batch_sampler"):  # accelerate's, which shares batches out
                return
            raise UserError(
                f"Each of {_processes()} processes would take batches of its own from this {type(sampler).__name__}: "
                "make the loader by seeded_loader(dataset, batch_size, seed), or give it "
                "sampler=DistributedSampler(dataset, seed=0)."
            )


def base_sampler(loader: Any) -> Any:
    """Return the sampler that orders the rows of a loader: the innermost, inside of batch samplers and shards."""
    sampler = getattr(loader, "batch_sampler", None) or getattr(loader, "sampler", None)
    while not isinstance(sampler, SeededBatchSampler):
        inner = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        if inner is None or inner is sampler:
            break
        sampler = inner
    return sampler


def _seed(sampler: Any) -> int | None:
    generator = getattr(sampler, "generator", None)
    names = (getattr(sampler, name, None) for name in ("seed", "initial_seed"))
    seed = next((value for value in names if isinstance(value, int)), None)
    return generator.initial_seed() if seed is None and isinstance(generator, torch.Generator) else seed


def _batch_size(loader: Any) -> int | None:
    """Return the items in a batch of all processes together."""
    sampler: Any = getattr(loader, "batch_sampler", None)
    inner = getattr(sampler, "batch_sampler", None)
    if inner is not None:  # accelerate's shard
        size, share = getattr(inner, "batch_size", None), 1 if sampler.split_batches else sampler.num_processes
    else:
        size = getattr(sampler, "batch_size", None) or getattr(loader, "batch_size", None)
        share = 1 if isinstance(sampler, SeededBatchSampler) else _processes()
    return None if size is None else size * share


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _first_rows(sampler: Any) -> list[int] | None:
    """Return the first rows of the first epoch; None where they depend on what is drawn before."""
    if isinstance(sampler, SeededBatchSampler):
        rows: list[int] = sampler.global_batch(0).rows[:FIRST_ROWS].tolist()
        return rows
    own = getattr(sampler, "generator", None)
    is_seeded = hasattr(sampler, "initial_seed")  # accelerate's
    if sampler is None or (own is None and hasattr(sampler, "generator") and not is_seeded):
        return None
    sampler = copy.copy(sampler)  # so that its generator is not drawn from
    if is_seeded:
        sampler.generator = torch.Generator()
    elif own is not None:
        sampler.generator = own.clone_state()
    if hasattr(sampler, "epoch"):
        sampler.epoch = 0
    if isinstance(sampler, DistributedSampler):
        sampler.rank = 0
    with preserve_generators():
        drawn = [*islice(sampler, FIRST_ROWS)]
    return [int(row) for row in drawn] if all(isinstance(row, int | np.integer) for row in drawn) else None


def digest_of(batch: Any) -> str:
    """Return a digest of all tensors in a batch, with their shapes and types."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in _tensors(batch):
        digest.update(f"{tensor.dtype} {[*tensor.shape]} ".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from _tensors(value[name])
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for entry in value:
            yield from _tensors(entry)


# The position of a user's loop


@dataclass
class Position:
    """The position of a loop, and what a resume restores before its first batch."""

    batches: int = 0
    updates: int = 0
    since_update: int = 0
    """batches since the last update, where gradients are accumulated"""
    at_pass_start: dict[str, Any] | None = None
    """states of the generators before the loader was iterated for this pass"""
    to_restore: Mapping[str, Any] | None = None
    """states of the generators at the checkpoint"""
    own_generators: Sequence[torch.Generator] = ()
    """generators of the loader and of its sampler"""
    is_started: bool = False
    """False for a state that was loaded, until its loop continues"""
    is_teacher: bool = False
    is_complete: bool = False
    """True once the loop has made all updates of its run"""


class Loop:
    """Counts the batches and updates of a user's loop, and saves its network."""

    def __init__(self, spacing: Spacing, save: nn.Module | None, accumulate: int | None, position: Position) -> None:
        self._spacing, self._save, self._accumulate, self._position = spacing, save, accumulate, position
        self.is_in_body = self.has_stepped = False
        self._first_step: int | None = None
        self._is_regular = accumulate is not None

    @contextmanager
    def count_optimizer_steps(self) -> Iterator[None]:
        """Note every step of any optimizer of torch."""

        def note(*_: Any) -> None:
            self.has_stepped = True

        handle = register_optimizer_step_post_hook(note)
        try:
            yield
        finally:
            handle.remove()

    def end_of_body(self) -> None:
        """Count the batch of this turn of the loop, if that is not done yet, and save a snapshot that is due.

        An update ends with a step of at least one optimizer. Where mixed precision leaves a step out, it ends with the
        last of the batches that are accumulated for it.
        """
        if not self.is_in_body:
            return
        self.is_in_body = False
        position = self._position
        position.batches += 1
        position.since_update += 1
        self._check_accumulation()
        if self.has_stepped or position.since_update >= (self._accumulate or 1):
            position.updates, position.since_update = position.updates + 1, 0
            if self._save is not None:
                self._spacing.snapshots.after(position.updates, self._save)

    def _check_accumulation(self) -> None:
        """Refuse, where nothing was said of accumulation, optimizers whose first two steps are batches apart."""
        if self._is_regular or not self.has_stepped:
            return
        if self._first_step is None:
            self._first_step = self._position.batches
            return
        self._is_regular = True
        if (apart := self._position.batches - self._first_step) > 1:
            raise UserError(
                f"Optimizers step after every {apart} batches, and a step of spaced KD is an update: say steps(loader, "
                f"accumulate={apart}), or accumulate=1 where a step is only left out now and then."
            )


class Passes:
    """The passes of a loop over its loader: how many, how long, and from which batch on."""

    def __init__(self, loader: Iterable[Any], epochs: int | None, accumulate: int | None, total: int | None) -> None:
        """`total` is the number of updates of the run, where a user has given it."""
        self._loader = loader
        self._epochs = None if epochs is None else whole_number("epochs", epochs, 1)
        self.accumulate = 1 if accumulate is None else whole_number("accumulate", accumulate, 1)
        sampler, batch_sampler = base_sampler(loader), getattr(loader, "batch_sampler", None)
        steps = getattr(sampler, "steps", None)
        if steps is not None and epochs is not None:
            raise UserError(f"A loader of steps={steps} is the whole run: leave epochs= out.")
        # Inside of accelerate's shard a batch of the sampler is not one of the loop, so its steps are not counted.
        self._seeded = batch_sampler if isinstance(batch_sampler, SeededBatchSampler) else None
        self._all_steps = None if self._seeded is None else self._seeded.steps
        self.start = 0 if self._all_steps is None else self._all_steps.start
        if steps is not None and self._seeded is None:
            self._epochs = 1
        self.is_whole_run = steps is not None or epochs is not None
        own = (getattr(part, "generator", None) for part in (loader, sampler))
        self.own_generators = [*{id(rng): rng for rng in own if isinstance(rng, torch.Generator)}.values()]
        self._length = _length_of(loader)
        epoch = self._seeded.steps_per_epoch if self._all_steps is not None and self._seeded else self._length
        self.steps_per_epoch = None if epoch is None else -(-epoch // self.accumulate)
        self.total = self._updates(total)

    def _updates(self, total: int | None) -> int:
        batches = None
        if self._all_steps is not None:
            batches = self._all_steps.stop
        elif self._epochs is not None and self._length is not None:
            batches = self._epochs * self._length
        if batches is None and total is None:
            raise UserError(
                "How long is this run? Give steps(loader, epochs=...), Spacing(..., total=...), or a "
                "seeded_loader(..., steps=range(total))."
            )
        if batches is None:
            return total or 0
        divides = batches % self.accumulate == 0 and (self._all_steps is not None or not self._has_remainder())
        if not divides and total is None:
            raise UserError(
                f"{batches} batches do not divide into updates of {self.accumulate}, so their number is not known: "
                "give Spacing total=, the number of updates."
            )
        updates = batches // self.accumulate if divides else total or 0
        return updates if total is None else min(updates, total)

    def _has_remainder(self) -> bool:
        return self._length is not None and self._length % self.accumulate > 0

    def batches(self, position: Position) -> Iterator[Any]:
        """Yield the batches after a position; a pass that is resumed in its middle gives its remaining ones."""
        if self._all_steps is not None and self._seeded is not None:
            whole, self._seeded.steps = self._all_steps, range(position.batches, self._all_steps.stop)
            try:
                yield from self._pass(position, 0, is_middle=position.batches > self.start)
            finally:
                self._seeded.steps = whole
            return
        first, done = divmod(position.batches, self._length) if self._length else (0, 0)
        for epoch in range(first, first + 1 if self._epochs is None else self._epochs):
            skip = done if epoch == first else 0
            parts = (self._loader, base_sampler(self._loader))  # accelerate's loaders count epochs themselves
            set_epoch = next((part.set_epoch for part in parts if hasattr(part, "set_epoch")), None)
            if set_epoch is not None:
                set_epoch(epoch)
            if self._seeded is not None:
                self._seeded.set_step(position.batches)
            yield from self._pass(position, 0 if self._seeded is not None else skip, is_middle=skip > 0)

    def _finish_pass_before(self, position: Position) -> None:
        """Bring the loader's own generators to the end of the last pass; a sampler draws after its last batch too."""
        if self.own_generators and self._seeded is None and position.at_pass_start is not None:
            set_all_generator_states(position.at_pass_start, self.own_generators)
            iter(self._loader)  # it draws a seed for its workers
            sampler: Any = getattr(self._loader, "batch_sampler", None) or getattr(self._loader, "sampler", ())
            for _ in sampler:
                pass

    def _pass(self, position: Position, skip: int, is_middle: bool) -> Iterator[Any]:
        """Yield the batches of a pass after the first `skip`, which are loaded to draw what they drew.

        A plain loader draws when it is iterated. So the generators of a resumed run are restored before that where the
        pass begins, and afterwards in its middle.
        """
        resumed, position.to_restore = position.to_restore, None
        if is_middle and position.at_pass_start is not None:
            set_all_generator_states(position.at_pass_start, self.own_generators)
        elif not is_middle:
            if resumed is not None:
                self._finish_pass_before(position)
                set_generator_states(resumed, _device())
            position.at_pass_start = all_generator_states(self.own_generators)
        batches = iter(self._loader)
        for _ in range(skip):
            next(batches, None)
        if is_middle and resumed is not None:
            set_all_generator_states(resumed, self.own_generators)
        yield from batches


# Processes and generators


def _processes() -> int:
    return rank_and_processes()[1]


def _wait_for_all() -> None:
    """Wait for the first process, which writes the last snapshot: a student may be next."""
    if _processes() > 1:
        distributed.barrier()


def _rank() -> int:
    return rank_and_processes()[0]


def _accelerate_is_used() -> bool:
    module = sys.modules.get("accelerate.state")
    return module is not None and bool(module.PartialState._shared_state)


def _device() -> torch.device:
    """Return the device of this process, whose generator dropout draws from."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device or torch.device("cpu")


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators, in types that `torch.load(weights_only=True)` reads."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (kind, torch.tensor(np.asarray(keys, dtype=np.int64)), *rest),
    }
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def set_generator_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Set the global generators to states of `generator_states`."""
    torch.set_rng_state(states["torch"].cpu())
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))
    if device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type].cpu())


def all_generator_states(own: Sequence[torch.Generator]) -> dict[str, Any]:
    """Return the states of the global generators and of a loader's own."""
    return {**generator_states(_device()), "own": [generator.get_state() for generator in own]}


def set_all_generator_states(states: Mapping[str, Any], own: Sequence[torch.Generator]) -> None:
    """Set the global generators and a loader's own to states of `all_generator_states`."""
    set_generator_states(states, _device())
    for generator, state in zip(own, states["own"], strict=False):
        generator.set_state(state.cpu())
