"""The theory experiment: the paper's Lemma and Theorem, measured where they are stated.

They are stated for squared error, one output, and networks wide enough to fit every sample. With f the student, g the
teacher, beta_i = (1 - alpha)(f(x_i) - y_i) + alpha (f(x_i) - g(x_i)), phi* the minimum that the teacher converges to
and d_i(phi) = (phi - phi*) . grad g_phi*(x_i):

    Lemma     E u(phi_k(t)) <= E u(phi_t)              u = mean |d_i|
    step      E S(phi_k(t)) <= E S(phi_t)              S = alpha mean d_i tr grad^2 f(x_i), the signs kept
    Theorem   E Tr H_phi_k(t) <= E Tr H_phi_t          Tr H_phi = mean [ |grad f(x_i)|^2 + beta_i tr grad^2 f(x_i) ]

The proof gets the step from the Lemma and the Theorem from the step. It writes beta_i = alpha d_i at the student's
minimum; since f(x_i) = y_i = g_phi*(x_i) there, beta_i is -alpha d_i, and the trace falls where S grows.

Time t counts updates. The teacher after t updates is phi_t; the student's t-th update learns from phi_k(t), where
k(t) = ceil(t / s) s for the interval s. The teacher never looks at a student, so all intervals share its trajectory.
Expectations are over the order of the data. Traces are exact, with no linearisation in them.

`measure` runs the experiment and returns theory.json. `simulate` trains the networks of one setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, count
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.statistics import confidence_interval, half_width
from spacedkd.paper.theory.findings import (
    End,
    Example,
    IntervalResults,
    SettingResults,
    SignCauses,
    StatementResults,
    TheoryResults,
)
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.seeds import seed_for
from spacedkd.schedule import Spaced

MINIMUM_FACTOR = 2
"""the teacher's minimum phi* is read off after this many times the students' steps"""
NEAR = 0.01
"""a teacher whose loss is below this fraction of its first loss is near convergence"""
ROUNDING = 1e-22
"""a loss below this is no more than rounding"""


# Settings


@dataclass(frozen=True)
class Setting:
    """A kind of network and a way to train it."""

    name: str = "tanh"
    activation: str = "tanh"
    rate: float = 0.1
    alpha: float = 0.5  # weight of the teacher
    samples: int = 16
    inputs: int = 8
    width: int = 32
    batch_size: int = 4
    steps: int = 1500
    intervals: tuple[int, ...] = (2, 6, 24, 1500)  # in steps; online is always trained too
    problems: int = 16  # data and initial weights
    orders: int = 24  # ways to go through the data of each problem
    measurements: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)
        for name in ("problems", "steps", "measurements", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"The theory experiment needs at least one of {name}, got {getattr(self, name)}.")
        if self.orders < 2:
            raise UserError(f"An expectation over orders needs at least two of them, got {self.orders}.")
        if not self.rate > 0:
            raise UserError(f"A learning rate must be a number above 0, got {self.rate}.")
        if self.samples % self.batch_size:
            raise UserError(f"{self.samples} samples cannot be divided into batches of {self.batch_size}.")
        if any(not 1 < interval <= self.steps for interval in self.intervals):
            raise UserError(f"Intervals must lie between 2 and the {self.steps} steps, got {self.intervals}.")

    @property
    def parameters(self) -> int:
        """The number of parameters of a network."""
        return self.width * (self.inputs + 2) + 1


def default_settings(problems: int = 16, orders: int = 24, steps: int = 1500, seed: int = 0) -> list[Setting]:
    """Return two activations whose second derivatives differ in kind, and one of them with more and smaller steps."""
    if steps < 2:
        raise UserError(f"The theory experiment needs at least 2 steps, got {steps}.")
    base = Setting(problems=problems, orders=orders, seed=seed)
    epoch = base.samples // base.batch_size

    def setting(steps: int, **changes: Any) -> Setting:
        """Return a setting with intervals of half an epoch, one and a half and six epochs, and offline."""
        lengths = (epoch // 2, 3 * epoch // 2, 6 * epoch, steps)
        intervals = tuple(sorted({min(length, steps) for length in lengths}))
        return replace(base, steps=steps, intervals=intervals, **changes)

    return [
        setting(steps),
        setting(steps, name="gelu", activation="gelu"),
        setting(2 * steps, name="tanh, small rate", rate=base.rate / 4),
    ]


# Networks: many wide ones with one hidden layer and one output at once, with every derivative written out

Activation = tuple[Tensor, Tensor, Tensor]
"""the values of a function, of its first and of its second derivative"""


def _tanh(z: Tensor) -> Activation:
    t = z.tanh()
    return t, 1 - t * t, -2 * t * (1 - t * t)


def _gelu(z: Tensor) -> Activation:
    """Return z Phi(z), which is smooth and close to the ReLU."""
    distribution = (1 + torch.erf(z / math.sqrt(2))) / 2
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return z * distribution, distribution + z * density, density * (2 - z * z)


ACTIVATIONS: dict[str, Callable[[Tensor], Activation]] = {"tanh": _tanh, "gelu": _gelu}


class Networks(NamedTuple):
    """Parameters of many networks."""

    w: Tensor  # [..., H, D]
    b: Tensor  # [..., H]
    a: Tensor  # [..., H]
    c: Tensor  # [...]


class Derivatives(NamedTuple):
    """The exact parts of the trace of a squared error's Hessian, at N points."""

    output: Tensor  # f(x_i), [..., N]
    squared_gradient: Tensor  # |grad f(x_i)|^2, [..., N]
    hessian_trace: Tensor  # tr grad^2 f(x_i), [..., N]


