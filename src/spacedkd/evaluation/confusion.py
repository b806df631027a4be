"""Predictions of the student for the test images: confused classes, and the images with the largest loss.

    confusion    how many test images of a class the deepest head gives another class
    loss         -log p(class) of an image, p the softmax of the logits

evaluation.json keeps small pictures of the images with the largest loss, and of one image of each class, so that the
report can show them without the data.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from spacedkd.evaluation.instrument import (
    ConfusionMatrix,
    Entry,
    Headline,
    ImageGrid,
    Instrument,
    Metric,
    MetricTable,
    PageItem,
    Picture,
    ResultTable,
    RunItem,
    Value,
    check_at_least,
)
from spacedkd.runs.schema import Count, PositiveCount, Share
from spacedkd.runtime.errors import UserError

if TYPE_CHECKING:
    from spacedkd.data.reader import RawSplit
    from spacedkd.evaluation.subject import Part, Subject

SIDE = 96
"""longest side of a kept picture, in pixels"""
LINES = 10
"""classes and images that tables list"""


class ClassEntry(TypedDict):
    """The images of one class."""

    name: str
    train: Count | None
    """training images; None where labels are known only when an item is loaded"""
    test: Count
    right: Count


class ConfusedEntry(TypedDict):
    """Test images of a class that got another class; classes are numbers in `classes`."""

    label: Count
    predicted: Count
    images: PositiveCount


class ImageEntry(TypedDict):
    """One image, with a small picture of it where there is one."""

    name: str
    label: Count
    predicted: Count
    probability: Share
    """of the predicted class"""
    loss: float
    picture: str | None
    """a PNG, in base64"""


class ConfusionEntry(Entry):
    """The entry of confusions in evaluation.json."""

    classes: list[ClassEntry]
    confused: list[ConfusedEntry]
    """the most frequent first"""
    largest_loss: list[ImageEntry]
    samples: list[ImageEntry]
    """one test image of each class, of as many classes as pictures were asked for"""


@dataclass(frozen=True)
class Confusion(Instrument):
    """The student's confusions on the test images, and the images with the largest loss."""

    name = "confusion"
    flag = "confusion"
    about = "which classes the student confuses, and the test images with the largest loss"
    title = "Confused classes and images"
    entry_type = ConfusionEntry
    headlines = (Headline("worst", "worst class"),)
    headline_note = "worst class: accuracy of the class with the lowest one, percent"

    pictures: int = 24
    """pictures that are kept of the images with the largest loss, and of sample images"""

    def __post_init__(self) -> None:
        check_at_least(self, pictures=0)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Return the predictions of the student's deepest head for all test images."""
        import torch

        data, part = subject.networks.data, subject.networks.data.test
        predict, rows = subject.networks.predict_deepest(), []
        with subject.progress("confusion", len(part)) as advance, torch.no_grad():
            for batch in subject.batches(part, advance):
                log_p = predict(batch.inputs)[0].logits.double().log_softmax(1)
                if not log_p.isfinite().all():
                    raise UserError("The student has logits that are not finite, so its images have no class.")
                highest, predicted = log_p.max(1)
                loss = -log_p.gather(1, batch.labels[:, None])[:, 0]
                rows.append(torch.stack([batch.labels, predicted, highest.exp(), loss], 1).cpu())
        labels, predicted, probability, loss = torch.cat(rows).T
        pairs = [*zip(labels.int().tolist(), predicted.int().tolist(), strict=True)]
        names, train = data.info.classes, _training_images(data.train)
        of_class, right = Counter(label for label, _ in pairs), Counter(label for label, own in pairs if label == own)
        confused = Counter((label, other) for label, other in pairs if label != other)
        images = _TestImages(part, _raw_split(subject), pairs, probability.tolist(), loss.tolist())
        wrong_first = loss.argsort(descending=True, stable=True)[: max(self.pictures, LINES)].tolist()
        first = {label: row for row, (label, _) in reversed([*enumerate(pairs)])}
        return {
            "classes": [
                {
                    "name": name,
                    "train": None if train is None else train[number],
                    "test": of_class[number],
                    "right": right[number],
                }
                for number, name in enumerate(names)
            ],
            "confused": [
                {"label": label, "predicted": other, "images": images}
                for (label, other), images in sorted(confused.items(), key=lambda item: (-item[1], item[0]))
            ],
            "largest_loss": [images.image(row, number < self.pictures) for number, row in enumerate(wrong_first)],
            "samples": [images.image(first[label], True) for label in sorted(first)[: self.pictures]],
        }

    @classmethod
    def metrics(cls, entry: ConfusionEntry) -> Iterator[tuple[str, Metric]]:
        """Yield the accuracy of the worst class, and the share of the most frequent confusion."""
        classes = [each for each in entry["classes"] if each["test"]]
        images = sum(each["test"] for each in classes)
        worst = min(classes, key=lambda each: each["right"] / each["test"])
        settings = f"{images} images"
        yield (
            "worst",
            Metric("Accuracy of the worst class", worst["right"] / worst["test"], 1 / worst["test"], settings),
        )
        most = entry["confused"][0]["images"] if entry["confused"] else 0
        yield "confused", Metric("Most frequent confusion", most / images, 1 / images, settings, better="low")

    @classmethod
    def describe(cls, entries: Sequence[ConfusionEntry]) -> str:
        """Return how many images and classes there are."""
        classes = entries[0]["classes"]
        train = [each["train"] for each in classes if each["train"] is not None]
        trained = f"{sum(train)} training images, " if train else ""
        test = sum(each["test"] for each in classes)
        return f"{len(classes)} classes, {trained}{test} test images. Deepest head, after the last epoch."

    @classmethod
    def tables(cls, entry: ConfusionEntry, detailed: bool) -> Iterator[ResultTable]:
        """Yield the worst classes, and the images with the largest loss."""
        names = [each["name"] for each in entry["classes"]]
        taken_for = {pair["label"]: names[pair["predicted"]] for pair in reversed(entry["confused"])}
        ranked = sorted(
            (each["right"] / each["test"], number) for number, each in enumerate(entry["classes"]) if each["test"]
        )
        rows: list[list[Value]] = [
            [names[number], taken_for.get(number, ""), str(entry["classes"][number]["test"]), share]
            for share, number in ranked[:LINES]
        ]
        yield ResultTable("worst classes", ("class", "most often taken for", "images", "top-1"), rows, text_columns=2)
        images: list[list[Value]] = [
            [each["name"], names[each["label"]], names[each["predicted"]], each["probability"], f"{each['loss']:.3f}"]
            for each in entry["largest_loss"][:LINES]
        ]
        columns = ("image", "class", "predicted", "probability", "loss")
        yield ResultTable("images with the largest loss", columns, images, text_columns=3)

    @classmethod
    def page(cls, keys: Collection[str]) -> Iterator[PageItem]:
        """Yield the metrics of all arms; `run_page` has the rest."""
        yield MetricTable(cls.title, [*keys])

    @classmethod
    def run_page(cls, entry: ConfusionEntry) -> Iterator[RunItem]:
        """Yield the confusion matrix of one run, sample images, and the images with the largest loss."""
        names = [each["name"] for each in entry["classes"]]
        matrix = {(pair["label"], pair["predicted"]): pair["images"] for pair in entry["confused"]}
        matrix |= {(number, number): each["right"] for number, each in enumerate(entry["classes"])}
        yield ConfusionMatrix(names, [each["test"] for each in entry["classes"]], matrix)
        yield ImageGrid("One test image of each class", [_picture(each, names) for each in entry["samples"]])
        caption = "The test images with the largest loss: their class, and the class they got with its probability."
        yield ImageGrid(caption, [_picture(each, names) for each in entry["largest_loss"]])


