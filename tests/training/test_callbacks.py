"""What callbacks are told, and what it costs to look."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spacedkd import Duration, RateSpec, RunSpec, Spaced, train
from spacedkd.config.spec import MethodSpec
from spacedkd.runs.journal import read_journal
from spacedkd.schedule import ReleasedSelfKD, Turn
from spacedkd.training import Event
from spacedkd.training.callbacks import Timer
from spacedkd.training.roles import LossValues


def test_a_callback_sees_the_losses_that_are_written_down(tmp_path: Path, tiny: RunSpec) -> None:
    told: list[Event] = []
    rate = RateSpec("cosine")
    spec = replace(tiny, epochs=2, rate=rate, schedule=Spaced("1ep"), log_every=Duration(1, "st"))
    train(spec, tmp_path / "run", callback=told.append)
    losses = {entry["turn"]: entry for entry in read_journal(tmp_path / "run/journal.jsonl") if "losses" in entry}
    assert [dict(moment.losses) for moment in told] == [losses[turn]["losses"] for turn in range(1, 21)]
    assert [moment.lr for moment in told] == [losses[turn]["lr"] for turn in range(1, 21)]
    roles = [*["teacher"] * 5, *["student"] * 5]
    assert [(moment.role, moment.step) for moment in told] == [
        (role, step) for epoch in (0, 5) for role, step in zip(roles, 2 * [*range(epoch + 1, epoch + 6)], strict=True)
    ]
    assert {(moment.steps, moment.epochs) for moment in told} == {(10, 2.0)}
    assert all(moment.images_per_second > 0 for moment in told)
    left = [moment.seconds_left or 0.0 for moment in told]
    assert left[-1] == 0 < min(left[:-1])


def test_no_role_is_said_to_go_further_than_its_last_step(tmp_path: Path, tiny: RunSpec) -> None:
    """The released self KD leaves out batches on the way: of ten its teacher learns seven, and is at the tenth then."""
    self_kd = MethodSpec("self-kd", {"variant": "live", "exits_run_along": True})
    told: list[Event] = []
    spec = replace(tiny, epochs=2, method=self_kd, schedule=ReleasedSelfKD("3st"))
    train(spec, tmp_path / "run", callback=told.append)
    teacher, student = ([one for one in told if one.role == role] for role in ("teacher", "student"))
    assert [one.step for one in teacher] == [1, 3, 4, 6, 7, 9, 10]
    assert {one.steps for one in teacher} == {10}
    assert [one.step for one in student] == [*range(1, 9)]
    assert {one.steps for one in student} == {8}


def test_losses_are_copied_from_the_device_only_when_looked_at(
    tmp_path: Path, tiny: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, copy = [], Tensor.__float__
    monkeypatch.setattr(Tensor, "__float__", lambda loss: copied.append(loss) or copy(loss))  # type: ignore[func-returns-value]
    spec = replace(tiny, epochs=1, log_every="100%", save_every="100%", evaluate_every="100%")
    train(spec, tmp_path / "run")
    assert len(copied) == 2 * (1 + 3), "the first and the last step: one loss of the teacher, three of the student"


def test_losses_go_to_other_processes_as_numbers() -> None:
    values = LossValues({"label": torch.tensor(0.5), "logit": torch.tensor(2.0, requires_grad=True)})
    assert len(values) == 2
    assert pickle.loads(pickle.dumps(values)) == {"label": 0.5, "logit": 2.0} == dict(values)
    assert repr(values) == "{'label': 0.5, 'logit': 2.0}"


def test_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher of 0.1 s a turn, a student of 0.3 s, and 2 s of evaluation after a turn of the student."""
    now = 100.0
    monkeypatch.setattr("spacedkd.training.callbacks.time.monotonic", lambda: now)
    timer = Timer({"teacher": 10, "student": 4})
    teacher, student = Turn("teacher", 0), Turn("student", 0)
    assert timer.seconds_left() == 0, "nothing is known yet"
    for _ in range(5):
        timer.before_step(teacher)
        now += 0.1
        assert timer.images_per_second("teacher", 8) == pytest.approx(80)
        timer.end_turn(teacher)
    assert timer.seconds_left() == pytest.approx(5 * 0.1 + 4 * 0.1), "the student is taken to be as fast"
    now += 50  # for somebody else
    timer.on_wait(student, "waiting")
    for _ in range(2):
        timer.before_step(student)
        now += 0.3
        assert timer.images_per_second("student", 8) == pytest.approx(8 / 0.3)
        now += 2
        timer.end_turn(student)
    assert timer.seconds_left() == pytest.approx(5 * 0.1 + 2 * 2.3)
