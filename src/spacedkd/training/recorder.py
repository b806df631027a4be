"""What a run leaves in its folder (spec, journal, checkpoint, in the end student and result), and what it costs."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

from torch import nn

from spacedkd.files import read_journal, write_json
from spacedkd.models import build
from spacedkd.run import result
from spacedkd.schedule import Turn
from spacedkd.spec import read_spec
from spacedkd.training import checkpoint
from spacedkd.training.building import build_models
from spacedkd.training.checkpoint import Position
from spacedkd.training.cost import Cost
from spacedkd.training.engine import describe
from spacedkd.training.folder import Journal, RunFolder
from spacedkd.training.following import Following
from spacedkd.training.path import Entry, Recording
from spacedkd.training.setup import Scores, Setup
from spacedkd.training.sharding import is_sharding
from spacedkd.training.together import check_shared


class Recorder:
    """The folder, the journal, the position and the cost of a run; of several processes the first one writes."""

    def __init__(self, setup: Setup, folder: RunFolder) -> None:
        self.setup, self.folder = setup, folder
        self.position = Position()
        self.cost = Cost(setup.modules())
        self._journal: Journal | None = None
        self._saved = -1
        self._passed: dict[str, int] = {}
        recorded = {role: one for role, one in setup.paths.items() if setup.plan.spec.record and role in setup.learning}
        self._recording = Recording(folder.path, setup.plan, setup.modules(), recorded)
        self.following = Following(setup.plan, setup.modules(), setup.followed, self._keep)
        self._started = time.monotonic()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder, with the run taken up where it was left."""
        plan, fabric = self.setup.plan, self.setup.fabric
        with ExitStack() as stack:
            if fabric.is_global_zero:
                if not self.folder.spec.exists():
                    self.folder.create(plan.spec)
                stack.enter_context(self.folder.lock())
                if read_spec(self.folder.path).processes_before != plan.spec.processes_before:
                    self.folder.create(plan.spec)  # from here on it is a run on another number of processes
                write_json(self.folder.classes, plan.data.describe())
            fabric.barrier()
            check_shared(fabric, self.folder.spec)
            if self.folder.checkpoint.exists():  # everything as it was when it was saved
                names = (plan.spec.fingerprints(), self.setup.modules(), self._optimizers())
                self.position = checkpoint.load(self.folder.checkpoint, *names)
                self.cost.counts = {role: Counter(counts) for role, counts in self.position.cost.items()}
            if fabric.is_global_zero:
                self._journal = stack.enter_context(Journal(self.folder.journal, self.position.journal_bytes))
                left = read_journal(self.folder.journal)
                stack.enter_context(self._recording.opened(plan.updates(self.position.turns), left))
            self._started = time.monotonic() - self.position.seconds
            yield

    def save(self) -> None:
        """Make everything up to this turn safe."""
        if self._journal is not None:
            self.position.journal_bytes = self._journal.sync()
            self.position.seconds = time.monotonic() - self._started
            self.position.cost = {role: dict(counts) for role, counts in self.cost.counts.items()}
        engine, fingerprint = self.setup.plan.spec.engine, self.setup.plan.spec.fingerprint()
        models, optimizers, writes = self.setup.modules(), self._optimizers(), self._journal is not None
        checkpoint.save(self.folder.checkpoint, fingerprint, self.position, models, optimizers, writes)
        self._saved = self.position.turns
        if writes and engine.pipeline and not engine.keep_path:
            self.following.forget()
        elif writes and self.setup.followed:  # for whoever knows all that follow the same run
            write_json(self.folder.passed, self._passed)  # as it was at the save before, to which it may go back
            self._passed = {path.role: path.loaded for path in self.setup.followed.values()}

    def _whole_modules(self) -> dict[str, nn.Module]:
        """The models as one process can have them; those that are spread over several come from what was saved."""
        plan, modules = self.setup.plan, self.setup.modules()
        if not is_sharding(self.setup.fabric):
            return modules
        built = build_models(plan)
        if self.setup.average is not None:
            built["average"] = deepcopy(built[plan.student])
        names = [plan.student] if self.setup.average is None else [plan.student, "average"]
        found = {name: built[name].to(next(modules[name].parameters()).dtype) for name in names}
        checkpoint.load(self.folder.checkpoint, plan.spec.fingerprints(), found, {})
        return found

    def _optimizers(self) -> dict[str, Any]:
        return {name: learner.optimizer for name, learner in self.setup.learners.items()}

    def loss(self, turn: Turn, lr: float, losses: Mapping[str, float]) -> None:
        self._write("loss", turn, {"lr": lr, "losses": dict(losses)})

    def accuracy(self, turn: Turn, scores: Scores, role: str | None = None) -> None:
        self._write("accuracy", turn, {"role": role or turn.role, "accuracy": scores})

    def _write(self, event: str, turn: Turn, found: Mapping[str, Any]) -> None:
        if self._journal is not None:
            epoch = (turn.step + 1) / self.setup.plan.steps_per_epoch
            when = {"turn": self.position.turns, "role": turn.role, "step": turn.step, "epoch": epoch}
            self._keep({"event": event, **when, **found})

    def _keep(self, entry: Entry) -> None:
        if self._journal is not None:
            self._journal.write(entry)
            self._recording.note(entry)

    def updated(self, turn: Turn) -> None:
        """Leave the role's path behind, where it is recorded."""
        if self._journal is not None:
            self._recording.reached(turn, self.cost.counts[turn.role])

    def rest(self) -> None:
        """Save a run that is to stop here; all processes leave it together."""
        if self._saved != self.position.turns:
            self.save()
        self.setup.fabric.barrier()

    def finish(self) -> None:
        """Save the student, and last of all the result."""
        setup, plan = self.setup, self.setup.plan
        if self._saved != self.position.turns:
            self.save()
        if setup.fabric.is_global_zero:
            network = plan.network(plan.roles[-1])
            folders = {plan.student: self.folder.student, "average": self.folder.average}
            for name, module in self._whole_modules().items():
                if name == plan.student or (name == "average" and setup.average is not None):
                    build.save(module.network, network, plan.data.shown, folders[name])  # type: ignore[arg-type]
            facts = {
                "roles": [*plan.roles],
                "learners": {role: plan.method.learners[role] for role in plan.roles},
                "steps_per_epoch": plan.steps_per_epoch,
                "total_steps": plan.total_steps,
                "test_images": len(plan.data.evaluated()["test"]),
            }
            if setup.followed and not plan.spec.engine.pipeline:
                facts["computed_here"] = self.cost.summary()
            machine = describe(setup.fabric, plan.spec)
            cost = self.cost.summary(self.following.costs())
            write_json(self.folder.result, result(self.folder.path, cost, self.position.seconds, facts, machine))
        setup.fabric.barrier()
