"""Mixup and cutmix against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spacedkd import AugmentSpec, DataSpec
from spacedkd.data import TrainingStream
from spacedkd.data.sources import load
from spacedkd.data.transforms import Mix


def streams(mix: Mix) -> tuple[TrainingStream, TrainingStream]:
    """The same batches without and with mixing."""
    images = load(DataSpec("digits", train_limit=100)).train
    changes = AugmentSpec(crop=1, rotate=10)
    return TrainingStream(images, 20, 0, changes), TrainingStream(images, 20, 0, changes, mix=mix)


def test_mixup_adds_shares_of_two_images_and_of_their_labels() -> None:
    plain, mixed = streams(Mix(mixup=0.4))
    for step in range(6):
        before, after = plain.batch(step), mixed.batch(step)
        own = torch.nn.functional.one_hot(before.labels, 10).float()
        share = float((after.labels * own).sum(1).min())  # the least of them has a partner of another class
        other = [
            next(p for p in range(20) if torch.allclose(
                after.inputs[i], share * before.inputs[i] + (1 - share) * before.inputs[p], atol=1e-5))
            for i in range(20)
        ]  # fmt: skip
        assert torch.allclose(after.labels, share * own + (1 - share) * own[other], atol=1e-6)
        assert torch.equal(after.indices, before.indices)


def test_cutmix_pastes_a_box_and_its_share_of_the_label() -> None:
    plain, mixed = streams(Mix(cutmix=1.0))
    boxes = set()
    for step in range(8):
        before, after = plain.batch(step), mixed.batch(step)
        own = torch.nn.functional.one_hot(before.labels, 10).float()
        assert isinstance(before.inputs, torch.Tensor)
        assert isinstance(after.inputs, torch.Tensor)
        changed = (after.inputs != before.inputs).any(0).any(0)
        rows, columns = changed.any(1).sum(), changed.any(0).sum()
        boxes.add((int(rows), int(columns)))
        share = 1 - float(rows * columns) / 64
        differ = (after.labels * own).sum(1) < 1 - 1e-6
        assert torch.allclose((after.labels * own).sum(1)[differ], torch.tensor(share), atol=1e-6)
        assert torch.equal(after.inputs[:, :, ~changed], before.inputs[:, :, ~changed])
    assert len(boxes) > 3


def test_labels_sum_to_one_and_partners_are_a_permutation() -> None:
    for seed in range(50):
        mixing = Mix(0.3, 1.0).draw(17, 9, 12, seed)
        assert sorted(mixing.partner.tolist()) == list(range(17))
        labels = mixing.labels(torch.arange(17) % 5, mixing.partner % 5, 5)
        assert labels.dtype == torch.float32
        assert torch.allclose(labels.sum(1), torch.ones(17))


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_shares_follow_their_beta_distribution(alpha: float) -> None:
    shares = np.array([Mix(mixup=alpha).draw(2, 4, 4, seed).share for seed in range(4000)])
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)


def test_cutmix_boxes_have_the_size_and_place_of_the_paper() -> None:
    drawn = [Mix(cutmix=1.0).draw(2, 100, 100, seed) for seed in range(3000)]
    # With a share uniform in 0..1 and a centre anywhere, a box of side sqrt(1 - share) has 1 - s/4 of its side inside.
    sides = np.sqrt(1 - np.random.default_rng(0).random(200_000))
    expected = ((sides * (1 - sides / 4)) ** 2).mean()
    assert 1 - np.mean([mixing.share for mixing in drawn]) == pytest.approx(expected, abs=0.02)
    middle = np.mean([mixing.box[0].start <= 50 < mixing.box[0].stop for mixing in drawn])
    edge = np.mean([mixing.box[0].start <= 0 < mixing.box[0].stop for mixing in drawn])
    assert middle > 1.5 * edge > 0


def test_with_both_each_batch_gets_one_or_the_other() -> None:
    boxes = [Mix(1.0, 1.0).draw(4, 8, 8, seed).box is not None for seed in range(400)]
    assert 150 < sum(boxes) < 250
