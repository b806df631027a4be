"""The single numbers of an evaluation: which there are, and with what they may be compared."""

from __future__ import annotations

import pytest

from spacedkd.evaluation.document import metrics
from tests.reporting.fake_evaluations import evaluation


def test_every_number_has_a_name() -> None:
    found = metrics(evaluation(0.8))
    assert list(found) == [
        "accuracy/top1",
        "accuracy/top5",
        "accuracy/nll",
        "accuracy/ece",
        "accuracy/agreement/teacher",
        *(f"accuracy/class/{k}" for k in range(10)),
        "corruptions/clean",
        "corruptions/mean",
        "corruptions/severity/1",
        "corruptions/severity/5",
        "corruptions/fog",
        "corruptions/fog/1",
        "corruptions/fog/5",
        "corruptions/snow",
        "corruptions/snow/1",
        "corruptions/snow/5",
        "adversarial/clean",
        "adversarial/mean",
        "adversarial/fgsm/1",
        "adversarial/fgsm/8",
        "adversarial/bim/1",
        "adversarial/bim/8",
        "weight_noise/clean/accuracy",
        "weight_noise/clean/loss",
        "weight_noise/mean",
        "weight_noise/absolute/0.01/accuracy",
        "weight_noise/absolute/0.01/loss",
        "weight_noise/relative/0.1/accuracy",  # its loss was not finite, so it has none
        "curvature/trace",
        "curvature/largest",
    ]


def test_every_head_has_its_accuracy() -> None:
    found = evaluation(0.8)
    heads = found["instruments"]["accuracy"]["models"]["student"]["test"]["heads"]
    heads |= {name: {**heads["final"], "top1": top1} for name, top1 in (("stage1", 0.4), ("ensemble", 0.9))}
    numbers = metrics(found)
    assert (numbers["accuracy/head/stage1"].value, numbers["accuracy/ensemble"].value) == (0.4, 0.9)
    assert numbers["accuracy/head/stage1"].title == "Top-1, head stage1"


def test_the_ensemble_of_heads_has_its_accuracy_on_corrupted_images() -> None:
    found = evaluation(0.8)
    rows = found["instruments"]["corruptions"]["found"]
    for row in rows:
        row["accuracy"]["ensemble"] = row["accuracy"]["final"] + 0.1
    numbers = metrics(found)
    fog, deepest = numbers["corruptions/fog/5/ensemble"], numbers["corruptions/fog/5"]
    assert fog.value == pytest.approx(deepest.value + 0.1)
    assert (fog.settings, fog.resolution) == (deepest.settings, deepest.resolution)
    assert sum(name.endswith("/ensemble") for name in numbers) == len(rows)


def test_means_are_over_what_they_say() -> None:
    found = metrics(evaluation(0.8))
    assert found["corruptions/severity/5"].value == pytest.approx(0.7)
    assert found["corruptions/fog"].value == pytest.approx((0.78 + 0.7) / 2)
    assert found["corruptions/mean"].value == pytest.approx(0.74)
    assert found["adversarial/mean"].value == pytest.approx(0.8 - (1 + 8) / 2 / 40)


def test_a_mean_over_other_things_is_another_number() -> None:
    one = metrics(evaluation(0.8))
    fewer = evaluation(0.8)
    fewer["instruments"]["corruptions"]["severities"] = [1]
    fewer["instruments"]["corruptions"]["found"] = fewer["instruments"]["corruptions"]["found"][::2]
    other = metrics(fewer)
    assert one["corruptions/mean"].settings != other["corruptions/mean"].settings
    assert one["corruptions/fog/1"].settings == other["corruptions/fog/1"].settings


def test_which_way_is_better_and_how_fine_a_number_is() -> None:
    found = metrics(evaluation(0.8))
    assert {key: found[key].better for key in ("accuracy/top1", "accuracy/nll", "curvature/trace")} == {
        "accuracy/top1": "high",
        "accuracy/nll": "low",
        "curvature/trace": "low",
    }
    assert found["accuracy/agreement/teacher"].better is None
    assert (found["accuracy/top1"].resolution, found["corruptions/fog"].resolution) == (1 / 200, 1 / 400)
    assert found["accuracy/class/7"].resolution == 1 / 20
    assert found["weight_noise/clean/accuracy"].resolution == 1 / 100
    assert found["weight_noise/relative/0.1/accuracy"].resolution == pytest.approx(1 / 300)  # three draws
    assert found["weight_noise/mean"].resolution == pytest.approx(1 / 600)  # of two levels
    assert (found["accuracy/top1"].format(), found["curvature/trace"].format()) == ("80.0", "400")
