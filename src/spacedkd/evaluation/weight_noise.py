"""Loss and accuracy on training images with noise on the weights: the paper's flatness figure.

Gaussian noise is added to every parameter, and the loss and accuracy on the training images are measured again:

    absolute:  w + level * z                      the same noise everywhere
    relative:  w + level * rms(w) * z             z ~ N(0, 1), rms over one parameter tensor

The paper does not say which of the two its figure has. The relative kind adds a vector of about `level` times the
tensor's norm, so it does not depend on the scale of weights that the next normalisation would undo. A tensor of
zeros stays as it is. An image whose logits are no longer finite counts as wrong, and the loss of such a draw is left
out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from spacedkd.evaluation.instrument import (
    Advance,
    Entry,
    Headline,
    Instrument,
    LevelChart,
    Metric,
    MetricTable,
    PageItem,
    ResultTable,
    Value,
    check_at_least,
    loss_metric,
    training_images,
)
from spacedkd.runs.schema import Count, Interval, PositiveCount
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.seeds import seed_for

if TYPE_CHECKING:
    from torch import Tensor, nn

    from spacedkd.evaluation.statistics import ConfidenceInterval
    from spacedkd.evaluation.subject import Batches, Logits, Loss, Subject

NoiseKind = Literal["absolute", "relative"]
ABSOLUTE_LEVELS = (0.001, 0.002, 0.005, 0.01, 0.02)
RELATIVE_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.5)
IMAGES = 2000


class LevelEntry(TypedDict):
    """Loss and accuracy at one level; the loss is null where a draw's was not finite."""

    kind: str
    level: float
    loss: Interval | None
    accuracy: Interval


class WeightNoiseEntry(Entry):
    """The entry of weight noise in evaluation.json."""

    images: PositiveCount
    draws: Count
    seed: Count
    loss: float
    accuracy: float
    batchnorm: str
    levels: list[LevelEntry]


