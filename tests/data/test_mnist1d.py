"""MNIST-1D: as the published package makes it, from fixed seeds, as many items as one likes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spacedkd import AugmentSpec, DataSpec, RunSpec, UserError
from spacedkd.cli import main
from spacedkd.config.serialization import from_json, to_json
from spacedkd.data.images import Signals
from spacedkd.data.mnist1d import generate
from spacedkd.data.sources import load, resolve_data

# Facts about 20 000 items (2000 of each class) made by the package mnist1d 0.0.2 with its default arguments, before it
# normalises them: mean -0.00606, deviation 0.15453. Here -0.00607 is subtracted and they are divided by 0.15470.
POINTS = [0, 8, 16, 24, 32, 39]
MEANS = [
    [0.046, 0.655, 0.687, 0.662, 0.145, 0.039],
    [0.072, -0.161, -0.167, -0.178, 0.056, 0.005],
    [-0.015, 0.035, 0.046, 0.056, -0.022, 0.1],
    [0.062, 0.449, 0.467, 0.479, 0.135, 0.015],
    [0.033, -0.212, -0.168, -0.228, 0.053, 0.025],
    [0.034, -0.03, -0.052, -0.04, 0.063, 0.076],
    [0.011, -0.623, -0.608, -0.592, -0.084, 0.067],
    [0.026, 0.215, 0.244, 0.25, 0.047, 0.043],
    [0.064, -0.415, -0.365, -0.388, -0.029, 0.005],
    [0.037, -0.228, -0.216, -0.281, 0.026, 0.026],
]
DEVIATIONS = [
    [1.107, 1.294, 1.236, 1.236, 0.851, 1.088],
    [1.112, 0.907, 0.844, 0.813, 0.725, 1.118],
    [1.103, 0.876, 0.779, 0.768, 0.751, 1.107],
    [1.083, 1.033, 0.977, 0.985, 0.861, 1.103],
    [1.057, 0.937, 0.843, 0.869, 0.75, 1.114],
    [1.071, 0.852, 0.781, 0.777, 0.722, 1.122],
    [1.112, 1.315, 1.245, 1.261, 0.851, 1.119],
    [1.126, 0.897, 0.849, 0.837, 0.739, 1.113],
    [1.096, 1.078, 0.978, 0.992, 0.839, 1.115],
    [1.068, 0.932, 0.844, 0.869, 0.726, 1.14],
]
PRODUCTS = {1: 0.813, 2: 0.533, 5: 0.200, 10: 0.063, 20: -0.089}
"""lag -> mean product of two points of an item"""
QUANTILES = {0.01: -2.790, 0.05: -1.678, 0.25: -0.546, 0.5: 0.016, 0.75: 0.569, 0.95: 1.576, 0.99: 2.734}


@pytest.fixture(scope="module")
def many() -> tuple[np.ndarray, np.ndarray]:
    return generate(20_000, "statistics")


def test_each_class_has_the_published_means_and_deviations(many: tuple[np.ndarray, np.ndarray]) -> None:
    items, labels = many
    for number in range(10):
        of_class = items[labels == number][:, POINTS].astype(np.float64)
        assert len(of_class) == 2000
        error = np.hypot(of_class.std(0), DEVIATIONS[number]) / 2000**0.5  # of the difference of two samples
        assert (np.abs(of_class.mean(0) - MEANS[number]) < 4 * error).all()
        assert (np.abs(of_class.std(0) - DEVIATIONS[number]) < 0.1).all()


def test_all_items_have_the_published_distribution(many: tuple[np.ndarray, np.ndarray]) -> None:
    items = many[0].astype(np.float64)
    assert abs(items.mean()) < 0.02
    assert abs(items.std() - 1) < 0.02
    for part, quantile in QUANTILES.items():
        assert np.quantile(items, part) == pytest.approx(quantile, abs=0.04)
    for lag, product in PRODUCTS.items():
        assert (items[:, lag:] * items[:, :-lag]).mean() == pytest.approx(product, abs=0.02)


def test_more_items_begin_with_the_same_ones() -> None:
    few, more = (generate(count, "test") for count in (1000, 3500))
    assert (few[0] == more[0][:1000]).all()
    assert (few[1] == more[1][:1000]).all()
    assert not (generate(1000, "train")[0] == few[0]).any(1).any()
    assert len(np.unique(more[0], axis=0)) == 3500
    assert (np.bincount(generate(70, "test")[1]) == 7).all()


def test_it_stays_what_it_is() -> None:
    """A million runs may depend on these; other numbers are another dataset."""
    items, labels = generate(10, "train")
    assert labels.tolist() == FIRST_LABELS
    assert items[0, :4].tolist() == pytest.approx(FIRST_POINTS, abs=1e-6)


FIRST_LABELS = [0, 1, 3, 9, 2, 8, 6, 4, 7, 5]
FIRST_POINTS = [1.0210527, 0.9316537, 0.8937864, 0.7616975]


def test_its_splits() -> None:
    data = load(DataSpec("mnist1d"))
    assert isinstance(data.train, Signals)
    assert (len(data.train), len(data.test), data.class_names) == (4000, 1000, tuple("0123456789"))
    assert data.train.labels.bincount().tolist() == [400] * 10
    sample = data.info.sample
    assert isinstance(sample, torch.Tensor)
    assert (sample.shape, sample.dtype, data.info.normalisation) == ((2, 1, 1, 40), torch.float32, None)
    assert data.repeated == {"test": 0}
    more = load(DataSpec("mnist1d", train_items=5000, test_items=20_000, train_limit=100, holdout=0.5))
    assert (len(more.train), len(more.test)) == (50, 20_000)
    assert more.holdout is not None
    assert len(more.holdout) == 50


def test_batches_are_the_items_as_they_are() -> None:
    data = load(DataSpec("mnist1d", train_items=100))
    items, labels = generate(100, "train")
    batch = data.stream(20, 0).batch(7)
    assert isinstance(batch.inputs, torch.Tensor)
    assert (batch.inputs[:, 0, 0].numpy() == items[batch.indices]).all()
    assert (batch.labels.numpy() == labels[batch.indices]).all()
    halves = [data.stream(20, 0, rank=rank, ranks=2).batch(7).inputs for rank in (0, 1)]
    assert torch.equal(torch.cat(halves), batch.inputs)  # type: ignore[arg-type]
    mixed = load(DataSpec("mnist1d", train_items=100, mixup=0.5)).stream(20, 0).batch(7)
    assert mixed.labels.shape == (20, 10)


def test_wrong_labels_and_a_spec_that_survives_json() -> None:
    spec = DataSpec("mnist1d", train_items=500, test_items=300, label_noise=0.2)
    clean, noisy = load(replace(spec, label_noise=0.0)), load(spec)
    assert isinstance(clean.train, Signals)
    assert isinstance(noisy.train, Signals)
    assert int((clean.train.labels != noisy.train.labels).sum()) == 100
    assert torch.equal(clean.test.inputs_and_labels(torch.arange(300))[1], noisy.test.labels)  # type: ignore[union-attr]
    run = RunSpec(data=spec)
    assert from_json(RunSpec, json.loads(json.dumps(to_json(run)))) == run
    assert not {"train_items", "test_items", "label_noise"} & {*to_json(DataSpec("mnist1d"))}
    assert resolve_data(DataSpec("MNIST-1D", augmentation="none", augment=AugmentSpec())) == DataSpec("mnist1d")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (DataSpec("mnist1d", augmentation="cifar"), "^augmentation changes images, and mnist1d has signals"),
        (DataSpec("mnist1d", augment=AugmentSpec(crop=2)), "^crop, flip and rotate change images"),
        (DataSpec("mnist1d", cutmix=1.0), "^cutmix changes images"),
        (DataSpec("mnist1d", image_size=32), "^image_size changes images"),
        (DataSpec("mnist1d", skip_bad=True), "^skip_bad does not matter for mnist1d"),
        (DataSpec("digits", test_items=100), "^test_items does not matter for digits, it is for mnist1d"),
    ],
)
def test_what_does_not_fit_is_refused(spec: DataSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(spec)


@pytest.mark.parametrize("flags", [["--test-items", "3"], ["--train-items", "1e99"], ["--crop", "2"], ["--test-items"]])
def test_the_command_refuses_it_in_one_line(
    flags: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--data", "mnist1d", "--network", "cnn_1d", *flags, "--out", str(tmp_path / "run")])
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
