"""Recorder of a teacher's trajectory in a run with --record: snapshots, and the journal of the turns up to each.

    RUN/path/path.json                     the index: settings that determine each role's weights, recorded updates
    RUN/path/ROLE/journal.jsonl            journal entries of its turns up to each snapshot, with a digest
    RUN/path/ROLE/000000586.safetensors    the role's model after 586 updates

The weights of a teacher that learns from labels, or from roles before it, are a pure function of its own settings and
the seed. So a student that replays them learns the same bits as one whose teacher is trained in the same run.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from spacedkd.averages import STUDENT_AVERAGE, RoleAverage
from spacedkd.config.resolve import ResolvedRun
from spacedkd.runs.journal import check_entries
from spacedkd.runtime.documents import parse_json, read_lines
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.files import Folder
from spacedkd.runtime.locks import hold
from spacedkd.schedule import Schedule, Turn, in_steps
from spacedkd.timeline import timeline_turns, updates_seen
from spacedkd.trajectory.store import (
    RecordedRole,
    RunSnapshots,
    Settings,
    index_file,
    recording_lock,
    refuse_damage,
    write_index,
)

Entry = Mapping[str, Any]
"""a line of a journal"""


def average_settings(settings: Settings, average: RoleAverage) -> Settings:
    """Return the settings that determine the average of a role's weights: the role's own, and the average's."""
    return {**settings, "average": [str(average.average), average.batch_norm]}


def updates_to_record(run: ResolvedRun, role: str) -> list[int]:
    """Return the updates after which students of the recorded schedules see a role, and its last update."""
    return _updates_seen_by(run, role, (*run.spec.record, *run.spec.record_average_for))


def average_updates_to_record(run: ResolvedRun, role: str) -> list[int]:
    """Return those updates after which the averages of a role's weights are recorded, too."""
    return _updates_seen_by(run, role, run.spec.record_average_for or run.spec.record)


def _updates_seen_by(run: ResolvedRun, role: str, schedules: Iterable[Schedule]) -> list[int]:
    """Return the updates after which students of these schedules see a role, and its last update."""
    roles = run.method.roles
    if role == roles[-1]:  # it is recorded as the teacher of other runs, whose student comes after it
        roles = (*roles, "follower")
    updates = {run.stops[role]}
    for schedule in schedules:
        in_run = in_steps(schedule, run.steps_per_epoch, run.total_steps)
        turns = timeline_turns(in_run, roles, run.spec.follower_first, run.stops, run.total_steps)
        updates |= updates_seen(turns, role, by=roles[roles.index(role) + 1])
    return sorted(updates)


