"""The forecast of a run: its turns, passes, memory, disk and time, measured before it is trained.

A forecast takes a few real steps of each role through the ordinary training loop, in a temporary folder, and throws
those models away. Time is the measured pace times the turns that are left; memory is the measured peak; sizes are those
of files really written; passes are counted by the counter of a real run.
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

from spacedkd.averages import STUDENT_AVERAGE
from spacedkd.config.objects import Objects
from spacedkd.config.resolve import Periods, ResolvedRun, Workers, choose_workers, resolve, resolve_spec
from spacedkd.config.spec import RunSpec, check_folder, check_spec, read_spec
from spacedkd.data.sources import Library
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.base import Method
from spacedkd.models.classifier import eval_mode
from spacedkd.runs import checkpoint
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.documents import parse_json, read_lines
from spacedkd.schedule import Turn
from spacedkd.timeline import Timeline, describe_order
from spacedkd.training.build import build_models
from spacedkd.training.callbacks import Cost
from spacedkd.training.device import slow_attention
from spacedkd.training.roles import evaluate_model
from spacedkd.training.session import Session
from spacedkd.training.state import TrainingState, build_state
from spacedkd.trajectory.cached_teacher import bytes_per_item, items_of_student, teacher_of, uses_targets
from spacedkd.trajectory.identity import check_shareable, find_trajectories, shared_roles, trajectory_settings
from spacedkd.trajectory.record import average_updates_to_record, updates_to_record
from spacedkd.trajectory.replay import check_recorded
from spacedkd.trajectory.store import index_file


@dataclass(frozen=True)
class Memory:
    """Bytes, as measured during real steps."""

    weights: int
    gradients: int
    optimizers: int
    activations: int
    """kept for the backward pass, of the role that keeps most"""
    process: int
    """the most this process has had so far"""
    device: int | None
    """the most that was allocated on the GPU, if there is one"""


@dataclass(frozen=True)
class Step:
    """The cost of one turn of a role."""

    seconds: float
    """the median of the turns that were timed"""
    flops: int
    """floating-point operations of all models, forward and backward; a multiply-add counts as two"""
    activations: int
    """bytes kept for the backward pass"""
    first: Mapping[str, int]
    """passes of the role's first turn as `Cost` counts them, with images per image of the batch"""
    later: Mapping[str, int]
    """passes of any later turn of the role"""
    evaluation_seconds: float
    """time of one evaluation of the role on all splits, and of its moving average, if it has one"""


@dataclass(frozen=True)
class RoleForecast:
    """The turns of one role of a run."""

    role: str
    learner: str
    """the model it updates"""
    turns: int
    turns_left: int
    evaluations_left: int
    step: Step
    """the cost of one of its turns"""

    @property
    def seconds_left(self) -> float:
        return self.turns_left * self.step.seconds + self.evaluations_left * self.step.evaluation_seconds


@dataclass(frozen=True)
class Disk:
    """Bytes on disk when the run has ended."""

    checkpoint: int
    students: int
    """bytes of the student, and of its average and its best epoch if they are saved"""
    journal: int
    other: int
    """spec.json, classes.json and result.json"""
    snapshots: int = 0
    """bytes of the recorded roles' snapshots"""
    targets: int = 0
    """bytes of the cached outputs of the student's teacher"""

    @property
    def needed(self) -> int:
        """The most at any time: the last two checkpoints stay until a new one is written whole."""
        return 3 * self.checkpoint + self.students + self.journal + self.other + self.snapshots + self.targets


