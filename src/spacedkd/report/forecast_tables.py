"""The tables of what a run or a comparison will take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spacedkd.report.numbers import amount, count, duration
from spacedkd.report.table import Table, in_words

if TYPE_CHECKING:
    from spacedkd.experiments.forecast import ComparisonForecast
    from spacedkd.training.forecast import Forecast


def of_roles(found: Forecast) -> Table:
    """What one step of each role takes, as measured."""
    steps = [role.step for role in found.roles]
    rows = [
        ("turns done", *(_of(role.turns - role.turns_left, role.turns) for role in found.roles)),
        ("passes of a step", *(_passes(step.later) for step in steps)),
        ("FLOPs of a step", *(amount(step.flops, "FLOP") for step in steps)),
        ("kept for its backward pass", *(amount(step.activations, "B") for step in steps)),
        ("time of a step", *(duration(step.seconds) for step in steps)),
        ("time of an evaluation", *(duration(step.evaluation_seconds) for step in steps)),
    ]
    return in_words("each role", ("", *(role.role for role in found.roles)), rows)


def _passes(counts: Mapping[str, int]) -> str:
    """Forward and backward passes by model.

    >>> _passes({"teacher forward passes": 1, "student forward passes": 1, "student backward passes": 1})
    'teacher 1F, student 1F 1B'
    """
    ways: dict[str, list[str]] = {}
    for name, number in counts.items():
        model, _, way = name.removesuffix(" passes").rpartition(" ")
        if name.endswith(" passes") and number:
            ways.setdefault(model, []).append(f"{number}{way[0].upper()}")
    return ", ".join(f"{model} {' '.join(each)}" for model, each in ways.items())


def of_run(found: Forecast) -> Table:
    """Everything about a run, a line for each thing."""
    memory, disk, cost = found.memory, found.disk, found.cost
    models = ", ".join(f"{name} {amount(number, '')}" for name, number in found.parameters.items())
    device = f"; GPU {amount(memory.device, 'B')}" if memory.device is not None else ""
    rows = [
        ("turns done", _of(found.turns - found.turns_left, found.turns)),
        ("updates", count(cost["updates"])),
        ("passes", f"{count(cost['forward_passes'])} forward, {count(cost['backward_passes'])} backward"),
        ("parameters", models),
        ("FLOPs", f"{amount(found.flops, 'FLOP')} in all turns"),
        (
            "memory",
            f"weights {amount(memory.weights, 'B')}, gradients {amount(memory.gradients, 'B')}, optimizers "
            f"{amount(memory.optimizers, 'B')}, activations {amount(memory.activations, 'B')}",
        ),
        ("memory, peak", f"process {amount(memory.process, 'B')}{device}"),
        (
            "disk",
            f"{amount(disk.needed, 'B')}: checkpoint {amount(disk.checkpoint, 'B')}, three of them while one is "
            f"written, students {amount(disk.students, 'B')}, journal {amount(disk.journal, 'B')}"
            + (f", recorded path {amount(disk.path, 'B')}" if disk.path else ""),
        ),
        ("time left", _time(found)),
    ]
    processes = found.spec.engine.processes
    caption = f"FLOPs and memory are those of each of {processes} processes" if processes > 1 else ""
    return in_words("the whole run", ("what", "how much"), rows, caption, left=2)


def _time(found: Forecast) -> str:
    if found.finished:
        return "none, it is finished"
    evaluating = sum(role.evaluations_left * role.step.evaluation_seconds for role in found.roles)
    saving = found.saves_left * found.save_seconds + found.finish_seconds
    parts = f"evaluation {duration(evaluating)}, saving {duration(saving)}, start {duration(found.start_seconds)}"
    return f"{duration(found.seconds_left)}; in it {parts}"


def of_comparison(found: ComparisonForecast) -> list[Table]:
    """What every arm does, and what that takes; all its seeds together."""
    done, takes = [], []
    for label, runs in found.arms.items():
        turns = sum(run.turns for run in runs)
        passes = [sum(run.cost[name] for run in runs) for name in ("updates", "forward_passes", "backward_passes")]
        parameters = sum(runs[0].parameters.values())
        turns_done = _of(turns - sum(run.turns_left for run in runs), turns)
        done.append([label, amount(parameters, ""), turns_done, *map(count, passes)])
        takes.append(
            [
                label,
                _of(sum(run.finished for run in runs), len(runs)),
                amount(sum(run.flops for run in runs), "FLOP"),
                amount(max(run.memory.process for run in runs), "B"),
                amount(sum(run.disk.needed for run in runs), "B"),
                duration(sum(run.seconds_left for run in runs)),
            ]
        )
    names = ("arm", "params", "turns done", "updates", "forward", "backward")
    others = ("arm", "runs done", "FLOPs", "memory", "disk", "time left")
    caption = "memory is the peak of one run's process; time as if one run followed the other"
    what = "forward and backward passes of whole batches, as of each run alone"
    if any(run.follows for runs in found.arms.values() for run in runs):
        what += "; turns of a teacher that another run trains count as done"
    return [
        in_words("all runs of each arm", names, done, what, unbroken=True),
        in_words("what they take", others, takes, caption, unbroken=True),
    ]


def _of(done: int, whole: int) -> str:
    return f"{count(done)} of {count(whole)}"
