"""What a run leaves in its folder (spec, journal, checkpoint, in the end student and result), and what it costs."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.spec import read_spec
from spacedkd.runs import checkpoint
from spacedkd.runs.checkpoint import Position
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.journal import Journal, read_journal
from spacedkd.runs.result import make_result
from spacedkd.runtime.errors import Moved, UserError
from spacedkd.runtime.files import write_json
from spacedkd.schedule import Turn
from spacedkd.training.callbacks import Event
from spacedkd.training.cost import Cost
from spacedkd.training.device import describe_machine
from spacedkd.training.distributed import check_shared_storage, uses_fsdp
from spacedkd.training.evaluate import Scores
from spacedkd.training.extension import copy_start, restore_start
from spacedkd.training.guard import skipped
from spacedkd.training.heartbeat import Heartbeat
from spacedkd.training.loggers import Loggers
from spacedkd.training.state import TrainingState
from spacedkd.training.students import BestStudent, build_saved_models, save_students, student_digests
from spacedkd.trajectory.journal import Entry
from spacedkd.trajectory.record import TrajectoryRecorder
from spacedkd.trajectory.replay import Replay

# How a run takes its folder: free, begun before, begun again, or where another run ended.

Planned = Callable[[ResolvedRun, int], None]
"""hears what will be done, and how many turns of it are"""


class Beginning(NamedTuple):
    """How a run begins."""

    new: bool = False
    """the folder must be free"""
    restart: bool = False
    """what is there begins again"""
    extend: RunFolder | None = None
    """the run that it goes on from"""
    planned: Planned = lambda plan, done: None
    """called once the folder is held"""

    def take(self, folder: RunFolder, state: TrainingState, replay: Replay) -> bool:
        """Make the folder this run's, which is held; says whether it is the first to be there."""
        spec = state.run.spec
        is_new = not folder.spec.exists()
        if is_new:
            if self.extend is not None:
                copy_start(self.extend, folder, state.run)
            folder.create(spec)
        elif self.new:
            folder.check_free()
        else:
            folder.check_holds(spec)
            held = read_spec(folder.path)
            if (held.processes_before, held.log) != (spec.processes_before, spec.log):
                folder.create(spec)  # from here on it is a run on another number of processes, or with other loggers
        if self.restart:
            replay.check_complete(folder.path)
            folder.restart()
        folder.handle.remove(folder.failed)  # it is tried again
        replay.resume(folder)
        write_json(folder.classes, state.run.data.describe(), folder.handle)
        if checkpoint.generations(folder.checkpoint):
            checkpoint.promote_newest(folder.checkpoint, folder.journal, state.modules(), folder.handle)
        elif folder.first_checkpoint.exists():
            restore_start(folder)
        return is_new


# What is written while training goes on.