@dataclass(frozen=True)
class WeightNoise(Instrument):
    """Loss and accuracy of the deepest head with Gaussian noise on all weights."""

    name = "weight_noise"
    flag = "flatness"
    about = "loss and accuracy on training images with noise on the weights"
    title = "Noise on the weights"
    entry_type = WeightNoiseEntry
    headlines = (Headline("mean", "shaken"),)
    headline_note = "shaken: mean accuracy with noise on the weights, percent"

    noise: tuple[float, ...] = ABSOLUTE_LEVELS
    """levels of absolute noise"""
    relative_noise: tuple[float, ...] = RELATIVE_LEVELS
    """levels of noise relative to each tensor"""
    draws: int = 10
    """draws of noise at each level"""
    train_images: int | None = None
    """maximum number of training images; None takes 2000"""

    def __post_init__(self) -> None:
        noise_levels(self.noise, self.relative_noise, self.draws)
        check_at_least(self, train_images=1)

    def check_subject(self, subject: Subject) -> None:
        """Refuse inputs that are no single tensor, and fewer images than classes."""
        subject.training_batches(self.train_images, IMAGES)

    def measure(self, subject: Subject) -> WeightNoiseResult:
        """Return loss and accuracy of the student without noise and at every level."""
        predict = subject.networks.predict_deepest()
        levels = len(self.noise) + len(self.relative_noise)
        with subject.progress("weight noise", 1 + levels * self.draws) as advance:
            return measure_weight_noise(
                subject.networks.deepest(),
                subject.training_batches(self.train_images, IMAGES),
                predict=lambda images: predict(images)[0].logits,
                absolute=self.noise,
                relative=self.relative_noise,
                draws=self.draws,
                advance=advance,
            )

    @classmethod
    def metrics(cls, entry: WeightNoiseEntry) -> Iterator[tuple[str, Metric]]:
        """Yield accuracy and loss without noise, the mean accuracy over levels, and both at each level."""
        images, levels = entry["images"], entry["levels"]
        shared = f"{training_images(entry)}, {entry['draws']} draws, seed {entry['seed']}"
        yield "clean/accuracy", Metric("Training accuracy", entry["accuracy"], 1 / images, shared)
        yield "clean/loss", loss_metric("Training loss", entry["loss"], shared)
        mean = sum(each["accuracy"]["mean"] for each in levels) / len(levels)
        names = ", ".join(f"{each['kind']} {each['level']:g}" for each in levels)
        resolution = 1 / images / entry["draws"]
        yield "mean", Metric("Mean over noise levels", mean, resolution / len(levels), f"{shared}, {names}")
        for each in levels:
            key, title = f"{each['kind']}/{each['level']:.12g}", f"{each['kind']} noise {each['level']:g}"
            yield f"{key}/accuracy", Metric(f"Accuracy, {title}", each["accuracy"]["mean"], resolution, shared)
            if each["loss"] is not None:
                yield f"{key}/loss", loss_metric(f"Loss, {title}", each["loss"]["mean"], shared)

    @classmethod
    def describe(cls, entries: Sequence[WeightNoiseEntry]) -> str:
        """Return on how many images and draws the means are taken, and what levels mean."""
        entry = entries[0]
        return (
            f"{training_images(entry)}, as they are, {entry['draws']} draws at each level; BatchNorm: "
            f"{entry['batchnorm']}. Absolute noise has this deviation everywhere, relative noise this part of a "
            "tensor's root mean square."
        )

    @classmethod
    def tables(cls, entry: WeightNoiseEntry, detailed: bool) -> Iterator[ResultTable]:
        """Yield a row for each level."""
        rows: list[list[Value]] = [["none", "", f"{entry['loss']:.4g}", entry["accuracy"]]]
        rows += [
            [each["kind"], f"{each['level']:g}", _format_loss(each["loss"]), each["accuracy"]]
            for each in entry["levels"]
        ]
        yield ResultTable(
            f"with noise on the weights, {training_images(entry)}",
            ("noise", "level", "loss", "accuracy, percent"),
            rows,
            f"means of {entry['draws']} draws ± half their 95 % interval; relative to each tensor's root mean square",
        )

    @classmethod
    def page(cls, keys: Collection[str]) -> Iterator[PageItem]:
        """Yield how accuracy falls with each kind of noise, a summary, and every level folded away."""
        for kind in ("absolute", "relative"):
            accuracies = [key for key in keys if key.startswith(f"{kind}/") and key.endswith("/accuracy")]
            levels = {0.0: "clean/accuracy", **{float(key.split("/")[1]): key for key in accuracies}}
            caption = f"{kind.capitalize()} noise on all weights."
            yield LevelChart(levels, f"{kind} noise", caption, "training accuracy, %")
        summary = ["clean/accuracy", "clean/loss", "mean"]
        yield MetricTable("With noise on the weights", summary)
        rest = [key for key in keys if key not in summary]
        yield MetricTable("Each level of noise", rest, folded="Every level")


def _format_loss(loss: Interval | None) -> str:
    if loss is None:
        return "not finite"
    if loss["low"] is None or loss["high"] is None:
        return f"{loss['mean']:.4g}"
    return f"{loss['mean']:.4g} ± {(loss['high'] - loss['low']) / 2:.2g}"


def noise_levels(absolute: Sequence[float], relative: Sequence[float], draws: int) -> list[tuple[NoiseKind, float]]:
    """Return the kinds and levels of noise in turn; refuse a level that is not above 0, no level and no draw."""
    levels: list[tuple[NoiseKind, float]] = [("absolute", level) for level in absolute]
    levels += [("relative", level) for level in relative]
    for kind, level in levels:
        if not (math.isfinite(level) and level > 0):
            raise UserError(f"A level of {kind} weight noise must be a number above 0, got {level}.")
    if not levels:
        raise UserError("Weight noise needs at least one level, for instance 0.01.")
    if draws < 1:
        raise UserError(f"Weight noise needs at least one draw of each level, got {draws}.")
    return levels


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
class WeightNoiseResult:
    """Loss and accuracy of a network without noise, and at every level of it."""

    images: int
    loss: float
    accuracy: float
    levels: tuple[NoiseLevel, ...]
    draws: int
    seed: int
    batchnorm: str = "running statistics (eval mode)"


