"""What a run will take, before it is trained: turns, passes, memory, disk and time, from a few real steps of each role.

Turns are those of the run's own plan; what each of them takes is measured by `trial`.
"""

import re
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from spacedkd.config.objects import Objects
from spacedkd.config.resolve import Periods, ResolvedRun, resolve, resolve_spec
from spacedkd.config.spec import RunSpec, check_folder, check_spec, read_spec
from spacedkd.data.sources import Library
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.base import Method
from spacedkd.runs import checkpoint
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.documents import parse_json, read_lines
from spacedkd.schedule import Turn
from spacedkd.timeline import Timeline
from spacedkd.training.build import build_models
from spacedkd.training.cost import Cost
from spacedkd.training.evaluate import evaluate_model
from spacedkd.training.session import Session
from spacedkd.training.state import TrainingState, build_state
from spacedkd.trajectory.identity import check_shareable, find_trajectories, shared_roles, trajectory_settings
from spacedkd.trajectory.record import updates_to_record
from spacedkd.trajectory.replay import check_recorded
from spacedkd.trajectory.store import index_file

# How much memory a run takes: its tensors, what its steps keep, and the process around them.


@dataclass(frozen=True)
class Memory:
    """In bytes, as it was during real steps."""

    weights: int
    gradients: int
    optimizers: int
    activations: int
    """of the role that keeps most for its backward pass"""
    process: int
    """the most this process has had so far"""
    device: int | None
    """the most that was allocated on the GPU, if there is one"""


def memory_of(state: TrainingState, activations: int) -> Memory:
    """What there is now, after steps of every role that keep at most so many bytes of activations."""
    modules = state.modules().values()
    weights = {storage_of(t): _bytes(t) for module in modules for t in module.state_dict().values()}
    gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    slots = [
        slot for one in state.learners.values() for state in one.optimizer.state.values() for slot in state.values()
    ]
    device = state.fabric.device
    return Memory(
        weights=sum(weights.values()),
        gradients=sum(map(_bytes, gradients)),
        optimizers=sum(_bytes(slot) for slot in slots if isinstance(slot, Tensor)),
        activations=activations,
        process=peak_memory(),
        device=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )


def peak_memory() -> int:
    """The most bytes this process has had in memory so far.

    On Linux `ru_maxrss` would not do: a process that was started by a larger one inherits that one's.
    """
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def kept_for_backward(in_parts: bool = False) -> Iterator[dict[int, int]]:
    """Where in memory what is kept for a backward pass lies, and how many bytes it has.

    Of a batch that is computed in parts it is the last part: those before it have let go of theirs.
    """
    kept: dict[int, int] = {}
    gone_back = False

    def keep(tensor: Tensor) -> Tensor:
        nonlocal gone_back
        if gone_back and in_parts:
            kept.clear()
        gone_back = False
        kept[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def take(tensor: Tensor) -> Tensor:
        nonlocal gone_back
        gone_back = True
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, take):
        yield kept


# A few real steps of every role, to know what one takes; the models they are taken with are thrown away.

LEAST_TIMED, MOST_TIMED = 3, 40
"""steps of a role, however long or short they are"""
FEW_BATCHES = 4
"""of every part that accuracy is measured on"""
_attention, _its_backward = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
)
_ATTENTION_ON_CPU = {
    _attention: lambda q, k, v, *rest, **named: sdpa_flop_count(q, k, v),
    _its_backward: lambda gradient, q, k, v, *rest, **named: sdpa_backward_flop_count(gradient, q, k, v),
}
"""which torch's counter leaves out"""


@dataclass(frozen=True)
class Step:
    """What one turn of a role takes."""

    seconds: float
    """the median of the turns that were timed"""
    flops: int
    """two for each multiplication with its addition, forward and backward, of all models"""
    activations: int
    """bytes kept for the backward pass"""
    first: Mapping[str, int]
    """what the role's very first turn costs, as `Cost` counts it; images as if the batch were one"""
    later: Mapping[str, int]
    """what any other turn of it costs"""
    evaluation_seconds: float
    """of the role, on everything it is measured on; with the moving average, if the role has one"""


@dataclass(frozen=True)
class Trial:
    """What all roles take, and what is written."""

    steps: Mapping[str, Step]
    parameters: Mapping[str, int]
    memory: Memory
    checkpoint_bytes: int
    students_bytes: int
    """the student, and its average and its best epoch if there are"""
    other_bytes: int
    """the small files"""
    loss_bytes: float
    """of a line of the journal"""
    accuracy_bytes: float
    save_seconds: float
    finish_seconds: float


