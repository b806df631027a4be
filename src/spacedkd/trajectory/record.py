"""A run with --record leaves its teacher's trajectory: snapshots, and what the turns up to each of them were like.

    RUN/path/path.json                     the index: what each role's weights depend on, and which updates are recorded
    RUN/path/ROLE/journal.jsonl            what its turns left in the journal, up to each snapshot, with a digest
    RUN/path/ROLE/000000586.safetensors    the role's model after 586 updates

A teacher that learns from labels, or from roles before it, has weights that are a pure function of its own settings
and the seed; a student that finds them recorded learns the same bits as one whose teacher learns beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.runtime.files import Folder
from spacedkd.runtime.locks import hold
from spacedkd.schedule import Turn, in_steps
from spacedkd.timeline import timeline_turns, updates_seen
from spacedkd.trajectory.journal import Entry, JournalWriter
from spacedkd.trajectory.store import RecordedRole, RunSnapshots, Settings, index_file, recording_lock, write_index


def updates_to_record(run: ResolvedRun, role: str) -> list[int]:
    """Return the updates after which students of the schedules in `record` see a role, and its last update."""
    roles = (*run.method.roles, "follower")
    if role != run.method.roles[-1]:
        roles = run.method.roles  # type: ignore[assignment]
    updates = {run.stops[role]}
    for schedule in run.spec.record:
        in_run = in_steps(schedule, run.steps_per_epoch, run.total_steps)
        turns = timeline_turns(in_run, roles, run.spec.follower_first, run.stops, run.total_steps)
        updates |= updates_seen(turns, role, by=roles[roles.index(role) + 1])
    return sorted(updates)


class TrajectoryRecorder:
    """Records the roles of a run that others may replay; most runs record none."""

    def __init__(
        self, folder: Folder, run: ResolvedRun, models: Mapping[str, nn.Module], settings: Mapping[str, Settings]
    ) -> None:
        """Record the roles in `settings`, which says what the weights of each depend on."""
        self.folder, self.settings = folder, settings
        self._writers = {
            role: TrajectoryWriter(folder, role, models[run.method.learners[role]], updates_to_record(run, role))
            for role in settings
        }

    @contextmanager
    def opened(self, done: Mapping[str, int], journal: Iterable[Entry]) -> Iterator[None]:
        """Resume recording: `done` are the updates each role has made, `journal` is the run's own up to here."""
        if not self._writers:
            yield
            return
        run = self.folder.path
        self.folder.make(index_file(run).parent)
        entries = [*journal]
        # Those who wait for a snapshot hold the lock for a moment, to see whether somebody records.
        with hold(recording_lock(run), seconds=60, within=self.folder):
            for role, writer in self._writers.items():
                writer.open(done[role], entries)
            recorded = {
                role: RecordedRole(self.settings[role], sorted(writer.due)) for role, writer in self._writers.items()
            }
            write_index(self.folder, recorded)
            yield

    def add(self, entry: Entry) -> None:
        """Take an entry of the run's journal."""
        if entry["role"] in self._writers:
            self._writers[entry["role"]].add(entry)

    def records(self, turn: Turn) -> bool:
        """Whether others may need the role as it is after a turn; equal in all processes."""
        return turn.role in self._writers and turn.step + 1 in self._writers[turn.role].requested

    def save(self, turn: Turn, cost: Mapping[str, int]) -> None:
        """Write the role's snapshot after a turn, if it is to be recorded; `cost` counts all its turns so far."""
        if turn.role in self._writers:
            self._writers[turn.role].save(turn.step + 1, cost)


class TrajectoryWriter:
    """Writes the trajectory of one role while it learns."""

    def __init__(self, run: Folder, role: str, model: nn.Module, updates: Iterable[int]) -> None:
        self.run, self.role, self.model = run, role, model
        self.store = RunSnapshots(run, role)
        self.requested = frozenset(updates)
        self.due = {*self.requested}
        """the updates after which there is, or will be, a snapshot"""
        self._journal = JournalWriter(run, self.store.folder / "journal.jsonl")
        self._entries: list[Entry] = []

    def open(self, done: int, journal: Iterable[Entry]) -> None:
        """Go on behind the last snapshot that is there whole, when the role has made `done` updates already.

        The updates between them were made before anything was recorded, or are made once more, to the same bits.
        """
        self.run.make(self.store.folder)
        self._journal.open()
        reached = self._journal.reached
        self.due -= {*range(reached + 1, done + 1)}
        self._entries = [entry for entry in journal if entry["role"] == self.role and entry["step"] >= reached]
        # Later it may have been removed, because nobody needs it any more.
        if 0 in self.due and done == 0 and self.store.find(0) is None:
            self.store.save(0, self.model)

    def add(self, entry: Entry) -> None:
        """Take an entry that one of the role's turns leaves in the run's journal."""
        if entry["step"] >= self._journal.reached:
            self._entries.append(entry)

    def save(self, update: int, cost: Mapping[str, int]) -> None:
        """Write the model as it is after so many updates, if that is to be recorded and not yet done."""
        if update not in self.due or update <= self._journal.reached:
            return
        self.store.save(update, self.model)
        self._journal.append(self._entries, update, cost)
        self._entries = []