def random_network(inputs: int, width: int, generator: torch.Generator) -> Networks:
    """Return one network with random weights of the usual size and biases of zero."""
    w = torch.randn(width, inputs, generator=generator, dtype=torch.float64) / math.sqrt(inputs)
    a = torch.randn(width, generator=generator, dtype=torch.float64) / math.sqrt(width)
    return Networks(w, torch.zeros_like(a), a, torch.zeros((), dtype=torch.float64))


def _hidden_layer(networks: Networks, x: Tensor, activation: str) -> Activation:
    """Return the hidden units with their derivatives, each [..., N, H]."""
    return ACTIVATIONS[activation](x @ networks.w.transpose(-1, -2) + networks.b[..., None, :])


def _output_layer(networks: Networks, hidden: Tensor) -> Tensor:
    return (hidden @ networks.a[..., None])[..., 0] + networks.c[..., None]


def outputs(networks: Networks, x: Tensor, activation: str) -> Tensor:
    """Return f at the points x: [..., N, D] to [..., N]."""
    return _output_layer(networks, _hidden_layer(networks, x, activation)[0])


def gradient_step(networks: Networks, x: Tensor, target: Tensor, rate: float, activation: str) -> Networks:
    """Return the networks after one step of gradient descent on the mean of (f(x) - target)^2 / 2 over a batch."""
    value, slope, _ = _hidden_layer(networks, x, activation)
    error = (_output_layer(networks, value) - target) / target.shape[-1]
    hidden_gradient = error[..., None] * slope * networks.a[..., None, :]
    return Networks(
        networks.w - rate * hidden_gradient.transpose(-1, -2) @ x,
        networks.b - rate * hidden_gradient.sum(-2),
        networks.a - rate * (error[..., None] * value).sum(-2),
        networks.c - rate * error.sum(-1),
    )


def directional_derivative(networks: Networks, direction: Networks, x: Tensor, activation: str) -> Tensor:
    """Return direction . grad f(x_i), the gradient taken at `networks`: [..., N]."""
    value, slope, _ = _hidden_layer(networks, x, activation)
    moved = x @ direction.w.transpose(-1, -2) + direction.b[..., None, :]
    inner = (slope * networks.a[..., None, :] * moved).sum(-1)
    return inner + (value @ direction.a[..., None])[..., 0] + direction.c[..., None]


def derivatives(networks: Networks, x: Tensor, activation: str) -> Derivatives:
    """Return f, |grad f|^2 and tr grad^2 f at the points x.

    |grad f|^2 = sum act^2 + sum (a act')^2 (|x|^2 + 1) + 1, and tr grad^2 f = sum a act'' (|x|^2 + 1).
    """
    value, first, second = _hidden_layer(networks, x, activation)
    reach = x.square().sum(-1) + 1
    a = networks.a[..., None, :]
    squared_gradient = value.square().sum(-1) + (a * first).square().sum(-1) * reach + 1
    return Derivatives(_output_layer(networks, value), squared_gradient, (a * second).sum(-1) * reach)


