"""Teachers and students of the theory experiment: trained, and measured on the way.

Time t counts updates. The teacher after t updates is phi_t; the student's t-th update learns from phi_k(t), where
k(t) = ceil(t / s) s for the interval s. The teacher never looks at a student, so all intervals share its history.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.seeds import seed_for
from spacedkd.schedule import Spaced

# Many wide networks with one hidden layer and one output at once, with every derivative written out.

Activation = tuple[Tensor, Tensor, Tensor]
"""the values of a function, of its first and of its second derivative"""


def _tanh(z: Tensor) -> Activation:
    t = z.tanh()
    return t, 1 - t * t, -2 * t * (1 - t * t)


def _gelu(z: Tensor) -> Activation:
    """z Phi(z): smooth, and close to the ReLU."""
    below = (1 + torch.erf(z / math.sqrt(2))) / 2
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return z * below, below + z * density, density * (2 - z * z)


ACTIVATIONS: dict[str, Callable[[Tensor], Activation]] = {"tanh": _tanh, "gelu": _gelu}


class Networks(NamedTuple):
    """Parameters of many networks."""

    w: Tensor  # [..., H, D]
    b: Tensor  # [..., H]
    a: Tensor  # [..., H]
    c: Tensor  # [...]


class Curvatures(NamedTuple):
    """What the trace of a squared error's Hessian is made of, exactly, at N points."""

    output: Tensor  # f(x_i), [..., N]
    slope: Tensor  # |grad f(x_i)|^2, [..., N]
    bend: Tensor  # tr grad^2 f(x_i), [..., N]


def drawn(inputs: int, width: int, draw: torch.Generator) -> Networks:
    """One network with random weights of the usual size; its biases begin at zero."""
    w = torch.randn(width, inputs, generator=draw, dtype=torch.float64) / math.sqrt(inputs)
    a = torch.randn(width, generator=draw, dtype=torch.float64) / math.sqrt(width)
    return Networks(w, torch.zeros_like(a), a, torch.zeros((), dtype=torch.float64))


def _hidden(networks: Networks, x: Tensor, activation: str) -> Activation:
    """[..., N, H]"""
    return ACTIVATIONS[activation](x @ networks.w.transpose(-1, -2) + networks.b[..., None, :])


def _read(networks: Networks, hidden: Tensor) -> Tensor:
    return (hidden @ networks.a[..., None])[..., 0] + networks.c[..., None]


def outputs(networks: Networks, x: Tensor, activation: str) -> Tensor:
    """f at the points x, [..., N, D] to [..., N]."""
    return _read(networks, _hidden(networks, x, activation)[0])


def descended(networks: Networks, x: Tensor, target: Tensor, rate: float, activation: str) -> Networks:
    """After one step of gradient descent on the mean of (f(x) - target)^2 / 2 over a batch."""
    value, slope, _ = _hidden(networks, x, activation)
    miss = (_read(networks, value) - target) / target.shape[-1]
    back = miss[..., None] * slope * networks.a[..., None, :]
    return Networks(
        networks.w - rate * back.transpose(-1, -2) @ x,
        networks.b - rate * back.sum(-2),
        networks.a - rate * (miss[..., None] * value).sum(-2),
        networks.c - rate * miss.sum(-1),
    )


def linearised(at: Networks, change: Networks, x: Tensor, activation: str) -> Tensor:
    """change . grad f(x_i), the gradient taken at the networks `at`: [..., N]."""
    value, slope, _ = _hidden(at, x, activation)
    moved = x @ change.w.transpose(-1, -2) + change.b[..., None, :]
    inner = (slope * at.a[..., None, :] * moved).sum(-1)
    return inner + (value @ change.a[..., None])[..., 0] + change.c[..., None]


def curvatures(networks: Networks, x: Tensor, activation: str) -> Curvatures:
    """|grad f|^2 = sum act^2 + sum (a act')^2 (|x|^2 + 1) + 1 and tr grad^2 f = sum a act'' (|x|^2 + 1)."""
    value, first, second = _hidden(networks, x, activation)
    reach = x.square().sum(-1) + 1
    a = networks.a[..., None, :]
    slope = value.square().sum(-1) + (a * first).square().sum(-1) * reach + 1
    return Curvatures(_read(networks, value), slope, (a * second).sum(-1) * reach)


