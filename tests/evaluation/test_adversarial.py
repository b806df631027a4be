"""Attacks against torchattacks, within their bounds, the same for any batch, and worse the larger they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchattacks
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.config.spec import DataSpec
from spacedkd.data.images import normalise
from spacedkd.data.sources import load
from spacedkd.evaluation.adversarial import Attack, attack, forward_passes, measure_attacks, perturb
from spacedkd.evaluation.scores import Predict
from spacedkd.models.classifier import Prediction
from spacedkd.runtime.errors import UserError

DIGITS = load(DataSpec("digits")).test
MEAN, STD = DIGITS.mean, DIGITS.std


def to_network(pixels: Tensor) -> Tensor:
    return normalise(pixels, MEAN, STD)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A small network that has really learned the digits, so that there is something to take away."""
    torch.manual_seed(0)
    small = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
    optimizer = torch.optim.Adam(small.parameters(), 3e-3)
    train = load(DataSpec("digits")).train
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(small(train.inputs(torch.arange(len(train.labels)))), train.labels).backward()
        optimizer.step()
    return small.eval().requires_grad_(False)


class OfUnitImages(nn.Module):
    """The network as torchattacks wants it: pixels from 0 to 1, normalised inside."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(to_network(255 * images))


def predict(network: nn.Module) -> Predict:
    return lambda images: [Prediction(network(images), images)]


def some(count: int = 100, batch: int = 50) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for rows in torch.arange(count).split(batch):
        yield DIGITS.resized(rows), DIGITS.labels[rows], rows


PIXELS, CLASSES, ROWS = next(some(60, 60))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (attack("fgsm", 8), lambda model: torchattacks.FGSM(model, eps=8 / 255)),
        (attack("bim", 8), lambda model: torchattacks.BIM(model, eps=8 / 255, alpha=2 / 255, steps=10)),
        (
            Attack("pgd", 8, 2, 10, random_start=False),
            lambda model: torchattacks.PGD(model, eps=8 / 255, alpha=2 / 255, steps=10, random_start=False),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Attack) else "",
)
def test_the_same_images_as_torchattacks(ours: Attack, theirs: Any, network: nn.Module) -> None:
    expected = 255 * theirs(OfUnitImages(network).eval())(PIXELS / 255, CLASSES)
    found = perturb(predict(network), to_network, PIXELS, CLASSES, ours)
    # A gradient that is exactly zero up to rounding has no sign to agree on; there are hardly any.
    assert ((found - expected).abs() < 1e-2).double().mean() > 0.999


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd"])
@pytest.mark.parametrize("epsilon", [0.3, 1, 8, 200])
def test_changes_stay_within_epsilon_and_images_stay_valid(name: str, epsilon: float, network: nn.Module) -> None:
    found = perturb(predict(network), to_network, PIXELS, CLASSES, attack(name, epsilon), indices=ROWS)
    changes = (found - PIXELS).abs()
    rounding = 0 if epsilon == int(epsilon) else 1e-5
    assert float(changes.max()) <= epsilon + rounding
    assert float(changes.max()) > 0.9 * epsilon
    assert float(found.min()) >= 0
    assert float(found.max()) <= 255


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd"])
def test_accuracy_falls_with_epsilon(name: str, network: nn.Module) -> None:
    attacks = [attack(name, epsilon) for epsilon in (2, 8, 16, 32, 64)]
    found = measure_attacks(predict(network), to_network, some(), attacks)
    accuracies = [found.clean, *(one.accuracy for one in found.attacks)]
    assert accuracies == sorted(accuracies, reverse=True)
    assert found.clean > 0.9
    assert accuracies[-1] < 0.2
    assert found.images == 100


def test_more_steps_perturb_better_than_one(network: nn.Module) -> None:
    found = measure_attacks(predict(network), to_network, some(), [attack("fgsm", 48), attack("bim", 48)])
    assert found.attacks[1].accuracy < found.attacks[0].accuracy < found.clean


@pytest.mark.parametrize("name", ["bim", "pgd"])
def test_an_image_is_attacked_alike_in_any_batch(name: str, network: nn.Module) -> None:
    double = network.double()  # so that the order of additions does not show in a sign
    looked = lambda images: predict(double)(images.double())  # noqa: E731
    whole = perturb(looked, to_network, PIXELS, CLASSES, attack(name, 8), indices=ROWS)
    parts = [
        perturb(looked, to_network, PIXELS[part], CLASSES[part], attack(name, 8), indices=ROWS[part])
        for part in torch.arange(60).split(7)
    ]
    network.float()
    assert torch.equal(whole, torch.cat(parts))


def test_random_starts_differ_between_images_and_seeds(network: nn.Module) -> None:
    start = Attack("pgd", 8, 1e-9, 1, random_start=True)
    gray = torch.full((2, 1, 8, 8), 100, dtype=torch.uint8)
    one, other = perturb(predict(network), to_network, gray, CLASSES[:2], start, indices=ROWS[:2])
    again, _ = perturb(predict(network), to_network, gray, CLASSES[:2], start, indices=ROWS[:2], seed=1)
    assert not torch.equal(one, other)
    assert not torch.equal(one, again)


def test_what_decides_the_strength_is_in_the_result(network: nn.Module) -> None:
    seen = 0

    def advance(images: int) -> None:
        nonlocal seen
        seen += images

    attacks = [attack("bim", 4), attack("pgd", 4, steps=3, step=2), attack("fgsm", 4)]
    found = measure_attacks(predict(network), to_network, some(), attacks, advance=advance)
    settings = [(one.attack.step, one.attack.steps, one.attack.random_start) for one in found.attacks]
    assert settings == [(1, 10, False), (2, 3, True), (4, 1, False)]
    assert seen == 100 * forward_passes(attacks)


@pytest.mark.parametrize("epsilon", [-1, 0, math.nan, math.inf, 256])
def test_an_epsilon_that_is_none(epsilon: float) -> None:
    with pytest.raises(UserError, match="epsilon must be above 0 and at most 255"):
        attack("bim", epsilon)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("bmi", 8), "Did you mean 'bim'"), (("bim", 8, 0), "at least one step"), (("bim", 8, 10, -1.0), "step of an")],
)
def test_an_attack_that_is_none(arguments: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        attack(*arguments)
