"""The paper's Lemma and Theorem, measured where they are stated: squared error, one output, a network that can fit.

With f the student, g the teacher, beta_i = (1 - alpha)(f(x_i) - y_i) + alpha (f(x_i) - g(x_i)), phi* where the
teacher's parameters go and d_i(phi) = (phi - phi*) . grad g_phi*(x_i):

    Lemma     E u(phi_k(t)) <= E u(phi_t)              u = mean |d_i|
    step      E S(phi_k(t)) <= E S(phi_t)              S = alpha mean d_i tr grad^2 f(x_i), the signs kept
    Theorem   E Tr H_phi_k(t) <= E Tr H_phi_t          Tr H_phi = mean [ |grad f(x_i)|^2 + beta_i tr grad^2 f(x_i) ]

The proof gets the step from the Lemma and the Theorem from the step. It writes beta_i = alpha d_i at the student's
minimum; since f(x_i) = y_i = g_phi*(x_i) there, beta_i is -alpha d_i, and the trace falls where S grows.

Expectations are over the order of the data. Traces are exact, with no linearisation in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from spacedkd.evaluation.statistics import confidence_interval, half_width
from spacedkd.paper.theory.simulation import Course, Curvatures, Setting, train

Unit = Literal["ratio", "part"]
NEAR = 0.01
"""of its first loss, and less, is left to a teacher near convergence"""
ROUNDING = 1e-22
"""a loss below this is no more than rounding"""


def measure(settings: Sequence[Setting], callback: Callable[[str, int, int], None]) -> dict[str, Any]:
    """The experiment as plain JSON."""
    return {"near": NEAR, "settings": [_judged(train(one, partial(callback, one.name))) for one in settings]}


def _judged(course: Course) -> dict[str, Any]:
    setting, times = course.setting, course.times
    error = course.teacher - course.targets  # [steps + 1, R, N]
    loss = (error.square().mean(-1) / 2).mean(1)
    near = [bool(ROUNDING < loss[t] < NEAR * loss[0]) for t in times]
    return {
        "setting": {**asdict(setting), "parameters": setting.parameters, "runs": setting.problems * setting.orders},
        "limit": float(course.limit.max()),
        "times": times,
        "near": near,
        "loss": loss[times].tolist(),
        "gap": course.gap.abs().mean((1, 2))[times].tolist(),
        "error": error.abs().mean((1, 2))[times].tolist(),
        **_near_convergence(course, [t for t, is_near in zip(times, near, strict=True) if is_near]),
        "online_trace": _trace(course, _students(course, slice(None), 0), times).mean(1).tolist(),
        "intervals": [_interval(course, place, near) for place in range(len(setting.intervals))],
        "example": _example(course),
    }


def _near_convergence(course: Course, times: list[int]) -> dict[str, Any]:
    """How far the linearised gap is from the real error, mean |d - (g - y)| / mean |g - y|, and why S has its sign.

    That is: how d_i and tr grad^2 f(x_i) go with the targets, and how often S > 0.
    """
    if not times:
        return {"linear": None, "why": None}
    gap, bend = course.gap[times], course.students.bend[-1, 0]
    real = course.teacher[times] - course.targets
    return {
        "linear": float((gap - real).abs().mean() / real.abs().mean()),
        "why": {
            "gap_target": float(_correlation(gap, course.targets).mean()),
            "bend_target": float(_correlation(bend, course.targets).mean()),
            "signed_positive": part((gap * bend).mean(-1) > 0),
        },
    }


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Over samples, the last dimension."""
    a, b = (values - values.mean(-1, keepdim=True) for values in (one, other))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def _interval(course: Course, place: int, near: list[bool]) -> dict[str, Any]:
    """One interval against online KD, at the times at which the two teachers are not the same."""
    apart = [k > t for k, t in zip(course.ahead[place], course.times, strict=True)]
    windows = {"near": [a and b for a, b in zip(apart, near, strict=True)], "all": apart}
    sides = _inequalities(course, place)
    within = {window: {name: one.at(rows) for name, one in sides.items()} for window, rows in windows.items()}
    return {
        "interval": course.setting.intervals[place],
        "verdicts": {
            window: {name: verdict(one) for name, one in found.items()} if any(windows[window]) else None
            for window, found in within.items()
        },
        "follows": {
            window: follows(found["lemma"], {name: one for name, one in found.items() if name != "lemma"})
            for window, found in within.items()
        },
        "gap": sides["lemma"].left.mean((1, 2)).tolist(),
        "trace": sides["theorem_own"].left.mean((1, 2)).tolist(),
        "change": sides["theorem_own"].changes().mean((1, 2)).tolist(),
        "end": _end(course, place),
    }


