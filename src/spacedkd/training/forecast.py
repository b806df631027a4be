"""What a run will take, before it is trained: turns, passes, memory, disk and time, from a few real steps of each role.

Turns are those of the run's own plan; what each of them takes is measured by `trial`.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spacedkd.data.sources import Library
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.method import Method
from spacedkd.spec import RunSpec, check_folder, check_spec, read_spec
from spacedkd.training import checkpoint, path, trial
from spacedkd.training.building import build_models
from spacedkd.training.folder import RunFolder
from spacedkd.training.following import check_recorded
from spacedkd.training.memory import Memory
from spacedkd.training.objects import Objects
from spacedkd.training.plan import Plan, fill_in, make_plan
from spacedkd.training.same_path import find_paths
from spacedkd.training.setup import Setup, set_up
from spacedkd.training.trial import Step, Trial


@dataclass(frozen=True)
class RoleForecast:
    """One role of a run."""

    role: str
    learner: str
    """the model it updates"""
    turns: int
    turns_left: int
    evaluations_left: int
    step: Step
    """what one of its turns takes"""

    @property
    def seconds_left(self) -> float:
        return self.turns_left * self.step.seconds + self.evaluations_left * self.step.evaluation_seconds


@dataclass(frozen=True)
class Disk:
    """In bytes, when the run has ended."""

    checkpoint: int
    students: int
    """the student, and its average and its best epoch if there are"""
    journal: int
    other: int
    path: int = 0
    """what is recorded of those who lead"""

    @property
    def needed(self) -> int:
        """The most there is at a time: the last two checkpoints stay until the new one is whole."""
        return 3 * self.checkpoint + self.students + self.journal + self.other + self.path


@dataclass(frozen=True)
class Forecast:
    """What a run takes in all, and what of it is left."""

    spec: RunSpec
    """with everything that was left open filled in"""
    turns: int
    turns_left: int
    roles: tuple[RoleForecast, ...]
    """from the one that leads to the student"""
    cost: Mapping[str, Any]
    """of the whole run, as its result.json will say"""
    parameters: Mapping[str, int]
    """of every model"""
    memory: Memory
    disk: Disk
    """of the whole run"""
    evaluations: int
    """of all roles"""
    saves_left: int
    start_seconds: float
    """to read the data and build the models"""
    save_seconds: float
    finish_seconds: float
    finished: bool
    follows: bool = False
    """whether roles of it learn in another run; their turns count as done"""

    @property
    def seconds_left(self) -> float:
        """Of training, with evaluation, saving, the start and the end."""
        if self.finished:
            return 0.0
        learning = sum(role.seconds_left for role in self.roles) + self.saves_left * self.save_seconds
        return self.start_seconds + learning + self.finish_seconds

    @property
    def flops(self) -> int:
        """Of all turns, two for each multiplication with its addition; evaluation is not counted."""
        return sum(role.turns * role.step.flops for role in self.roles)


def forecast(
    spec: RunSpec,
    folder: Path | str | None = None,
    *,
    network: Callable[..., nn.Module] | None = None,
    teacher: Callable[..., nn.Module] | None = None,
    data: tuple[Any, Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer] | None = None,
    lr: LearningRate | None = None,
    method: Method | None = None,
    seconds: float = 2.0,
) -> Forecast:
    """What `train` with the same arguments will take; of a folder that holds the run already, also what is left of it.

    Nothing is trained that stays, and nothing written there. Each role takes real steps for about so many `seconds`.
    """
    objects = Objects(network, teacher, data, collate, optimizer, lr, method)
    if folder is not None:
        check_folder("folder", folder)
    finished = folder is not None and RunFolder(folder).finished()
    if isinstance(spec, RunSpec) and spec.teacher_path is not None and not finished:
        check_recorded(Path(spec.teacher_path))
    (found,) = forecasts([(spec, None if folder is None else RunFolder(folder))], objects, seconds)
    return found


def forecasts(
    runs: Sequence[tuple[RunSpec, RunFolder | None]], objects: Objects | None = None, seconds: float = 2.0
) -> list[Forecast]:
    """The same for several runs that differ in nothing but their seeds, from one measurement."""
    began, objects, library = time.perf_counter(), objects or Objects(), Library()
    for spec, folder in runs:
        _check(spec, folder, objects, library)
    asked = make_plan(runs[0][0], objects, library)
    for role in asked.roles[:-1] if asked.spec.engine.pipeline else path.leaders(asked):
        path.check_path(asked, role)
    setup = set_up(replace(asked, spec=replace(asked.spec, record=(), teacher_path=None)))
    start = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as place:
        tried = trial.run(setup, RunFolder(Path(place) / "run"), seconds)
    plans = [replace(asked, spec=fill_in(spec, objects, library)) for spec, _ in runs]
    return [_forecast(setup, plan, tried, start, run[1]) for plan, run in zip(plans, runs, strict=True)]


def _check(spec: RunSpec, folder: RunFolder | None, objects: Objects, library: Library) -> None:
    """Refuse what training would refuse."""
    check_spec(spec)
    if folder is not None and folder.spec.exists():
        objects.check(read_spec(folder.path).objects, str(folder.path))
        folder.check_holds(fill_in(spec, objects, library))
    elif folder is not None:
        folder.check_free()


@dataclass
class _Walked:
    """What there is in a stretch of a run; turns, images and evaluations by role."""

    turns: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    saves: int = 0


def _walk(setup: Setup, done: int) -> _Walked:
    """The turns that are left when so many are done."""
    found, plan = _Walked(), setup.plan
    for turn in plan.turns.after(done):
        found.turns[turn.role] += 1
        found.images[turn.role] += setup.stream.size(turn.step)
        found.evaluations[turn.role] += plan.evaluates(turn)
        found.losses += plan.logs(turn)
        found.saves += plan.saves(turn)
    if found.turns:
        found.saves += not plan.saves(turn)  # at the end
        found.evaluations[plan.roles[-1]] += setup.moves_student(turn.role)
    return found


def _forecast(setup: Setup, plan: Plan, tried: Trial, start: float, folder: RunFolder | None) -> Forecast:
    finished, learners = folder is not None and folder.finished(), plan.method.learners
    begun = folder is not None and checkpoint.generations(folder.checkpoint)
    first = plan.spec.extends[-1].turn if plan.spec.extends else 0
    done = checkpoint.newest(folder.checkpoint).position.turns if folder is not None and begun else first
    whole, left = _walk(setup, 0), _walk(setup, done)
    for role in _followed(plan):  # it learns elsewhere
        left.turns[role] = left.evaluations[role] = 0
    averaged = whole.evaluations[plan.roles[-1]] if setup.average is not None else 0
    measured = whole.evaluations.total() + averaged
    lines = whole.losses * tried.loss_bytes + measured * tried.accuracy_bytes
    recorded = sum(
        len(path.to_record(plan, role)) * sum(t.nbytes for t in setup.modules()[learners[role]].state_dict().values())
        for role in path.leaders(plan)
        if plan.spec.record
    )
    disk = Disk(tried.checkpoint_bytes, tried.students_bytes, round(lines), tried.other_bytes, recorded)
    roles = (
        RoleForecast(role, learners[role], whole.turns[role], left.turns[role], left.evaluations[role], step)
        for role, step in tried.steps.items()
    )
    return Forecast(
        spec=setup.plan.spec,
        turns=len(plan.turns),
        turns_left=left.turns.total(),
        roles=tuple(roles),
        cost=trial.cost_of(setup, tried.steps, whole.turns, whole.images),
        parameters=tried.parameters,
        memory=tried.memory,
        disk=disk,
        evaluations=whole.evaluations.total(),
        saves_left=left.saves,
        start_seconds=start,
        save_seconds=tried.save_seconds,
        finish_seconds=tried.finish_seconds,
        finished=finished,
        follows=plan.spec.teacher_path is not None,
    )


def _followed(plan: Plan) -> Sequence[str]:
    """The roles that learn elsewhere; where that has not begun, the first."""
    if plan.spec.teacher_path is None:
        return ()
    leaders = path.leaders(plan)
    if not path.path_file(Path(plan.spec.teacher_path)).exists():
        return leaders[:1]
    models = build_models(plan)  # what was measured may have had another seed, and has learned
    return [*find_paths(plan, {role: path.settings(plan, role, models) for role in leaders})]
