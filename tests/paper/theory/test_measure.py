"""The theory experiment against training by autograd, dense Hessians and inequalities whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spacedkd import UserError
from spacedkd.paper.theory.measure import Sides, follows, measure, verdict
from spacedkd.paper.theory.simulation import (
    LONGER,
    Course,
    Networks,
    Setting,
    _Runs,
    default_settings,
    teacher_ahead,
    train,
)

TINY = Setting(
    steps=30, intervals=(6, 30), problems=2, orders=3, samples=8, inputs=3, width=6, measurements=10, rate=0.2
)


def silent(*news: object) -> None:
    return


def course() -> Course:
    return train(TINY, silent)


def of_run(networks: Networks, run: int) -> list[Tensor]:
    return [part[run].clone().requires_grad_() for part in networks]


def said(parameters: list[Tensor], x: Tensor) -> Tensor:
    w, b, a, c = parameters
    return torch.tanh(x @ w.T + b) @ a + c


def by_autograd(run: int, interval: int) -> tuple[list[Tensor], dict[int, list[Tensor]], list[Tensor]]:
    """One run trained turn by turn: the student, the teacher after each number of updates, and phi*."""
    runs = _Runs(TINY)

    def learned(parameters: list[Tensor], step: int, targets: Tensor) -> list[Tensor]:
        rows = runs.batch(step)[1][run]
        loss = (said(parameters, runs.x[run][rows]) - targets[rows]).square().mean() / 2
        gradients = torch.autograd.grad(loss, parameters)
        return [
            (one - TINY.rate * slope).detach().requires_grad_()
            for one, slope in zip(parameters, gradients, strict=True)
        ]

    teachers = {0: of_run(runs.start, run)}
    for step in range(LONGER * TINY.steps):
        teachers[step + 1] = learned(teachers[step], step, runs.y[run])
    student = of_run(runs.start, run)
    for t in range(1, TINY.steps + 1):
        k = min(-(-t // interval) * interval, TINY.steps)
        with torch.no_grad():
            targets = (1 - TINY.alpha) * runs.y[run] + TINY.alpha * said(teachers[k], runs.x[run])
        student = learned(student, t - 1, targets)
    return student, teachers, teachers[LONGER * TINY.steps]


@pytest.mark.parametrize(("place", "interval"), [(0, 1), (1, 6), (2, 30)])
def test_students_and_teachers_are_those_of_plain_training(place: int, interval: int) -> None:
    found, runs = course(), _Runs(TINY)
    for run in (0, 4):
        student, teachers, star = by_autograd(run, interval)
        x = runs.x[run]
        assert torch.allclose(found.students.output[-1, place, run], said(student, x), atol=1e-12)
        assert torch.allclose(found.teacher[17, run], said(teachers[17], x), atol=1e-12)
        change = tuple(a.detach() - b.detach() for a, b in zip(teachers[17], star, strict=True))
        gap = torch.func.jvp(lambda *p, x=x: said([*p], x), tuple(one.detach() for one in star), change)[1]
        assert torch.allclose(found.gap[17, run], gap, atol=1e-12)


def test_the_trace_is_that_of_the_dense_hessian_of_the_distillation_loss() -> None:
    """Tr H_phi at the spaced student's own end, with the teacher it learned from, for one run."""
    student, teachers, _ = by_autograd(run=1, interval=6)
    runs = _Runs(TINY)
    sizes = [one.numel() for one in student]

    def loss(vector: Tensor) -> Tensor:
        parameters = [piece.view(one.shape) for piece, one in zip(vector.split(sizes), student, strict=True)]
        f, g = said(parameters, runs.x[1]), said(teachers[30], runs.x[1]).detach()
        return ((1 - TINY.alpha) * (f - runs.y[1]).square() + TINY.alpha * (f - g).square()).mean() / 2

    flat = torch.cat([one.detach().reshape(-1) for one in student])
    dense = torch.autograd.functional.hessian(loss, flat)
    one_order = replace(TINY, problems=1, orders=2)  # runs 0 and 1 are the first problem's first two orders
    found = measure([one_order], silent)["settings"][0]["intervals"][0]
    mine = _own_trace(course(), run=1)
    assert mine == pytest.approx(float(dense.trace()), rel=1e-11)
    both = (_own_trace(course(), run=0) + mine) / 2
    assert found["trace"][-1] == pytest.approx(both, rel=1e-12)


