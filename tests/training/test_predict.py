"""Predictions are those of the student evaluated by hand, on images that are prepared as the run's test images."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spacedkd import DataSpec, NetworkSpec, Run, RunSpec, UserError, load_student, read_run, train
from spacedkd.cli import main
from spacedkd.data import sources
from tests.conftest import TINY
from tests.training.test_from_python import OWN, Small
from tests.training.test_opened_students import digit_images, folder_of_digits

ONE_NETWORK = replace(TINY, method="none", epochs=2)
TIMM = NetworkSpec("resnet10t", {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16], "stem_width": 8})


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        replace(ONE_NETWORK, data=DataSpec("digits", train_limit=40, holdout=0.2), ema=0.9), tmp(tmp_path_factory)
    )


def tmp(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("predict") / "run"


def by_hand(run: Run, which: str = "last", limit: int | None = None, scale: Any = None) -> torch.Tensor:
    """Probabilities of the run's test images, from its own dataset and `load_student` alone."""
    test = sources.load(run.spec.data).test
    # The bits of a convolution depend on the layout of memory; one image after the other is that of a stack.
    inputs = test.inputs(torch.arange(len(test))[:limit]).clone(memory_format=torch.contiguous_format)
    with torch.inference_mode():
        logits = load_student(run.folder, which=which)(inputs if scale is None else scale(inputs))
    return logits.double().softmax(1)


def assert_equal(predictions: Any, probabilities: torch.Tensor, names: Any) -> None:
    assert len(predictions) == len(probabilities)
    for prediction, row in zip(predictions, probabilities, strict=True):
        best = int(row.argmax())
        assert prediction.label == names[best]
        assert prediction.probability == float(row[best]), "equal bits"
        assert sum(prediction.top.values()) <= 1 + 1e-12
        assert [*prediction.top.values()] == row.topk(len(prediction.top)).values.tolist()


@pytest.mark.parametrize("which", ["last", "average", "best"])
def test_arrays_images_and_tensors_of_gray_digits(digits: Run, which: str) -> None:
    pixels = digit_images(1, 2)[0][:20]
    expected = by_hand(digits, which, 20)
    floats = sources.load(digits.spec.data).test.inputs(torch.arange(20))
    for images in (
        pixels[..., None],
        [*pixels],
        [Image.fromarray(each) for each in pixels],
        [Image.fromarray(each).convert("RGB") for each in pixels],
        torch.from_numpy(pixels)[:, None],
        floats,
    ):
        predictions = digits.predict(images, which=which, top=3)
        assert_equal(predictions, expected, "0123456789")
        assert [each.image for each in predictions] == [str(number) for number in range(20)]


@pytest.mark.parametrize(
    ("data", "network"),
    [
        ({"image_size": 12}, TIMM),
        ({"augmentation": "imagenet", "image_size": 30}, TIMM),
        ({"image_size": 12}, replace(TIMM, options={**TIMM.options, "input_size": 32})),
    ],
)
def test_files_of_folders_of_any_size(tmp_path: Path, data: dict[str, Any], network: NetworkSpec) -> None:
    place = folder_of_digits(tmp_path / "digits", [(17, 17), (20, 16), (15, 23)])
    spec = replace(ONE_NETWORK, data=DataSpec(place, **data), network=network)
    run = train(spec, tmp_path / "run")
    size = network.options.get("input_size")

    def scale(inputs: torch.Tensor) -> torch.Tensor:
        options: Any = {"mode": "bicubic", "antialias": True, "align_corners": False}
        return torch.nn.functional.interpolate(inputs, (size, size), **options)

    expected = by_hand(run, scale=None if size is None else scale)
    predictions = run.predict(f"{place}/val", batch_size=len(expected))
    assert_equal(predictions, expected, ["digit0", "digit1", "digit2"])
    assert predictions[0].image == min(str(path) for path in Path(place).glob("val/*/*.png"))
    test = sources.load(run.spec.data).test
    right = np.mean([prediction.label == Path(prediction.image).parent.name for prediction in predictions])
    assert abs(right - run.accuracy) <= 1 / len(test), "as the run was evaluated"


