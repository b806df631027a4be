"""Replay of recorded roles: their turns are skipped, their snapshots loaded.

`Replay.skip` notes a block of a replayed role and does not wait. Before the next block of a role that learns here,
`Replay.load` waits for the snapshot that this role sees, loads it, and copies the recorded journal entries of the
skipped turns into this run's journal.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.spec import read_spec
from spacedkd.runs import checkpoint
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.documents import read_small_json
from spacedkd.runtime.errors import Damaged, SnapshotsGone, UserError
from spacedkd.runtime.files import write_json
from spacedkd.timeline import Block
from spacedkd.trajectory.record import Entry, JournalReader
from spacedkd.trajectory.store import RunSnapshots, index_file, is_recording

POLL_SECONDS = 0.1
TARGETS = "cached targets"
"""key in passed.json of the oldest step whose targets are still needed; the other keys are roles, with updates"""


class RecordedTrajectory:
    """The trajectory of one role, in the folder of the run that records it."""

    def __init__(self, run: Path, role: str, recorded: list[int], needs_weights: bool = True) -> None:
        """Open the trajectory of a role in a run's folder; `recorded` has the updates of all its snapshots.

        Of a role whose outputs are cached, the journal alone is needed, and no snapshot.
        """
        self.run, self.role, self.recorded, self.needs_weights = run, role, recorded, needs_weights
        self.store = RunSnapshots(run, role, recorded)
        self._journal = JournalReader(self.store.handle, self.store.folder / "journal.jsonl")
        self._loaded = self.loaded_at_save = 0

    def waits_for(self, update: int) -> str | None:
        """Return what a replay of this snapshot waits for; None when the snapshot and its journal are there."""
        self._journal.refresh()
        if not self.needs_weights and self._journal.reached >= update:
            return None
        if (update in self._journal.costs or update == 0) and self.store.find(update) is not None:
            return None
        if self.needs_weights and self._journal.reached >= update:
            file = self.store.file(update)
            raise SnapshotsGone(f"{file} is gone: it was recorded, and removed. Train without --teacher-path.")
        awaited = f"{self.run} to reach update {update} of its {self.role}"
        if is_recording(self.run):
            return f"waiting for {awaited}"
        if (self.run / "result.json").exists():
            raise SnapshotsGone(f"{self.run} is finished and has not recorded update {update} of its {self.role}.")
        return f"waiting for {awaited}, which is not being trained. Resume with: spacedkd train --resume {self.run}"

    def load(self, update: int, model: nn.Module) -> None:
        """Load the weights and statistics after `update` updates into a model, where they are needed."""
        try:
            if self.needs_weights:
                self.store.load(update, model)
        except Damaged as error:
            raise SnapshotsGone(f"{error} Record it again with: spacedkd train --resume {self.run} --restart") from None
        self._loaded = update

    def entries(self, step: int) -> list[Entry]:
        """Return the journal entries of the role's turn at a step; known once a later snapshot is there."""
        return self._journal.entries.get(step, [])

    def cost(self, update: int) -> Mapping[str, int]:
        """Return the cost of all turns up to an update; empty while that is not recorded."""
        self._journal.refresh()
        return self._journal.costs.get(update, {})

    def is_complete(self) -> bool:
        """Return whether no snapshot that was recorded has been removed."""
        self._journal.refresh()
        if not self.needs_weights:
            return True
        recorded = (update for update in self._journal.costs if update in self.recorded)
        return all(self.store.find(update) is not None for update in recorded)

    def mark_save(self) -> int:
        """Note a save of the run; return the oldest update that its checkpoints need once that save is written.

        Two checkpoints are kept, so it is the update that was loaded at the save before.
        """
        before, self.loaded_at_save = self.loaded_at_save, self._loaded
        return before


class TargetsReader(Protocol):
    """The targets that a run reads, as its saves see them (`cached_teacher.CachedTeacher`)."""

    def mark_save(self) -> int:
        """Note a save; return the oldest step whose targets the checkpoints need once it is written."""

    def resume(self, oldest: int) -> None:
        """Restore that step."""


