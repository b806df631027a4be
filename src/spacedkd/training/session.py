"""An open run: its folder is locked, its weights and position are restored, its roles and callbacks are made."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.spec import read_spec
from spacedkd.data.stream import batches
from spacedkd.runs import checkpoint
from spacedkd.runs.checkpoint import Position
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.journal import Journal, read_journal
from spacedkd.runtime.errors import Damaged, Moved, UserError
from spacedkd.runtime.files import write_json
from spacedkd.runtime.signals import never_stop
from spacedkd.schedule import Turn
from spacedkd.training.callbacks import (
    Callbacks,
    CheckpointCallback,
    Cost,
    Heartbeat,
    JournalCallback,
    ProgressCallback,
    RecordingCallback,
    ResultCallback,
    RunParts,
    TargetsCallback,
    Timer,
    UserCallback,
)
from spacedkd.training.distributed import CollectiveStop, check_shared_storage
from spacedkd.training.extension import copy_start, restore_start
from spacedkd.training.guard import Guard
from spacedkd.training.loggers import Loggers
from spacedkd.training.loop import Callback, Event, training_loop
from spacedkd.training.roles import explain_errors, make_roles
from spacedkd.training.state import TrainingState
from spacedkd.training.students import BestStudent
from spacedkd.trajectory.record import TrajectoryRecorder
from spacedkd.trajectory.replay import Replay


@dataclass(frozen=True)
class Start:
    """The start of a run in its folder: as a new run, or from what the folder or another run holds."""

    new: bool = False
    """whether the folder must be free"""
    restart: bool = False
    """whether a run in the folder starts again from its first turn"""
    extend: RunFolder | None = None
    """the run that this one continues"""
    on_start: Callable[[ResolvedRun, int], None] = lambda run, done: None
    """function of the run and its number of finished turns, called before the first turn"""


class Session:
    """The training of one run in one process.

    >>> session = Session(state, folder)  # doctest: +SKIP
    >>> with session.open():              # doctest: +SKIP
    ...     for turn in session.turns():
    ...         print(turn)
    """

    def __init__(
        self,
        state: TrainingState,
        folder: RunFolder,
        loggers: Loggers | None = None,
        callback: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """Make the callbacks; nothing is read or written before `open`."""
        run, modules, teacher = state.run, state.modules(), state.cached_teacher
        self.state, self.folder, self.position = state, folder, Position()
        self.callbacks = Callbacks()
        counted = {(teacher.seen_model if module is teacher else name): module for name, module in modules.items()}
        self.cost = Cost(counted, run.method.learners)
        self.guard = Guard(state, self.position, self.callbacks.writes_weights)
        self.journal = JournalCallback(run, self.position, self.callbacks.on_log)
        self.replay = Replay(run, modules, state.replayed, state.replayed_averages, self.journal.add, teacher)
        self.best = BestStudent(state, folder, self.position)
        self.loggers, self.heartbeat = loggers or Loggers(), Heartbeat(folder.handle)
        recorded = {
            role: settings for role, settings in state.trajectories.items() if run.spec.record and role in state.trained
        }
        recorder = TrajectoryRecorder(folder.handle, run, modules, recorded)
        self.recording = RecordingCallback(recorder, self.cost, state.refresh_averages)
        self.targets = TargetsCallback(state)
        parts = RunParts(
            state,
            self.position,
            folder,
            journal=self.journal,
            cost=self.cost,
            best=self.best,
            replay=self.replay,
            heartbeat=self.heartbeat,
        )
        self.checkpoint, self.result = CheckpointCallback(parts), ResultCallback(parts)
        self._callback = UserCallback(callback)

    def callbacks_in_order(self) -> list[Callback]:
        """Return all callbacks in the order in which each of them is called.

        callback      must come before                 because
        guard         journal, recording, checkpoint   what has diverged is never logged or saved
        cost          recording, checkpoint            both save the cost with the turn
        timer         journal, progress                both report its images per second
        journal       recording                        a snapshot that others replay has its journal
        best student  checkpoint                       a checkpoint is never further than its best student
        recording     checkpoint                       a checkpoint is never further than its recording
        targets       checkpoint                       a checkpoint is never further than its cached targets
        checkpoint    progress, heartbeat, user        an event is sent when its turn is saved
        result        comes last                       a run with a result has everything else
        """
        run, done = self.state.run, self.state.run.updates(self.position.turns)
        counts = run.timeline.counts()
        timer = Timer({role: counts[role] - done[role] for role in self.state.trained})
        progress = ProgressCallback(run, self.position, timer, self.replay, self.callbacks.on_event)
        return [
            self.guard,
            self.cost,
            timer,
            self.journal,
            self.loggers,
            self.best,
            self.recording,
            self.targets,
            self.checkpoint,
            progress,
            self.heartbeat,
            self._callback,
            self.result,
        ]

    def turns(self, stop: CollectiveStop | None = None) -> Iterator[Turn]:
        """Train, and yield every turn when it is done; end early when a poll of `stop` is True."""
        state, run = self.state, self.state.run
        stop = stop or CollectiveStop(state.fabric, never_stop)
        self.callbacks.start(self.callbacks_in_order())
        self.guard.start()
        roles = make_roles(
            state, self.position, cost=self.cost, guard=self.guard, replay=self.replay, all_ready=stop.all_ready
        )
        trained = (turn for turn in run.timeline.after(self.position.turns) if turn.role not in state.replayed)
        # The order in which `TrainedRole.step` takes batches: that of a forward-only turn comes before its update's.
        views = (
            run.views(turn)
            for update in trained
            for turn in (run.timeline.forward_only_turns.get(update), update)
            if turn is not None
        )
        # `closing` ends the workers of the data loader with the loop, also after an error.
        with closing(batches(state.stream, views, run.workers)) as loaded, self._explain_errors():
            yield from training_loop(self._run_for_loop(), self.position, roles, loaded, self.callbacks, stop)

    def _run_for_loop(self) -> ResolvedRun:
        """Return the run; where it reads cached targets, with blocks cut so that its student waits for each file."""
        state, run = self.state, self.state.run
        if state.cached_teacher is None:
            return run
        return replace(run, timeline=run.timeline.in_parts(run.roles[-1], state.cached_teacher.steps_per_file))

    def train(self, stop: CollectiveStop | None = None) -> None:
        """Take all remaining turns, or those until a poll of `stop` is True."""
        try:
            for _ in self.turns(stop):
                pass
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration) and error.__cause__ is self._callback.error:
                raise error.__cause__ from None  # Python replaces one that leaves a generator
            raise

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Explain errors of saving and logging like those of roles; errors of the user's callback stay as they are."""
        try:
            yield
        except Exception as error:
            if self._callback.error is not None and self._callback.error in (error, error.__cause__):
                raise
            with explain_errors(self.state.run.spec, self.callbacks.turn):
                raise

    @contextmanager
    def open(self, start: Start | None = None) -> Iterator[None]:
        """Lock the folder and restore the run from its checkpoint, if there is one; unlock it at the end."""
        run, fabric = self.state.run, self.state.fabric
        with ExitStack() as stack:
            is_new = False
            if fabric.is_global_zero:
                stack.enter_context(self.folder.lock())  # before any write: another process may start here too
                is_new = self._take_folder(start or Start())
            fabric.barrier()
            check_shared_storage(fabric, self.folder.spec)
            self._load_checkpoint()
            if self.state.teacher_outputs is not None:
                self.state.teacher_outputs.open(self.folder.handle, fabric.global_rank)
            entries_before: list[Mapping[str, Any]] = []
            if fabric.is_global_zero:
                entries_before = self._entries_to_log()
                journal = Journal(
                    self.folder.journal,
                    self.position.journal_bytes,
                    self.position.journal_digest,
                    self.folder.handle,
                )
                self.journal.write_to(stack.enter_context(journal))
                entries = read_journal(self.folder.journal, self.folder.handle)
                stack.enter_context(self.recording.open(run.updates(self.position.turns), entries))
                stack.push(self.checkpoint.close)
            self.best.resume()
            self.checkpoint.start_clock()
            turns_before = self.position.turns
            try:
                with self._report_progress(entries_before):
                    yield
            except Moved:
                raise
            except UserError:
                no_turn_done = self.position.turns == turns_before and not self.replay.has_skipped
                if is_new and no_turn_done:  # a mistake that shows at the first step leaves no folder
                    self.folder.discard()
                raise

    def _take_folder(self, start: Start) -> bool:
        """Prepare the locked folder for this run; return whether no run was in it before."""
        folder, spec = self.folder, self.state.run.spec
        is_new = not folder.spec.exists()
        if is_new:
            if start.extend is not None:
                copy_start(start.extend, folder, self.state.run)
            folder.create(spec)
        elif start.new:
            folder.check_free()
        else:
            folder.check_holds(spec)
            saved = read_spec(folder.path)
            if (saved.processes_before, saved.log) != (spec.processes_before, spec.log):
                folder.create(spec)  # the run continues with another number of processes, or other loggers
        if start.restart:
            self.replay.check_complete(folder.path)
            folder.restart()
        folder.handle.remove(folder.failed)  # of an earlier attempt
        self.replay.resume(folder)
        write_json(folder.classes, self.state.run.data.describe(), folder.handle)
        if checkpoint.generations(folder.checkpoint):
            checkpoint.promote_newest(folder.checkpoint, folder.journal, self.state.modules(), folder.handle)
        elif folder.first_checkpoint.exists():
            restore_start(folder)
        return is_new

    def _load_checkpoint(self) -> None:
        """Restore models, optimizers, position and cost from the checkpoint, if there is one."""
        latest, first = self.folder.checkpoint, self.folder.first_checkpoint
        file = latest if latest.exists() else first
        if file.exists():
            fingerprints = self.state.run.spec.fingerprints()
            saved = checkpoint.load(file, fingerprints, self.state.modules(), self.checkpoint.optimizers())
            vars(self.position).update(vars(saved))  # in place: all callbacks hold this object
            self.cost.restore(self.position.cost)
            for name, scaler in self.state.scalers().items():
                if name not in saved.scales:
                    raise Damaged(f"{file} is damaged: the loss scale of {name} is missing.")
                scaler.load_state_dict(saved.scales[name])

    def _entries_to_log(self) -> list[Mapping[str, Any]]:
        """Return all entries of the journal; an empty list where there is no logger or no journal."""
        journal, handle = self.folder.journal, self.folder.handle
        return [*read_journal(journal, handle)] if self.loggers and handle.exists(journal) else []

    @contextmanager
    def _report_progress(self, entries_before: list[Mapping[str, Any]]) -> Iterator[None]:
        """Report progress to `spacedkd status` and to loggers.

        `entries_before` is the journal before opening it cut off the entries after the checkpoint; loggers may have
        seen those already.
        """
        if self.journal.journal is None:
            yield
            return
        run, entries = self.state.run, self._entries_to_log()
        cut = entries_before[len(entries) :]
        with (
            self.heartbeat.running(self.position.turns, len(run.timeline), run.roles),
            self.loggers.open(self.folder.path, run.spec, run.roles[-1], entries, cut),
        ):
            yield