def test_a_network_of_ones_own_predicts_after_training(tmp_path: Path) -> None:
    run = train(OWN, tmp_path / "run", network=Small)
    images = digit_images(1, 2)[0][:4]
    predictions = run.predict(images[..., None])
    assert read_run(run.folder).predict([*images], network=Small) == predictions
    with pytest.raises(UserError, match="network"):
        read_run(run.folder).predict([*images])
    assert run.student is run.student


def test_the_student_is_ready_to_predict(digits: Run) -> None:
    assert digits.student is digits.student
    assert not digits.student.training
    inputs = sources.load(digits.spec.data).test.inputs(torch.arange(898))
    labels = torch.from_numpy(digit_images(1, 2)[1])
    with torch.inference_mode():
        right = digits.student(inputs).argmax(1) == labels
    assert float(right.double().mean()) == digits.accuracy


def test_what_is_no_image_is_refused_by_name(digits: Run, tmp_path: Path) -> None:
    Image.new("L", (28, 28)).save(tmp_path / "large.png")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    for image, words in (
        (tmp_path / "large.png", "large.png has 28x28 pixels, and the run's images have 8x8"),
        (tmp_path / "text.png", "text.png is not an image"),
        (tmp_path / "photo.heic", "photo.heic is a HEIC image.*pip install pillow-heif"),
        (tmp_path / "none.png", "no image or folder .*none.png"),
        (np.zeros((2, 8, 8, 3), np.uint8), "0 has 3 channels"),
        (np.zeros(3, np.int64), "int64"),
        (3, "got int"),
    ):
        with pytest.raises(UserError, match=words):
            digits.predict(image)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no image in"):
        digits.predict(tmp_path / "empty")


def test_own_datasets_are_predicted_from_inputs_alone(tmp_path: Path) -> None:
    pair = tuple(torch.utils.data.TensorDataset(torch.randn(24, 5), torch.arange(24) % 3) for _ in range(2))
    spec = RunSpec(method="none", epochs=1, batch_size=8, precision="32-true")
    run = train(spec, tmp_path / "run", data=pair, network=lambda: torch.nn.Linear(5, 3))
    assert len(run.predict(torch.randn(4, 5))) == 4
    with pytest.raises(UserError, match="give tensors of floats"):
        run.predict(np.zeros((4, 4), np.uint8))


def test_the_command_writes_what_it_prints(digits: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, image in enumerate(digit_images(1, 2)[0][:3]):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    files = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "json")}
    main(
        [
            "predict",
            str(digits.folder),
            str(tmp_path),
            "--top",
            "2",
            "--csv",
            str(files["csv"]),
            "--json",
            str(files["json"]),
        ]
    )
    printed = capsys.readouterr().out
    expected = digits.predict(tmp_path, top=2)
    rows = [*csv.DictReader(files["csv"].read_text().splitlines())]
    assert [(row["image"], row["label"], float(row["probability"])) for row in rows] == [each[:3] for each in expected]
    assert json.loads(files["json"].read_text()) == [each._asdict() for each in expected]
    assert all(f"{each.label} {100 * each.probability:.1f} %" in printed for each in expected)
    assert [*expected.to_frame().columns] == ["image", "label", "probability", "label2", "probability2"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "at least one image"),
        (["no.png"], "no.png"),
        (["no.png", "--best", "--average"], "--average and --best"),
        (["no.png", "--top", "0"], "--top must be"),
        (["no.png", "--csv", "nowhere/out.csv"], "no folder nowhere"),
    ],
)
def test_mistakes_are_one_line(digits: Run, words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["predict", str(digits.folder), *words])
    assert end.value.code == 2
    assert named in capsys.readouterr().err
