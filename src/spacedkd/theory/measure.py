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

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from spacedkd.errors import UserError
from spacedkd.evaluation.confidence import confidence_interval
from spacedkd.theory.training import Course, Setting, train
from spacedkd.theory.verdicts import Sides, follows, part, verdict

Callback = Callable[[str, int, int], None]

NEAR = 0.01
"""of its first loss, and less, is left to a teacher near convergence"""
ROUNDING = 1e-22
"""a loss below this is no more than rounding"""


def default_settings(problems: int = 16, orders: int = 24, steps: int = 1500, seed: int = 0) -> list[Setting]:
    """Two activations whose second derivatives differ in kind, and one of them with small steps but more of them."""
    base = Setting(problems=problems, orders=orders, seed=seed)
    return [
        _long(replace(base, name="tanh", activation="tanh"), steps),
        _long(replace(base, name="gelu", activation="gelu"), steps),
        _long(replace(base, name="tanh, small rate", activation="tanh", rate=base.rate / 4), 2 * steps),
    ]


def _long(setting: Setting, steps: int) -> Setting:
    """Half an epoch, one and a half, six, and offline."""
    if steps < 2:
        raise UserError(f"The theory experiment needs at least 2 steps, got {steps}.")
    epoch = setting.samples // setting.batch_size
    wanted = (epoch // 2, 3 * epoch // 2, 6 * epoch, steps)
    return replace(setting, steps=steps, intervals=tuple(sorted({min(one, steps) for one in wanted})))


def measure(settings: Sequence[Setting], callback: Callback) -> dict[str, Any]:
    """The experiment as plain JSON."""
    return {"near": NEAR, "settings": [_measured(setting, callback) for setting in settings]}


def _measured(setting: Setting, callback: Callback) -> dict[str, Any]:
    return _judged(setting, train(setting, lambda done, total: callback(setting.name, done, total)))


def _judged(setting: Setting, course: Course) -> dict[str, Any]:
    loss = (course.teacher - course.targets).square().mean(-1) / 2  # [steps + 1, R]
    mean_loss = loss.mean(1)
    near = [bool(ROUNDING < mean_loss[t] < NEAR * mean_loss[0]) for t in course.times]
    return {
        "setting": {**asdict(setting), "parameters": setting.parameters, "runs": setting.problems * setting.orders},
        "limit": float(course.limit.max()),
        "times": course.times,
        "near": near,
        "loss": mean_loss[course.times].tolist(),
        "gap": course.gap.abs().mean((1, 2))[course.times].tolist(),
        "error": (course.teacher - course.targets).abs().mean((1, 2))[course.times].tolist(),
        "linear": _linear(course, near),
        "why": _why(course, near),
        "online_trace": _traces(setting, course, 0, course.times).mean(1).tolist(),
        "intervals": [_interval(setting, course, place, near) for place in range(len(setting.intervals))],
        "example": _example(setting, course),
    }


def _linear(course: Course, near: list[bool]) -> float | None:
    """How far the linearised gap is from the real error near convergence: mean |d - (g - y)| / mean |g - y|."""
    rows = [t for t, is_near in zip(course.times, near, strict=True) if is_near]
    if not rows:
        return None
    real = course.teacher[rows] - course.targets
    return float((course.gap[rows] - real).abs().mean() / real.abs().mean())


def _why(course: Course, near: list[bool]) -> dict[str, float] | None:
    """What gives the signed sum its sign: how d_i and tr grad^2 f(x_i) go with the targets, and how often S > 0."""
    rows = [t for t, is_near in zip(course.times, near, strict=True) if is_near]
    if not rows:
        return None
    gap, bend = course.gap[rows], course.students.bend[-1, 0]
    return {
        "gap_target": float(_correlation(gap, course.targets).mean()),
        "bend_target": float(_correlation(bend, course.targets).mean()),
        "signed_positive": part((gap * bend).mean(-1) > 0),
    }


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Over samples, the last dimension."""
    a, b = (values - values.mean(-1, keepdim=True) for values in (one, other))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def _interval(setting: Setting, course: Course, place: int, near: list[bool]) -> dict[str, Any]:
    """One interval against online KD, at the times at which the two teachers are not the same."""
    ahead = course.ahead[place]
    apart = [k > t for k, t in zip(ahead, course.times, strict=True)]
    windows = {"near": [a and b for a, b in zip(apart, near, strict=True)], "all": apart}
    sides = _inequalities(setting, course, place)
    rest = {name: one for name, one in sides.items() if name != "lemma"}
    spaced, online = sides["theorem_own"].left, sides["theorem_own"].right
    return {
        "interval": setting.intervals[place],
        "verdicts": {
            window: {name: asdict(verdict(one.at(rows))) for name, one in sides.items()} if any(rows) else None
            for window, rows in windows.items()
        },
        "follows": {
            window: follows(sides["lemma"].at(rows), {name: one.at(rows) for name, one in rest.items()})
            for window, rows in windows.items()
        },
        "gap": sides["lemma"].left.mean((1, 2)).tolist(),
        "trace": spaced.mean((1, 2)).tolist(),
        "change": ((spaced - online) / online).mean((1, 2)).tolist(),
        "end": _end(setting, course, place),
    }


def _inequalities(setting: Setting, course: Course, place: int) -> dict[str, Sides]:
    """The Lemma, the step, and the Theorem twice: at one minimum for both teachers, and each student at its own."""

    def shaped(values: Tensor) -> Tensor:
        return values.view(len(values), setting.problems, setting.orders)

    spaced, online = course.ahead[place], course.times
    gap = course.gap.abs().mean(-1)
    ours, theirs = (shaped(_at_the_minimum(setting, course, when)) for when in (spaced, online))
    signed, signed_online = (shaped(_signed(setting, course, when)) for when in (spaced, online))
    return {
        "lemma": Sides(shaped(gap[spaced]), shaped(gap[online]), "ratio"),
        "step": Sides(signed, signed_online, "part", theirs),
        "theorem_same": Sides(ours, theirs, "part"),
        "theorem_own": Sides(
            shaped(_traces(setting, course, place + 1, spaced)), shaped(_traces(setting, course, 0, online)), "part"
        ),
    }


def _traces(setting: Setting, course: Course, student: int, teachers: Sequence[int]) -> Tensor:
    """Tr H at a student's own parameters at each time, with the teacher after so many updates: [T, R]."""
    output, slope, bend = (part[:, student] for part in course.students)
    return _trace(setting, course, output, slope, bend, course.teacher[list(teachers)])


def _at_the_minimum(setting: Setting, course: Course, teachers: Sequence[int]) -> Tensor:
    """Tr H at theta*, taken to be the end of online KD's student, for both teachers: the proof's reading."""
    output, slope, bend = (part[-1, 0] for part in course.students)
    return _trace(setting, course, output, slope, bend, course.teacher[list(teachers)])


def _trace(setting: Setting, course: Course, output: Tensor, slope: Tensor, bend: Tensor, said: Tensor) -> Tensor:
    beta = output - (1 - setting.alpha) * course.targets - setting.alpha * said
    return (slope + beta * bend).mean(-1)


def _signed(setting: Setting, course: Course, teachers: Sequence[int]) -> Tensor:
    """S(phi) at theta*, as the proof prints it: [T, R]."""
    return setting.alpha * (course.gap[list(teachers)] * course.students.bend[-1, 0]).mean(-1)


def _end(setting: Setting, course: Course, place: int) -> dict[str, Any]:
    """The trace of the task's own Hessian, mean |grad f|^2 + (f - y) tr grad^2 f, at the end, against online KD's."""
    plain = replace(setting, alpha=0.0)
    last = [course.times[-1]]
    online, spaced = (_traces(plain, course, one, last * len(course.times))[-1:] for one in (0, place + 1))
    change = ((spaced - online) / online).view(setting.problems, setting.orders)
    return {
        "online": float(online.mean()),
        "spaced": float(spaced.mean()),
        "change": asdict(confidence_interval(change.mean(-1).tolist())),
        "smaller": part(spaced <= online),
    }


def _example(setting: Setting, course: Course, length: int = 48) -> dict[str, Any]:
    """The first run's gap step by step near convergence: what single runs look like."""
    gap = course.gap[:, 0].abs().mean(-1)
    loss = (course.teacher[:, 0] - course.targets[0]).square().mean(-1)
    below = torch.nonzero(loss < NEAR * loss[0])
    start = min(int(below[0]) if len(below) else setting.steps, max(0, setting.steps - length))
    return {"start": start, "gap": gap[start : start + length + 1].tolist()}
