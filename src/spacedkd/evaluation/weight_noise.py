"""How much a network's fit suffers when its weights are shaken: the paper's flatness figure.

Gaussian noise is added to every parameter, and the loss and accuracy on the training images are measured again:

    absolute:  w + level * z                      the same noise everywhere
    relative:  w + level * rms(w) * z             z ~ N(0, 1), rms over one parameter tensor

The paper does not say which of the two its figure has. The relative kind adds a vector of about `level` times the
tensor's norm, so it does not depend on the scale of weights that a following normalisation would undo. A tensor of
zeros stays as it is. An image whose logits are no longer finite counts as wrong, and the loss of such a draw is left
out.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.evaluation.accuracy import check_finite, undefined_images
from spacedkd.evaluation.frozen import Advance, Batches, Logits, Loss, in_eval_mode, weights_come_back
from spacedkd.evaluation.settings import ABSOLUTE_LEVELS, RELATIVE_LEVELS, NoiseKind, noise_levels
from spacedkd.evaluation.statistics import ConfidenceInterval, confidence_interval
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.seeds import seed_for


@dataclass(frozen=True)
class NoiseLevel:
    """Loss and accuracy over several draws of noise of one level."""

    kind: NoiseKind
    level: float
    loss: ConfidenceInterval | None  # None if a draw's loss was not a finite number
    accuracy: ConfidenceInterval
    losses: tuple[float | None, ...]  # of each draw
    accuracies: tuple[float, ...]


@dataclass(frozen=True)
class WeightNoise:
    """The undisturbed network and what became of it."""

    images: int
    loss: float
    accuracy: float
    levels: tuple[NoiseLevel, ...]
    draws: int
    seed: int
    batchnorm: str = "running statistics (eval mode)"


def weight_noise(
    model: nn.Module,
    batches: Batches,
    *,
    predict: Logits | None = None,
    loss: Loss = F.cross_entropy,
    absolute: Sequence[float] = ABSOLUTE_LEVELS,
    relative: Sequence[float] = RELATIVE_LEVELS,
    draws: int = 10,
    seed: int = 0,
    advance: Advance = lambda _: None,
) -> WeightNoise:
    """Loss and accuracy of `model` on the images of `batches`, without and with noise on its parameters.

    `predict` gives the logits to be judged; left out, the model itself does. The noise of a draw depends on the seed,
    the level, the draw and the parameter's name alone, so two networks of one shape are shaken in the same way.
    `advance` is told of passes over the images.
    """
    plan = noise_levels(absolute, relative, draws)
    with in_eval_mode(model):
        images, clean, undefined = _fit(predict or model, batches, loss)
        check_finite(["final"], [undefined], images, "training images without noise")
        advance(1)
        levels = []
        for kind, level in plan:
            found = []
            for draw in range(draws):
                with shaken(model, kind, level, seed, draw):
                    found.append(_fit(predict or model, batches, loss)[1])
                advance(1)
            levels.append(_level(kind, level, found))
    return WeightNoise(images, *clean, tuple(levels), draws, seed)


@contextmanager
def shaken(model: nn.Module, kind: NoiseKind, level: float, seed: int, draw: int) -> Iterator[None]:
    """The model with noise on its parameters; its own bits come back however this ends."""
    with weights_come_back(model):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                scale = level
                if kind == "relative":
                    scale *= float(parameter.detach().cpu().double().square().mean().sqrt())
                parameter.add_(scale * noise(parameter, seed_for(seed, "weight noise", repr(level), draw, name)))
        yield


def noise(like: Tensor, seed: int) -> Tensor:
    """Standard normal numbers of a tensor's shape, the same on every device."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)


def _fit(predict: Logits, batches: Batches, loss: Loss) -> tuple[int, tuple[float, float], int]:
    """How many images there are, their mean loss and accuracy, and how many have logits that are not finite."""
    images, losses, correct, undefined = 0, 0.0, 0, 0
    with torch.no_grad():
        for shown, labels in batches():
            logits = predict(shown)
            classes = labels if labels.ndim == 1 else labels.argmax(1)
            images += len(shown)
            losses += len(shown) * float(loss(logits.float(), labels))
            without_class = undefined_images(logits)
            correct += int(((logits.argmax(1) == classes) & ~without_class).sum())
            undefined += int(without_class.sum())
    if not images:
        raise UserError("There are no images to measure on: the data's training part is empty.")
    return images, (losses / images, correct / images), undefined


def _level(kind: NoiseKind, level: float, found: Sequence[tuple[float, float]]) -> NoiseLevel:
    losses, accuracies = zip(*found, strict=True)
    mean_loss = confidence_interval(losses) if all(map(math.isfinite, losses)) else None
    finite = tuple(one if math.isfinite(one) else None for one in losses)
    return NoiseLevel(kind, level, mean_loss, confidence_interval(accuracies), finite, accuracies)
