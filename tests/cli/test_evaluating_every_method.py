"""Every method can be measured: several heads, long chains, fixed teachers, memory that is no network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd import MethodSpec, RunSpec, Spaced, train
from spacedkd.cli import main
from spacedkd.methods import METHODS, build_method
from tests.training.test_every_method import asked

BRIEF = "--calibration --adversarial --attacks bim --epsilon 4 --steps 2 --limit 50 --threads 1".split()


def measure(spec: RunSpec, folder: Path) -> None:
    """Train and evaluate; the accuracies of all heads must be those that training itself found at the end."""
    result, method = train(spec, folder), build_method(spec.method)
    main(["evaluate", str(folder), *BRIEF])
    found = json.loads((folder / "evaluation.json").read_text())["instruments"]
    models, student = found["accuracy"]["models"], method.learners[method.roles[-1]]
    fixed = {"teacher"} if spec.method.options.get("teacher_learns") is False else set()
    assert models.keys() == {*method.learners.values(), *fixed}
    assert models[student]["test"]["agreement"].keys() == models.keys() - {student}
    for role, learner in method.learners.items():
        if learner != student or role == method.roles[-1]:  # an earlier role of the student's model is not its end
            heads = models[learner]["test"]["heads"]
            then = {head: numbers["last"] for head, numbers in result.accuracies[role]["test"].items()}
            assert {head: heads[head]["top1"] for head in heads} == then, role
    assert found["adversarial"]["images"] == 50
    assert found["adversarial"]["measured"] == {"model": student, "head": "final"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method(tmp_path: Path, tiny: RunSpec, name: str) -> None:
    measure(asked(tiny, name, None if name == "none" else Spaced("2st"), epochs=1), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pcl", {"variant": "snapshot"}),
        ("ps-kd", {}),
        ("dml", {"refresh_peers": False}),
        ("takd", {"curriculum": 2.0}),
    ],
)
def test_other_variants(tmp_path: Path, tiny: RunSpec, name: str, options: dict[str, object]) -> None:
    schedule = {"schedule": Spaced("2st")} if "variant" in options else {}
    measure(replace(tiny, method=MethodSpec(name, options), epochs=1, **schedule), tmp_path / "run")


@pytest.mark.parametrize("name", ["kd", "shake", "ban"])
def test_teachers_that_were_trained_before(tmp_path: Path, tiny: RunSpec, name: str) -> None:
    train(asked(tiny, "none", epochs=0.4), tmp_path / "teacher")
    teacher = replace(tiny.network, weights=str(tmp_path / "teacher"))
    method = MethodSpec(name, {"teacher_learns": False})
    measure(replace(tiny, method=method, teacher=teacher, epochs=1), tmp_path / "run")
