"""A batch computed in parts is one update: that of the whole batch, but for what looks at all images at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spacedkd import MethodSpec, OptimizerSpec, RunSpec, Spaced, UserError, forecast, read_run, train
from spacedkd.cli import main
from spacedkd.config.resolve import make_stream, resolve
from spacedkd.config.serialization import to_json
from spacedkd.training.build import build_models
from tests.conftest import TINY, assert_same_bits, tensors
from tests.training.runs_on_two import APART, SPLITTABLE, splittable
from tests.training.stopping import train_in_parts
from tests.training.test_objects import lbfgs, sam

DOUBLE = {"precision": "64-true", "epochs": 1, "schedule": Spaced("2st")}
CASES: dict[str, tuple[RunSpec, dict[str, Any]]] = {
    "kd, clipped and averaged": (
        splittable("kd", {"feature_loss": "mse"}, ema=0.9, on_nonfinite="skip", optimizer=OptimizerSpec(clip=0.5)),
        {},
    ),
    "ps-kd": (splittable("ps-kd", {"variant": "taught", **APART}), {}),
    "tsb-like": (splittable("tsb-like", {"ramp": 0.0}), {}),
    "kdcl": (splittable("kdcl", {}), {}),
    "dml with SAM": (splittable("dml", {}, optimizer=OptimizerSpec()), {"optimizer": sam}),
    "kd with LBFGS": (splittable("kd", APART, optimizer=OptimizerSpec()), {"optimizer": lbfgs}),
}
"""networks without BatchNorm; batches of 15 and 10 images in four parts of unequal size"""


@pytest.mark.parametrize("case", CASES)
def test_the_update_is_that_of_the_whole_batch(tmp_path: Path, case: str) -> None:
    spec, given = replace(CASES[case][0], **DOUBLE), CASES[case][1]  # type: ignore[arg-type]
    whole = train(spec, tmp_path / "whole", **given)
    parts = train(replace(spec, accumulate=4), tmp_path / "parts", **given)
    ours, theirs = tensors(tmp_path / "parts"), tensors(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-7, atol=1e-9, msg=name)
    for name in ("updates", "forward_images", "backward_images"):
        assert parts.cost[name] == whole.cost[name]
    for name in ("forward_passes", "backward_passes"):
        assert parts.cost[name] == 4 * whole.cost[name]


def test_a_norm_over_the_batch_is_the_mean_of_its_parts(tmp_path: Path) -> None:
    """As it is with processes; the formula beside the first line of the journal."""
    spec = replace(SPLITTABLE, epochs=0.4, accumulate=2, follower_first=True, schedule=None, log_every="1st")
    train(spec, tmp_path / "run")
    line = json.loads((tmp_path / "run/journal.jsonl").read_text().splitlines()[0])
    assert (line["role"], line["step"]) == ("student", 0)
    plan = resolve(spec)
    models, batch = build_models(plan), make_stream(plan.spec, plan.data, 0, 1).batch(0)
    with torch.no_grad():
        ours, theirs = models["student"](batch.inputs)[0], models["teacher"].eval()(batch.inputs)[0]
    apart = ours.features - theirs.features
    expected = 0.03 * (7 * apart[:7].norm() + 8 * apart[7:].norm()) / 15
    assert line["losses"]["feature"] == pytest.approx(float(expected), rel=1e-5)
    assert line["losses"]["feature"] != pytest.approx(float(0.03 * apart.norm()), rel=0.1)


def test_stopped_in_the_middle(tmp_path: Path) -> None:
    """With BatchNorm, dropout and a learned average, whose bits all depend on which part comes when."""
    options = {"width": 4, "layers": [1, 1, 1, 1], "drop_rate": 0.3}
    network = replace(TINY.network, options=options)
    method = MethodSpec("pcl", {"variant": "snapshot"})
    spec = replace(TINY, network=network, accumulate=2, epochs=2, schedule=Spaced("3st"), method=method)
    train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 7)
    assert_same_bits(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


def test_the_forecast_counts_what_is_kept_of_one_part(tmp_path: Path) -> None:
    spec = replace(SPLITTABLE, epochs=1, schedule=None, batch_size=16, data=replace(SPLITTABLE.data, train_limit=32))
    whole, parts = (forecast(replace(spec, accumulate=count), seconds=0.01) for count in (1, 4))
    assert parts.memory.activations == pytest.approx(whole.memory.activations / 4, rel=0.1)
    assert parts.cost == train(replace(spec, accumulate=4), tmp_path / "run").cost


def test_one_part_is_the_run_of_before(tiny: RunSpec) -> None:
    assert "accumulate" not in to_json(tiny)
    assert replace(tiny, accumulate=2).fingerprint() != tiny.fingerprint() == replace(tiny, accumulate=1).fingerprint()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"accumulate": 0}, "accumulate must be from 1 to 8"),
        ({"accumulate": 9}, "accumulate must be from 1 to 8"),
        ({"accumulate": 5}, "5 parts (accumulate=5 on 1 device(s)), and each needs one, two for BatchNorm"),
        ({"accumulate": 2, "method": "dlb"}, "leave out accumulate"),
    ],
)
def test_refused(tmp_path: Path, tiny: RunSpec, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as refused:
        train(replace(tiny, **changes), tmp_path / "run")
    assert line in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"train --data digits --train-limit 40 --width 4 --epochs 1 --batch-size 8 --out {tmp_path}/run"
    main([*words.split(), "--accumulate", "4"])
    run = read_run(tmp_path / "run")
    assert run.spec.accumulate == 4
    assert run.cost["updates"] * 4 == run.cost["backward_passes"] == 40
