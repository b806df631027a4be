"""Evaluations side by side: honest about pairs, settings and what is better; drawn only where measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from spacedkd.comparison.results import compare_runs
from spacedkd.evaluation.adversarial import attack
from spacedkd.evaluation.statistics import paired_difference
from spacedkd.reporting.page import write_page
from spacedkd.schedule import Spaced
from tests.reporting.fake_evaluations import evaluate
from tests.reporting.fake_runs import FakeArm, write_runs
from tests.reporting.page_text import Page

ONLINE = FakeArm("online KD", [0.70, 0.71, 0.72])
SPACED = FakeArm("spaced KD", [0.80, 0.82, 0.81], schedule=Spaced("1.5ep"))
NEW = ["evaluation", "accuracy", "corruptions", "adversarial", "weight_noise", "curvature"]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Six evaluated runs: three seeds of two arms."""
    made = write_runs(tmp_path / "runs", [ONLINE, SPACED])
    for folder, accuracy in zip(made, [*ONLINE.accuracies, *SPACED.accuracies], strict=True):
        evaluate(folder, accuracy)
    return made


def page(folders: list[Path], tmp_path: Path) -> Page:
    write_page(tmp_path / "page.html", compare_runs(folders))
    return Page((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_sections_only_where_something_was_measured(folders: list[Path], tmp_path: Path) -> None:
    sections = [attributes["id"] for attributes in page(folders, tmp_path).all("h2")]
    assert sections == ["spacing", "intervals", "curves", "results", "turns", "cost", *NEW, "advice", "making"]
    for folder in folders:
        found = json.loads((folder / "evaluation.json").read_text())
        for name in ("adversarial", "weight_noise", "curvature"):
            del found["instruments"][name]
        (folder / "evaluation.json").write_text(json.dumps(found))
    sections = [attributes["id"] for attributes in page(folders, tmp_path).all("h2")]
    assert [one for one in sections if one in NEW] == NEW[:3]
    for folder in folders:
        (folder / "evaluation.json").unlink()
    assert compare_runs(folders)["evaluation"] is None
    assert not set(NEW) & {attributes["id"] for attributes in page(folders, tmp_path).all("h2")}


def test_differences_are_paired_by_seed(folders: list[Path]) -> None:
    arms = compare_runs(folders)["evaluation"]["metrics"]["corruptions/fog"]["arms"]
    online = {seed: accuracy - 3 / 50 for seed, accuracy in enumerate(ONLINE.accuracies)}
    spaced = {seed: accuracy - 3 / 50 for seed, accuracy in enumerate(SPACED.accuracies)}
    expected = paired_difference(spaced, online, 1 / 200 / 2)
    assert arms["online KD"]["difference"] is None
    assert arms["spaced KD"]["difference"] == pytest.approx(asdict(expected))
    assert arms["spaced KD"]["by_seed"] == pytest.approx({str(seed): value for seed, value in spaced.items()})


def test_a_lower_number_can_be_the_better_one(folders: list[Path], tmp_path: Path) -> None:
    text = page(folders, tmp_path).text
    assert "Hessian tracelower is better" in text
    # 2000 (1 - accuracy): 580 against 380, and the interval of the difference does not reach zero
    assert "380 \u00b1 50\u2212200 better (\u2212250 to \u2212150)" in text
    assert "+0.100 worse (+0.075 to +0.125)" in text, "the loss under noise rises with the accuracy in these fakes"


def test_agreement_is_neither_better_nor_worse(folders: list[Path], tmp_path: Path) -> None:
    after = page(folders, tmp_path).text.split("Agreement with the teacher, %")[1][:60]
    assert "+10.0" in after
    assert "better" not in after


def test_only_equal_settings_are_compared(folders: list[Path], tmp_path: Path) -> None:
    evaluate(folders[3], 0.8, corruptions={"severities": [1]})
    found = compare_runs(folders)["evaluation"]
    assert found["metrics"]["corruptions/mean"]["arms"]["spaced KD"]["estimate"]["n"] == 2
    assert found["metrics"]["accuracy/top1"]["arms"]["spaced KD"]["estimate"]["n"] == 3
    assert "Measured with other settings, and left out there: spaced KD." in page(folders, tmp_path).text


def test_how_fine_a_difference_is_depends_on_the_settings_that_count(folders: list[Path]) -> None:
    """The first run was measured on fewer images than the other two of the reference."""
    evaluate(folders[0], 0.7, adversarial={"images": 20})
    arms = compare_runs(folders, "online KD")["evaluation"]["metrics"]["adversarial/clean"]["arms"]
    online, spaced = ({seed: arm.accuracies[seed] for seed in (1, 2)} for arm in (ONLINE, SPACED))
    expected = paired_difference(spaced, online, 1 / 200)
    assert arms["spaced KD"]["difference"] == pytest.approx(asdict(expected))


def test_every_class_is_in_the_page(folders: list[Path], tmp_path: Path) -> None:
    after = page(folders, tmp_path).text.split("Every class")[1].split("Corrupted images")[0]
    assert all(f"{name}, %71.0" in after for name in range(10))


def test_runs_measured_before_their_end_are_left_out(folders: list[Path], tmp_path: Path) -> None:
    found = json.loads((folders[0] / "evaluation.json").read_text())
    found["origin"]["epochs"] = None
    (folders[0] / "evaluation.json").write_text(json.dumps(found))
    text = page(folders, tmp_path).text
    assert "Measured before the run was finished, and left out: online KD, seed 0." in text
    for folder in folders[:3]:
        (folder / "evaluation.json").unlink()
    assert "Not evaluated: online KD." in page(folders, tmp_path).text


def test_settings_are_said(folders: list[Path], tmp_path: Path) -> None:
    text = page(folders, tmp_path).text
    assert "200 test images, 2 corruptions, severities 1, 5. Images were enlarged 4x" in text
    assert "FGSM: 1 step of 1 epsilon; BIM: 10 steps of 0.25 epsilon." in text
    # 20 of 600 to 20 of 360
    assert "Standard errors of the traces were 3.3 to 5.6 %; asked for were at most 5 %." in text
    evaluate(folders[0], 0.7, stopped="most products")
    assert "asked for were at most 5 %, which 1 of 6 runs did not reach." in page(folders, tmp_path).text


def test_every_arm_has_its_pictures(folders: list[Path], tmp_path: Path) -> None:
    found = page(folders, tmp_path)
    labels = [one["aria-label"] for one in found.all("svg") if one.get("role") == "img"]
    for arm in ("online KD", "spaced KD"):
        assert f"Reliability of {arm}." in labels
        assert sum(label.startswith(f"Accuracy of {arm} at each level.") for label in labels) == 4
    assert "Accuracy of online KD at each level. 0: 71.0 %, 1: 68.5 %, 8: 51.0 %." in labels
    assert len([one for one in found.all("rect") if one.get("class") == "bar"]) == 2 * 8
    assert all(attributes.get("scope") in ("row", "col") for attributes in found.all("th"))


def test_pictures_have_the_levels_of_the_reference(folders: list[Path], tmp_path: Path) -> None:
    def attacked(run: Path, accuracy: float, *epsilons: float) -> None:
        attacks = [{"attack": vars(attack("bim", e)), "accuracy": accuracy - e / 40} for e in epsilons]
        evaluate(run, accuracy, adversarial={"attacks": attacks})

    for folder, accuracy in zip(folders, [*ONLINE.accuracies, *SPACED.accuracies], strict=True):
        attacked(folder, accuracy, *((2, 4) if folder in folders[:3] else (2, 4, 8)))
    labels = [one["aria-label"] for one in page(folders, tmp_path).all("svg") if one.get("role") == "img"]
    assert "Accuracy of spaced KD at each level. 0: 81.0 %, 2: 76.0 %, 4: 71.0 %." in labels
    for folder in folders[3:]:
        attacked(folder, 0.8, 8)
    labels = [one["aria-label"] for one in page(folders, tmp_path).all("svg") if one.get("role") == "img"]
    assert "Accuracy of online KD at each level. 0: 71.0 %, 2: 66.0 %, 4: 61.0 %." in labels
    assert not any(label.startswith("Accuracy of spaced KD at each level. 0: 80.0 %, 8") for label in labels)


def test_a_picture_is_of_those_who_were_measured(folders: list[Path], tmp_path: Path) -> None:
    """The reference was attacked in another way; and then nobody was shown more than the images as they are."""
    for folder in folders:
        name = "fgsm" if folder in folders[:3] else "bim"
        attacks = [{"attack": vars(attack(name, 8)), "accuracy": 0.1}]
        evaluate(folder, 0.8, adversarial={"attacks": attacks})
    labels = [one["aria-label"] for one in page(folders, tmp_path).all("svg") if one.get("role") == "img"]
    assert "Accuracy of spaced KD at each level. 0: 80.0 %, 8: 10.0 %." in labels
    assert not any(label.startswith("Accuracy of online KD at each level. 0: 80.0 %.") for label in labels)
    for folder in folders[3:]:
        evaluate(folder, 0.8, adversarial={"images": 100, "attacks": attacks})
    assert "Accuracy under" not in page(folders, tmp_path).text.replace("Accuracy under attack", "")


def test_one_seed_gives_no_interval(tmp_path: Path) -> None:
    folders = write_runs(tmp_path / "runs", [FakeArm("a", [0.7]), FakeArm("b", [0.8], schedule=Spaced("1ep"))])
    for folder, accuracy in zip(folders, (0.7, 0.8), strict=True):
        evaluate(folder, accuracy)
    text = page(folders, tmp_path).text
    assert "80.0+10.0 (one seed)" in text
    assert "better" not in text.split("Accuracy and calibration")[1].split("Corrupted images")[0].replace(
        "lower is better", ""
    )


def test_same_input_same_bytes(folders: list[Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        page(folders, tmp_path / name)
    assert (tmp_path / "one/page.html").read_bytes() == (tmp_path / "two/page.html").read_bytes()
