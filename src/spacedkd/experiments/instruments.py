"""All instruments on one trained network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from spacedkd.data.images import Encoded, Images
from spacedkd.data.splits import evenly
from spacedkd.data.stream import Batch, in_order
from spacedkd.errors import UserError
from spacedkd.evaluation import adversarial, corruptions, curvature, scores, weight_noise
from spacedkd.evaluation.adversarial import Attack
from spacedkd.evaluation.corrupted import CorruptedImages
from spacedkd.json_form import to_json
from spacedkd.training.saved import Saved

NOISE_IMAGES = 2000
CURVATURE_IMAGES = 250
"""fewer than for noise: a product with the Hessian takes as long as five passes or more, and a trace needs dozens"""

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""shows work with this title and so many parts; what it gives is told how many more are done"""


def silent(_: str, __: int) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _: None)


@dataclass(frozen=True)
class Plan:
    """Which instruments are used, and how."""

    severities: tuple[int, ...] = corruptions.SEVERITIES
    corruptions: tuple[str, ...] = ()
    cache: Path | None = None
    attacks: tuple[Attack, ...] = ()
    flatness: bool = False
    noise: tuple[float, ...] = weight_noise.ABSOLUTE_LEVELS
    relative_noise: tuple[float, ...] = weight_noise.RELATIVE_LEVELS
    draws: int = 10
    hessian: bool = False
    error: float = 0.05
    """relative standard error of the curvature at which to stop"""
    most_products: int = curvature.MOST_PRODUCTS
    """of the Hessian with a vector, for each estimate"""
    limit: int | None = None
    """only so many test images for corruptions and attacks"""
    train_images: int | None = None
    """so many training images at most for flatness and curvature; None takes 2000 for the one and 250 for the other"""
    batch_size: int = 256
    workers: int = 0

    def instruments(self) -> list[str]:
        asked = {
            "accuracy": True,
            "corruptions": bool(self.corruptions),
            "adversarial": bool(self.attacks),
            "weight_noise": self.flatness,
            "curvature": self.hessian,
        }
        return [name for name, wanted in asked.items() if wanted]

    def __post_init__(self) -> None:
        if self.corruptions:
            corruptions.check(self.corruptions, self.severities)
        if self.flatness:
            weight_noise.planned(self.noise, self.relative_noise, self.draws)
        for name, least, value in (
            ("batch_size", 1, self.batch_size),
            ("workers", 0, self.workers),
            ("train_images", 1, self.train_images),
            ("products", 8, self.most_products),
            ("limit", 1, self.limit),
        ):
            if value is not None and value < least:
                raise UserError(f"{name} must be at least {least}, got {value}.")
        if not 0 < self.error < 1:
            raise UserError(f"error must be a part between 0 and 1, for instance 0.05; got {self.error:g}.")


def evaluate(saved: Saved, plan: Plan, progress: Progress = silent) -> Iterator[tuple[str, dict[str, Any]]]:
    """The instruments of the plan one after the other, each with what it found as plain JSON; accuracy is the first.

    What is wrong with the plan is said at once, and not when the first instrument is asked for.
    """
    test = _some(saved.data.test, "limit", plan.limit)
    if plan.flatness or plan.hessian:
        _some(saved.data.train, "train_images", plan.train_images)  # too few are refused before the work is done
    measured = {"model": saved.student, "head": "final"}
    instruments: dict[str, Callable[[], Any]] = {
        "accuracy": lambda: _accuracy(saved, plan, progress),
        "corruptions": lambda: _corruptions(saved, plan, test, progress),
        "adversarial": lambda: _adversarial(saved, plan, test, progress),
        "weight_noise": lambda: _weight_noise(saved, plan, progress),
        "curvature": lambda: _curvature(saved, plan, progress),
    }
    return ((name, {"measured": measured, **to_json(instruments[name]())}) for name in plan.instruments())


def _accuracy(saved: Saved, plan: Plan, progress: Progress) -> dict[str, Any]:
    parts, classes = saved.data.evaluated(), saved.data.test.classes
    total = len(saved.models) * sum(len(part.labels) for part in parts.values())
    with progress("accuracy", total) as advance:

        def scored(model: str, images: Images | Encoded) -> scores.Scores:
            leaders = [name for name in saved.models if name not in (saved.student, "average")]
            others = {name: saved.predict(name) for name in leaders} if model == saved.student else {}
            batches = _shown(saved, images, plan, advance)
            return scores.score(saved.predict(model), saved.head_names(model), batches, len(classes), others)

        found = {model: {part: scored(model, images) for part, images in parts.items()} for model in saved.models}
    return {"class_names": list(classes), "models": found}


