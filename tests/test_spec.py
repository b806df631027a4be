"""Specs go to JSON and back, and say what is wrong with a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import (
    Ahead,
    AugmentSpec,
    DataSpec,
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    Offline,
    Online,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Schedule,
    Spaced,
    Turn,
    UserError,
    Window,
    read_spec,
)
from spacedkd.json_form import from_json, to_json


@dataclass(frozen=True)
class Backwards:
    """A schedule of somebody's own."""

    by: int = 1

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        return (Turn(role, step) for step in steps[:: -self.by] for role in roles)


@pytest.mark.parametrize(
    "schedule",
    [
        Online(),
        Offline(),
        Spaced("1.5ep", tail="drop"),
        Ahead("2ep"),
        Window(Spaced("1ep"), Ahead("3st"), "20ep", length="10ep"),
        Backwards(2),
    ],
)
def test_a_spec_survives_json(schedule: Schedule) -> None:
    spec = RunSpec(
        data=DataSpec("digits", AugmentSpec(crop=2, rotate=7.5), holdout=0.1),
        network=NetworkSpec("resnet18_small", {"width": 16}),
        teacher=NetworkSpec("resnet50_small"),
        method=MethodSpec("self-kd", {"variant": "live"}),
        schedule=schedule,
    )
    assert from_json(RunSpec, json.loads(json.dumps(to_json(spec)))) == spec


def test_the_fingerprint_knows_what_is_computed_and_not_where() -> None:
    spec = RunSpec(epochs=30)
    assert spec.fingerprint() == RunSpec(epochs=30.0).fingerprint()
    assert spec.fingerprint() == replace(spec, engine=EngineSpec(workers=4, threads=2)).fingerprint()
    assert spec.fingerprint() == replace(spec, label="mine").fingerprint()
    assert spec.fingerprint() != replace(spec, engine=EngineSpec(devices=2)).fingerprint()
    for other in (replace(spec, seed=1), replace(spec, schedule=Spaced("2st")), replace(spec, precision="32-true")):
        assert spec.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"epoch": 3}, "Unknown key in spec 'epoch'. Did you mean 'epochs'?"),
        ({"data": {"sorce": "digits"}}, "Unknown key in spec.data 'sorce'. Did you mean 'source'?"),
        ({"data": "digits"}, "spec.data must be an object"),
        ({"schedule": {"kind": "spcaed"}}, "Unknown schedule 'spcaed'. Did you mean 'spaced'?"),
        ({"schedule": {"interval": "1ep"}}, "an object with a kind"),
        ({"schedule": {"kind": "spaced"}}, "missing 1 required positional argument: 'interval'"),
        ({"schedule": {"kind": "spaced", "interval": "soon"}}, "Cannot read 'soon'"),
        ({"schedule": {"kind": "nowhere:Schedule"}}, "Cannot load 'nowhere:Schedule'"),
        ({"batch_size": "128"}, "spec.batch_size must be a int, got '128'"),
        ({"batch_size": True}, "spec.batch_size must be a int, got True"),
        ({"rate": {"shape": "cosin"}}, "Did you mean 'cosine'?"),
        ({"network": {"name": "resnet18", "options": 3}}, "must be an object"),
        ([], "spec must be an object"),
    ],
)
def test_a_bad_spec_is_explained(plain: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        from_json(RunSpec, plain)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RunSpec(epochs=0),
        lambda: RunSpec(epochs=float("nan")),
        lambda: RunSpec(epochs=float("inf")),
        lambda: RunSpec(batch_size=0),
        lambda: RunSpec(seed=-1),
        lambda: RunSpec(data=DataSpec(holdout=1.0)),
        lambda: RunSpec(label_smoothing=1.0),
        lambda: RunSpec(ema=1.0),
        lambda: OptimizerSpec(lr=-0.1),
        lambda: OptimizerSpec(lr=float("nan")),
        lambda: OptimizerSpec(weight_decay=float("inf")),
        lambda: OptimizerSpec(momentum=-1),
        lambda: OptimizerSpec(clip=0),
        lambda: RateSpec(floor=-3),
        lambda: AugmentSpec(crop=-1),
        lambda: AugmentSpec(rotate=float("nan")),
        lambda: EngineSpec(threads=0),
        lambda: EngineSpec(threads=100_000),
        lambda: EngineSpec(workers=-1),
        lambda: EngineSpec(devices=-1),
    ],
)
def test_impossible_numbers_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UserError, match="must be"):
        make()


def test_reading_says_what_is_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no .*spec\.json"):
        read_spec(tmp_path)
    (tmp_path / "spec.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_spec(tmp_path)
