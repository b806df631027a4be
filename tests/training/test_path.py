"""A path is the same bits however it is had: learned beside the student, recorded before, or recorded meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd import Ahead, Offline, Online, RunSpec, Schedule, Spaced, Window, train
from tests.conftest import assert_same_bits, of_model
from tests.training.stopping import train_in_parts

Make = Callable[..., RunSpec]
SCHEDULES: dict[str, Schedule] = {
    "online": Online(),
    "spaced": Spaced("1.5ep"),
    "dropped tail": Spaced("4st", tail="drop"),
    "offline": Offline(),
    "ahead": Ahead("1ep"),
    "window": Window(Spaced("1ep"), Online(), "1ep", stop="2ep"),
}


def assert_same_but_for_cost(one: Path, other: Path) -> None:
    """The same student, journal and result; the teacher's optimizer is nowhere where nobody learned."""
    for model in ("student", "teacher"):
        weights = [
            {k: v for k, v in of_model(folder, model).items() if k.startswith("model/") or model == "student"}
            for folder in (one, other)
        ]
        assert_same_bits(*weights)
    assert (one / "journal.jsonl").read_bytes() == (other / "journal.jsonl").read_bytes()
    assert (one / "student/model.safetensors").read_bytes() == (other / "student/model.safetensors").read_bytes()
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["seconds"]
        result["plan"].pop("computed_here", None)
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that records what all these schedules need."""
    from tests.conftest import TINY

    folder = tmp_path_factory.mktemp("paths") / "recorded"
    train(replace(TINY, schedule=Spaced("1ep"), record=tuple(SCHEDULES.values())), folder)
    return folder


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_student_that_follows_learns_what_it_learns_beside_its_teacher(
    tmp_path: Path, tiny: RunSpec, recorded: Path, name: str
) -> None:
    spec = replace(tiny, schedule=SCHEDULES[name])
    train(spec, tmp_path / "alone")
    train(replace(spec, teacher_path=recorded), tmp_path / "follows")
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "follows")
    train_in_parts(replace(spec, teacher_path=recorded), tmp_path / "stopped", 13, 21)
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "stopped")


def test_recording_changes_nothing(tmp_path: Path, tiny: RunSpec, recorded: Path) -> None:
    train(replace(tiny, schedule=Spaced("1ep")), tmp_path / "plain")
    assert_same_but_for_cost(tmp_path / "plain", recorded)
