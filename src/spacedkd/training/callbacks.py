"""The callbacks that every run has: timer, journal, recorded trajectory, checkpoint, progress, result.

Guard, cost, best student, heartbeat and loggers are callbacks too, each in its own module; `session` puts all of them
in order.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.runs import checkpoint
from spacedkd.runs.checkpoint import Position
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.journal import Journal, read_journal
from spacedkd.runs.result import make_result
from spacedkd.runtime.files import write_json
from spacedkd.schedule import Turn
from spacedkd.training.cost import Cost
from spacedkd.training.device import describe_machine
from spacedkd.training.distributed import uses_fsdp
from spacedkd.training.guard import count_skipped
from spacedkd.training.heartbeat import Heartbeat
from spacedkd.training.loop import Callback, Event, Scores, StepResult
from spacedkd.training.state import TrainingState
from spacedkd.training.students import BestStudent, build_saved_models, save_students, student_digests
from spacedkd.trajectory.record import TrajectoryRecorder
from spacedkd.trajectory.replay import Replay


class Callbacks(Callback):
    """Several callbacks as one: each call goes to all of them, in their order."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = [*callbacks]
        self.turn: Turn | None = None
        """the turn that is taken now, or was taken last"""

    def before_step(self, turn: Turn) -> None:
        self.turn = turn
        for callback in self.callbacks:
            callback.before_step(turn)

    def on_step(self, turn: Turn, result: StepResult) -> None:
        for callback in self.callbacks:
            callback.on_step(turn, result)

    def on_evaluate(self, turn: Turn, model: str, scores: Scores) -> None:
        for callback in self.callbacks:
            callback.on_evaluate(turn, model, scores)

    def writes_weights(self, turn: Turn) -> bool:
        return any(callback.writes_weights(turn) for callback in self.callbacks)

    def on_turn_end(self, turn: Turn) -> None:
        for callback in self.callbacks:
            callback.on_turn_end(turn)

    def on_log(self, entry: Mapping[str, Any], images_per_second: float | None = None) -> None:
        for callback in self.callbacks:
            callback.on_log(entry, images_per_second)

    def on_event(self, event: Event) -> None:
        for callback in self.callbacks:
            callback.on_event(event)

    def on_wait(self, turn: Turn | None, waiting: str) -> None:
        for callback in self.callbacks:
            callback.on_wait(turn, waiting)

    def on_stop(self) -> None:
        for callback in self.callbacks:
            callback.on_stop()

    def on_end(self) -> None:
        for callback in self.callbacks:
            callback.on_end()


MEMORY_SECONDS = 20.0
"""of training, after which the timer has forgotten most of an earlier pace"""


class Timer(Callback):
    """The pace of a run by the clock of this process; nothing of it is in the journal.

    No device is waited for: where one computes beside the host, losses that are logged keep the two together.
    """

    def __init__(self, turns_left: Mapping[str, int]) -> None:
        self._turns_left = Counter(turns_left)
        self._turns: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._recent: dict[str, tuple[float, float]] = {}  # role -> images and seconds, older ones fade
        self._step_began = self._turn_ended = time.monotonic()

    def before_step(self, turn: Turn) -> None:
        self._step_began = time.monotonic()

    def on_step(self, turn: Turn, result: StepResult) -> None:
        result.images_per_second = self.images_per_second(turn.role, result.images)

    def images_per_second(self, role: str, images: int) -> float:
        """Count a step on so many images that has just ended, and return the role's pace of late."""
        step_seconds = time.monotonic() - self._step_began
        recent_images, recent_seconds = self._recent.get(role, (0.0, 0.0))
        keep = math.exp(-step_seconds / MEMORY_SECONDS)
        recent_images, recent_seconds = recent_images * keep + images, recent_seconds * keep + step_seconds
        self._recent[role] = recent_images, recent_seconds
        return recent_images / max(recent_seconds, 1e-9)

    def end_turn(self, turn: Turn) -> None:
        """Count a turn that is trained, evaluated and saved."""
        now = time.monotonic()
        self._seconds[turn.role] = self._seconds.get(turn.role, 0.0) + now - self._turn_ended
        self._turns[turn.role] += 1
        self._turns_left[turn.role] -= 1
        self._turn_ended = now

    def on_wait(self, turn: Turn | None, waiting: str) -> None:
        self._turn_ended = time.monotonic()  # waiting says nothing about the pace

    def seconds_left(self) -> float:
        """Return the seconds the run will still take; a role that has not learned yet counts as the mean of others."""
        mean = sum(self._seconds.values()) / max(self._turns.total(), 1)
        pace = {role: self._seconds[role] / self._turns[role] for role in self._turns}
        return sum(count * pace.get(role, mean) for role, count in self._turns_left.items() if count > 0)