@dataclass(frozen=True)
class Forecast:
    """The cost of a whole run, and of its remaining turns."""

    spec: RunSpec
    """resolved spec"""
    turns: int
    turns_left: int
    roles: tuple[RoleForecast, ...]
    """forecasts of all roles, from the first teacher to the student"""
    cost: Mapping[str, Any]
    """cost of the whole run, as its result.json will have it"""
    parameters: Mapping[str, int]
    """model -> number of parameters"""
    memory: Memory
    disk: Disk
    """bytes on disk of the whole run"""
    evaluations: int
    """number of evaluations of all roles in the whole run"""
    saves_left: int
    start_seconds: float
    """time to read the data and build the models"""
    save_seconds: float
    finish_seconds: float
    finished: bool
    replays: bool = False
    """whether roles are replayed from another run; their turns count as done"""
    advice: str = ""
    """a setting that would train the same networks faster on this machine, with other bits; empty if there is none"""
    workers: str = ""
    """number of processes that prepare batches, and why"""
    order: str = ""
    """the first blocks of turns, in words: "teacher 0-585, student 0-585, ..." """

    @property
    def seconds_left(self) -> float:
        """Time for training, evaluating and saving, with the start and the end; 0 for a finished run."""
        if self.finished:
            return 0.0
        training = sum(role.seconds_left for role in self.roles) + self.saves_left * self.save_seconds
        return self.start_seconds + training + self.finish_seconds

    @property
    def flops(self) -> int:
        """The FLOPs of all turns, two for each multiplication with its addition; evaluation is not counted."""
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
    """Return the cost of `train` with the same arguments; if `folder` has the run already, also that of the rest of it.

    Nothing is written into the folder. Each role takes real steps for about `seconds`. Arguments that `train` refuses
    are refused here too.

    >>> forecast(RunSpec(), "runs/mine").seconds_left  # doctest: +SKIP
    """
    objects = Objects(
        network=network, teacher=teacher, data=data, collate=collate, optimizer=optimizer, lr=lr, method=method
    )
    if folder is not None:
        check_folder("folder", folder)
    finished = folder is not None and RunFolder(folder).finished()
    if isinstance(spec, RunSpec) and spec.teacher_path is not None and not finished:
        check_recorded(Path(spec.teacher_path))
    (only,) = forecasts([(spec, None if folder is None else RunFolder(folder))], objects, seconds)
    return only


def forecasts(
    runs: Sequence[tuple[RunSpec, RunFolder | None]], objects: Objects | None = None, seconds: float = 2.0
) -> list[Forecast]:
    """Return forecasts of several runs that differ in their seeds alone, from one measurement."""
    began, objects, library = time.perf_counter(), objects or Objects(), Library()
    for spec, folder in runs:
        _check_trainable(spec, folder, objects, library)
    first = resolve(runs[0][0], objects, library)
    if uses_targets(first):
        teacher_of(first)
    for role in first.roles[:-1] if first.spec.engine.pipeline else shared_roles(first):
        check_shareable(first, role)
    alone = replace(first.spec, record=(), record_average=(), teacher_path=None, cache_targets=False, targets_path=None)
    state = build_state(replace(first, spec=alone))
    start_seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as temporary:
        measurement = _measure(state, RunFolder(Path(temporary) / "run"), seconds)
    resolved = [replace(first, spec=resolve_spec(spec, objects, library)) for spec, _ in runs]
    workers = choose_workers(runs[0][0].engine, first.data)
    return [
        _forecast(state, run, measurement, start_seconds, folder, workers)
        for run, (_, folder) in zip(resolved, runs, strict=True)
    ]


def _check_trainable(spec: RunSpec, folder: RunFolder | None, objects: Objects, library: Library) -> None:
    """Refuse a run that training would refuse."""
    check_spec(spec)
    if folder is not None and folder.spec.exists():
        objects.check(read_spec(folder.path).objects, str(folder.path))
        folder.check_holds(resolve_spec(spec, objects, library))
    elif folder is not None:
        folder.check_free()


def _forecast(
    state: TrainingState,
    run: ResolvedRun,
    measurement: "_Measurement",
    start_seconds: float,
    folder: RunFolder | None,
    workers: Workers,
) -> Forecast:
    """Return measured costs times the number of turns, evaluations and saves of a run."""
    learners, student = run.method.learners, run.roles[-1]
    whole, remaining = _count(state, 0), _count(state, _turns_done(run, folder))
    for role in _replayed_roles(run):
        remaining.turns[role] = remaining.evaluations[role] = 0
    averages = whole.evaluations[student] if state.average is not None else 0
    entries = whole.evaluations.total() + averages
    journal_bytes = whole.losses * measurement.loss_bytes + entries * measurement.accuracy_bytes
    return Forecast(
        spec=state.run.spec,
        turns=len(run.timeline),
        turns_left=remaining.turns.total(),
        roles=tuple(
            RoleForecast(
                role=role,
                learner=learners[role],
                turns=whole.turns[role],
                turns_left=remaining.turns[role],
                evaluations_left=remaining.evaluations[role],
                step=step,
            )
            for role, step in measurement.steps.items()
        ),
        cost=_total_cost(state, measurement.steps, whole),
        parameters=measurement.parameters,
        memory=measurement.memory,
        disk=Disk(
            checkpoint=measurement.checkpoint_bytes,
            students=measurement.students_bytes,
            journal=round(journal_bytes),
            other=measurement.other_bytes,
            snapshots=_snapshot_bytes(state, run),
            targets=_target_bytes(run),
        ),
        evaluations=whole.evaluations.total(),
        saves_left=remaining.saves,
        start_seconds=start_seconds,
        save_seconds=measurement.save_seconds,
        finish_seconds=measurement.finish_seconds,
        finished=folder is not None and folder.finished(),
        replays=run.spec.teacher_path is not None,
        advice=_advice(state),
        workers=f"{workers.count}: {workers.reason}",
        order=describe_order(run.timeline),
    )