# Simulation: teachers and students are trained, and measured on the way


class Simulation(NamedTuple):
    """The measurements of R runs (problems times orders, the orders of a problem side by side) at T times."""

    setting: Setting
    times: list[int]
    teacher_updates: list[list[int]]  # [intervals][T]: k(t)
    teacher: Tensor  # g_phi_t(x_i) after every number of updates from 0 on: [steps + 1, R, N]
    gap: Tensor  # (phi_t - phi*) . grad g_phi*(x_i), likewise
    targets: Tensor  # y_i: [R, N]
    students: Derivatives  # of online KD, then of each interval: [T, 1 + intervals, R, N]
    minimum_loss: Tensor  # the teacher's loss at phi*: [R]


def simulate(setting: Setting, progress: Callable[[int, int], None]) -> Simulation:
    """Train all teachers, then all students of all intervals side by side; a rate that diverges is refused.

    `progress` is called after every update with the number of updates that are done, and of all.
    """
    runs = _Runs(setting, progress)
    minimum = runs.start
    for step in range(MINIMUM_FACTOR * setting.steps):
        minimum = runs.update(minimum, step, runs.y)
    minimum_loss = (outputs(minimum, runs.x, setting.activation) - runs.y).square().mean(-1) / 2
    if not (worst := float(minimum_loss.max())) < 1:
        raise UserError(
            f"Setting {setting.name!r} does not converge: the teacher's loss ends at {worst:.3g}. Lower its rate."
        )
    teacher, gap = _simulate_teacher(runs, minimum)
    times = _measurement_times(setting)
    online, *spaced = (teacher_updates(interval, setting.steps) for interval in (1, *setting.intervals))
    return Simulation(
        setting=setting,
        times=times,
        teacher_updates=[[k[t - 1] for t in times] for k in spaced],
        teacher=teacher,
        gap=gap,
        targets=runs.y,
        students=_simulate_students(runs, teacher, [online, *spaced], times),
        minimum_loss=minimum_loss,
    )


def teacher_updates(interval: int, steps: int) -> list[int]:
    """Return k(t), the teacher's updates that the student's t-th update learns from, for t = 1 .. steps.

    They are read off the schedule that real runs use.

    >>> teacher_updates(3, 8)
    [3, 3, 3, 6, 6, 6, 8, 8]
    """
    turns = [*Spaced(f"{interval}st").turns(("teacher", "student"), range(steps))]
    updates = accumulate(int(turn.role == "teacher") for turn in turns)
    return [k for turn, k in zip(turns, updates, strict=True) if turn.role == "student"]


