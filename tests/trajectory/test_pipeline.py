"""Teacher and student in two processes learn what they learn in one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd import EngineSpec, MethodSpec, RunSpec, Spaced, UserError, read_spec, train
from spacedkd.comparison.results import find_runs
from spacedkd.config.resolve import resolve
from spacedkd.trajectory.pipeline import teacher_spec
from tests.training.stopping import train_until
from tests.trajectory.test_replay import assert_same_but_for_cost

Make = Callable[..., RunSpec]
PIPELINE = EngineSpec(threads=1, pipeline=True)


def test_a_teacher_that_dies_is_noticed(tmp_path: Path, tiny: RunSpec) -> None:
    spec = replace(tiny, epochs=400, schedule=Spaced("100ep"), evaluate_every="400ep")

    def kill(moment: object) -> None:
        for child in multiprocessing.active_children():
            if (tmp_path / "run/teacher/path/path.json").exists():
                child.kill()

    with pytest.raises(UserError, match=r"SIGKILL.*--resume"):
        train(replace(spec, engine=PIPELINE), tmp_path / "run", callback=kill)
    assert (tmp_path / "run/spec.json").exists()
    assert (tmp_path / "run/teacher/spec.json").exists(), "what the teacher has learned is not thrown away"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": MethodSpec("none")}, "pipeline.*none"),
        ({"method": MethodSpec("dml")}, "of dml learns"),
        ({"engine": replace(PIPELINE, devices=2)}, "devices"),
    ],
)
def test_what_cannot_be_pipelined_is_refused(
    tmp_path: Path, tiny: RunSpec, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        train(replace(tiny, **{"engine": PIPELINE, **changes}), tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_the_teacher_has_workers_too_and_its_folder_can_be_moved(tmp_path: Path, tiny: RunSpec) -> None:
    spec = replace(tiny, epochs=2, schedule=Spaced("1ep"))
    pipeline = replace(spec, engine=replace(PIPELINE, workers=1))
    train_until(pipeline, tmp_path / "here", 12)
    (tmp_path / "here").rename(tmp_path / "there")
    train(read_spec(tmp_path / "there"), tmp_path / "there", if_exists="resume")
    train(spec, tmp_path / "one")
    assert_same_but_for_cost(tmp_path / "one", tmp_path / "there")
    assert not (tmp_path / "there/teacher").exists()


def test_a_teacher_in_another_process_may_be_faster(tmp_path: Path, tiny: RunSpec) -> None:
    spec = replace(tiny, epochs=2, schedule=Spaced("2st", speed=2))
    train(replace(spec, engine=PIPELINE), tmp_path / "two")
    train(spec, tmp_path / "one")
    assert_same_but_for_cost(tmp_path / "one", tmp_path / "two")


def test_the_teacher_of_a_pipeline_is_no_run_of_its_own(tmp_path: Path, tiny: RunSpec) -> None:
    train(tiny, tmp_path / "run")
    train(replace(tiny, only="teacher"), tmp_path / "run/teacher")
    assert find_runs([tmp_path]) == ([tmp_path / "run"], [])


def test_a_teacher_that_ended_before_its_student_began(tmp_path: Path, tiny: RunSpec) -> None:
    """A kill then leaves a whole teacher, and no run around it."""
    spec = replace(tiny, epochs=2, schedule=Spaced("1ep"))
    train(spec, tmp_path / "one")
    pipeline = resolve(replace(spec, engine=PIPELINE))
    train(teacher_spec(pipeline.spec, pipeline.roles), tmp_path / "two/teacher")
    train(pipeline.spec, tmp_path / "two")
    assert_same_but_for_cost(tmp_path / "one", tmp_path / "two")