def _snapshot_bytes(state: TrainingState, run: ResolvedRun) -> int:
    """Return the bytes of all snapshots that a run records, of its roles and of the averages of their weights."""
    if not run.spec.record:
        return 0
    total = 0
    for role in shared_roles(run):
        averages = sum(average.role == role for name, average in run.averages.items() if name != STUDENT_AVERAGE)
        snapshots = len(updates_to_record(run, role)) + averages * len(average_updates_to_record(run, role))
        weights = state.modules()[run.method.learners[role]].state_dict().values()
        total += snapshots * sum(tensor.nbytes for tensor in weights)
    return total


def _target_bytes(run: ResolvedRun) -> int:
    """Return the bytes of the targets that a run caches."""
    if not run.spec.cache_targets:
        return 0
    teacher = build_models(run)[teacher_of(run)]
    with eval_mode(teacher):
        return bytes_per_item(run, teacher) * items_of_student(run)


def _advice(state: TrainingState) -> str:
    """Return which setting would be faster on this machine, in one line."""
    if slow_attention(state.models.values(), state.fabric.device, state.run.spec.precision):
        return "--attention plain: on CPUs in bfloat16, torch's fused attention is the slower one"
    return ""


# How much there is to do


@dataclass
class _Counts:
    """The work in a stretch of a run; turns, images and evaluations by role."""

    turns: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    """losses that are logged"""
    saves: int = 0


def _count(state: TrainingState, done: int) -> _Counts:
    """Count turns, images, evaluations and saves after the first `done` turns."""
    counts, run = _Counts(), state.run
    for turn in run.timeline.after(done):
        counts.turns[turn.role] += 1
        counts.images[turn.role] += state.stream.size(turn.step)
        counts.evaluations[turn.role] += run.evaluates(turn)
        counts.losses += run.logs(turn)
        counts.saves += run.saves(turn)
    if counts.turns:
        counts.saves += not run.saves(turn)  # the end is always saved
        counts.evaluations[run.roles[-1]] += state.moves_student(turn.role)
    return counts


def _turns_done(run: ResolvedRun, folder: RunFolder | None) -> int:
    """Return the number of turns in the folder's newest checkpoint, or in the run that this one extends."""
    if folder is not None and checkpoint.generations(folder.checkpoint):
        return checkpoint.newest(folder.checkpoint).position.turns
    return run.spec.extends[-1].turn if run.spec.extends else 0


def _replayed_roles(run: ResolvedRun) -> Sequence[str]:
    """Return the roles that are replayed from another run; if that run has not begun, its first role."""
    if run.spec.teacher_path is None:
        return ()
    roles = shared_roles(run)
    if not index_file(Path(run.spec.teacher_path)).exists():
        return roles[:1]
    models = build_models(run)  # the measured models may have another seed, and have learned
    return [*find_trajectories(run, {role: trajectory_settings(run, role, models) for role in roles})]


def _total_cost(state: TrainingState, steps: Mapping[str, Step], whole: _Counts) -> dict[str, Any]:
    """Return the summary that the run's own counter will have at its end.

    The first turn of a role may cost other passes than later ones: DLB's, for instance, has no batch before it.
    """
    cost, run = Cost({}, {}), state.run

    def add(role: str, passes: Mapping[str, int], turns: int, images: int) -> None:
        for name, count in passes.items():
            cost.counts[role][name] += count * (images if name.endswith("images") else turns)

    for role, step in steps.items():
        cost.counts[role] = Counter()
        first_images = state.stream.size(next(turn.step for turn in run.timeline.after(0) if turn.role == role))
        add(role, step.first, turns=1, images=first_images)
        add(role, step.later, turns=whole.turns[role] - 1, images=whole.images[role] - first_images)
    for turn in run.timeline.forward_only_turns.values():
        if turn.role in steps:
            forward = {name: count for name, count in steps[turn.role].later.items() if " forward " in name}
            add(turn.role, forward, turns=1, images=state.stream.size(turn.step))
    return cost.summary()