def _own_trace(found: Course, run: int) -> float:
    output, slope, bend = (part[-1, 1, run] for part in found.students)
    beta = (1 - TINY.alpha) * (output - found.targets[run]) + TINY.alpha * (output - found.teacher[30, run])
    return float((slope + beta * bend).mean())


def test_the_teacher_is_ahead_by_the_paper_s_formula() -> None:
    for interval in (1, 2, 6, 7, 20):
        expected = [min(-(-t // interval) * interval, 20) for t in range(1, 21)]
        assert teacher_ahead(interval, 20) == expected


def test_a_run_depends_on_its_own_numbers_alone() -> None:
    few, many = train(TINY, silent), train(replace(TINY, problems=3, orders=5, intervals=(6, 10, 30)), silent)
    assert torch.allclose(few.teacher[:, 4], many.teacher[:, 6], atol=1e-13)  # the second problem's second order
    assert torch.allclose(few.students.slope[:, 1, 4], many.students.slope[:, 1, 6], atol=1e-12)
    assert not torch.allclose(few.teacher[-1, 0], few.teacher[-1, 1])


def test_verdicts_where_the_answer_is_known() -> None:
    draw = torch.Generator().manual_seed(0)
    right = 1 + torch.rand(40, 3, 20, generator=draw, dtype=torch.float64)
    below, above = verdict(Sides(right / 2, right, "ratio")), verdict(Sides(1.5 * right, right, "part"))
    assert (below["held"], below["broken"], below["means"], below["single"]) == (1, 0, 1, 1)
    assert below["change"]["mean"] == pytest.approx(0.5)
    assert (below["problems_held"], below["problems_broken"]) == (1, 0)
    assert (above["problems_held"], above["problems_broken"]) == (0, 1)
    assert (above["held"], above["broken"], above["means"], above["single"]) == (0, 1, 0, 0)
    assert above["change"]["mean"] == pytest.approx(0.5)
    other = 1 + torch.rand(400, 3, 20, generator=draw, dtype=torch.float64)
    alike = verdict(Sides(other, other.flip(0), "part"))
    assert alike["held"] < 0.06
    assert alike["broken"] < 0.06
    assert 0.4 < alike["means"] < 0.6


def test_what_follows_is_counted_where_the_premise_holds() -> None:
    one, zero = torch.ones(2, 1, 3), torch.zeros(2, 1, 3)
    half = torch.stack([one[0], zero[0]])
    premise = Sides(half, zero, "part")  # holds at the second time only
    conclusions = {"there": Sides(half, zero, "part"), "nowhere": Sides(one, zero, "part")}
    assert follows(premise, conclusions) == {"there": 1, "nowhere": 0}
    assert follows(Sides(one, zero, "part"), conclusions) is None


def test_the_experiment_is_plain_json_and_gives_the_same_bits_again() -> None:
    once, again = (measure([TINY], silent) for _ in range(2))
    written = json.dumps(once, allow_nan=False)
    assert written == json.dumps(again, allow_nan=False)
    assert written != json.dumps(measure([replace(TINY, seed=1)], silent))
    (found,) = once["settings"]
    assert [one["interval"] for one in found["intervals"]] == [6, 30]
    assert len(found["times"]) == len(found["gap"]) == len(found["intervals"][0]["change"])


def test_the_wide_network_fits_and_the_teachers_gap_shrinks() -> None:
    found = measure([replace(TINY, steps=400, intervals=(24, 400), width=24)], silent)["settings"][0]
    assert found["loss"][-1] < 1e-3 * found["loss"][0]
    assert found["gap"][-1] < 0.1 * found["gap"][0]
    offline = found["intervals"][1]["verdicts"]["near"]["lemma"]
    assert offline["means"] > 0.9  # a teacher at its end is nearer its end
    assert found["linear"] < 0.2


def test_progress_is_told_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    train(TINY, lambda done, total: told.append((done, total)))
    assert told == [(done, (LONGER + 2) * 30) for done in range(1, (LONGER + 2) * 30 + 1)]


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
        train(replace(TINY, rate=5.0), silent)


def test_too_few_steps_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="at least 2 steps, got 1"):
        default_settings(steps=1)
