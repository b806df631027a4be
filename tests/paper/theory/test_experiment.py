"""The theory experiment against training by autograd, dense Hessians and inequalities whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spacedkd import UserError
from spacedkd.paper.theory.experiment import (
    ACTIVATIONS,
    MINIMUM_FACTOR,
    Inequality,
    Networks,
    Setting,
    Simulation,
    _Runs,
    count_conclusions,
    default_settings,
    derivatives,
    directional_derivative,
    gradient_step,
    judge,
    measure,
    outputs,
    random_network,
    simulate,
    teacher_updates,
)

# Networks

INPUTS, WIDTH, SAMPLES = 3, 5, 7
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(SAMPLES, INPUTS, generator=DRAW, dtype=torch.float64)
TARGET = torch.randn(SAMPLES, generator=DRAW, dtype=torch.float64)


def network() -> Networks:
    """Not where networks begin: the biases are not zero."""
    start = random_network(INPUTS, WIDTH, torch.Generator().manual_seed(1))
    return Networks(*(part + torch.full_like(part, 0.1) for part in start))


def flat(networks: Networks) -> Tensor:
    return torch.cat([part.reshape(-1) for part in networks])


def unflat(vector: Tensor) -> Networks:
    w, b, a, c = vector.split([WIDTH * INPUTS, WIDTH, WIDTH, 1])
    return Networks(w.view(WIDTH, INPUTS), b, a, c[0])


def by_hand(vector: Tensor, x: Tensor, activation: str) -> Tensor:
    """The network once more, with torch's own activations."""
    w, b, a, c = unflat(vector)
    act = {"tanh": torch.tanh, "gelu": torch.nn.functional.gelu}[activation]
    return act(x @ w.T + b) @ a + c


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs(activation: str) -> None:
    assert torch.allclose(outputs(network(), X, activation), by_hand(flat(network()), X, activation), atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_step_is_gradient_descent_on_half_the_mean_square(activation: str) -> None:
    vector = flat(network()).requires_grad_()
    loss = (by_hand(vector, X, activation) - TARGET).square().mean() / 2
    (gradient,) = torch.autograd.grad(loss, vector)
    stepped = flat(gradient_step(network(), X, TARGET, 0.3, activation))
    assert torch.allclose(stepped, vector.detach() - 0.3 * gradient, atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives_are_those_of_dense_hessians(activation: str) -> None:
    exact = derivatives(network(), X, activation)
    for i, x in enumerate(X):
        gradient = torch.autograd.functional.jacobian(lambda v, x=x: by_hand(v, x, activation), flat(network()))
        hessian = torch.autograd.functional.hessian(lambda v, x=x: by_hand(v, x, activation), flat(network()))
        assert float(exact.squared_gradient[i]) == pytest.approx(float(gradient.square().sum()), rel=1e-12)
        assert float(exact.hessian_trace[i]) == pytest.approx(float(hessian.trace()), rel=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_directional_derivative_is_that_of_autograd(activation: str) -> None:
    change = torch.randn(flat(network()).shape, generator=DRAW, dtype=torch.float64)
    expected = torch.func.jvp(lambda v: by_hand(v, X, activation), (flat(network()),), (change,))[1]
    assert torch.allclose(directional_derivative(network(), unflat(change), X, activation), expected, atol=1e-13)


def test_many_networks_are_each_what_one_is() -> None:
    first, other = network(), random_network(INPUTS, WIDTH, torch.Generator().manual_seed(2))
    both = Networks(*(torch.stack(pair) for pair in zip(first, other, strict=True)))
    points = torch.stack([X, -X])
    stepped = gradient_step(both, points, torch.stack([TARGET, TARGET]), 0.1, "tanh")
    alone = gradient_step(other, -X, TARGET, 0.1, "tanh")
    assert torch.allclose(flat(Networks(*(part[1] for part in stepped))), flat(alone), atol=1e-15)


# The experiment

TINY = Setting(
    steps=30, intervals=(6, 30), problems=2, orders=3, samples=8, inputs=3, width=6, measurements=10, rate=0.2
)


def silent(*news: object) -> None:
    return


def simulation() -> Simulation:
    return simulate(TINY, silent)


def of_run(networks: Networks, run: int) -> list[Tensor]:
    return [part[run].clone().requires_grad_() for part in networks]


def predict(parameters: list[Tensor], x: Tensor) -> Tensor:
    w, b, a, c = parameters
    return torch.tanh(x @ w.T + b) @ a + c


def by_autograd(run: int, interval: int) -> tuple[list[Tensor], dict[int, list[Tensor]], list[Tensor]]:
    """One run trained turn by turn: the student, the teacher after each number of updates, and phi*."""
    runs = _Runs(TINY)

    def learned(parameters: list[Tensor], step: int, targets: Tensor) -> list[Tensor]:
        rows = runs.batch(step)[1][run]
        loss = (predict(parameters, runs.x[run][rows]) - targets[rows]).square().mean() / 2
        gradients = torch.autograd.grad(loss, parameters)
        return [
            (parameter - TINY.rate * gradient).detach().requires_grad_()
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]

    teachers = {0: of_run(runs.start, run)}
    for step in range(MINIMUM_FACTOR * TINY.steps):
        teachers[step + 1] = learned(teachers[step], step, runs.y[run])
    student = of_run(runs.start, run)
    for t in range(1, TINY.steps + 1):
        k = min(-(-t // interval) * interval, TINY.steps)
        with torch.no_grad():
            targets = (1 - TINY.alpha) * runs.y[run] + TINY.alpha * predict(teachers[k], runs.x[run])
        student = learned(student, t - 1, targets)
    return student, teachers, teachers[MINIMUM_FACTOR * TINY.steps]


@pytest.mark.parametrize(("index", "interval"), [(0, 1), (1, 6), (2, 30)])
def test_students_and_teachers_are_those_of_plain_training(index: int, interval: int) -> None:
    measured, runs = simulation(), _Runs(TINY)
    for run in (0, 4):
        student, teachers, star = by_autograd(run, interval)
        x = runs.x[run]
        assert torch.allclose(measured.students.output[-1, index, run], predict(student, x), atol=1e-12)
        assert torch.allclose(measured.teacher[17, run], predict(teachers[17], x), atol=1e-12)
        change = tuple(a.detach() - b.detach() for a, b in zip(teachers[17], star, strict=True))
        minimum = tuple(parameter.detach() for parameter in star)
        gap = torch.func.jvp(lambda *p, x=x: predict([*p], x), minimum, change)[1]
        assert torch.allclose(measured.gap[17, run], gap, atol=1e-12)


def test_the_trace_is_that_of_the_dense_hessian_of_the_distillation_loss() -> None:
    """Tr H_phi at the spaced student's own end, with the teacher it learned from, for one run."""
    student, teachers, _ = by_autograd(run=1, interval=6)
    runs = _Runs(TINY)
    sizes = [parameter.numel() for parameter in student]

    def loss(vector: Tensor) -> Tensor:
        parameters = [
            piece.view(parameter.shape) for piece, parameter in zip(vector.split(sizes), student, strict=True)
        ]
        f, g = predict(parameters, runs.x[1]), predict(teachers[30], runs.x[1]).detach()
        return ((1 - TINY.alpha) * (f - runs.y[1]).square() + TINY.alpha * (f - g).square()).mean() / 2

    flat = torch.cat([parameter.detach().reshape(-1) for parameter in student])
    dense = torch.autograd.functional.hessian(loss, flat)
    one_order = replace(TINY, problems=1, orders=2)  # runs 0 and 1 are the first problem's first two orders
    interval = measure([one_order], silent)["settings"][0]["intervals"][0]
    mine = _own_trace(simulation(), run=1)
    assert mine == pytest.approx(float(dense.trace()), rel=1e-11)
    both = (_own_trace(simulation(), run=0) + mine) / 2
    assert interval["trace"][-1] == pytest.approx(both, rel=1e-12)


def _own_trace(measured: Simulation, run: int) -> float:
    output, squared_gradient, hessian_trace = (values[-1, 1, run] for values in measured.students)
    beta = (1 - TINY.alpha) * (output - measured.targets[run]) + TINY.alpha * (output - measured.teacher[30, run])
    return float((squared_gradient + beta * hessian_trace).mean())


def test_the_teacher_is_ahead_by_the_paper_s_formula() -> None:
    for interval in (1, 2, 6, 7, 20):
        expected = [min(-(-t // interval) * interval, 20) for t in range(1, 21)]
        assert teacher_updates(interval, 20) == expected


def test_a_run_depends_on_its_own_numbers_alone() -> None:
    few, many = simulate(TINY, silent), simulate(replace(TINY, problems=3, orders=5, intervals=(6, 10, 30)), silent)
    assert torch.allclose(few.teacher[:, 4], many.teacher[:, 6], atol=1e-13)  # the second problem's second order
    assert torch.allclose(few.students.squared_gradient[:, 1, 4], many.students.squared_gradient[:, 1, 6], atol=1e-12)
    assert not torch.allclose(few.teacher[-1, 0], few.teacher[-1, 1])


def test_verdicts_where_the_answer_is_known() -> None:
    draw = torch.Generator().manual_seed(0)
    right = 1 + torch.rand(40, 3, 20, generator=draw, dtype=torch.float64)
    below, above = judge(Inequality(right / 2, right, "ratio")), judge(Inequality(1.5 * right, right, "part"))
    assert (below["held"], below["broken"], below["means"], below["single"]) == (1, 0, 1, 1)
    assert below["change"]["mean"] == pytest.approx(0.5)
    assert (below["problems_held"], below["problems_broken"]) == (1, 0)
    assert (above["problems_held"], above["problems_broken"]) == (0, 1)
    assert (above["held"], above["broken"], above["means"], above["single"]) == (0, 1, 0, 0)
    assert above["change"]["mean"] == pytest.approx(0.5)
    other = 1 + torch.rand(400, 3, 20, generator=draw, dtype=torch.float64)
    alike = judge(Inequality(other, other.flip(0), "part"))
    assert alike["held"] < 0.06
    assert alike["broken"] < 0.06
    assert 0.4 < alike["means"] < 0.6


def test_what_follows_is_counted_where_the_premise_holds() -> None:
    ones, zeros = torch.ones(2, 1, 3), torch.zeros(2, 1, 3)
    half = torch.stack([ones[0], zeros[0]])
    premise = Inequality(half, zeros, "part")  # holds at the second time only
    conclusions = {"there": Inequality(half, zeros, "part"), "nowhere": Inequality(ones, zeros, "part")}
    assert count_conclusions(premise, conclusions) == {"there": 1, "nowhere": 0}
    assert count_conclusions(Inequality(ones, zeros, "part"), conclusions) is None


def test_the_experiment_is_plain_json_and_gives_the_same_bits_again() -> None:
    once, again = (measure([TINY], silent) for _ in range(2))
    written = json.dumps(once, allow_nan=False)
    assert written == json.dumps(again, allow_nan=False)
    assert written != json.dumps(measure([replace(TINY, seed=1)], silent))
    (results,) = once["settings"]
    assert [interval["interval"] for interval in results["intervals"]] == [6, 30]
    assert len(results["times"]) == len(results["gap"]) == len(results["intervals"][0]["change"])


def test_the_wide_network_fits_and_the_teachers_gap_shrinks() -> None:
    results = measure([replace(TINY, steps=400, intervals=(24, 400), width=24)], silent)["settings"][0]
    assert results["loss"][-1] < 1e-3 * results["loss"][0]
    assert results["gap"][-1] < 0.1 * results["gap"][0]
    verdicts = results["intervals"][1]["verdicts"]["near"]
    assert verdicts is not None
    assert verdicts["lemma"]["means"] > 0.9  # a teacher at its end is nearer its end
    assert results["linear"] is not None
    assert results["linear"] < 0.2


def test_progress_is_told_to_the_end() -> None:
    calls: list[tuple[int, int]] = []
    simulate(TINY, lambda done, total: calls.append((done, total)))
    assert calls == [(done, (MINIMUM_FACTOR + 2) * 30) for done in range(1, (MINIMUM_FACTOR + 2) * 30 + 1)]


def test_default_settings_have_the_papers_interval_and_offline() -> None:
    for setting in default_settings():
        per_epoch = setting.samples // setting.batch_size
        assert 1.5 * per_epoch in setting.intervals
        assert setting.steps in setting.intervals
        assert setting.parameters > 10 * setting.samples


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "relu6"}, "Unknown activation 'relu6'"),
        ({"problems": 0}, "at least one of problems, got 0"),
        ({"orders": 1}, "at least two of them, got 1"),
        ({"batch_size": 3}, "8 samples cannot be divided into batches of 3"),
        ({"intervals": (31,)}, "between 2 and the 30 steps"),
        ({"rate": 0.0}, "learning rate must be a number above 0"),
    ],
)
def test_bad_input_is_one_clear_line(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(TINY, **change)


def test_a_rate_that_is_too_high_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="does not converge: .* Lower its rate"):
        simulate(replace(TINY, rate=5.0), silent)


def test_too_few_steps_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="at least 2 steps, got 1"):
        default_settings(steps=1)
