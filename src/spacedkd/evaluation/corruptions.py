"""Accuracy on corrupted images: noisy, blurred, snowed in or badly compressed.

The nineteen corruptions are those of `imagecorruptions` (Hendrycks and Dietterich 2019; Michaelis et al. 2019), at
severities 1 to 5. `evaluation.corrupted_images` makes the images and keeps them on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from spacedkd.evaluation.instrument import (
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
)
from spacedkd.runs.schema import Count, PositiveCount, Requires
from spacedkd.runtime.errors import UserError, unknown

if TYPE_CHECKING:
    from spacedkd.data.stream import Batch
    from spacedkd.evaluation.scores import Predict
    from spacedkd.evaluation.subject import Subject

FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "spatter"),
    "digital": ("brightness", "contrast", "saturate", "elastic_transform", "pixelate", "jpeg_compression"),
}
CORRUPTIONS = tuple(name for names in FAMILIES.values() for name in names)
PAPER = ("impulse_noise", "zoom_blur", "snow", "frost", "jpeg_compression", "brightness")
"""the six corruptions of the paper's table"""
SEVERITIES = (1, 3, 5)


ByHead = Annotated[Mapping[str, float], Requires("final")]
"""accuracies by head, of which the deepest one is `final`"""


class CorruptedEntry(TypedDict):
    """Accuracies under one corruption of one severity."""

    name: str
    severity: Count
    accuracy: ByHead


class CorruptionsEntry(Entry):
    """The entry of corruptions in evaluation.json."""

    images: PositiveCount
    names: list[str]
    severities: list[Count]
    enlarged: Count
    clean: ByHead
    mean: ByHead
    found: list[CorruptedEntry]


@dataclass(frozen=True)
class Corruptions(Instrument):
    """Accuracy of every head under corruptions of the test images."""

    name = "corruptions"
    flag = "corruptions"
    about = "accuracy on noisy, blurred, snowy, ... images"
    title = "Corrupted images"
    entry_type = CorruptionsEntry
    headlines = (Headline("mean", "corrupted"),)
    headline_note = "corrupted: mean accuracy on corrupted images, percent"

    severities: tuple[int, ...] = SEVERITIES
    """how strong corruptions are, from 1 to 5"""
    only: tuple[str, ...] = ()
    """these corruptions alone, or `paper` for its six; None takes all nineteen"""
    cache: Path | None = None
    """where corrupted images are kept; None takes ~/.cache/spacedkd/corrupted"""
    limit: int | None = None
    """maximum number of test images, evenly from all classes; None takes all"""

    def __post_init__(self) -> None:
        check_corruptions(self.names, self.severities)
        check_at_least(self, limit=1)

    @property
    def names(self) -> tuple[str, ...]:
        """The corruptions, each once."""
        chosen = self.only or CORRUPTIONS
        return tuple(dict.fromkeys(name for word in chosen for name in (PAPER if word == "paper" else (word,))))

    def check_subject(self, subject: Subject) -> None:
        """Refuse a user's dataset, whose items need not be images."""
        subject.test_pixels(self.limit, "Corruptions")

    def measure(self, subject: Subject) -> CorruptionsResult:
        """Return accuracies on clean and corrupted images; images that are not in the cache are made first."""
        from spacedkd.evaluation.corrupted_images import CorruptedImages, enlargement

        test = subject.test_pixels(self.limit, "Corruptions")
        cache = CorruptedImages(test, self.cache)
        count, kinds = len(test.labels), len(self.names) * len(self.severities)
        missing = len(cache.missing(self.names, self.severities))
        if missing:
            with subject.progress(f"corrupting images ({missing} of {kinds} ways)", missing * count) as advance:
                cache.make(self.names, self.severities, advance=advance)
        with subject.progress("corruptions", (1 + kinds) * count) as advance:

            def corrupted(name: str, severity: int) -> Iterator[Batch]:
                for batch in cache.batches(name, severity, subject.batch_size):
                    yield subject.networks.to_device(batch)
                    advance(len(batch.labels))

            return measure_corruptions(
                subject.networks.predict(),
                subject.networks.head_names(),
                subject.batches(test, advance),
                corrupted,
                names=self.names,
                severities=self.severities,
                images=count,
                enlarged=enlargement(*test.shape[1:]),
            )

    @classmethod
    def metrics(cls, entry: CorruptionsEntry) -> Iterator[tuple[str, Metric]]:
        """Yield accuracies: clean, the mean of all, by severity, by corruption, and of each pair of the two."""
        images, severities, names = entry["images"], entry["severities"], ", ".join(entry["names"])
        shared = f"{images} images, enlarged {entry['enlarged']}x"

        def mean(title: str, rows: Sequence[CorruptedEntry], settings: str, head: str = "final") -> Metric:
            values = [row["accuracy"][head] for row in rows]
            return Metric(title, sum(values) / len(values), 1 / images / len(values), settings)

        yield "clean", Metric("Clean images", entry["clean"]["final"], 1 / images, f"{images} images")
        yield "mean", mean("Mean corruption accuracy", entry["found"], f"{shared}, {names}, severities {severities}")
        for severity in severities:
            rows = [row for row in entry["found"] if row["severity"] == severity]
            yield f"severity/{severity}", mean(f"Severity {severity}", rows, f"{shared}, {names}")
        for name in entry["names"]:
            rows, title = [row for row in entry["found"] if row["name"] == name], name.replace("_", " ")
            yield name, mean(title, rows, f"{shared}, severities {severities}")
            for row in rows:
                key, words = f"{name}/{row['severity']}", f"{title} {row['severity']}"
                yield key, mean(words, [row], shared)
                if "ensemble" in row["accuracy"]:
                    yield f"{key}/ensemble", mean(f"{words}, ensemble of heads", [row], shared, "ensemble")

    @classmethod
    def describe(cls, entries: Sequence[CorruptionsEntry]) -> str:
        """Return how many images were corrupted in how many ways."""
        entry = entries[0]
        enlarged = entry["enlarged"]
        note = f" Images were enlarged {enlarged}x while they were corrupted." if enlarged > 1 else ""
        severities = ", ".join(map(str, entry["severities"]))
        return f"{entry['images']} test images, {len(entry['names'])} corruptions, severities {severities}.{note}"

    @classmethod
    def tables(cls, entry: CorruptionsEntry, detailed: bool) -> Iterator[ResultTable]:
        """Yield a row for each corruption and a column for each severity."""
        names, severities = entry["names"], entry["severities"]
        accuracy = {(row["name"], row["severity"]): row["accuracy"]["final"] for row in entry["found"]}
        by_name = {name: [accuracy[name, severity] for severity in severities] for name in names}
        means = [sum(values) / len(names) for values in zip(*by_name.values(), strict=True)]
        rows: list[list[Value]] = [[name, *values, sum(values) / len(values)] for name, values in by_name.items()]
        rows.append(["mean", *means, entry["mean"]["final"]])
        columns = ("corruption", *(f"severity {severity}" for severity in severities), "mean")
        enlarged = f"images were enlarged {entry['enlarged']}x while they were corrupted, then brought back"
        caption = enlarged if entry["enlarged"] > 1 else ""
        yield ResultTable("accuracy on corrupted images, percent", columns, rows, caption)

    @classmethod
    def page(cls, keys: Collection[str]) -> Iterator[PageItem]:
        """Yield how accuracy falls with severity, means by severity and corruption, and every pair folded away."""
        by_severity = [key for key in keys if key.startswith("severity/")]
        levels = {0.0: "clean", **{float(key.removeprefix("severity/")): key for key in by_severity}}
        yield LevelChart(levels, "severity (0: clean)", "Mean accuracy over all corruptions.")
        kinds = [key for key in keys if "/" not in key and key not in ("clean", "mean")]
        yield MetricTable("Accuracy on corrupted images", ["mean", *by_severity, *kinds])
        each = [key for key in keys if key.count("/") == 1 and key not in by_severity]
        yield MetricTable("Each severity", each, folded="Every corruption at every severity")