def measure_weight_noise(
    model: nn.Module,
    batches: Batches,
    *,
    predict: Logits | None = None,
    loss: Loss | None = None,
    absolute: Sequence[float] = ABSOLUTE_LEVELS,
    relative: Sequence[float] = RELATIVE_LEVELS,
    draws: int = 10,
    seed: int = 0,
    advance: Advance = lambda _: None,
) -> WeightNoiseResult:
    """Return loss and accuracy of `model` on the images of `batches`, without and with noise on its parameters.

    `predict` gives the logits that are judged; left out, the model itself does. `loss` is cross-entropy unless given.
    The noise of a draw depends on the seed, the level, the draw and the parameter's name alone, so two networks of one
    shape get the same noise. `advance` is called with the
    number of newly finished passes over the images.
    """
    from torch.nn import functional as F

    from spacedkd.evaluation.scores import check_finite
    from spacedkd.evaluation.subject import in_eval_mode

    predict, loss = predict or model, loss or F.cross_entropy
    plan = noise_levels(absolute, relative, draws)
    with in_eval_mode(model):
        images, (clean_loss, clean_accuracy), undefined = _fit(predict, batches, loss)
        check_finite(["final"], [undefined], images, "training images without noise")
        advance(1)
        levels = []
        for kind, level in plan:
            fits = []
            for draw in range(draws):
                with noisy_weights(model, kind, level, seed, draw):
                    fits.append(_fit(predict, batches, loss)[1])
                advance(1)
            levels.append(_mean_over_draws(kind, level, fits))
    return WeightNoiseResult(images, clean_loss, clean_accuracy, tuple(levels), draws, seed)


@contextmanager
def noisy_weights(model: nn.Module, kind: NoiseKind, level: float, seed: int, draw: int) -> Iterator[None]:
    """Add noise to the model's parameters; their own bits are restored however this ends."""
    import torch

    from spacedkd.evaluation.subject import restored_weights

    with restored_weights(model):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                scale = level
                if kind == "relative":
                    scale *= float(parameter.detach().cpu().double().square().mean().sqrt())
                parameter.add_(scale * normal_noise(parameter, seed_for(seed, "weight noise", repr(level), draw, name)))
        yield


def normal_noise(like: Tensor, seed: int) -> Tensor:
    """Return standard normal numbers of a tensor's shape, the same on every device."""
    import torch

    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)


def _fit(predict: Logits, batches: Batches, loss: Loss) -> tuple[int, tuple[float, float], int]:
    """Return how many images there are, their mean loss and accuracy, and how many have logits that are not finite."""
    import torch

    from spacedkd.evaluation.scores import undefined_images

    images, losses, correct, undefined = 0, 0.0, 0, 0
    with torch.no_grad():
        for inputs, labels in batches():
            logits = predict(inputs)
            classes = labels if labels.ndim == 1 else labels.argmax(1)
            images += len(inputs)
            losses += len(inputs) * float(loss(logits.float(), labels))
            without_class = undefined_images(logits)
            correct += int(((logits.argmax(1) == classes) & ~without_class).sum())
            undefined += int(without_class.sum())
    if not images:
        raise UserError("There are no images to measure on: the data's training part is empty.")
    return images, (losses / images, correct / images), undefined


def _mean_over_draws(kind: NoiseKind, level: float, fits: Sequence[tuple[float, float]]) -> NoiseLevel:
    from spacedkd.evaluation.statistics import confidence_interval

    losses, accuracies = zip(*fits, strict=True)
    mean_loss = confidence_interval(losses) if all(map(math.isfinite, losses)) else None
    finite = tuple(loss if math.isfinite(loss) else None for loss in losses)
    return NoiseLevel(kind, level, mean_loss, confidence_interval(accuracies), finite, accuracies)