class JournalCallback(Callback):
    """Makes an entry of every logged loss, skipped update and accuracy; the first process writes them down."""

    def __init__(
        self, run: ResolvedRun, position: Position, log: Callable[[Mapping[str, Any], float | None], None]
    ) -> None:
        """`log` hands an entry to all callbacks, this one included."""
        self._run, self._position, self._log_entry = run, position, log
        self.journal: Journal | None = None
        """where there is none nothing is written: in all processes but the first"""

    def on_step(self, turn: Turn, result: StepResult) -> None:
        if result.skipped:
            self._log("skipped", turn, {"not_finite": result.skipped})
        elif self._run.logs(turn):
            values = {"lr": result.lr, "losses": dict(result.losses)}
            self._log("loss", turn, values, result.images_per_second)

    def on_evaluate(self, turn: Turn, model: str, scores: Scores) -> None:
        self._log("accuracy", turn, {"role": model, "accuracy": scores})

    def _log(self, event: str, turn: Turn, values: Mapping[str, Any], images_per_second: float | None = None) -> None:
        epoch = (turn.step + 1) / self._run.steps_per_epoch
        when = {"turn": self._position.turns, "role": turn.role, "step": turn.step, "epoch": epoch}
        self.add({"event": event, **when, **values}, images_per_second)

    def add(self, entry: Mapping[str, Any], images_per_second: float | None = None) -> None:
        """Hand an entry to all callbacks, in the first process alone: others log nothing."""
        if self.journal is not None:
            self._log_entry(entry, images_per_second)

    def on_log(self, entry: Mapping[str, Any], images_per_second: float | None) -> None:
        if self.journal is not None:
            self.journal.write(entry)


class RecordingCallback(Callback):
    """Records the snapshots and the journal of roles that other runs may replay."""

    def __init__(self, recorder: TrajectoryRecorder, cost: Cost) -> None:
        self.recorder, self._cost = recorder, cost
        self.writes = False
        """set in the first process, once its folder is open"""

    def writes_weights(self, turn: Turn) -> bool:
        return self.recorder.records(turn)

    def on_log(self, entry: Mapping[str, Any], images_per_second: float | None) -> None:
        if self.writes:
            self.recorder.add(entry)

    def on_turn_end(self, turn: Turn) -> None:
        if self.writes:
            self.recorder.save(turn, self._cost.counts[turn.role])