class Background:
    """One piece of work at a time in a thread of its own; whatever goes wrong in it is raised where it is looked at."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin when what was begun before is done."""
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(work,))
        self._thread.start()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # it is the other thread's to tell
            self._error = error

    def wait(self) -> None:
        """Return when all is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what has gone wrong so far."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


# What a run leaves in its folder (spec, journal, checkpoint, in the end student and result), and what it costs.


class Recorder:
    """The folder, the journal, the position and the cost of a run; of several processes the first one writes."""

    def __init__(self, state: TrainingState, folder: RunFolder, loggers: Loggers | None = None) -> None:
        self.state, self.folder = state, folder
        self._beat, self._loggers = Heartbeat(folder.handle), loggers or Loggers()
        self.position = Position()
        self.turn: Turn | None = None
        """the turn that is taken now, or was taken last"""
        self.cost = Cost(state.modules())
        self._journal: Journal | None = None
        self._saved = -1
        self._passed: Mapping[str, int] = {}
        recorded = {role: one for role, one in state.paths.items() if state.run.spec.record and role in state.learning}
        self._trajectory = TrajectoryRecorder(folder.handle, state.run, state.modules(), recorded)
        self.replay = Replay(state.run, state.modules(), state.followed, self._keep)
        self._best = BestStudent(state, folder)
        self._saving = Background()
        self._started = time.monotonic()

    @contextmanager
    def opened(self, begins: Beginning | None = None) -> Iterator[None]:
        """Hold the folder, with the run taken up where it was left, or from its beginning."""
        plan, fabric = self.state.run, self.state.fabric
        with ExitStack() as stack:
            is_new = False
            if fabric.is_global_zero:
                stack.enter_context(self.folder.lock())  # before anything is written: others may begin here as well
                is_new = (begins or Beginning()).take(self.folder, self.state, self.replay)
            fabric.barrier()
            check_shared_storage(fabric, self.folder.spec)
            latest, first = self.folder.checkpoint, self.folder.first_checkpoint
            if (start := latest if latest.exists() else first).exists():  # everything as it was when it was saved
                names = (plan.spec.fingerprints(), self.state.modules(), self._optimizers())
                self.position = checkpoint.load(start, *names)
                self.cost.counts = {role: Counter(counts) for role, counts in self.position.cost.items()}
            before: list[Entry] = []
            if fabric.is_global_zero:
                before = self._logged()
                known = (self.position.journal_bytes, self.position.journal_digest)
                self._journal = stack.enter_context(Journal(self.folder.journal, *known, self.folder.handle))
                left = read_journal(self.folder.journal, self.folder.handle)
                stack.enter_context(self._trajectory.opened(plan.updates(self.position.turns), left))
                stack.push(self._end_saving)
            self._best.resume(self.position)
            self._started, begun = time.monotonic() - self.position.seconds, self.position.turns
            try:
                with self._watched(before):
                    yield
            except Moved:
                raise
            except UserError:
                if is_new and self.position.turns == begun:  # a mistake that shows at the first step takes no folder
                    self.folder.discard()
                raise

    def _logged(self) -> list[Entry]:
        """The whole journal, where loggers need it."""
        journal, handle = self.folder.journal, self.folder.handle
        return [*read_journal(journal, handle)] if self._loggers and handle.exists(journal) else []

    @contextmanager
    def _watched(self, before: list[Entry]) -> Iterator[None]:
        """While this lasts others can see how far the run is; `before` is the journal as it was found."""
        if self._journal is None:
            yield
            return
        left, plan = self._logged(), self.state.run
        logged = self._loggers.open(self.folder.path, plan.spec, plan.roles[-1], left, before[len(left) :])
        with self._beat.beating(self.position.turns, len(plan.timeline), plan.roles), logged:
            yield

    def beats(self, moment: Event) -> None:
        """The run goes on."""
        self._beat.tell(moment)

    def _end_saving(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Whatever ends a run lets a save end first; what went wrong in it must not hide what went wrong before."""
        try:
            self._saving.wait()
        except BaseException:
            if error is None:
                raise

    def save(self) -> None:
        """Make everything up to this turn safe: it is copied now, and written while training goes on."""
        self._saving.wait()
        fingerprint = self.state.run.spec.fingerprint()
        if self._journal is not None:
            self.position.journal_bytes = self._journal.length()
            self.position.journal_digest, self.position.best_digest = self._journal.digest(), self._best.digest
            self.position.seconds = time.monotonic() - self._started
            self.position.cost = {role: dict(counts) for role, counts in self.cost.counts.items()}
            self._passed = self.replay.oldest_needed()
        models, optimizers, writes = self.state.modules(), self._optimizers(), self._journal is not None
        saved = (self.folder.checkpoint, fingerprint, self.position, models, optimizers, writes, self._write_beside)
        checkpoint.save(*saved, self.folder.handle)
        self._saved = self.position.turns
        self._beat.saved(self._saved)

    def _write_beside(self, write: Callable[[], None]) -> None:
        journal, passed = self._journal, self._passed
        assert journal is not None

        def work() -> None:
            journal.sync()  # first: a checkpoint says how long it is
            write()
            self.replay.release(passed, self.folder)  # last: no checkpoint needs more

        self._saving.start(work)

    def _whole_modules(self) -> dict[str, nn.Module]:
        """The models as one process can have them; those that are spread over several come from what was saved."""
        plan, modules = self.state.run, self.state.modules()
        if not uses_fsdp(self.state.fabric):
            return modules
        built = build_saved_models(plan)
        names = [plan.student] if self.state.average is None else [plan.student, "average"]
        found = {name: built[name].to(next(modules[name].parameters()).dtype) for name in names}
        checkpoint.load(self.folder.checkpoint, plan.spec.fingerprints(), found, {})
        return found

    def _optimizers(self) -> dict[str, Any]:
        return {name: learner.optimizer for name, learner in self.state.learners.items()}

    def loss(self, turn: Turn, lr: float, losses: Mapping[str, float], pace: float | None = None) -> None:
        """Write losses down; the pace, images a second, is for loggers alone."""
        self._write("loss", turn, {"lr": lr, "losses": dict(losses)}, pace)

    def skipped(self, turn: Turn, what: str) -> None:
        """An update that was left out, because of `what` was not finite."""
        self._write("skipped", turn, {"not_finite": what})

    def accuracy(self, turn: Turn, scores: Scores, role: str) -> None:
        self._write("accuracy", turn, {"role": role, "accuracy": scores})
        self._best.observe(role, self.position.turns, self._epoch(turn), scores)

    def _write(self, event: str, turn: Turn, found: Mapping[str, Any], pace: float | None = None) -> None:
        if self._journal is not None:
            when = {"turn": self.position.turns, "role": turn.role, "step": turn.step, "epoch": self._epoch(turn)}
            self._keep({"event": event, **when, **found}, pace)

    def _epoch(self, turn: Turn) -> float:
        return (turn.step + 1) / self.state.run.steps_per_epoch

    def _keep(self, entry: Entry, pace: float | None = None) -> None:
        if self._journal is not None:
            self._journal.write(entry)
            self._trajectory.add(entry)
            self._loggers.log(entry, pace)

    def leaves_behind(self, turn: Turn) -> bool:
        """Whether others will read, from the folder, what there is after a turn."""
        return self.state.run.saves(turn) or self._trajectory.records(turn) or self._best.pending

    def updated(self, turn: Turn) -> None:
        """Leave the role's path behind, where it is recorded, and the student, where it is the best so far."""
        self._saving.check()
        self._best.save_pending()
        if self._journal is not None:
            self._trajectory.save(turn, self.cost.counts[turn.role])

    def rest(self) -> None:
        """Save a run that is to stop here; all processes leave it together."""
        if self._saved != self.position.turns:
            self.save()
        self.state.fabric.barrier()

    def finish(self) -> None:
        """Save the student, and last of all the result."""
        state, plan = self.state, self.state.run
        if self._saved != self.position.turns:
            self.save()
        self._saving.wait()
        if state.fabric.is_global_zero:
            assert self._journal is not None
            self._journal.check_whole()
            save_students(plan, self.folder, self._whole_modules())
            facts = {
                "roles": [*plan.roles],
                "learners": {role: plan.method.learners[role] for role in plan.roles},
                "steps_per_epoch": plan.steps_per_epoch,
                "total_steps": plan.total_steps,
                "test_images": len(plan.data.evaluated_splits()["test"]),
                **self._best.summary(),
            }
            if state.followed and not plan.spec.engine.pipeline:
                facts["computed_here"] = self.cost.summary()
            if plan.spec.on_nonfinite == "skip":
                facts["skipped_updates"] = skipped(read_journal(self.folder.journal, self.folder.handle))
            machine = describe_machine(state.fabric, plan.spec)
            cost = self.cost.summary(self.replay.costs())
            self._beat.remove()
            ended = make_result(
                self.folder.path, cost=cost, seconds=self.position.seconds, plan=facts, environment=machine
            )
            best = {"best": self._best.digest} if "best" in facts else {}
            ended["digests"] = {"journal": self._journal.digest(), **student_digests(plan, self.folder), **best}
            write_json(self.folder.result, ended, self.folder.handle)
        state.fabric.barrier()
