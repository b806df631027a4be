"""A user's file with the public names: mypy checks it with all tests, and pyright accepts it too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spacedkd import (
    AugmentSpec,
    DataSpec,
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Schedule,
    Spaced,
    Turn,
    Window,
    in_steps,
)
from spacedkd.schedule import BaseSchedule, Duration, describe_schedule


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