class BackgroundThread:
    """One piece of work at a time in a thread; what it raises is raised again where somebody waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start when the work before it is done."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again in the other thread
            self._error = error

    def wait(self) -> None:
        """Return when all work is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what has gone wrong so far."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class CheckpointCallback(Callback):
    """Saves models, optimizers and the position: every `save_every`, when the run stops, and at its end.

    Training waits only for the copy in host memory; a thread writes it.
    """

    def __init__(
        self,
        state: TrainingState,
        position: Position,
        folder: RunFolder,
        *,
        journal: JournalCallback,
        cost: Cost,
        best: BestStudent,
        replay: Replay,
        heartbeat: Heartbeat,
    ) -> None:
        self.state, self.position, self.folder = state, position, folder
        self._journal, self._cost, self._best, self._replay, self._heartbeat = journal, cost, best, replay, heartbeat
        self._thread = BackgroundThread()
        self._saved_turns = -1
        self._oldest_needed: Mapping[str, int] = {}
        self.started = time.monotonic()
        """when the run would have started had it been trained without a break"""

    def optimizers(self) -> dict[str, Any]:
        """Return the optimizers of all models that learn here, by the model's name."""
        return {name: learner.optimizer for name, learner in self.state.learners.items()}

    def writes_weights(self, turn: Turn) -> bool:
        return self.state.run.saves(turn)

    def on_step(self, turn: Turn, result: StepResult) -> None:
        self._thread.check()

    def on_turn_end(self, turn: Turn) -> None:
        if self.state.run.saves(turn):
            self.save()

    def on_stop(self) -> None:
        if self._saved_turns != self.position.turns:
            self.save()
        self.state.fabric.barrier()  # all processes leave the run together

    def on_end(self) -> None:
        if self._saved_turns != self.position.turns:
            self.save()
        self._thread.wait()

    def save(self) -> None:
        """Copy everything up to this turn now, and write it while training goes on."""
        self._thread.wait()
        journal = self._journal.journal
        if journal is not None:
            self.position.journal_bytes = journal.length()
            self.position.journal_digest, self.position.best_digest = journal.digest(), self._best.digest
            self.position.seconds = time.monotonic() - self.started
            self.position.cost = {role: dict(counts) for role, counts in self._cost.counts.items()}
            self._oldest_needed = self._replay.mark_save()
        checkpoint.save(
            self.folder.checkpoint,
            self.state.run.spec.fingerprint(),
            self.position,
            self.state.modules(),
            self.optimizers(),
            writes=journal is not None,
            start=self._write,
            within=self.folder.handle,
        )
        self._saved_turns = self.position.turns
        self._heartbeat.note_saved(self._saved_turns)

    def _write(self, write_checkpoint: Callable[[], None]) -> None:
        journal, oldest_needed = self._journal.journal, self._oldest_needed
        assert journal is not None

        def work() -> None:
            journal.sync()  # first: the checkpoint says how long it is
            write_checkpoint()
            self._replay.release(oldest_needed, self.folder)  # last: no checkpoint needs older snapshots now

        self._thread.start(work)

    def close(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Let a save end, whatever ends the run; what goes wrong in it must not hide what went wrong before."""
        try:
            self._thread.wait()
        except BaseException:
            if error is None:
                raise


class ProgressCallback(Callback):
    """Makes an `Event` of every turn and of every wait."""

    def __init__(
        self, run: ResolvedRun, position: Position, timer: Timer, replay: Replay, emit: Callable[[Event], None]
    ) -> None:
        """`emit` hands an event to all callbacks."""
        self._run, self._position, self._timer, self._replay, self._emit = run, position, timer, replay, emit
        self._ends = run.timeline.ends()
        self._accuracy: float | None = None
        self._result: StepResult | None = None

    def on_step(self, turn: Turn, result: StepResult) -> None:
        self._result, self._accuracy = result, None

    def on_evaluate(self, turn: Turn, model: str, scores: Scores) -> None:
        if model == turn.role:
            self._accuracy = scores["test"]["final"]

    def on_turn_end(self, turn: Turn) -> None:
        assert self._result is not None
        self._timer.end_turn(turn)
        event = self._event(turn.role, turn.step + 1)
        self._emit(
            event._replace(
                accuracy=self._accuracy,
                losses=self._result.losses,
                lr=self._result.lr,
                images_per_second=self._result.images_per_second,
                seconds_left=self._timer.seconds_left(),
            )
        )

    def on_wait(self, turn: Turn | None, waiting: str) -> None:
        role, step = turn or Turn(self._run.roles[0], self._run.total_steps)
        self._emit(self._event(role, step)._replace(waiting=waiting))

    def on_end(self) -> None:
        last = [*self._run.timeline.blocks(after=len(self._run.timeline) - 1)][-1].role
        if last in self._replay.trajectories:  # it had no turn here after which an event was made
            self._emit(self._event(last, self._run.total_steps)._replace(accuracy=self._replay.accuracy.get(last)))

    def _event(self, role: str, step: int) -> Event:
        run = self._run
        return Event(
            turn=self._position.turns,
            turns=len(run.timeline),
            role=role,
            epoch=step / run.steps_per_epoch,
            accuracy=None,
            step=step,
            steps=self._ends[role],
            epochs=run.total_steps / run.steps_per_epoch,
        )


class UserCallback(Callback):
    """Calls the function that somebody has given to `train`; what it raises ends the run, and saves nothing."""

    def __init__(self, function: Callable[[Event], None]) -> None:
        self._function = function
        self.error: BaseException | None = None
        """what the function has raised"""

    def on_event(self, event: Event) -> None:
        try:
            self._function(event)
        except BaseException as error:
            self.error = error
            raise


class ResultCallback(Callback):
    """Writes the student and, last of all, the result when the run has come to its end."""

    def __init__(
        self,
        state: TrainingState,
        position: Position,
        folder: RunFolder,
        *,
        journal: JournalCallback,
        cost: Cost,
        best: BestStudent,
        replay: Replay,
        heartbeat: Heartbeat,
    ) -> None:
        self.state, self.position, self.folder = state, position, folder
        self._journal, self._cost, self._best, self._replay, self._heartbeat = journal, cost, best, replay, heartbeat

    def on_end(self) -> None:
        journal = self._journal.journal
        if journal is not None:
            journal.check_whole()
            save_students(self.state.run, self.folder, self._whole_modules())
            self._write_result(journal)
        self.state.fabric.barrier()

    def _write_result(self, journal: Journal) -> None:
        run = self.state.run
        facts = {
            "roles": [*run.roles],
            "learners": {role: run.method.learners[role] for role in run.roles},
            "steps_per_epoch": run.steps_per_epoch,
            "total_steps": run.total_steps,
            "test_images": len(run.data.evaluated_splits()["test"]),
            **self._best.summary(),
        }
        if self.state.replayed and not run.spec.engine.pipeline:
            facts["computed_here"] = self._cost.summary()
        if run.spec.on_nonfinite == "skip":
            facts["skipped_updates"] = count_skipped(read_journal(self.folder.journal, self.folder.handle))
        machine = describe_machine(self.state.fabric, run.spec)
        cost = self._cost.summary(self._replay.costs())
        self._heartbeat.remove()
        result = make_result(
            self.folder.path, cost=cost, seconds=self.position.seconds, plan=facts, environment=machine
        )
        best = {"best": self._best.digest} if "best" in facts else {}
        result["digests"] = {"journal": journal.digest(), **student_digests(run, self.folder), **best}
        write_json(self.folder.result, result, self.folder.handle)

    def _whole_modules(self) -> dict[str, nn.Module]:
        """Return the models as one process can have them; those that FSDP shards are read from the checkpoint."""
        run, modules = self.state.run, self.state.modules()
        if not uses_fsdp(self.state.fabric):
            return modules
        built = build_saved_models(run)
        names = [run.student] if self.state.average is None else [run.student, "average"]
        whole = {name: built[name].to(next(modules[name].parameters()).dtype) for name in names}
        checkpoint.load(self.folder.checkpoint, run.spec.fingerprints(), whole, {})
        return whole
