"""The instrument of confusions, against predictions that are counted by hand."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spacedkd import DataSpec, Run, evaluate, read_run, report, train
from spacedkd.cli import main
from spacedkd.data import sources
from spacedkd.evaluation import Confusion, EvaluationSpec
from tests.conftest import TINY
from tests.training.test_opened_students import folder_of_digits


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("confusion")
    data = DataSpec(folder_of_digits(place / "digits", [(17, 17), (20, 16)]), image_size=12)
    run = train(replace(TINY, method="none", data=data), place / "run")
    evaluate(run, EvaluationSpec([Confusion(pictures=4)]))
    return run


def entry(run: Run) -> Any:
    return json.loads((run.folder / "evaluation.json").read_text())["instruments"]["confusion"]


def by_hand(run: Run) -> tuple[list[int], list[int], torch.Tensor]:
    """Classes, predictions and losses of the test images, with the student that was saved."""
    test = sources.load(run.spec.data).test
    with torch.inference_mode():
        logits = run.student(test.inputs(torch.arange(len(test))))
    loss = torch.nn.functional.cross_entropy(logits.double(), test.labels, reduction="none")
    return test.labels.tolist(), logits.argmax(1).tolist(), loss


def test_confusions_are_counted(run: Run) -> None:
    measured, (labels, predicted, _) = entry(run), by_hand(run)
    pairs = Counter(zip(labels, predicted, strict=True))
    assert {(each["label"], each["predicted"]): each["images"] for each in measured["confused"]} == {
        pair: images for pair, images in pairs.items() if pair[0] != pair[1]
    }
    assert [(each["name"], each["test"], each["right"]) for each in measured["classes"]] == [
        (f"digit{number}", labels.count(number), pairs[number, number]) for number in range(3)
    ]
    assert sum(each["train"] for each in measured["classes"]) == 120
    assert sum(each["right"] for each in measured["classes"]) / len(labels) == run.accuracy


def test_the_images_with_the_largest_loss_are_named_and_shown(run: Run) -> None:
    largest, (labels, predicted, loss) = entry(run)["largest_loss"], by_hand(run)
    files = sorted(Path(run.spec.data.source).glob("val/*/*.png"))
    order = loss.argsort(descending=True, stable=True).tolist()[: len(largest)]
    assert [each["loss"] for each in largest] == pytest.approx([float(loss[row]) for row in order])
    assert [each["name"] for each in largest] == [str(files[row]) for row in order]
    assert [(each["label"], each["predicted"]) for each in largest] == [(labels[row], predicted[row]) for row in order]
    assert [each["picture"] is not None for each in largest] == [True] * 4 + [False] * (len(largest) - 4)
    shown = np.array(Image.open(io.BytesIO(base64.b64decode(largest[0]["picture"]))))
    test = sources.load(run.spec.data).test
    assert np.array_equal(shown, test.resized(torch.tensor(order[:1]))[0].permute(1, 2, 0).numpy())
    assert [each["label"] for each in entry(run)["samples"]] == [0, 1, 2]


def test_the_report_shows_them(run: Run) -> None:
    page = report(run).path.read_text()
    measured = entry(run)
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]*)"', page)
    kept = [each["picture"] for each in (*measured["samples"], *measured["largest_loss"]) if each["picture"]]
    assert pictures == kept
    assert "img-src data:" in page.split("</head>")[0]
    matrix = page.split("Confusion matrix</h3>")[1].split("</table>")[0]
    cells = [int(cell or 0) for cell in re.findall(r"<td[^>]*>(\d*)</td>", matrix)]
    labels, predicted, _ = by_hand(run)
    pairs = Counter(zip(labels, predicted, strict=True))
    assert cells == [pairs[label, other] for label in range(3) for other in range(3)]


def test_pictures_of_a_file_from_elsewhere_are_checked(run: Run, tmp_path: Path) -> None:
    document = json.loads((run.folder / "evaluation.json").read_text())
    for each in document["instruments"]["confusion"]["samples"]:
        each["picture"] = base64.b64encode(b"<svg onload='alert(1)'/>").decode()
    before = (run.folder / "evaluation.json").read_text()
    (run.folder / "evaluation.json").write_text(json.dumps(document))
    try:
        page = report(run, tmp_path / "page.html").path.read_text()
    finally:
        (run.folder / "evaluation.json").write_text(before)
    assert page.count("<img ") == 4


def test_the_command_prints_the_worst(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run.folder), "--confusion", "--pictures", "0"])
    printed = capsys.readouterr().out
    assert "worst classes" in printed
    assert "images with the largest loss" in printed
    assert all(each["picture"] is None for each in entry(run)["largest_loss"])
    assert read_run(run.folder) == run