class Replay:
    """The replayed roles of a run, by their names in this run."""

    def __init__(
        self,
        run: ResolvedRun,
        models: Mapping[str, nn.Module],
        trajectories: Mapping[str, RecordedTrajectory],
        averages: Mapping[str, RecordedTrajectory],
        write: Callable[[Entry], None],
        targets: "TargetsReader | None" = None,
    ) -> None:
        """Replay `trajectories` and `averages`, each by the role in this run; averages are those that other roles see.

        `write` adds an entry to the journal of this run; `targets` are those that it reads in a teacher's place.
        """
        self.run, self.models, self.trajectories, self.averages = run, models, trajectories, averages
        self.targets = targets
        self._write = write
        self._skipped: list[Block] = []
        self.has_skipped = False
        """True once a block was skipped: another process may have trained it for this run"""
        self.accuracy: dict[str, float] = {}
        """last accuracy of each role's deepest head on the test images"""

    def skip(self, block: Block) -> None:
        """Note a block of a replayed role as skipped; the next `load` loads its snapshot."""
        self._skipped.append(block)
        self.has_skipped = True

    def load(self, all_ready: Callable[[bool], bool]) -> Iterator[str]:
        """Load each replayed role's snapshot after its skipped blocks, and copy their journal entries.

        While a snapshot is not there, yields a description of what it waits for, again and again. `all_ready` returns
        whether its argument is true in all processes, so that all of them load at the same time.
        """
        # The last block of a role counts. A replayed role learns every step in order, so step t is its update t + 1.
        reached = {block.role: block.steps[-1] + 1 for block in self._skipped}
        for role, update in reached.items():
            for trajectory, model in self._recorded(role):
                while not all_ready((waiting := trajectory.waits_for(update)) is None):
                    yield waiting or f"waiting for all processes to see update {update} of the {role}"
                    time.sleep(POLL_SECONDS)
                trajectory.load(update, model)
        for block in self._skipped:
            for number, turn in enumerate(block, block.start + 1):
                for entry in self.trajectories[turn.role].entries(turn.step):
                    is_accuracy, is_loss = entry["event"] == "accuracy", entry["event"] == "loss"
                    if (not is_accuracy or self.run.evaluates(turn)) and (not is_loss or self.run.logs(turn)):
                        self._write({**entry, "turn": number, "role": turn.role})
                        if is_accuracy:
                            self.accuracy[turn.role] = entry["accuracy"]["test"]["final"]
        self._skipped.clear()

    def _recorded(self, role: str) -> Iterator[tuple[RecordedTrajectory, nn.Module]]:
        """Yield the trajectories of a role, its own and its average's, each with the model it is loaded into."""
        yield self.trajectories[role], self.models[self.run.method.learners[role]]
        if role in self.averages and (name := self.run.average_seen(role)) is not None:
            yield self.averages[role], self.models[name]

    def _all(self) -> list[RecordedTrajectory]:
        return [*self.trajectories.values(), *self.averages.values()]

    def mark_save(self) -> dict[str, int]:
        """Note a save of the run; return the oldest update that it will need, by each role's recorded name."""
        oldest = {trajectory.role: trajectory.mark_save() for trajectory in self._all()}
        return oldest if self.targets is None else {**oldest, TARGETS: self.targets.mark_save()}

    def release(self, oldest: Mapping[str, int], folder: RunFolder) -> None:
        """Release the snapshots that no checkpoint needs any more, those before `oldest`; called after a save.

        A run of a comparison writes `oldest` to passed.json: the comparison removes a snapshot when all its runs have
        released it. In a pipeline no other run replays the teacher, so its snapshots are removed here.
        """
        engine = self.run.spec.engine
        if oldest and not engine.pipeline:
            write_json(folder.passed, _needed_document(oldest, self.run.spec.fingerprint()), folder.handle)
        elif not engine.keep_path:
            for trajectory in self._all():
                trajectory.store.remove_before(oldest[trajectory.role])

    def resume(self, folder: RunFolder) -> None:
        """Restore the oldest updates that the run needed when it was stopped."""
        oldest = read_oldest_needed(folder)
        for trajectory in self._all():
            # Without passed.json fewer snapshots are removed; nothing else changes.
            trajectory.loaded_at_save = oldest.get(trajectory.role, 0)
        if self.targets is not None:
            self.targets.resume(oldest.get(TARGETS, 0))

    def check_complete(self, folder: Path) -> None:
        """Refuse to restart a run if snapshots that it replays were removed."""
        for trajectory in self._all():
            if not trajectory.is_complete():
                raise UserError(
                    f"{folder} replays {trajectory.run}, whose snapshots were removed when they were no longer needed. "
                    f"To restart, delete {folder} and run the command that made it again."
                )

    def wait_for_costs(self) -> Iterator[str]:
        """Wait until every replayed role was trained to its end, so that its whole cost is known; yield as `load`."""
        for role, trajectory in self.trajectories.items():
            last = self.run.stops[role]
            while not trajectory.cost(last) and (waiting := trajectory.waits_for(last)):
                yield waiting
                time.sleep(POLL_SECONDS)

    def costs(self) -> Iterator[Mapping[str, int]]:
        """Yield the cost of each replayed role's turns in the run that recorded them."""
        for role, trajectory in self.trajectories.items():
            counts = trajectory.cost(self.run.stops[role])
            yield {re.sub(rf"^{re.escape(trajectory.role)}(?= )", role, name): count for name, count in counts.items()}