class _AllInOne:
    """Counts for no module by itself: torch's own tracker fails in networks whose blocks take tuples, such as PiT."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def run(state: TrainingState, folder: RunFolder, seconds: float) -> Trial:
    """Let every role take real steps for about so many seconds, in a folder that will be thrown away."""
    session = Session(state, folder)
    with session.opened():
        steps = {role: _steps_of(role, session, seconds) for role in state.run.last_step}
        save_seconds = _timed(state, session.checkpoint.save)
        finish_seconds = _timed(state, lambda: _finish(session))
    activations = max(step.activations for step in steps.values())
    lines = [*read_lines(folder.journal)] if state.fabric.is_global_zero else []
    return Trial(
        steps=steps,
        parameters={name: sum(p.numel() for p in module.parameters()) for name, module in state.modules().items()},
        memory=memory_of(state, activations),
        checkpoint_bytes=_size(folder.checkpoint),
        students_bytes=_size(folder.student) * (2 if "holdout" in state.data.evaluated_splits() else 1)
        + _size(folder.average),
        other_bytes=_size(folder.spec) + _size(folder.classes) + _size(folder.result),
        loss_bytes=_mean_length(lines, "loss"),
        accuracy_bytes=_mean_length(lines, "accuracy"),
        save_seconds=save_seconds,
        finish_seconds=finish_seconds,
    )


def _finish(session: Session) -> None:
    session.checkpoint.on_end()
    session.result.on_end()


def _steps_of(role: str, session: Session, seconds: float) -> Step:
    """The role's first turns: one that warms up, one that is looked into, then as many as there is time for."""
    state, plan = session.state, session.state.run
    planned = islice((turn for turn in plan.timeline.after(0) if turn.role == role), MOST_TIMED + 2)
    few = [*islice(cycle(planned), MOST_TIMED + 2)]
    never = plan.total_steps + 1
    alone = replace(
        plan,
        timeline=Timeline(plan.method.roles, few, [role]),
        periods=Periods(never, never, never),
        last_step={role: -1},
    )
    trial = Session(replace(state, run=alone), session.folder)
    trial.journal.journal = session.journal.journal
    turns, cost = trial.turns(), trial.cost

    def counted(turn: Turn) -> dict[str, int]:
        before = Counter(cost.counts.get(role, {}))
        next(turns)
        size = state.stream.size(turn.step)
        more = {name: count - before[name] for name, count in cost.counts[role].items()}
        return {name: count // size if name.endswith("images") else count for name, count in more.items()}

    first = counted(few[0])
    counter = FlopCounterMode(display=False, custom_mapping=_ATTENTION_ON_CPU)
    counter.mod_tracker = _AllInOne()  # type: ignore[assignment]
    with kept_for_backward(plan.spec.accumulate > 1) as kept, counter as flops:
        later = counted(few[1])
    times = [_timed(state, lambda: next(turns)) for _ in range(LEAST_TIMED)]
    affordable = min(MOST_TIMED, int(seconds / statistics.median(times)))
    for _ in range(LEAST_TIMED, state.fabric.broadcast(affordable)):  # ranks must take equally many
        times.append(_timed(state, lambda: next(turns)))
    own = {storage_of(tensor) for model in state.models.values() for tensor in model.state_dict().values()}
    return Step(
        seconds=statistics.median(times),
        flops=flops.get_total_flops(),
        activations=sum(size for place, size in kept.items() if place not in own),
        first=first,
        later=later,
        evaluation_seconds=_evaluation_seconds(few[0], trial),
    )


def cost_of(
    state: TrainingState, steps: Mapping[str, Step], turns: Mapping[str, int], images: Mapping[str, int]
) -> dict[str, Any]:
    """What the run's own counter will have counted at its end, after so many turns and images of each role."""
    cost, plan = Cost({}, {}), state.run
    for role, taken in steps.items():
        first = state.stream.size(next(turn.step for turn in plan.timeline.after(0) if turn.role == role))
        cost.counts[role] = Counter()
        later = (taken.later, turns[role] - 1, images[role] - first)
        for counts, times, seen in ((taken.first, 1, first), later):
            for name, count in counts.items():
                cost.counts[role][name] += count * (seen if name.endswith("images") else times)
    looks = [look for look in plan.timeline.forward_only.values() if look.role in steps]
    for role, step in looks:
        for name, count in steps[role].later.items():
            if " forward " in name:
                cost.counts[role][name] += count * (state.stream.size(step) if name.endswith("images") else 1)
    return cost.summary()


def _evaluation_seconds(turn: Turn, trial: Session) -> float:
    """What the role's evaluation takes: measured on a few batches of each part, and so much more for each other one."""
    state = trial.state
    batch = max(256, state.run.spec.batch_size) * state.fabric.world_size
    whole = [-(-len(part) // batch) for part in state.data.evaluated_splits().values()]
    learner = state.learner(turn.role)

    def some(batches: int) -> float:
        parts = {
            name: part.subset(torch.arange(min(len(part), batches * batch)))
            for name, part in state.data.evaluated_splits().items()
        }
        short = replace(state, data=replace(state.data, **parts))  # type: ignore[arg-type]
        return _timed(
            state,
            lambda: trial.journal.on_evaluate(turn, turn.role, evaluate_model(short, learner.model, learner.module)),
        )

    some(1)  # warms up
    one, few = some(1), some(FEW_BATCHES)
    counts = [sum(min(batches, count) for count in whole) for batches in (1, FEW_BATCHES)]
    each = max(0.0, few - one) / max(1, counts[1] - counts[0])
    models = 2 if state.average is not None and turn.role == state.run.roles[-1] else 1
    return models * (few + each * (sum(whole) - counts[1]))


def _timed(state: TrainingState, action: Callable[[], object]) -> float:
    """The seconds an action takes, with all that a GPU was asked to do."""

    def now() -> float:
        if state.fabric.device.type == "cuda":
            torch.cuda.synchronize(state.fabric.device)
        return time.perf_counter()

    start = now()
    action()
    return now() - start


def _size(path: Path) -> int:
    """Of a file, of all files of a folder, or of nothing."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _mean_length(lines: Sequence[bytes], event: str) -> float:
    found = [len(line) + 1 for line in lines if parse_json(line, "a line of the journal")["event"] == event]
    return sum(found) / max(1, len(found))


# What a run will take, before it is trained: turns, passes, memory, disk and time, from a few real steps of each role.


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
    asked = resolve(runs[0][0], objects, library)
    for role in asked.roles[:-1] if asked.spec.engine.pipeline else shared_roles(asked):
        check_shareable(asked, role)
    state = build_state(replace(asked, spec=replace(asked.spec, record=(), teacher_path=None)))
    start = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as place:
        tried = run(state, RunFolder(Path(place) / "run"), seconds)
    plans = [replace(asked, spec=resolve_spec(spec, objects, library)) for spec, _ in runs]
    return [_forecast(state, plan, tried, start, run[1]) for plan, run in zip(plans, runs, strict=True)]


def _check(spec: RunSpec, folder: RunFolder | None, objects: Objects, library: Library) -> None:
    """Refuse what training would refuse."""
    check_spec(spec)
    if folder is not None and folder.spec.exists():
        objects.check(read_spec(folder.path).objects, str(folder.path))
        folder.check_holds(resolve_spec(spec, objects, library))
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


def _walk(state: TrainingState, done: int) -> _Walked:
    """The turns that are left when so many are done."""
    found, plan = _Walked(), state.run
    for turn in plan.timeline.after(done):
        found.turns[turn.role] += 1
        found.images[turn.role] += state.stream.size(turn.step)
        found.evaluations[turn.role] += plan.evaluates(turn)
        found.losses += plan.logs(turn)
        found.saves += plan.saves(turn)
    if found.turns:
        found.saves += not plan.saves(turn)  # at the end
        found.evaluations[plan.roles[-1]] += state.moves_student(turn.role)
    return found


def _forecast(
    state: TrainingState, plan: ResolvedRun, tried: Trial, start: float, folder: RunFolder | None
) -> Forecast:
    finished, learners = folder is not None and folder.finished(), plan.method.learners
    begun = folder is not None and checkpoint.generations(folder.checkpoint)
    first = plan.spec.extends[-1].turn if plan.spec.extends else 0
    done = checkpoint.newest(folder.checkpoint).position.turns if folder is not None and begun else first
    whole, left = _walk(state, 0), _walk(state, done)
    for role in _followed(plan):  # it learns elsewhere
        left.turns[role] = left.evaluations[role] = 0
    averaged = whole.evaluations[plan.roles[-1]] if state.average is not None else 0
    measured = whole.evaluations.total() + averaged
    lines = whole.losses * tried.loss_bytes + measured * tried.accuracy_bytes
    recorded = sum(
        len(updates_to_record(plan, role))
        * sum(t.nbytes for t in state.modules()[learners[role]].state_dict().values())
        for role in shared_roles(plan)
        if plan.spec.record
    )
    disk = Disk(tried.checkpoint_bytes, tried.students_bytes, round(lines), tried.other_bytes, recorded)
    roles = (
        RoleForecast(role, learners[role], whole.turns[role], left.turns[role], left.evaluations[role], step)
        for role, step in tried.steps.items()
    )
    return Forecast(
        spec=state.run.spec,
        turns=len(plan.timeline),
        turns_left=left.turns.total(),
        roles=tuple(roles),
        cost=cost_of(state, tried.steps, whole.turns, whole.images),
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


def _followed(plan: ResolvedRun) -> Sequence[str]:
    """The roles that learn elsewhere; where that has not begun, the first."""
    if plan.spec.teacher_path is None:
        return ()
    leaders = shared_roles(plan)
    if not index_file(Path(plan.spec.teacher_path)).exists():
        return leaders[:1]
    models = build_models(plan)  # what was measured may have had another seed, and has learned
    return [*find_trajectories(plan, {role: trajectory_settings(plan, role, models) for role in leaders})]