class _Runs:
    """The data, initial weights and batch orders of all runs; each is a function of the seed and its own numbers."""

    def __init__(self, setting: Setting, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        self.setting, self._progress, self._updates = setting, progress, count(1)
        problems = zip(*(self._problem(number) for number in range(setting.problems)), strict=True)
        self.x, self.y, *start = (torch.stack(tensors).repeat_interleave(setting.orders, 0) for tensors in problems)
        self.start = Networks(*start)  # x: [R, N, D], y: [R, N]
        self._orders = torch.stack(
            [self._order(problem, order) for problem in range(setting.problems) for order in range(setting.orders)]
        )  # [R, steps, B]

    def _problem(self, number: int) -> tuple[Tensor, ...]:
        """Return random points with random targets, and a network: nothing but its width makes them learnable."""
        generator = torch.Generator().manual_seed(seed_for(self.setting.seed, "problem", number))
        x = torch.randn(self.setting.samples, self.setting.inputs, generator=generator, dtype=torch.float64)
        y = torch.randn(self.setting.samples, generator=generator, dtype=torch.float64)
        return x, y, *random_network(self.setting.inputs, self.setting.width, generator)

    def _order(self, problem: int, order: int) -> Tensor:
        """Return the samples of each batch, with a new permutation every epoch: [steps, B]."""
        generator = torch.Generator().manual_seed(seed_for(self.setting.seed, "order", problem, order))
        steps_per_epoch = self.setting.samples // self.setting.batch_size
        epochs = -(-MINIMUM_FACTOR * self.setting.steps // steps_per_epoch)
        shuffled = torch.rand(epochs, self.setting.samples, generator=generator, dtype=torch.float64).argsort(1)
        return shuffled.view(-1, self.setting.batch_size)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the points of the batch of a step, and their indices among the samples."""
        indices = self._orders[:, step]
        return self.x.gather(1, indices[..., None].expand(-1, -1, self.setting.inputs)), indices

    def update(self, networks: Networks, step: int, targets: Tensor) -> Networks:
        """Return the networks after an update towards the targets, [..., R, N], of the batch of a step."""
        x, indices = self.batch(step)
        target = targets.gather(-1, indices.expand(*targets.shape[:-1], -1))
        self._progress(next(self._updates), (MINIMUM_FACTOR + 2) * self.setting.steps)
        return gradient_step(networks, x, target, self.setting.rate, self.setting.activation)


def _measurement_times(setting: Setting) -> list[int]:
    """Return times that are evenly spread, and the last one.

    They are odd: at multiples of the intervals, which are even, the spaced and the online teacher are the same.
    """
    spread = (1 + round(number * (setting.steps - 1) / setting.measurements) for number in range(setting.measurements))
    odd = sorted({t | 1 for t in spread if t | 1 <= setting.steps})
    return odd if odd[-1] == setting.steps else [*odd, setting.steps]


def _simulate_teacher(runs: _Runs, minimum: Networks) -> tuple[Tensor, Tensor]:
    """Return the teacher's outputs and its gap to the minimum after every update.

    The teacher is trained a second time, to the same bits, now that its minimum phi* is known.
    """
    setting, networks = runs.setting, runs.start
    teacher_outputs, gaps = [], []
    for step in range(setting.steps + 1):
        teacher_outputs.append(outputs(networks, runs.x, setting.activation))
        direction = Networks(*map(torch.sub, networks, minimum))
        gaps.append(directional_derivative(minimum, direction, runs.x, setting.activation))
        if step < setting.steps:
            networks = runs.update(networks, step, runs.y)
    return torch.stack(teacher_outputs), torch.stack(gaps)


def _simulate_students(runs: _Runs, teacher: Tensor, updates: list[list[int]], times: list[int]) -> Derivatives:
    """Return the derivatives of all students at these times.

    Every student begins where its teacher began and learns the target (1 - alpha) y + alpha g_phi_k(t).
    """
    setting, networks = runs.setting, Networks(*(tensor.expand(len(updates), *tensor.shape) for tensor in runs.start))
    measured = []
    for t in range(1, setting.steps + 1):
        advice = torch.stack([teacher[k[t - 1]] for k in updates])
        networks = runs.update(networks, t - 1, (1 - setting.alpha) * runs.y + setting.alpha * advice)
        if t in times:
            measured.append(derivatives(networks, runs.x, setting.activation))
    return Derivatives(*(torch.stack(tensors) for tensors in zip(*measured, strict=True)))


# Measurement: how often the inequalities hold


def measure(settings: Sequence[Setting], progress: Callable[[str, int, int], None]) -> TheoryResults:
    """Return the results of the experiment; `progress` gets the setting's name, the updates done, and all of them."""
    return {
        "near": NEAR,
        "settings": [_setting_results(simulate(setting, partial(progress, setting.name))) for setting in settings],
    }


def _setting_results(simulation: Simulation) -> SettingResults:
    setting, times = simulation.setting, simulation.times
    error = simulation.teacher - simulation.targets  # [steps + 1, R, N]
    loss = (error.square().mean(-1) / 2).mean(1)
    near = [bool(ROUNDING < loss[t] < NEAR * loss[0]) for t in times]
    near_times = [t for t, is_near in zip(times, near, strict=True) if is_near]
    return {
        "setting": {**asdict(setting), "parameters": setting.parameters, "runs": setting.problems * setting.orders},
        "limit": float(simulation.minimum_loss.max()),
        "times": times,
        "near": near,
        "loss": loss[times].tolist(),
        "gap": simulation.gap.abs().mean((1, 2))[times].tolist(),
        "error": error.abs().mean((1, 2))[times].tolist(),
        "linear": _linearisation_error(simulation, near_times) if near_times else None,
        "why": _sign_causes(simulation, near_times) if near_times else None,
        "online_trace": _trace(simulation, _student(simulation, slice(None), 0), times).mean(1).tolist(),
        "intervals": [_interval_results(simulation, index, near) for index in range(len(setting.intervals))],
        "example": _example(simulation),
    }


def _linearisation_error(simulation: Simulation, times: list[int]) -> float:
    """Return how far the linearised gap is from the real error: mean |d - (g - y)| / mean |g - y|."""
    error = simulation.teacher[times] - simulation.targets
    return float((simulation.gap[times] - error).abs().mean() / error.abs().mean())


def _sign_causes(simulation: Simulation, times: list[int]) -> SignCauses:
    """Return why S has its sign: how d_i and tr grad^2 f(x_i) correlate with the targets, and how often S > 0."""
    gap, hessian_trace = simulation.gap[times], simulation.students.hessian_trace[-1, 0]
    return {
        "gap_target": float(_correlation(gap, simulation.targets).mean()),
        "bend_target": float(_correlation(hessian_trace, simulation.targets).mean()),
        "signed_positive": fraction((gap * hessian_trace).mean(-1) > 0),
    }


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation over samples, the last dimension."""
    a, b = (values - values.mean(-1, keepdim=True) for values in (first, second))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def _interval_results(simulation: Simulation, index: int, near: list[bool]) -> IntervalResults:
    """Compare one interval with online KD, at the times at which the two teachers are not the same."""
    differ = [k > t for k, t in zip(simulation.teacher_updates[index], simulation.times, strict=True)]
    windows = {"near": [a and b for a, b in zip(differ, near, strict=True)], "all": differ}
    inequalities = _inequalities(simulation, index)
    verdicts: dict[str, dict[str, StatementResults] | None] = {}
    conclusions: dict[str, dict[str, float] | None] = {}
    for window, rows in windows.items():
        selected = {name: inequality.at(rows) for name, inequality in inequalities.items()}
        verdicts[window] = {name: judge(inequality) for name, inequality in selected.items()} if any(rows) else None
        lemma = selected.pop("lemma")
        conclusions[window] = count_conclusions(lemma, selected)
    own = inequalities["theorem_own"]
    return {
        "interval": simulation.setting.intervals[index],
        "verdicts": verdicts,
        "follows": conclusions,
        "gap": inequalities["lemma"].lhs.mean((1, 2)).tolist(),
        "trace": own.lhs.mean((1, 2)).tolist(),
        "change": own.differences().mean((1, 2)).tolist(),
        "end": _end(simulation, index),
    }


def _inequalities(simulation: Simulation, index: int) -> dict[str, Inequality]:
    """Return the Lemma, the step, and the Theorem twice: at one minimum for both teachers, and each student at its own.

    The one minimum theta* is taken to be the end of online KD's student: the proof's reading.
    """
    setting, minimum = simulation.setting, _student(simulation, -1, 0)

    def inequality(
        quantity: Callable[[int, list[int]], Tensor], unit: Unit = "part", scale: Tensor | None = None
    ) -> Inequality:
        """Return a quantity of the spaced student with its teacher, and of the online one with its own."""
        spaced, online = quantity(index + 1, simulation.teacher_updates[index]), quantity(0, simulation.times)
        shape = len(simulation.times), setting.problems, setting.orders
        return Inequality(spaced.view(shape), online.view(shape), unit, scale)

    same = inequality(lambda _, teachers: _trace(simulation, minimum, teachers))
    signed = inequality(
        lambda _, teachers: setting.alpha * (simulation.gap[teachers] * minimum.hessian_trace).mean(-1), scale=same.rhs
    )
    return {
        "lemma": inequality(lambda _, teachers: simulation.gap[teachers].abs().mean(-1), "ratio"),
        "step": signed,
        "theorem_same": same,
        "theorem_own": inequality(
            lambda student, teachers: _trace(simulation, _student(simulation, slice(None), student), teachers)
        ),
    }


def _student(simulation: Simulation, time: int | slice, student: int) -> Derivatives:
    return Derivatives(*(values[time, student] for values in simulation.students))


def _trace(simulation: Simulation, student: Derivatives, teachers: list[int], alpha: float | None = None) -> Tensor:
    """Return Tr H at a student's parameters, with the teacher after so many updates: [T, R]."""
    alpha = simulation.setting.alpha if alpha is None else alpha
    beta = student.output - (1 - alpha) * simulation.targets - alpha * simulation.teacher[teachers]
    return (student.squared_gradient + beta * student.hessian_trace).mean(-1)


def _end(simulation: Simulation, index: int) -> End:
    """Return the trace of the task's own Hessian, mean |grad f|^2 + (f - y) tr grad^2 f, after the last update."""
    students = (_student(simulation, -1, student) for student in (0, index + 1))
    online, spaced = (_trace(simulation, student, simulation.times[-1:], alpha=0.0) for student in students)
    change = ((spaced - online) / online).view(simulation.setting.problems, simulation.setting.orders)
    return {
        "online": float(online.mean()),
        "spaced": float(spaced.mean()),
        "change": to_json(confidence_interval(change.mean(-1).tolist())),
        "smaller": fraction(spaced <= online),
    }


def _example(simulation: Simulation, length: int = 48) -> Example:
    """Return the first run's gap step by step near convergence, as an example of what single runs do."""
    gap, steps = simulation.gap[:, 0].abs().mean(-1), simulation.setting.steps
    loss = (simulation.teacher[:, 0] - simulation.targets[0]).square().mean(-1)
    near = torch.nonzero(loss < NEAR * loss[0])
    start = min(int(near[0]) if len(near) else steps, max(0, steps - length))
    return {"start": start, "gap": gap[start : start + length + 1].tolist()}


Unit = Literal["ratio", "part"]


class Inequality(NamedTuple):
    """An inequality `lhs <= rhs`, each side [times, problems, orders]."""

    lhs: Tensor
    rhs: Tensor
    unit: Unit
    scale: Tensor | None = None  # differences are relative to it; None means the right side

    def at(self, rows: list[bool]) -> Inequality:
        """Return the inequality at some of the times."""
        return Inequality(self.lhs[rows], self.rhs[rows], self.unit, None if self.scale is None else self.scale[rows])

    def differences(self) -> Tensor:
        """Return log(lhs / rhs), or (lhs - rhs) / scale."""
        if self.unit == "ratio":
            return (self.lhs / self.rhs).log()
        return (self.lhs - self.rhs) / (self.rhs if self.scale is None else self.scale)

    def holds_between_means(self) -> Tensor:
        """Return whether it holds between the means over orders: [times, problems]."""
        return self.lhs.mean(-1) <= self.rhs.mean(-1)


def judge(inequality: Inequality) -> StatementResults:
    """Return how often the inequality was seen to hold, over problems and times.

    An expectation is over orders, so there is one inequality for each problem and time. It is held or broken where the
    paired 95 % interval of the difference lies on one side of zero; chance alone breaks 2.5 % of those that are equal.
    """
    held, broken = _clear_signs(inequality.lhs - inequality.rhs)
    differences = inequality.differences().mean(0)  # [problems, orders]
    problems_held, problems_broken = _clear_signs(differences)
    per_problem = differences.mean(-1)
    if inequality.unit == "ratio":
        per_problem = per_problem.exp()  # the geometric mean of lhs / rhs
    return {
        "held": fraction(held),
        "broken": fraction(broken),
        "means": fraction(inequality.holds_between_means()),  # clearly or not
        "single": fraction(inequality.lhs <= inequality.rhs),  # of all single runs and times
        "problems_held": fraction(problems_held),  # by the mean over all times: surer, as more is averaged
        "problems_broken": fraction(problems_broken),
        "change": to_json(confidence_interval(per_problem.tolist())),
        "unit": inequality.unit,
    }


def _clear_signs(differences: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the mean over orders, the last dimension, is clearly below and clearly above zero."""
    orders = differences.shape[-1]
    mean = differences.mean(-1)
    half = half_width(1.0, orders) * differences.std(-1) / orders**0.5
    return mean + half < 0, mean - half > 0


def count_conclusions(premise: Inequality, conclusions: Mapping[str, Inequality]) -> dict[str, float] | None:
    """Return how often each conclusion holds where the premise does, between means; None if it never does."""
    holds = premise.holds_between_means()
    if not bool(holds.any()):
        return None
    return {name: fraction(inequality.holds_between_means()[holds]) for name, inequality in conclusions.items()}


def fraction(true: Tensor) -> float:
    """Return the fraction of entries that are true."""
    return float(true.to(torch.float64).mean())