# Which snapshots a run still needs


def _needed_document(oldest: Mapping[str, int], fingerprint: str) -> dict[str, Any]:
    text = json.dumps([oldest, fingerprint], sort_keys=True)
    return {"versions": oldest, "fingerprint": fingerprint, "checksum": hashlib.sha256(text.encode()).hexdigest()}


def read_oldest_needed(folder: RunFolder) -> Mapping[str, int]:
    """Return the oldest update of each recorded role that a run may need, from whichever checkpoint it resumes.

    A file that is damaged, of another run, or ahead of the run's checkpoints is ignored: it would lead to the removal
    of snapshots that are still needed. It is ahead if an update is larger than the number of turns in a checkpoint.
    """
    try:
        document = read_small_json(folder.passed, within=folder.path)
        oldest, fingerprint = document["versions"], document["fingerprint"]
        positions = checkpoint.positions(folder.checkpoint)
        is_undamaged = document == _needed_document(oldest, fingerprint)
        is_of_this_run = {checkpoint_fingerprint for checkpoint_fingerprint, _ in positions} == {fingerprint}
        most = min((turns for _, turns in positions), default=0)
        is_possible = all(type(update) is int and 0 <= update <= most for update in oldest.values())
    except (LookupError, TypeError, AttributeError, Damaged):
        return {}
    return oldest if is_undamaged and is_of_this_run and is_possible else {}


# Before a replay begins


def wait_for_recording(run: ResolvedRun) -> Iterator[str]:
    """Wait until the replayed run has begun, and yield what it waits for; a run that does not record is refused."""
    if run.spec.teacher_path is None:
        return
    recording = Path(run.spec.teacher_path)
    while not index_file(recording).exists():
        if (recording / "spec.json").exists() or not run.spec.engine.pipeline:
            check_recorded(recording)
        yield f"waiting for {recording} to begin. If nobody trains it, resume with: spacedkd train --resume {recording}"
        time.sleep(POLL_SECONDS)


def check_recorded(run: Path) -> None:
    """Refuse to replay a run that does not record, or whose snapshots are gone."""
    if index_file(run).exists():
        return
    if not (run / "spec.json").exists():
        raise UserError(f"--teacher-path: there is no run {run}. Train it with: spacedkd train --record ...")
    if not read_spec(run).record:
        raise UserError(f"--teacher-path: {run} records nothing. Train it with --record and this run's interval.")
    if (run / "result.json").exists():
        raise SnapshotsGone(
            f"--teacher-path: {run} is finished, and what it recorded is gone. Train without it, in a new folder."
        )