# Teachers and students of the theory experiment: trained, and measured on the way.

LONGER = 2
"""times as many steps as the students get show where the teacher's parameters go: phi*"""


@dataclass(frozen=True)
class Setting:
    """One kind of network and one way to train it."""

    name: str = "tanh"
    activation: str = "tanh"
    rate: float = 0.1
    alpha: float = 0.5  # weight of the teacher
    samples: int = 16
    inputs: int = 8
    width: int = 32
    batch_size: int = 4
    steps: int = 1500
    intervals: tuple[int, ...] = (2, 6, 24, 1500)  # in steps; online is always trained beside them
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
        return self.width * (self.inputs + 2) + 1


def default_settings(problems: int = 16, orders: int = 24, steps: int = 1500, seed: int = 0) -> list[Setting]:
    """Two activations whose second derivatives differ in kind, and one of them with small steps but more of them."""
    if steps < 2:
        raise UserError(f"The theory experiment needs at least 2 steps, got {steps}.")
    base = Setting(problems=problems, orders=orders, seed=seed)
    epoch = base.samples // base.batch_size

    def long(steps: int, **changes: Any) -> Setting:
        """Half an epoch, one and a half, six, and offline."""
        wanted = (epoch // 2, 3 * epoch // 2, 6 * epoch, steps)
        return replace(base, steps=steps, intervals=tuple(sorted({min(one, steps) for one in wanted})), **changes)

    small = {"name": "tanh, small rate", "rate": base.rate / 4}
    return [long(steps), long(steps, name="gelu", activation="gelu"), long(2 * steps, **small)]


class Course(NamedTuple):
    """Everything measured in R runs (problems times orders, orders of a problem side by side) at T times."""

    setting: Setting
    times: list[int]
    ahead: list[list[int]]  # [intervals][T]: k(t)
    teacher: Tensor  # g_phi_t(x_i) after every number of updates from 0 on: [steps + 1, R, N]
    gap: Tensor  # (phi_t - phi*) . grad g_phi*(x_i), likewise
    targets: Tensor  # y_i: [R, N]
    students: Curvatures  # of online KD, then of each interval: [T, 1 + intervals, R, N]
    limit: Tensor  # the teacher's loss at phi*: [R]


def teacher_ahead(interval: int, steps: int) -> list[int]:
    """k(t) for t = 1 .. steps, read off the schedule that real runs use.

    >>> teacher_ahead(3, 8)
    [3, 3, 3, 6, 6, 6, 8, 8]
    """
    turns = [*Spaced(f"{interval}st").turns(("teacher", "student"), range(steps))]
    updates = accumulate(int(turn.role == "teacher") for turn in turns)
    return [k for turn, k in zip(turns, updates, strict=True) if turn.role == "student"]


class _Runs:
    """Data, initial weights and batch orders of all runs; each a function of the seed and its own numbers."""

    def __init__(self, setting: Setting, callback: Callable[[int, int], None] = lambda *news: None) -> None:
        self.setting, self._callback, self._updates = setting, callback, count(1)
        problems = zip(*(self._problem(number) for number in range(setting.problems)), strict=True)
        self.x, self.y, *start = (torch.stack(part).repeat_interleave(setting.orders, 0) for part in problems)
        self.start = Networks(*start)  # x: [R, N, D], y: [R, N]
        self._orders = torch.stack(
            [self._order(problem, order) for problem in range(setting.problems) for order in range(setting.orders)]
        )  # [R, steps, B]

    def _problem(self, number: int) -> tuple[Tensor, ...]:
        """Random points with random targets, and a network: nothing but its width makes them learnable."""
        draw = torch.Generator().manual_seed(seed_for(self.setting.seed, "problem", number))
        x = torch.randn(self.setting.samples, self.setting.inputs, generator=draw, dtype=torch.float64)
        y = torch.randn(self.setting.samples, generator=draw, dtype=torch.float64)
        return x, y, *drawn(self.setting.inputs, self.setting.width, draw)

    def _order(self, problem: int, order: int) -> Tensor:
        """Every epoch a new permutation: [steps, B]."""
        draw = torch.Generator().manual_seed(seed_for(self.setting.seed, "order", problem, order))
        steps_per_epoch = self.setting.samples // self.setting.batch_size
        epochs = -(-LONGER * self.setting.steps // steps_per_epoch)
        shuffled = torch.rand(epochs, self.setting.samples, generator=draw, dtype=torch.float64).argsort(1)
        return shuffled.view(-1, self.setting.batch_size)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The points of this step and which of the samples they are."""
        rows = self._orders[:, step]
        return self.x.gather(1, rows[..., None].expand(-1, -1, self.setting.inputs)), rows

    def learned(self, networks: Networks, step: int, targets: Tensor) -> Networks:
        """After an update towards those of the targets, [..., R, N], that are in the batch of this step."""
        x, rows = self.batch(step)
        target = targets.gather(-1, rows.expand(*targets.shape[:-1], -1))
        self._callback(next(self._updates), (LONGER + 2) * self.setting.steps)
        return descended(networks, x, target, self.setting.rate, self.setting.activation)


def train(setting: Setting, callback: Callable[[int, int], None]) -> Course:
    """Train all teachers, then all students of all intervals side by side."""
    runs = _Runs(setting, callback)
    star = runs.start
    for step in range(LONGER * setting.steps):
        star = runs.learned(star, step, runs.y)
    limit = (outputs(star, runs.x, setting.activation) - runs.y).square().mean(-1) / 2
    if not (worst := float(limit.max())) < 1:
        raise UserError(
            f"Setting {setting.name!r} does not converge: the teacher's loss ends at {worst:.3g}. Lower its rate."
        )
    teacher, gap = _teacher_history(runs, star)
    times = _times(setting)
    ahead = [teacher_ahead(interval, setting.steps) for interval in (1, *setting.intervals)]
    students = _students(runs, teacher, ahead, times)
    measured = [[k[t - 1] for t in times] for k in ahead[1:]]
    return Course(setting, times, measured, teacher, gap, runs.y, students, limit)


def _times(setting: Setting) -> list[int]:
    """Evenly spread and the last one; no multiple of the intervals, at which spaced and online teacher are the same."""
    wanted = (1 + round(place * (setting.steps - 1) / setting.measurements) for place in range(setting.measurements))
    odd = sorted({t | 1 for t in wanted if t | 1 <= setting.steps})
    return odd if odd[-1] == setting.steps else [*odd, setting.steps]


def _teacher_history(runs: _Runs, star: Networks) -> tuple[Tensor, Tensor]:
    """The teacher's run once more, to the bit, now that phi* is known."""
    setting, networks = runs.setting, runs.start
    said, gaps = [], []
    for step in range(setting.steps + 1):
        said.append(outputs(networks, runs.x, setting.activation))
        gaps.append(linearised(star, Networks(*map(torch.sub, networks, star)), runs.x, setting.activation))
        if step < setting.steps:
            networks = runs.learned(networks, step, runs.y)
    return torch.stack(said), torch.stack(gaps)


def _students(runs: _Runs, teacher: Tensor, ahead: list[list[int]], times: list[int]) -> Curvatures:
    """Every student begins where its teacher began and learns (1 - alpha) y + alpha g_phi_k(t)."""
    setting, networks = runs.setting, Networks(*(part.expand(len(ahead), *part.shape) for part in runs.start))
    found = []
    for t in range(1, setting.steps + 1):
        advice = torch.stack([teacher[k[t - 1]] for k in ahead])
        networks = runs.learned(networks, t - 1, (1 - setting.alpha) * runs.y + setting.alpha * advice)
        if t in times:
            found.append(curvatures(networks, runs.x, setting.activation))
    return Curvatures(*(torch.stack(part) for part in zip(*found, strict=True)))