# A few real steps

FEWEST_STEPS, MOST_STEPS = 3, 40
"""timed steps of a role, however long or short they are"""
EVALUATED_BATCHES = 4
"""batches of every split that are evaluated; the time of a whole evaluation is extrapolated from them"""


@dataclass(frozen=True)
class _Measurement:
    """The measured costs of the steps of all roles, and the sizes of what was written."""

    steps: Mapping[str, Step]
    parameters: Mapping[str, int]
    memory: Memory
    checkpoint_bytes: int
    students_bytes: int
    other_bytes: int
    loss_bytes: float
    """mean length of a journal's entry about losses"""
    accuracy_bytes: float
    save_seconds: float
    finish_seconds: float


def _measure(state: TrainingState, folder: RunFolder, seconds: float) -> _Measurement:
    """Let every role take real steps for about `seconds`, save and finish, in a temporary folder."""
    session = Session(state, folder)
    with session.open():
        steps = {role: _measure_role(role, session, seconds) for role in state.run.last_step}
        save_seconds = _time(state, session.checkpoint.save)
        finish_seconds = _time(state, lambda: _finish(session))
    lines = [*read_lines(folder.journal)] if state.fabric.is_global_zero else []
    student_copies = 2 if "holdout" in state.data.evaluated_splits() else 1  # the last student, and the best
    return _Measurement(
        steps=steps,
        parameters={name: sum(p.numel() for p in module.parameters()) for name, module in state.modules().items()},
        memory=_measure_memory(state, activations=max(step.activations for step in steps.values())),
        checkpoint_bytes=_size(folder.checkpoint),
        students_bytes=student_copies * _size(folder.student) + _size(folder.average),
        other_bytes=_size(folder.spec) + _size(folder.classes) + _size(folder.result),
        loss_bytes=_mean_length(lines, "loss"),
        accuracy_bytes=_mean_length(lines, "accuracy"),
        save_seconds=save_seconds,
        finish_seconds=finish_seconds,
    )


def _finish(session: Session) -> None:
    session.checkpoint.on_end()
    session.result.on_end()