class TrajectoryRecorder:
    """Records the roles of a run that others may replay; most runs record none."""

    def __init__(
        self, folder: Folder, run: ResolvedRun, models: Mapping[str, nn.Module], settings: Mapping[str, Settings]
    ) -> None:
        """Record the roles in `settings`: role -> settings that determine its weights."""
        self.folder, self.settings = folder, {**settings}
        # A trajectory is that of a role, with the role's name, or that of an average of the role's weights.
        self._role_of: dict[str, str] = {}  # name of a trajectory -> the role whose turns change its weights
        self._writers: dict[str, TrajectoryWriter] = {}
        for role in settings:
            updates = updates_to_record(run, role)
            self._add_writer(role, role, TrajectoryWriter(folder, role, models[run.method.learners[role]], updates))
            for name, average in run.averages.items():
                if average.role == role and name != STUDENT_AVERAGE:
                    self.settings[name] = average_settings(settings[role], average)
                    updates = average_updates_to_record(run, role)
                    self._add_writer(name, role, TrajectoryWriter(folder, name, models[name], updates))

    def _add_writer(self, name: str, role: str, writer: "TrajectoryWriter") -> None:
        self._writers[name], self._role_of[name] = writer, role

    @contextmanager
    def open(self, done: Mapping[str, int], journal: Iterable[Entry]) -> Iterator[None]:
        """Start or resume recording; `done` are the updates each role has made, `journal` the run's entries so far."""
        if not self._writers:
            yield
            return
        run = self.folder.path
        self.folder.make(index_file(run).parent)
        entries = [*journal]
        # A process that waits for a snapshot takes the lock briefly, to check whether another one records.
        with hold(recording_lock(run), seconds=60, within=self.folder):
            for name, writer in self._writers.items():
                writer.open(done[self._role_of[name]], entries)
            recorded = {
                name: RecordedRole(self.settings[name], sorted(writer.due)) for name, writer in self._writers.items()
            }
            write_index(self.folder, recorded)
            yield

    def add(self, entry: Entry) -> None:
        """Add an entry of the run's journal."""
        if entry["role"] in self._writers:
            self._writers[entry["role"]].add(entry)

    def records(self, turn: Turn) -> bool:
        """Return whether the role's weights after a turn are to be recorded; equal in all processes."""
        return self._requests(turn.role, turn)

    def records_average(self, turn: Turn) -> bool:
        """Return whether averages of the role's weights after a turn are to be recorded; equal in all processes."""
        return any(self._requests(name, turn) for name, role in self._role_of.items() if turn.role == role != name)

    def _requests(self, name: str, turn: Turn) -> bool:
        # A recorded role learns every step in order (`identity.check_shareable`), so step t is its update t + 1.
        return name in self._writers and turn.step + 1 in self._writers[name].requested

    def save(self, turn: Turn, cost: Mapping[str, int]) -> None:
        """Write the snapshots of a role and its averages after a turn, if they are to be recorded.

        `cost` counts all turns of the role so far. The role itself is written last, so that a run that has waited for
        its snapshot finds those of its averages too.
        """
        for name in reversed([name for name, role in self._role_of.items() if role == turn.role]):
            self._writers[name].save(turn.step + 1, cost)


class TrajectoryWriter:
    """Writes the trajectory of one role while it learns."""

    def __init__(self, run: Folder, role: str, model: nn.Module, updates: Iterable[int]) -> None:
        self.run, self.role, self.model = run, role, model
        self.store = RunSnapshots(run, role)
        self.requested = frozenset(updates)
        self.due = {*self.requested}
        """updates after which there is, or will be, a snapshot"""
        self._journal = JournalWriter(run, self.store.folder / "journal.jsonl")
        self._entries: list[Entry] = []

    def open(self, done: int, journal: Iterable[Entry]) -> None:
        """Resume after the last complete snapshot, when the role has made `done` updates already.

        Updates after that snapshot and up to `done` were made before recording began: they get no snapshots. If the
        snapshot is later than `done`, the updates between are made again, with the same bits, and not written again.
        """
        self.run.make(self.store.folder)
        self._journal.open()
        reached = self._journal.reached
        self.due -= {*range(reached + 1, done + 1)}
        self._entries = [entry for entry in journal if entry["role"] == self.role and entry["step"] >= reached]
        # After the first update it may be missing because no run needs it any more.
        if 0 in self.due and done == 0 and self.store.find(0) is None:
            self.store.save(0, self.model)

    def add(self, entry: Entry) -> None:
        """Add an entry of one of the role's turns."""
        if entry["step"] >= self._journal.reached:
            self._entries.append(entry)

    def save(self, update: int, cost: Mapping[str, int]) -> None:
        """Write a snapshot of the model after `update` updates, if it is due and not yet written."""
        if update not in self.due or update <= self._journal.reached:
            return
        self.store.save(update, self.model)
        self._journal.append(self._entries, update, cost)
        self._entries = []


# The journal of a recorded role, RUN/path/ROLE/journal.jsonl. It has the lines of the role's turns in the run's own
# journal. After the lines up to a snapshot comes one with the snapshot's number of updates (`version`), the cost of
# the turns so far, and a digest of all lines so far.


