"""A run's students, opened with timm as the README says and shown images by timm's own transform, score as recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.datasets import load_digits
from timm.data import create_transform, resolve_model_data_config

from spacedkd import DataSpec, Duration, EngineSpec, NetworkSpec, OptimizerSpec, RunSpec, train
from spacedkd.data import sources

VIT = NetworkSpec("vit_tiny_patch16_224", {"depth": 1, "embed_dim": 24, "num_heads": 3})
SMALL = NetworkSpec("resnet18_small", {"width": 4, "layers": [1, 1, 1, 1]})
TIMM = NetworkSpec("resnet10t", {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16], "stem_width": 8})
RUN = RunSpec(
    method="none",
    epochs=4,
    batch_size=10,
    optimizer=OptimizerSpec("adamw", lr=0.01),
    precision="32-true",
    ema=0.5,
    evaluate_every=Duration(5, "st"),
    engine=EngineSpec(threads=1),
)


def scaled(network: NetworkSpec, size: int | list[int]) -> NetworkSpec:
    return replace(network, options={**network.options, "input_size": size})


def digit_images(first: int, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Digits of scikit-learn as bytes [N, 8, 8] with their labels, read without this package."""
    images, labels = load_digits(return_X_y=True)
    return np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)[first::step], labels[first::step]


def folder_of_digits(place: Path, sizes: list[tuple[int, int]], mode: str = "RGB") -> str:
    """Digits of three classes as PNG files of several sizes, each with a frame that a wrong crop would cut off."""
    images, labels = digit_images(0)
    chosen = np.flatnonzero(labels < 3)[:160]
    for number, row in enumerate(chosen):
        part = "train" if number < 120 else "val"
        path = place / part / f"digit{labels[row]}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        resized = Image.fromarray(images[row]).resize(sizes[number % len(sizes)], Image.Resampling.BICUBIC)
        resized.convert(mode).save(path)
    return str(place)


def arrays_of_digits(place: Path) -> str:
    """Digits of three classes, 8 high and 12 wide, in an .npz file."""
    images, labels = digit_images(0)
    images, labels = images[labels < 3], labels[labels < 3]
    wide = np.pad(images, ((0, 0), (0, 0), (1, 3)))
    place.mkdir(parents=True)
    parts = {"x_train": wide[:120], "y_train": labels[:120], "x_test": wide[120:240], "y_test": labels[120:240]}
    np.savez(place / "wide.npz", **parts)
    return str(place / "wide.npz")


def opened_and_scored(place: Path, images: list[Image.Image], labels: list[int]) -> tuple[int, torch.Tensor]:
    """How many images a student gets right with timm's network and transform alone, and what it was shown."""
    model = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    prepare = create_transform(**resolve_model_data_config(model))
    shown = torch.stack([prepare(image) for image in images])
    with torch.no_grad():
        return int((model(shown).argmax(1) == torch.tensor(labels)).sum()), shown


@pytest.mark.parametrize(
    ("source", "data", "network"),
    [
        ("digits", {}, SMALL),
        ("digits", {"image_size": 13}, SMALL),
        ("digits", {"augmentation": "cifar"}, SMALL),
        ("digits", {}, TIMM),
        ("digits", {}, scaled(TIMM, 32)),
        ("digits", {}, replace(VIT, options={**VIT.options, "patch_size": 4})),
        ("digits", {}, scaled(VIT, 32)),
        ("folder", {"image_size": 12}, TIMM),
        ("folder", {"augmentation": "imagenet", "image_size": 30}, TIMM),
        ("folder", {"augmentation": "vit", "image_size": 32}, VIT),
        ("folder", {"augmentation": "imagenet", "image_size": 32}, scaled(VIT, 48)),
        ("arrays", {}, TIMM),
        ("arrays", {}, scaled(TIMM, [16, 32])),
    ],
)
def test_students_opened_with_timm_score_as_the_run_recorded(
    tmp_path: Path, source: str, data: dict[str, Any], network: NetworkSpec
) -> None:
    place = {
        "digits": lambda: "digits",
        "folder": lambda: folder_of_digits(tmp_path / "digits", [(17, 17), (20, 16), (15, 23)]),
        "arrays": lambda: arrays_of_digits(tmp_path / "arrays"),
    }[source]()
    limits = {"train_limit": 120, "class_limit": 3} if source == "digits" else {}
    spec = replace(RUN, data=DataSpec(place, holdout=0.2, **limits, **data), network=network)
    run = train(spec, tmp_path / "run")
    test = sources.load(run.spec.data).test
    images: list[Image.Image]
    rows = torch.arange(len(test))
    if source == "folder":
        files = sorted((tmp_path / "digits/val").glob("*/*.png"))
        images, labels = [Image.open(file) for file in files], [int(file.parent.name[-1]) for file in files]
    else:
        raw: Any = (
            np.load(place) if source == "arrays" else dict(zip(("x_test", "y_test"), digit_images(1, 2), strict=True))
        )
        mode = "RGB" if test.shape[0] == 3 else "L"
        images = [Image.fromarray(one).convert(mode) for one in raw["x_test"][raw["y_test"] < 3]]
        labels = [int(label) for label in raw["y_test"] if label < 3]
    chosen = json.loads((tmp_path / "run/best/measured.json").read_text())["accuracy"]["test"]
    recorded = {
        "student": run.accuracies["student"]["test"]["final"]["last"],
        "average": run.accuracies["average"]["test"]["final"]["last"],
        "best": chosen,
    }
    for name, accuracy in recorded.items():
        right, shown = opened_and_scored(tmp_path / "run" / name, images, labels)
        # A network with an input_size scales floats, which overshoot at edges where timm's bytes are cut off.
        scales = "input_size" in network.options
        assert abs(right - round(accuracy * len(images))) <= (len(images) // 20 if scales else 0), name
        if not scales:
            torch.testing.assert_close(shown, test.inputs(rows), rtol=0, atol=1e-5)
        about = json.loads((tmp_path / "run" / name / "config.json").read_text())["pretrained_cfg"]
        assert not about.keys() & {"tag", "license", "origin_url", "paper_ids", "test_input_size", "test_crop_pct"}