def check_corruptions(names: Sequence[str], severities: Sequence[int]) -> None:
    """Refuse unknown corruptions, severities that are not from 1 to 5, and none of either."""
    for name in names:
        if name not in CORRUPTIONS:
            raise unknown("corruption", name, CORRUPTIONS)
    for severity in severities:
        if severity not in range(1, 6):
            raise UserError(f"A corruption's severity must be from 1 to 5, got {severity}.")
    if not names or not severities:
        raise UserError("There is nothing to corrupt with: name at least one corruption and one severity.")


@dataclass(frozen=True)
class CorruptedAccuracy:
    """The accuracy of every head under one corruption of one severity."""

    name: str
    severity: int
    accuracy: dict[str, float]


@dataclass(frozen=True)
class CorruptionsResult:
    """Accuracies on corrupted images; `mean` of all of them is the mean corruption accuracy."""

    images: int
    clean: dict[str, float]
    """of every head on the images as they are"""
    names: tuple[str, ...]
    severities: tuple[int, ...]
    found: tuple[CorruptedAccuracy, ...]
    mean: dict[str, float]
    enlarged: int
    """by which factor images were enlarged while they were corrupted"""


def measure_corruptions(
    predict: Predict,
    head_names: Sequence[str],
    clean: Iterable[Batch],
    corrupted: Callable[[str, int], Iterable[Batch]],
    *,
    names: Sequence[str],
    severities: Sequence[int],
    images: int,
    enlarged: int = 1,
) -> CorruptionsResult:
    """Return the accuracy on `images` clean images, and on those that `corrupted(name, severity)` gives.

    Logits that are not finite are refused; the message names the corruption.
    """
    from spacedkd.evaluation.scores import NotFinite, correct

    def accuracy(batches: Iterable[Batch], where: str = "") -> dict[str, float]:
        try:
            return {head: int(count) / images for head, count in correct(predict, head_names, iter(batches)).items()}
        except NotFinite as error:
            raise NotFinite(f"{where}{error}") from None

    before = accuracy(clean)
    accuracies = [
        CorruptedAccuracy(name, severity, accuracy(corrupted(name, severity), f"Under {name} of severity {severity}: "))
        for name in names
        for severity in severities
    ]
    mean = {head: sum(each.accuracy[head] for each in accuracies) / len(accuracies) for head in before}
    return CorruptionsResult(images, before, tuple(names), tuple(severities), tuple(accuracies), mean, enlarged)