class JournalHash:
    """A running SHA-256 of the lines of a role's journal."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, line: bytes) -> None:
        self._hash.update(line + b"\n")

    def copy(self) -> "JournalHash":
        copy = JournalHash()
        copy._hash = self._hash.copy()
        return copy

    def digest(self, entry: Entry) -> str:
        """Return the digest of all lines so far and of a snapshot's entry, except for the entry's own digest."""
        digest = self._hash.copy()
        digest.update(json.dumps({name: value for name, value in entry.items() if name != "digest"}).encode())
        return digest.hexdigest()

    def check(self, entry: Entry) -> None:
        """Refuse a snapshot's entry whose digest is wrong; those of earlier versions of spacedkd have none."""
        if "digest" in entry and entry["digest"] != self.digest(entry):
            raise ValueError(f"its lines up to update {entry['version']} were changed")


class JournalWriter:
    """Writes the journal of a role, a snapshot at a time."""

    def __init__(self, run: Folder, file: Path) -> None:
        self.run, self.file = run, file
        self.reached = 0
        """the update of the last snapshot in the journal"""
        self._hash = JournalHash()

    def open(self) -> None:
        """Resume after the last snapshot: delete later lines of a killed process."""
        read = end = 0
        lines = JournalHash()
        if not self.run.exists(self.file):
            return
        for line in read_lines(self.file, within=self.run):
            read += len(line) + 1
            is_snapshot = line.startswith(b'{"version"')
            if is_snapshot:
                self.reached, end = self._check(line, lines), read
            lines.add(line)
            self._hash = lines.copy() if is_snapshot else self._hash
        with os.fdopen(self.run.open(self.file, os.O_RDWR), "r+b") as file:
            file.truncate(end)

    def _check(self, line: bytes, before: JournalHash) -> int:
        """Return the update of a snapshot's line; one that was changed is refused."""
        try:
            entry = parse_json(line, f"A line of {self.file}")
            if type(entry["version"]) is not int:
                raise ValueError("a version is no whole number")
            before.check(entry)
        except (ValueError, LookupError, TypeError) as error:
            reason = first_line(error).removesuffix(".")
            way_out = f"Record it again with: spacedkd train --resume {self.run.path} --restart"
            raise UserError(f"{self.file} is damaged ({reason}). {way_out}") from None
        update: int = entry["version"]
        return update

    def append(self, entries: Iterable[Entry], update: int, cost: Mapping[str, int]) -> None:
        """Append the entries up to a snapshot, and the snapshot's own, and force them to disk."""
        lines = [json.dumps(entry).encode() for entry in entries]
        for line in lines:
            self._hash.add(line)
        snapshot = {"version": update, "cost": cost}
        lines.append(json.dumps({**snapshot, "digest": self._hash.digest(snapshot)}).encode())
        self._hash.add(lines[-1])
        with self.run.append(self.file) as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        self.reached = update


class JournalReader:
    """Reads the journal of a role, also while it is written."""

    def __init__(self, run: Folder, file: Path) -> None:
        self.run, self.file = run, file
        self.entries: dict[int, list[Entry]] = {}
        """step -> journal entries of its turn, up to the last snapshot"""
        self.costs: dict[int, Mapping[str, int]] = {}
        """update of a snapshot -> cost of all turns up to it"""
        self._read, self._hash = 0, JournalHash()

    @property
    def reached(self) -> int:
        """The update of the last snapshot in the journal."""
        return max(self.costs, default=0)

    def refresh(self) -> None:
        """Read new lines up to the last snapshot; a line that was changed raises `SnapshotsGone`.

        Lines after the last snapshot are read again by the next call: they may be unfinished.
        """
        if not self.run.exists(self.file):
            return
        entries: list[Entry] = []
        read, lines = self._read, self._hash.copy()
        with refuse_damage(self.file):
            for line in read_lines(self.file, within=self.run, start=read):
                read += len(line) + 1
                entry = parse_json(line, str(self.file))
                if "version" in entry:
                    lines.check(entry)
                lines.add(line)
                if "version" not in entry:
                    entries.append(entry)
                    continue
                self.costs[int(entry["version"])] = {name: int(count) for name, count in entry["cost"].items()}
                [*check_entries(entries)]  # raises if an entry is malformed
                for turn_entry in entries:
                    step_entries = self.entries.setdefault(int(turn_entry["step"]), [])
                    step_entries.append({**turn_entry, "event": str(turn_entry["event"])})
                entries, self._read, self._hash = [], read, lines.copy()
