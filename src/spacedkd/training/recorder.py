"""What a run leaves in its folder (spec, journal, checkpoint, in the end student and result), and what it costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from spacedkd.files import write_json
from spacedkd.models import build
from spacedkd.run import result
from spacedkd.schedule import Turn
from spacedkd.spec import read_spec
from spacedkd.training import checkpoint, engine
from spacedkd.training.checkpoint import Position
from spacedkd.training.folder import Journal, RunFolder
from spacedkd.training.setup import Scores, Setup, build_models
from spacedkd.training.sharding import is_sharding


class Cost:
    """Updates of each learner, and the passes and images that went through each model in its turns; counted, not said.

    A forward pass that records gradients is followed by a backward pass. Evaluation is not counted.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self.counts: Counter[str] = Counter()
        self._images = 0  # of the turn that is going on
        for name, model in models.items():
            model.register_forward_hook(lambda module, inputs, output, name=name: self._passed(name))

    def _passed(self, model: str) -> None:
        for way, passes in (("forward", 1), ("backward", int(torch.is_grad_enabled()))) if self._images else ():
            self.counts[f"{model} {way} passes"] += passes
            self.counts[f"{model} {way} images"] += passes * self._images

    @contextmanager
    def turn(self, learner: str, images: int) -> Iterator[None]:
        """Count one update of `learner` on a global batch of so many images, with all the passes made for it."""
        self._images = images
        yield
        self._images = 0
        self.counts[f"{learner} updates"] += 1
        self.counts[f"{learner} images"] += images

    def summary(self) -> dict[str, Any]:
        """Totals over all models, and the counts they come from."""

        def total(ending: str) -> int:
            return sum(count for name, count in self.counts.items() if name.endswith(ending))

        kinds = ("updates", "forward passes", "backward passes", "forward images", "backward images")
        totals = {kind.replace(" ", "_"): total(f" {kind}") for kind in kinds}
        return {**totals, "by_model": dict(sorted(self.counts.items()))}


class Recorder:
    """The folder, the journal, the position and the cost of a run; of several processes the first one writes."""

    def __init__(self, setup: Setup, folder: RunFolder) -> None:
        self.setup, self.folder = setup, folder
        self.position = Position()
        self.cost = Cost(setup.modules())
        self._journal: Journal | None = None
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
            if self.folder.checkpoint.exists():  # everything as it was when it was saved
                names = (plan.spec.fingerprints(), self.setup.modules(), self._optimizers())
                self.position = checkpoint.load(self.folder.checkpoint, *names)
                self.cost.counts.update(self.position.cost)
            if fabric.is_global_zero:
                self._journal = stack.enter_context(Journal(self.folder.journal, self.position.journal_bytes))
            self._started = time.monotonic() - self.position.seconds
            yield

    def save(self) -> None:
        """Make everything up to this turn safe."""
        if self._journal is not None:
            self.position.journal_bytes = self._journal.sync()
            self.position.seconds = time.monotonic() - self._started
            self.position.cost = dict(self.cost.counts)
        fingerprint = self.setup.plan.spec.fingerprint()
        models, optimizers, writes = self.setup.modules(), self._optimizers(), self._journal is not None
        checkpoint.save(self.folder.checkpoint, fingerprint, self.position, models, optimizers, writes)

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
            self._journal.write({"event": event, **when, **found})

    def finish(self) -> None:
        """Save the student, and last of all the result."""
        setup, plan = self.setup, self.setup.plan
        self.save()
        if setup.fabric.is_global_zero:
            folders = {plan.student: self.folder.student, "average": self.folder.average}
            for name, module in self._whole_modules().items():
                if name == plan.student or (name == "average" and setup.average is not None):
                    build.save(module.network, plan.spec.network, plan.data.shown, folders[name])  # type: ignore[arg-type]
            facts = {
                "roles": [*plan.method.roles],
                "learners": dict(plan.method.learners),
                "steps_per_epoch": plan.steps_per_epoch,
                "total_steps": plan.total_steps,
                "test_images": len(plan.data.evaluated()["test"]),
            }
            machine = engine.describe(setup.fabric, plan.spec)
            found = result(self.folder.path, self.cost.summary(), self.position.seconds, facts, machine)
            write_json(self.folder.result, found)
        setup.fabric.barrier()