def _measure_role(role: str, session: Session, seconds: float) -> Step:
    """Take a role's first turns: one to warm up, one to count, then timed ones for about `seconds`."""
    state, run = session.state, session.state.run
    own_turns = islice((turn for turn in run.timeline.after(0) if turn.role == role), MOST_STEPS + 2)
    few = [*islice(cycle(own_turns), MOST_STEPS + 2)]
    never = run.total_steps + 1
    alone = replace(
        run,
        timeline=Timeline(run.method.roles, few, [role]),
        periods=Periods(never, never, never),
        last_step={role: -1},
    )
    trial = Session(replace(state, run=alone), session.folder)
    trial.journal.write_to(session.journal.journal)
    turns, cost = trial.turns(), trial.cost

    def take_counted(turn: Turn) -> dict[str, int]:
        before = Counter(cost.counts.get(role, {}))
        next(turns)
        size = state.stream.size(turn.step)
        added = {name: count - before[name] for name, count in cost.counts[role].items()}
        return {name: count // size if name.endswith("images") else count for name, count in added.items()}

    first = take_counted(few[0])
    with _saved_for_backward(run.spec.accumulate > 1) as saved, count_flops() as flops:
        later = take_counted(few[1])
    times = [_time(state, lambda: next(turns)) for _ in range(FEWEST_STEPS)]
    affordable = min(MOST_STEPS, int(seconds / statistics.median(times)))
    for _ in range(FEWEST_STEPS, state.fabric.broadcast(affordable)):  # all ranks must take equally many
        times.append(_time(state, lambda: next(turns)))
    weights = {_address(tensor) for model in state.models.values() for tensor in model.state_dict().values()}
    return Step(
        seconds=statistics.median(times),
        flops=flops.get_total_flops(),
        activations=sum(size for address, size in saved.items() if address not in weights),
        first=first,
        later=later,
        evaluation_seconds=_evaluation_seconds(few[0], trial),
    )


def _evaluation_seconds(turn: Turn, trial: Session) -> float:
    """Return the time of a role's whole evaluation, from a few batches of every split and the time of one more."""
    state = trial.state
    batch_size = max(256, state.run.spec.batch_size) * state.fabric.world_size
    batches_of_splits = [-(-len(split) // batch_size) for split in state.data.evaluated_splits().values()]
    learner = state.learner(turn.role)

    def time_batches(batches: int) -> float:
        splits = {
            name: split.subset(torch.arange(min(len(split), batches * batch_size)))
            for name, split in state.data.evaluated_splits().items()
        }
        short = replace(state, data=replace(state.data, **splits))  # type: ignore[arg-type]
        return _time(
            state,
            lambda: trial.journal.on_evaluate(turn, turn.role, evaluate_model(short, learner.model, learner.module)),
        )

    time_batches(1)  # to warm up
    seconds_one, seconds_few = time_batches(1), time_batches(EVALUATED_BATCHES)
    count_one, count_few = (
        sum(min(batches, count) for count in batches_of_splits) for batches in (1, EVALUATED_BATCHES)
    )
    seconds_each = max(0.0, seconds_few - seconds_one) / max(1, count_few - count_one)
    models = 2 if state.average is not None and turn.role == state.run.roles[-1] else 1
    return models * (seconds_few + seconds_each * (sum(batches_of_splits) - count_few))


def _time(state: TrainingState, action: Callable[[], object]) -> float:
    """Return the seconds an action takes, with all work that a GPU was given."""

    def now() -> float:
        if state.fabric.device.type == "cuda":
            torch.cuda.synchronize(state.fabric.device)
        return time.perf_counter()

    start = now()
    action()
    return now() - start


def _size(path: Path) -> int:
    """Return the bytes of a file or of all files in a folder; 0 where there is none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _mean_length(lines: Sequence[bytes], event: str) -> float:
    lengths = [len(line) + 1 for line in lines if parse_json(line, "a line of the journal")["event"] == event]
    return sum(lengths) / max(1, len(lengths))


# FLOPs

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_CPU_ATTENTION = {
    _attention: lambda q, k, v, *rest, **named: sdpa_flop_count(q, k, v),
    _attention_backward: lambda gradient, q, k, v, *rest, **named: sdpa_backward_flop_count(gradient, q, k, v),
}
"""attention on CPUs, which torch's counter leaves out"""


def count_flops() -> FlopCounterMode:
    """Return a context that counts the floating-point operations in it."""
    counter = FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION)
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    return counter


class _NoModules:
    """A tracker of no modules: torch's own fails in networks whose blocks take tuples, such as PiT."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


# Memory


def _measure_memory(state: TrainingState, activations: int) -> Memory:
    """Return the sizes of all tensors after real steps, and the peaks of the process and the GPU."""
    modules = state.modules().values()
    weights = {_address(t): _bytes(t) for module in modules for t in module.state_dict().values()}
    gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    optimizer_states = [
        value
        for learner in state.learners.values()
        for states in learner.optimizer.state.values()
        for value in states.values()
    ]
    device = state.fabric.device
    return Memory(
        weights=sum(weights.values()),
        gradients=sum(map(_bytes, gradients)),
        optimizers=sum(_bytes(value) for value in optimizer_states if isinstance(value, Tensor)),
        activations=activations,
        process=peak_memory(),
        device=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )


def peak_memory() -> int:
    """Return the most bytes this process has had in memory so far.

    On Linux `ru_maxrss` would be wrong: a process that was started by a larger one inherits that one's peak.
    """
    try:
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        peak = None
    if peak is not None:
        return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _saved_for_backward(accumulates: bool) -> Iterator[dict[int, int]]:
    """Collect address -> bytes of the tensors that autograd saves for a backward pass.

    If gradients are accumulated these are of the last micro-batch: those before have freed theirs.
    """
    saved: dict[int, int] = {}
    in_backward = False

    def pack(tensor: Tensor) -> Tensor:
        nonlocal in_backward
        if in_backward and accumulates:
            saved.clear()
        in_backward = False
        saved[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        nonlocal in_backward
        in_backward = True
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield saved
