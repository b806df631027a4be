"""A user's file with the public names: mypy checks it with all tests, and pyright where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from torch import Tensor, nn

import spacedkd
from spacedkd import (
    AugmentSpec,
    DataSpec,
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Spaced,
)
from spacedkd.data import Batch
from spacedkd.methods import Ingredients, Method, Models, Progress
from spacedkd.models import Classifier
from spacedkd.schedule import BaseSchedule, Duration, Schedule, Turn, Window, describe_schedule, in_steps


@dataclass(frozen=True)
class Backwards:
    """A schedule with `turns` alone."""

    by: int = 1

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        return (Turn(role, step) for step in steps[:: -self.by] for role in roles)


@dataclass(frozen=True)
class Described(BaseSchedule):
    """A schedule with words of its own."""

    lead: Duration = Duration(1, "ep")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        return (Turn(role, step) for step in steps for role in roles)

    def describe(self) -> str:
        return f"described by {self.lead}"


class LabelsAlone(Method):
    """The losses of a method, without its roles."""

    depends_on_length = True

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        return {role: Classifier(ingredients.network(role)) for role in self.roles}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        (own,) = models[role](batch.inputs)
        return {"label": nn.functional.cross_entropy(own.logits, batch.labels)}


@dataclass(frozen=True)
class Pair(LabelsAlone):
    """A method whose roles are a class attribute."""

    roles = ("teacher", "student")


@dataclass(frozen=True)
class Peers(LabelsAlone):
    """A method whose roles depend on an option."""

    peers: int = 3

    @property
    def roles(self) -> Sequence[str]:
        return [f"peer{number}" for number in range(self.peers)]


def test_methods_as_a_user_writes_them() -> None:
    methods: list[Method] = [Pair(), Peers(peers=2)]
    assert [method.learners for method in methods] == [
        {"teacher": "teacher", "student": "student"},
        {"peer0": "peer0", "peer1": "peer1"},
    ]
    assert all(method.depends_on_length for method in methods)


@pytest.mark.skipif(shutil.which("pyright") is None, reason="no pyright on the PATH")
def test_pyright_accepts_a_users_file(tmp_path: Path) -> None:
    """The methods of this file and of the examples, with the package as it is imported here."""
    examples = Path(__file__).parent.parent / "examples"
    for file in (Path(__file__), examples / "own_method.py", examples / "own_network.py"):
        shutil.copy(file, tmp_path)
    command = ["pyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{Path(spacedkd.__file__).parent.parent}"]}}')
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout


def test_specs_and_schedules_as_a_user_writes_them() -> None:
    spec = RunSpec(
        data=DataSpec("digits", augment=AugmentSpec(crop=2), holdout=0.1),
        network=NetworkSpec("resnet18_small", {"width": 16}),
        method=MethodSpec("dkd", {"temperature": 4.0}),
        optimizer=OptimizerSpec("adamw", lr=0.003),
        rate=RateSpec("cosine", warmup=Duration(1, "ep")),
        schedule=Window(Spaced("1.5ep"), Spaced(1), "1ep", length="2ep"),
        engine=EngineSpec(workers=2),
        epochs=3,
    )
    schedules: list[Schedule] = [Backwards(), Described(), Spaced("2st", tail="drop")]
    described = [describe_schedule(replace(spec, schedule=schedule).schedule) for schedule in schedules]
    assert described == ["Backwards", "described by 1ep", "spaced 2st, tail dropped"]
    turns: list[Turn] = [*in_steps(Spaced("1ep"), steps_per_epoch=2, total=4).turns(("teacher", "student"), range(4))]
    assert turns[2] == Turn("student", 0)