def _corruptions(saved: Saved, plan: Plan, test: Images | Encoded, progress: Progress) -> corruptions.Corruptions:
    kept = CorruptedImages(test, plan.cache)
    count, names, severities = len(test.labels), plan.corruptions, plan.severities
    missing = len(kept.missing(names, severities))
    if missing:
        with progress(f"corrupting images ({missing} of {len(names) * len(severities)} ways)", missing * count) as tell:
            kept.make(names, severities, advance=tell)
    with progress("corruptions", (1 + len(names) * len(severities)) * count) as advance:

        def batches(name: str, severity: int) -> Iterator[Batch]:
            for batch in kept.batches(name, severity, plan.batch_size):
                yield saved.moved(batch)
                advance(len(batch.labels))

        enlarged = corruptions.enlargement(*test.shape[1:])
        predict, heads, clean = saved.predict(), saved.head_names(), _shown(saved, test, plan, advance)
        return corruptions.corruptions(predict, heads, clean, batches, names, severities, count, enlarged)


def _adversarial(saved: Saved, plan: Plan, test: Images | Encoded, progress: Progress) -> adversarial.Adversarial:
    def batches() -> Iterator[adversarial.Pixels]:
        for rows in torch.arange(len(test.labels)).split(plan.batch_size):
            layout = torch.channels_last if saved.channels_last else torch.contiguous_format
            pixels = test.fitted(rows).to(saved.device, memory_format=layout)
            yield pixels, test.labels[rows].to(saved.device), rows

    with progress("adversarial", adversarial.passes(plan.attacks) * len(test.labels)) as advance:
        predict = saved.predict_deepest()
        return adversarial.adversarial(predict, test.normalised, batches(), plan.attacks, advance=advance)


def _weight_noise(saved: Saved, plan: Plan, progress: Progress) -> weight_noise.WeightNoise:
    predict = saved.predict_deepest()
    with progress("weight noise", 1 + (len(plan.noise) + len(plan.relative_noise)) * plan.draws) as advance:
        return weight_noise.weight_noise(
            saved.deepest(),
            _training(saved, plan, NOISE_IMAGES),
            predict=lambda images: predict(images)[0].logits,
            absolute=plan.noise,
            relative=plan.relative_noise,
            draws=plan.draws,
            callback=lambda done, total: advance(1),
        )


def _curvature(saved: Saved, plan: Plan, progress: Progress) -> dict[str, Any]:
    seen: dict[str, int] = {}
    most = plan.most_products * (len(curvature.USED) + 1)
    with progress("curvature (at most)", most) as advance:

        def callback(what: str, done: int, _: int) -> None:
            advance(done - seen.get(what, 0))
            seen[what] = done

        batches = _training(saved, plan, CURVATURE_IMAGES)
        found = curvature.curvature(
            saved.in_float32(), batches, error=plan.error, most_products=plan.most_products, callback=callback
        )
        advance(most - sum(seen.values()))
    return {**to_json(found), "trace": to_json(found.trace)}


def _training(saved: Saved, plan: Plan, usual: int) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    """Passes over the training images as they are, not varied; left open, at least one of each class is among them."""
    usual = max(usual, len(saved.data.train.classes))
    train = _some(saved.data.train, "train_images", usual if plan.train_images is None else plan.train_images)

    def one_pass() -> Iterator[tuple[Tensor, Tensor]]:
        return ((cast(Tensor, batch.inputs), batch.labels) for batch in _shown(saved, train, plan))

    return one_pass


def _shown(saved: Saved, images: Images | Encoded, plan: Plan, advance: Advance = lambda _: None) -> Iterator[Batch]:
    for batch in in_order(images, plan.batch_size, plan.workers):
        yield saved.moved(batch)
        advance(len(batch.labels))


def _some(images: Images | Encoded, name: str, limit: int | None) -> Images | Encoded:
    """At most `limit` images, evenly from all classes."""
    if limit is None or limit >= len(images.labels):
        return images
    if limit < len(images.classes):
        raise UserError(f"{name} must be at least {len(images.classes)}, one image of each class; got {limit}.")
    return images.subset(evenly(images.labels, limit, len(images.classes)))