def _inequalities(course: Course, place: int) -> dict[str, Sides]:
    """The Lemma, the step, and the Theorem twice: at one minimum for both teachers, and each student at its own.

    The one minimum theta* is taken to be the end of online KD's student: the proof's reading.
    """
    setting, minimum = course.setting, _students(course, -1, 0)

    def sides(of: Callable[[int, list[int]], Tensor], unit: Unit = "part", scale: Tensor | None = None) -> Sides:
        """Of the spaced student with its teacher and of the online one: [T, problems, orders] each."""
        both = of(place + 1, course.ahead[place]), of(0, course.times)
        left, right = (values.view(len(values), setting.problems, setting.orders) for values in both)
        return Sides(left, right, unit, scale)

    same = sides(lambda _, teachers: _trace(course, minimum, teachers))
    signed = sides(lambda _, teachers: setting.alpha * (course.gap[teachers] * minimum.bend).mean(-1), scale=same.right)
    return {
        "lemma": sides(lambda _, teachers: course.gap[teachers].abs().mean(-1), "ratio"),
        "step": signed,
        "theorem_same": same,
        "theorem_own": sides(lambda own, teachers: _trace(course, _students(course, slice(None), own), teachers)),
    }


def _students(course: Course, time: int | slice, student: int) -> Curvatures:
    return Curvatures(*(values[time, student] for values in course.students))


def _trace(course: Course, at: Curvatures, teachers: list[int], alpha: float | None = None) -> Tensor:
    """Tr H at a student's parameters, with the teacher after so many updates: [T, R]."""
    alpha = course.setting.alpha if alpha is None else alpha
    beta = at.output - (1 - alpha) * course.targets - alpha * course.teacher[teachers]
    return (at.slope + beta * at.bend).mean(-1)


def _end(course: Course, place: int) -> dict[str, Any]:
    """The trace of the task's own Hessian, mean |grad f|^2 + (f - y) tr grad^2 f, at the end, against online KD's."""
    ends = (_students(course, -1, student) for student in (0, place + 1))
    online, spaced = (_trace(course, end, course.times[-1:], alpha=0.0) for end in ends)
    change = ((spaced - online) / online).view(course.setting.problems, course.setting.orders)
    return {
        "online": float(online.mean()),
        "spaced": float(spaced.mean()),
        "change": asdict(confidence_interval(change.mean(-1).tolist())),
        "smaller": part(spaced <= online),
    }


def _example(course: Course, length: int = 48) -> dict[str, Any]:
    """The first run's gap step by step near convergence: what single runs look like."""
    gap, steps = course.gap[:, 0].abs().mean(-1), course.setting.steps
    loss = (course.teacher[:, 0] - course.targets[0]).square().mean(-1)
    below = torch.nonzero(loss < NEAR * loss[0])
    start = min(int(below[0]) if len(below) else steps, max(0, steps - length))
    return {"start": start, "gap": gap[start : start + length + 1].tolist()}


class Sides(NamedTuple):
    """Left and right of an inequality `left <= right`, each [times, problems, orders]."""

    left: Tensor
    right: Tensor
    unit: Unit
    scale: Tensor | None = None  # what a difference is a part of; the right side where it is not given

    def at(self, rows: list[bool]) -> Sides:
        return Sides(self.left[rows], self.right[rows], self.unit, None if self.scale is None else self.scale[rows])

    def changes(self) -> Tensor:
        """log(left / right), or (left - right) / scale."""
        if self.unit == "ratio":
            return (self.left / self.right).log()
        return (self.left - self.right) / (self.right if self.scale is None else self.scale)

    def holds_between_means(self) -> Tensor:
        """Over orders: [times, problems]."""
        return self.left.mean(-1) <= self.right.mean(-1)


def verdict(sides: Sides) -> dict[str, Any]:
    """How often `left <= right` was seen, over problems and times.

    An expectation is over orders, so there is one inequality for each problem and time. It is held or broken where the
    paired 95 % interval of the difference lies on one side of zero; chance alone breaks 2.5 % of those that are equal.
    """
    held, broken = _clear(sides.left - sides.right)
    change = sides.changes().mean(0)  # [problems, orders]
    problems_held, problems_broken = _clear(change)
    per_problem = change.mean(-1)
    return {
        "held": part(held),
        "broken": part(broken),
        "means": part(sides.holds_between_means()),  # clearly or not
        "single": part(sides.left <= sides.right),  # of all single runs and times
        "problems_held": part(problems_held),  # by the change averaged over all times: surer, as more is averaged
        "problems_broken": part(problems_broken),
        # over problems: geometric mean of left / right, or mean of (left - right) / scale
        "change": asdict(confidence_interval((per_problem.exp() if sides.unit == "ratio" else per_problem).tolist())),
        "unit": sides.unit,
    }


def _clear(differences: Tensor) -> tuple[Tensor, Tensor]:
    """Where the mean over orders, the last dimension, is clearly below and clearly above zero."""
    orders = differences.shape[-1]
    mean = differences.mean(-1)
    half = half_width(1.0, orders) * differences.std(-1) / orders**0.5
    return mean + half < 0, mean - half > 0


def follows(premise: Sides, conclusions: Mapping[str, Sides]) -> dict[str, float] | None:
    """Where the premise holds between means: how often each conclusion does. None if the premise never holds."""
    holds = premise.holds_between_means()
    if not bool(holds.any()):
        return None
    return {name: part(sides.holds_between_means()[holds]) for name, sides in conclusions.items()}


def part(true: Tensor) -> float:
    """The part of entries that are true."""
    return float(true.to(torch.float64).mean())