def _picture(entry: ImageEntry, names: Sequence[str]) -> Picture:
    label, predicted = names[entry["label"]], names[entry["predicted"]]
    text = label if label == predicted else f"{label}, not {predicted}"
    return Picture(entry["picture"], f"{text} ({100 * entry['probability']:.0f} %)", entry["name"])


@dataclass(frozen=True)
class _TestImages:
    """Test images and what was predicted for them, of which some are kept."""

    part: Part
    raw: RawSplit | None
    pairs: Sequence[tuple[int, int]]
    probability: Sequence[float]
    loss: Sequence[float]

    def image(self, row: int, with_picture: bool) -> dict[str, Any]:
        """Return the entry of one image."""
        label, predicted = self.pairs[row]
        return {
            "name": self._name(row),
            "label": label,
            "predicted": predicted,
            "probability": min(self.probability[row], 1.0),
            "loss": max(self.loss[row], 0.0),
            "picture": self._small_picture(row) if with_picture else None,
        }

    def _name(self, row: int) -> str:
        """Return the file of an image where it has one, else its row in the dataset's test part."""
        rows = getattr(self.part, "rows", None)
        own = row if rows is None else int(rows[row])
        images: Any = None if self.raw is None else self.raw.images
        return str(images.name(own)) if hasattr(images, "name") else f"row {own}"

    def _small_picture(self, row: int) -> str | None:
        part: Any = self.part
        open_image = getattr(part, "open", None)
        if open_image is None or part.shape[0] not in (1, 3):
            return None
        image = open_image(row)
        image.thumbnail((SIDE, SIDE))
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        return base64.b64encode(file.getvalue()).decode()


def _training_images(part: Part) -> list[int] | None:
    """Return how many training images each class has; None for a user's dataset."""
    images: Any = part
    labels = getattr(images, "labels", None)
    return None if labels is None else labels.bincount(minlength=len(images.classes)).tolist()


def _raw_split(subject: Subject) -> RawSplit | None:
    """Return the dataset's split that the test images are rows of, for their names; None for a user's dataset."""
    from spacedkd.config.serialization import from_json
    from spacedkd.config.spec import DataSpec
    from spacedkd.data.dataset import Items
    from spacedkd.data.images import Signals
    from spacedkd.data.sources import Library

    if isinstance(subject.networks.data.test, Items | Signals):
        return None
    with suppress(UserError, OSError):  # names are not worth a failure
        raw = Library().read(from_json(DataSpec, subject.networks.origin["data"]))
        return raw.test or raw.train
    return None


def bytes_of_picture(picture: str) -> bytes | None:
    """Return the PNG of an entry; None for anything else, which a file from elsewhere may have."""
    with suppress(ValueError):
        data = base64.b64decode(picture, validate=True)
        return data if data.startswith(b"\x89PNG\r\n\x1a\n") else None
    return None
