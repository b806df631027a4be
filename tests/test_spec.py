"""Specs go to JSON and back, and say what is wrong with a bad one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import (
    Ahead,
    AugmentSpec,
    DataSpec,
    Duration,
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    Offline,
    Online,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Spaced,
    UserError,
    read_spec,
)
from spacedkd.config.optimizer import WITH_MOMENTUM, WITHOUT_MOMENTUM
from spacedkd.config.serialization import from_json, to_json
from spacedkd.schedule import Blocks, Growing, Schedule, Turn, Window


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
        Spaced("1.5ep", speed=2),
        Spaced("1.5ep", speed="inf"),
        Window(Spaced("1ep", speed="inf"), Online(), "20ep", length="10ep"),
        Blocks(["1ep", "586st", "10%"]),
        Growing("0.5ep", 1.5),
        Backwards(2),
    ],
)
def test_a_spec_survives_json(schedule: Schedule) -> None:
    spec = RunSpec(
        data=DataSpec("digits", AugmentSpec(crop=2, rotate=7.5), holdout=0.1, label_noise=0.2),
        network=NetworkSpec("resnet18_small", {"width": 16}),
        teacher=NetworkSpec("resnet50_small"),
        method=MethodSpec("self-kd", {"variant": "live"}),
        schedule=schedule,
    )
    assert from_json(RunSpec, json.loads(json.dumps(to_json(spec)))) == spec


def test_the_json_of_a_speed_and_of_blocks() -> None:
    """A speed of 1 is left out, so that no fingerprint of a run before there were speeds changes."""
    assert to_json(Spaced("1.5ep", speed=1)) == {"kind": "spaced", "interval": "1.5ep", "tail": "teach"}
    assert to_json(Spaced("1.5ep", speed=2)) == {"kind": "spaced", "interval": "1.5ep", "tail": "teach", "speed": 2.0}
    assert json.loads(json.dumps(to_json(Spaced("1st", speed=math.inf)), allow_nan=False))["speed"] == "inf"
    assert to_json(Blocks(["1ep", 5])) == {"kind": "blocks", "lengths": ["1ep", "5st"]}
    assert to_json(Growing("1ep")) == {"kind": "growing", "first": "1ep", "factor": 2.0}
    prints = {RunSpec(schedule=Spaced("1ep", speed=speed)).fingerprint() for speed in (1, 2, 3, "inf")}  # type: ignore[arg-type]
    assert len(prints) == 4
    assert (
        RunSpec(schedule=Spaced("1ep", speed=2)).fingerprint()
        == RunSpec(schedule=Spaced("1ep", speed=2.0)).fingerprint()
    )
    assert RunSpec(schedule=Spaced("1ep", speed=1)).fingerprint() == RunSpec(schedule=Spaced("1ep")).fingerprint()


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
        ({"data": 3}, "spec.data must be a DataSpec, a name or an object"),
        ({"method": "kdd"}, "Unknown method 'kdd'. Did you mean 'kd'"),
        ({"optimizer": {"name": "lionn"}}, "Unknown optimizer 'lionn'. Did you mean 'lion'"),
        ({"schedule": {"kind": "spcaed"}}, "Unknown schedule 'spcaed'. Did you mean 'spaced'?"),
        ({"schedule": {"interval": "1ep"}}, "an object with a kind"),
        ({"schedule": {"kind": "spaced"}}, "Schedule spaced needs its interval"),
        ({"schedule": {"kind": "spaced", "interval": "soon"}}, "Cannot read 'soon'"),
        ({"schedule": {"kind": "spaced", "interval": "1ep", "speed": "fast"}}, "speed must be a number, got 'fast'"),
        ({"schedule": {"kind": "spaced", "interval": "1ep", "speed": 0.5}}, "speed must be a number from 1"),
        ({"schedule": {"kind": "blocks", "lengths": "1ep"}}, "spec.schedule.lengths must be a list, got '1ep'"),
        ({"schedule": {"kind": "blocks", "lengths": []}}, "one length or more"),
        ({"schedule": {"kind": "blocks"}}, "Schedule blocks needs its lengths"),
        ({"schedule": {"kind": "growing", "first": "1ep", "factor": 0}}, "factor must be a number above 0"),
        ({"schedule": {"kind": "nowhere:Schedule"}}, "Cannot load 'nowhere:Schedule'"),
        ({"batch_size": "128"}, "spec.batch_size must be a whole number, got '128'"),
        ({"batch_size": True}, "spec.batch_size must be a whole number, got True"),
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


def test_names_and_texts_stand_for_what_they_name() -> None:
    spec = RunSpec(
        data=Path("photos"),
        network="resnet18",
        teacher="resnet34",
        method="dkd",
        schedule=Online,
        optimizer="lion",
        rate=RateSpec("cosine", warmup="1st"),
        evaluate_every="2ep",
        epochs=3,
    )
    assert spec == RunSpec(
        data=DataSpec("photos"),
        network=NetworkSpec("resnet18"),
        teacher=NetworkSpec("resnet34"),
        method=MethodSpec("dkd"),
        schedule=Spaced("1st"),
        optimizer=OptimizerSpec("lion"),
        rate=RateSpec("cosine", warmup=Duration(1, "st")),
        evaluate_every=Duration(2, "ep"),
        epochs=3.0,
    )
    assert from_json(RunSpec, {"data": "digits", "rate": "cosine"}) == RunSpec(rate=RateSpec("cosine"))
    assert RateSpec("multistep", milestones=["60ep"]).milestones == (Duration(60, "ep"),)


def test_a_spec_is_read_from_a_path_in_any_form(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(to_json(RunSpec(epochs=7))))
    assert read_spec(str(tmp_path)) == read_spec(tmp_path / "spec.json") == RunSpec(epochs=7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunSpec(epochs="thirty"), "epochs must be a number, got 'thirty'"),
        (lambda: RunSpec(seed=1.5), "seed must be a whole number, got 1.5"),
        (lambda: RunSpec(same_init="maybe"), "same_init must be true or false, got 'maybe'"),
        (lambda: RunSpec(frozen_mode="asleep"), "Unknown frozen_mode 'asleep'"),
        (lambda: RunSpec(schedule=Spaced), "'interval'"),
        (lambda: RunSpec(schedule=1.5), "schedule must be a schedule"),
        (lambda: RunSpec(schedule="often"), "Unknown schedule 'often'"),
        (lambda: RunSpec(network=3), "network must be a NetworkSpec, a name"),
        (lambda: NetworkSpec("resnet18", {"act_layer": print}), "options must hold what a spec.json can"),
        (lambda: MethodSpec("nonsense"), "Unknown method 'nonsense'"),
        (lambda: OptimizerSpec("nonsense"), "Unknown optimizer 'nonsense'"),
        (lambda: OptimizerSpec("adahessian"), "wants second derivatives"),
        (lambda: OptimizerSpec("adamw", momentum=0.9), "momentum does not matter to adamw"),
        (lambda: OptimizerSpec("lion", momentum=0.5), "momentum does not matter to lion"),
        (lambda: OptimizerSpec("adamw", nesterov=True), "nesterov needs sgd"),
        (lambda: RateSpec("linear"), "Unknown rate 'linear'"),
        (lambda: RateSpec(milestones=("1ep",)), "milestones does not matter to rate constant"),
        (lambda: RateSpec("multistep"), "needs milestones"),
        (lambda: RateSpec("cosine", factor=0.5), "factor does not matter to rate cosine"),
        (lambda: RateSpec(floor=0.1), "floor does not matter to rate constant"),
        (lambda: RateSpec("cosine", warmup_start=0.1), "warmup_start does not matter to rate cosine"),
        (lambda: RateSpec("own:lr", warmup="1ep"), "warmup does not matter to rate own:lr"),
    ],
)
def test_every_field_is_checked_when_it_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_names_of_timms_optimizers_are_timms() -> None:
    """Known without importing timm, so that a report needs no torch."""
    from timm.optim import get_optimizer_info, list_optimizers

    theirs = {name: get_optimizer_info(name) for name in list_optimizers()}
    momentum = {name for name, info in theirs.items() if info.has_momentum}
    assert {*WITH_MOMENTUM} == momentum
    assert {*WITHOUT_MOMENTUM} == {name for name, info in theirs.items() if not info.second_order} - momentum
