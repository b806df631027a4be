"""Callbacks of every run: cost, timer, journal, recording, targets, heartbeat, checkpoint, progress, user, result.

`guard.Guard`, `students.BestStudent` and `loggers.Loggers` are callbacks too; `session.Session` puts all in order.
"""

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.runs import checkpoint
from spacedkd.runs.checkpoint import Position
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.journal import Journal, read_journal
from spacedkd.runs.result import make_result
from spacedkd.runs.status import PROGRESS
from spacedkd.runtime.errors import Diverged, UserError, first_line
from spacedkd.runtime.files import HOST, Folder, write_json
from spacedkd.schedule import Turn
from spacedkd.training.device import describe_machine
from spacedkd.training.distributed import uses_fsdp
from spacedkd.training.guard import count_skipped
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
        """the current turn, or the last one"""

    def start(self, callbacks: Iterable[Callback]) -> None:
        """Pass all calls from here on to these callbacks."""
        self.callbacks = [*callbacks]

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


class Cost(Callback):
    """A counter of every learner's updates, and of the passes and images through every model.

    Forward hooks count the passes, so that a method cannot miscount its own. A forward pass that records gradients
    counts as a backward pass too. Evaluation is not counted.
    """

    def __init__(self, models: Mapping[str, nn.Module], learners: Mapping[str, str]) -> None:
        """Count the passes through `models`; `learners` has the model that each role updates."""
        self._learners = learners
        self.counts: dict[str, Counter[str]] = {}
        """role -> counts of its turns, by names such as "student forward images" """
        self._current: Counter[str] = Counter()  # the counts of the role whose turn it is
        self._images = 0  # images in the current micro-batch; 0 while nothing is counted
        for name, model in models.items():
            model.register_forward_hook(lambda module, inputs, output, name=name: self._count_pass(name))

    def _count_pass(self, model: str) -> None:
        if not self._images:
            return
        for direction, passes in (("forward", 1), ("backward", int(torch.is_grad_enabled()))):
            self._current[f"{model} {direction} passes"] += passes
            self._current[f"{model} {direction} images"] += passes * self._images

    def restore(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Continue from the counts of a checkpoint."""
        self.counts = {role: Counter(role_counts) for role, role_counts in counts.items()}

    def start_part(self, role: str, images: int, number: int, count: int) -> None:
        """Count passes from here on for a role, on part `number` of the `count` parts of a global batch."""
        self._current = self.counts.setdefault(role, Counter())
        self._images = images * (number + 1) // count - images * number // count

    def on_step(self, turn: Turn, result: StepResult) -> None:
        """Count one update of the role's model; passes are not counted until the next batch."""
        self._images = 0
        learner = self._learners[turn.role]
        self.counts[turn.role][f"{learner} updates"] += 1
        self.counts[turn.role][f"{learner} images"] += result.images

    def summary(self, others: Iterable[Mapping[str, int]] = (), without: str | None = None) -> dict[str, Any]:
        """Return totals over all models, and the counts they are made of.

        Counts of `others` are added; those of the model `without`, whose outputs were not computed, are left out.
        """
        counts: Counter[str] = Counter()
        for role_counts in (*self.counts.values(), *others):
            counts.update({k: n for k, n in role_counts.items() if without is None or not k.startswith(f"{without} ")})

        def total(ending: str) -> int:
            return sum(count for name, count in counts.items() if name.endswith(ending))

        kinds = ("updates", "forward passes", "backward passes", "forward images", "backward images")
        totals = {kind.replace(" ", "_"): total(f" {kind}") for kind in kinds}
        return {**totals, "by_model": dict(sorted(counts.items()))}


SPEED_WINDOW_SECONDS = 20.0
"""time constant of the moving average that is a role's training speed"""


class Timer(Callback):
    """The speed of a run by the clock of this process; nothing of it is in the journal.

    The timer does not synchronise with the device: a GPU may compute behind the host, until losses are logged.
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
        """Count a step on `images` images that has just ended, and return the role's speed over the last 20 s."""
        step_seconds = time.monotonic() - self._step_began
        recent_images, recent_seconds = self._recent.get(role, (0.0, 0.0))
        keep = math.exp(-step_seconds / SPEED_WINDOW_SECONDS)
        recent_images, recent_seconds = recent_images * keep + images, recent_seconds * keep + step_seconds
        self._recent[role] = recent_images, recent_seconds
        return recent_images / max(recent_seconds, 1e-9)

    def end_turn(self, turn: Turn) -> None:
        """Count a turn with its evaluation and its saves.

        `ProgressCallback` calls it: at `on_turn_end` of the timer itself, before the checkpoint, the turn is not saved.
        """
        now = time.monotonic()
        self._seconds[turn.role] = self._seconds.get(turn.role, 0.0) + now - self._turn_ended
        self._turns[turn.role] += 1
        self._turns_left[turn.role] -= 1
        self._turn_ended = now

    def on_wait(self, turn: Turn | None, waiting: str) -> None:
        self._turn_ended = time.monotonic()  # waiting is not counted as training

    def seconds_left(self) -> float:
        """Return the seconds the run will still take; a role that has not learned yet counts with the mean time."""
        mean = sum(self._seconds.values()) / max(self._turns.total(), 1)
        pace = {role: self._seconds[role] / self._turns[role] for role in self._turns}
        return sum(count * pace.get(role, mean) for role, count in self._turns_left.items() if count > 0)


class JournalCallback(Callback):
    """Makes an entry of every logged loss, skipped update and accuracy; the first process writes the journal."""

    def __init__(
        self, run: ResolvedRun, position: Position, emit: Callable[[Mapping[str, Any], float | None], None]
    ) -> None:
        """`emit` passes an entry to all callbacks; this one writes it when it gets it back, in `on_log`."""
        self._run, self._position, self._emit = run, position, emit
        self.journal: Journal | None = None
        """the open journal in the first process, None in all others"""

    def write_to(self, journal: Journal | None) -> None:
        """Write all entries from here on into an open journal; nowhere if it is None."""
        self.journal = journal

    def on_step(self, turn: Turn, result: StepResult) -> None:
        if result.skipped:
            scale = {} if result.loss_scale is None else {"loss_scale": result.loss_scale}
            self._add_event("skipped", turn, {"not_finite": result.skipped, **scale})
        elif self._run.logs(turn):
            values = {"lr": result.lr, "losses": dict(result.losses)}
            self._add_event("loss", turn, values, result.images_per_second)

    def on_evaluate(self, turn: Turn, model: str, scores: Scores) -> None:
        values: dict[str, Any] = {"role": model, "accuracy": scores}
        if self._run.spec.task != "classification":
            values |= {"metric": scores.metric, "metrics": scores.others}
        self._add_event("accuracy", turn, values)

    def _add_event(
        self, event: str, turn: Turn, values: Mapping[str, Any], images_per_second: float | None = None
    ) -> None:
        """Add the entry of an event after a turn; `values` may name another model in place of the turn's role."""
        epoch = (turn.step + 1) / self._run.steps_per_epoch
        when = {"turn": self._position.turns, "role": turn.role, "step": turn.step, "epoch": epoch}
        self.add({"event": event, **when, **values}, images_per_second)

    def add(self, entry: Mapping[str, Any], images_per_second: float | None = None) -> None:
        """Pass an entry to all callbacks in the first process; do nothing in others, which log nothing."""
        if self.journal is not None:
            self._emit(entry, images_per_second)

    def on_log(self, entry: Mapping[str, Any], images_per_second: float | None) -> None:
        if self.journal is not None:
            self.journal.write(entry)


class RecordingCallback(Callback):
    """Records the snapshots and the journal of roles that other runs may replay."""

    def __init__(self, recorder: TrajectoryRecorder, cost: Cost, refresh_averages: Callable[[str], None]) -> None:
        """`refresh_averages` brings the averages of a role's weights up to date; all processes must call it."""
        self.recorder, self._cost, self._refresh_averages = recorder, cost, refresh_averages
        self._writes = False

    @contextmanager
    def open(self, done: Mapping[str, int], journal: Iterable[Mapping[str, Any]]) -> Iterator[None]:
        """Open the recorder in the first process, the one that writes; see `TrajectoryRecorder.open`."""
        with self.recorder.open(done, journal):
            self._writes = True
            yield

    def writes_weights(self, turn: Turn) -> bool:
        return self.recorder.records(turn)

    def on_log(self, entry: Mapping[str, Any], images_per_second: float | None) -> None:
        if self._writes:
            self.recorder.add(entry)

    def on_turn_end(self, turn: Turn) -> None:
        if self.recorder.records_average(turn):
            self._refresh_averages(turn.role)
        if self._writes:
            self.recorder.save(turn, self._cost.counts[turn.role])


class TargetsCallback(Callback):
    """Writes the cached targets of the steps since the last save, before the next save; nothing in most runs."""

    def __init__(self, state: TrainingState) -> None:
        self._run, self._outputs = state.run, state.teacher_outputs

    def _flush(self) -> None:
        if self._outputs is not None:
            self._outputs.flush()

    def on_turn_end(self, turn: Turn) -> None:
        if self._run.saves(turn):
            self._flush()

    def on_stop(self) -> None:
        self._flush()

    def on_end(self) -> None:
        self._flush()


HEARTBEAT_SECONDS = 5.0
"""time between two writes of the heartbeat's file"""
_NOT_IN_HEARTBEAT = ("accuracy", "losses", "lr")
"""fields of an event that are in the journal; reading losses synchronises with the device"""


class Heartbeat(Callback):
    """Writes a small file in a run's folder with its progress, every few seconds, for `spacedkd status`.

    It is no part of the run: nothing else reads it, and a finished run has none.
    """

    def __init__(self, run: Folder) -> None:
        self._run, self._path = run, run.path / PROGRESS
        self._progress: dict[str, Any] = {}
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event) -> None:
        """Keep the event; the next heartbeat has its progress."""
        self._progress["event"] = event

    def note_saved(self, turn: int) -> None:
        """Keep the number of turns from which the run would resume."""
        self._progress["saved"] = turn

    @contextmanager
    def running(self, turn: int, turns: int, roles: Sequence[str]) -> Iterator[None]:
        """Write the file while a run is trained; at the end write how it ended, unless it is finished."""
        self._progress = {"began": time.time(), "saved": turn, "turn": turn, "turns": turns, "roles": [*roles]}
        ended = {"ended": "stopped"}
        self._write()
        self._thread = threading.Thread(target=self._write_often, daemon=True)
        self._thread.start()
        try:
            yield
        except BaseException as error:
            ended = {"ended": _kind(error), "said": first_line(error)}
            raise
        finally:
            self._stop()
            with suppress(OSError, UserError):
                if not self._run.exists(self._path.with_name("result.json")):
                    self._write(ended)

    def remove(self) -> None:
        """Remove the file before the result is written, so that a finished run has none, whenever it is killed."""
        self._stop()
        self._run.remove(self._path)

    def _write_often(self) -> None:
        while not self._ends.wait(HEARTBEAT_SECONDS):
            self._write()

    def _stop(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, more: Mapping[str, Any] | None = None) -> None:
        """Replace the file as a whole, without fsync: after a power cut no process trains.

        Errors of a full disk or a moved folder are ignored here: the next write of the run itself raises them.
        """
        progress = dict(self._progress)
        event = progress.pop("event", None)
        where = {} if event is None else {k: v for k, v in event._asdict().items() if k not in _NOT_IN_HEARTBEAT}
        who = {"host": HOST, "process": os.getpid(), "time": time.time()}
        unfinished = self._path.with_name(f"{PROGRESS}.unfinished")
        with suppress(OSError, UserError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(self._run.open(unfinished, flags), "w", encoding="utf-8") as file:
                json.dump({**who, **progress, **where, **(more or {})}, file)
            self._run.rename(unfinished, self._path, durable=False)


def _kind(error: BaseException) -> str:
    if isinstance(error, Exception):
        return "diverged" if isinstance(error, Diverged) else "failed"
    return "killed"  # KeyboardInterrupt or SystemExit: ended at once, without a save


@dataclass(frozen=True)
class RunParts:
    """The parts of an open run that its checkpoints and its result are written from."""

    state: TrainingState
    position: Position
    folder: RunFolder
    journal: JournalCallback
    cost: Cost
    best: BestStudent
    replay: Replay
    heartbeat: Heartbeat


class BackgroundThread:
    """A thread for one piece of work at a time; its error is raised again in the thread that waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start this work when the work before it is done."""
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
        """Raise the error of the work so far, if there is one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class CheckpointCallback(Callback):
    """Saves models, optimizers and the position: every `save_every`, when the run stops, and at its end.

    Training waits only until a copy is in host memory; a thread writes the file.
    """

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts
        self._thread = BackgroundThread()
        self._saved_turns = -1
        self._oldest_needed: Mapping[str, int] = {}
        self._started = time.monotonic()

    def start_clock(self) -> None:
        """Count the seconds of training from here on, on top of those in the restored position."""
        self._started = time.monotonic() - self.parts.position.seconds

    def optimizers(self) -> dict[str, Any]:
        """Return the optimizers of all models that learn here, by the model's name."""
        return {name: learner.optimizer for name, learner in self.parts.state.learners.items()}

    def writes_weights(self, turn: Turn) -> bool:
        return self.parts.state.run.saves(turn)

    def on_step(self, turn: Turn, result: StepResult) -> None:
        self._thread.check()

    def on_turn_end(self, turn: Turn) -> None:
        if self.parts.state.run.saves(turn):
            self.save()

    def on_stop(self) -> None:
        self._save_unsaved()
        self.parts.state.fabric.barrier()  # all processes leave the run together

    def on_end(self) -> None:
        self._save_unsaved()
        self._thread.wait()

    def _save_unsaved(self) -> None:
        if self._saved_turns != self.parts.position.turns:
            self.save()

    def save(self) -> None:
        """Copy the run's state after this turn, and write it to disk while training continues."""
        self._thread.wait()
        state, position, folder = self.parts.state, self.parts.position, self.parts.folder
        journal = self.parts.journal.journal
        if journal is not None:
            position.journal_bytes = journal.length()
            position.journal_digest, position.best_digest = journal.digest(), self.parts.best.digest
            position.seconds = time.monotonic() - self._started
            position.cost = {role: dict(counts) for role, counts in self.parts.cost.counts.items()}
            position.scales = {name: scaler.state_dict() for name, scaler in state.scalers().items()}
            self._oldest_needed = self.parts.replay.mark_save()
        checkpoint.save(
            folder.checkpoint,
            state.run.spec.fingerprint(),
            position,
            state.modules(),
            self.optimizers(),
            writes=journal is not None,
            start=self._write,
            within=folder.handle,
        )
        self._saved_turns = position.turns
        self.parts.heartbeat.note_saved(self._saved_turns)

    def _write(self, write_checkpoint: Callable[[], None]) -> None:
        journal, replay, oldest_needed = self.parts.journal.journal, self.parts.replay, self._oldest_needed
        assert journal is not None

        def work() -> None:
            journal.sync()  # first: the checkpoint holds the journal's length
            write_checkpoint()
            replay.release(oldest_needed, self.parts.folder)  # last: now no checkpoint needs older snapshots

        self._thread.start(work)

    def close(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for a save that is being written; its error must not replace an earlier error of the run.

        It has the arguments of `__exit__`: the session's ExitStack calls it.
        """
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
        """`emit` passes an event to all callbacks."""
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
        last = next(self._run.timeline.after(len(self._run.timeline) - 1)).role  # the role of the last turn
        if last in self._replay.trajectories:  # a replayed role had no turn here, and so no event
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
            metric=run.spec.metric_title,
        )


class UserCallback(Callback):
    """Calls the function given to `train` as `callback`; an error in it ends the run without a save."""

    def __init__(self, function: Callable[[Event], None]) -> None:
        self._function = function
        self.error: BaseException | None = None
        """the error that the function has raised"""

    def on_event(self, event: Event) -> None:
        try:
            self._function(event)
        except BaseException as error:
            self.error = error
            raise


class ResultCallback(Callback):
    """Writes the student, and then the result, when the run has come to its end."""

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts

    def on_end(self) -> None:
        state, journal = self.parts.state, self.parts.journal.journal
        if journal is not None:
            journal.check_whole()
            save_students(state.run, self.parts.folder, self._whole_modules())
            self._write_result(journal)
        state.fabric.barrier()

    def _write_result(self, journal: Journal) -> None:
        state, folder, run = self.parts.state, self.parts.folder, self.parts.state.run
        facts = {
            "roles": [*run.roles],
            "learners": {role: run.method.learners[role] for role in run.roles},
            "steps_per_epoch": run.steps_per_epoch,
            "total_steps": run.total_steps,
            "test_images": len(run.data.evaluated_splits()["test"]),
            **self.parts.best.summary(),
        }
        read = None if state.cached_teacher is None else state.cached_teacher.seen_model
        if (state.replayed or read is not None) and not run.spec.engine.pipeline:
            facts["computed_here"] = self.parts.cost.summary(without=read)
        if run.spec.on_nonfinite == "skip" or state.scalers():
            facts["skipped_updates"] = count_skipped(read_journal(folder.journal, folder.handle))
        machine = describe_machine(state.fabric, run.spec)
        cost = self.parts.cost.summary(self.parts.replay.costs())
        self.parts.heartbeat.remove()
        seconds = self.parts.position.seconds
        result = make_result(folder.path, cost=cost, seconds=seconds, plan=facts, environment=machine)
        best = {"best": self.parts.best.digest} if "best" in facts else {}
        result["digests"] = {"journal": journal.digest(), **student_digests(run, folder), **best}
        write_json(folder.result, result, folder.handle)

    def _whole_modules(self) -> dict[str, nn.Module]:
        """Return the models with whole weights; where FSDP shards them, they are read from the checkpoint."""
        state, run, modules = self.parts.state, self.parts.state.run, self.parts.state.modules()
        if not uses_fsdp(state.fabric):
            return modules
        built = build_saved_models(run)
        names = [run.student] if state.average is None else [run.student, "average"]
        whole = {name: built[name].to(next(modules[name].parameters()).dtype) for name in names}
        checkpoint.load(self.parts.folder.checkpoint, run.spec.fingerprints(), whole, {})
        return whole
