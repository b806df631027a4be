"""A few real steps of every role, to know what one takes; the models they are taken with are thrown away.

The loop, the recorder and the evaluation are the run's own, in a folder that is none. Passes are counted by what counts
them in a run.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from spacedkd.documents import parse_json, read_lines
from spacedkd.schedule import Turn
from spacedkd.training.cost import Cost
from spacedkd.training.folder import RunFolder
from spacedkd.training.loop import learn
from spacedkd.training.memory import Memory, kept_for_backward, memory_of, storage_of
from spacedkd.training.plan import Every
from spacedkd.training.recorder import Recorder
from spacedkd.training.setup import Setup, measure
from spacedkd.training.turns import Turns

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


def run(setup: Setup, folder: RunFolder, seconds: float) -> Trial:
    """Let every role take real steps for about so many seconds, in a folder that will be thrown away."""
    recorder = Recorder(setup, folder)
    with recorder.opened():
        steps = {role: _steps_of(role, setup, recorder, seconds) for role in setup.plan.last_step}
        save_seconds = _timed(setup, recorder.save)
        finish_seconds = _timed(setup, recorder.finish)
    activations = max(step.activations for step in steps.values())
    lines = [*read_lines(folder.journal)] if setup.fabric.is_global_zero else []
    return Trial(
        steps=steps,
        parameters={name: sum(p.numel() for p in module.parameters()) for name, module in setup.modules().items()},
        memory=memory_of(setup, activations),
        checkpoint_bytes=_size(folder.checkpoint),
        students_bytes=_size(folder.student) * (2 if "holdout" in setup.data.evaluated() else 1)
        + _size(folder.average),
        other_bytes=_size(folder.spec) + _size(folder.classes) + _size(folder.result),
        loss_bytes=_mean_length(lines, "loss"),
        accuracy_bytes=_mean_length(lines, "accuracy"),
        save_seconds=save_seconds,
        finish_seconds=finish_seconds,
    )


def _steps_of(role: str, setup: Setup, recorder: Recorder, seconds: float) -> Step:
    """The role's first turns: one that warms up, one that is looked into, then as many as there is time for."""
    plan, cost = setup.plan, recorder.cost
    planned = islice((turn for turn in plan.turns.after(0) if turn.role == role), MOST_TIMED + 2)
    few = [*islice(cycle(planned), MOST_TIMED + 2)]
    never = plan.total_steps + 1
    alone = replace(
        plan, turns=Turns(plan.method.roles, few, [role]), every=Every(never, never, never), last_step={role: -1}
    )
    recorder.position.turns = 0
    moments = learn(replace(setup, plan=alone), recorder)

    def counted(turn: Turn) -> dict[str, int]:
        before = Counter(cost.counts.get(role, {}))
        next(moments)
        size = setup.stream.size(turn.step)
        more = {name: count - before[name] for name, count in cost.counts[role].items()}
        return {name: count // size if name.endswith("images") else count for name, count in more.items()}

    first = counted(few[0])
    counter = FlopCounterMode(display=False, custom_mapping=_ATTENTION_ON_CPU)
    counter.mod_tracker = _AllInOne()  # type: ignore[assignment]
    with kept_for_backward(plan.spec.accumulate > 1) as kept, counter as flops:
        later = counted(few[1])
    times = [_timed(setup, lambda: next(moments)) for _ in range(LEAST_TIMED)]
    affordable = min(MOST_TIMED, int(seconds / statistics.median(times)))
    for _ in range(LEAST_TIMED, setup.fabric.broadcast(affordable)):  # ranks must take equally many
        times.append(_timed(setup, lambda: next(moments)))
    own = {storage_of(tensor) for model in setup.models.values() for tensor in model.state_dict().values()}
    return Step(
        seconds=statistics.median(times),
        flops=flops.get_total_flops(),
        activations=sum(size for place, size in kept.items() if place not in own),
        first=first,
        later=later,
        evaluation_seconds=_evaluation_seconds(few[0], setup, recorder),
    )


def cost_of(
    setup: Setup, steps: Mapping[str, Step], turns: Mapping[str, int], images: Mapping[str, int]
) -> dict[str, Any]:
    """What the run's own counter will have counted at its end, after so many turns and images of each role."""
    cost, plan = Cost({}), setup.plan
    for role, taken in steps.items():
        first = setup.stream.size(next(turn.step for turn in plan.turns.after(0) if turn.role == role))
        cost.counts[role] = Counter()
        later = (taken.later, turns[role] - 1, images[role] - first)
        for counts, times, seen in ((taken.first, 1, first), later):
            for name, count in counts.items():
                cost.counts[role][name] += count * (seen if name.endswith("images") else times)
    looks = [look for look in plan.turns.looks.values() if look.role in steps]
    for role, step in looks:
        for name, count in steps[role].later.items():
            if " forward " in name:
                cost.counts[role][name] += count * (setup.stream.size(step) if name.endswith("images") else 1)
    return cost.summary()


def _evaluation_seconds(turn: Turn, setup: Setup, recorder: Recorder) -> float:
    """What the role's evaluation takes: measured on a few batches of each part, and so much more for each other one."""
    batch = max(256, setup.plan.spec.batch_size) * setup.fabric.world_size
    whole = [-(-len(part) // batch) for part in setup.data.evaluated().values()]
    learner = setup.learner(turn.role)

    def some(batches: int) -> float:
        parts = {
            name: part.subset(torch.arange(min(len(part), batches * batch)))
            for name, part in setup.data.evaluated().items()
        }
        short = replace(setup, data=replace(setup.data, **parts))  # type: ignore[arg-type]
        return _timed(setup, lambda: recorder.accuracy(turn, measure(short, learner.model, learner.module), turn.role))

    some(1)  # warms up
    one, few = some(1), some(FEW_BATCHES)
    counts = [sum(min(batches, count) for count in whole) for batches in (1, FEW_BATCHES)]
    each = max(0.0, few - one) / max(1, counts[1] - counts[0])
    models = 2 if setup.average is not None and turn.role == setup.plan.roles[-1] else 1
    return models * (few + each * (sum(whole) - counts[1]))


def _timed(setup: Setup, action: Callable[[], object]) -> float:
    """The seconds an action takes, with all that a GPU was asked to do."""

    def now() -> float:
        if setup.fabric.device.type == "cuda":
            torch.cuda.synchronize(setup.fabric.device)
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
