"""Accuracy and calibration of all networks of a run, and whether the student agrees with its teacher.

    top-1, top-5    the class is the highest, or among the five highest logits
    NLL             mean of -log p(class), p the softmax of the logits
    ECE             expected calibration error over fifteen bins of the highest p
    agreement       how often two networks' deepest heads choose the same class

Always measured. `evaluation.scores` has the formulas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from spacedkd.evaluation.instrument import (
    Entry,
    Headline,
    Instrument,
    Metric,
    MetricTable,
    PageItem,
    ReliabilityChart,
    ResultTable,
    loss_metric,
)
from spacedkd.runs.schema import Count, PositiveCount, Requires
from spacedkd.runtime.errors import UserError

if TYPE_CHECKING:
    from spacedkd.evaluation.scores import Scores
    from spacedkd.evaluation.subject import Part, Subject


class BinEntry(TypedDict):
    """A bin of the reliability diagram; without images it has no means."""

    low: float
    high: float
    images: Count
    confidence: float | None
    accuracy: float | None


class HeadEntry(TypedDict):
    """The scores of one head."""

    top1: float
    top5: float | None
    nll: float
    ece: float
    agrees_with_final: float
    per_class: list[float | None]
    reliability: list[BinEntry]


class PartEntry(TypedDict):
    """The scores of one model on one part of the data."""

    images: PositiveCount
    heads: Annotated[Mapping[str, HeadEntry], Requires("final")]
    bins: Count
    class_images: list[Count]
    agreement: Mapping[str, float]


class AccuracyEntry(Entry):
    """The entry of accuracies in evaluation.json: model -> part of the data -> scores."""

    class_names: list[str]
    models: Mapping[str, Mapping[str, PartEntry]]


@dataclass(frozen=True)
class Accuracy(Instrument):
    """Top-1, top-5, likelihood and calibration of every head of every model."""

    name = "accuracy"
    flag = ""
    about = "accuracy, likelihood, calibration error and agreement with the teacher"
    title = "Accuracy and calibration"
    entry_type = AccuracyEntry
    headlines = (Headline("top1", "top-1"), Headline("nll", "NLL"), Headline("ece", "ECE"))

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Return the scores of every model on every evaluated part of the data; refuse logits that are not finite."""
        networks = subject.networks
        parts, classes = networks.data.evaluated_splits(), networks.data.info.classes
        total = len(networks.models) * sum(len(part) for part in parts.values())
        with subject.progress("accuracy", total) as advance:
            models = {
                model: {name: _score(subject, model, part, advance) for name, part in parts.items()}
                for model in networks.models
            }
        return {"class_names": list(classes), "models": models}

    @classmethod
    def metrics(cls, entry: AccuracyEntry) -> Iterator[tuple[str, Metric]]:
        """Yield the numbers of the student on the test images."""
        student = student_scores(entry)
        images, heads = student["images"], student["heads"]
        final, settings = heads["final"], f"{images} images"
        yield "top1", Metric("Top-1", final["top1"], 1 / images, settings)
        if final["top5"] is not None:
            yield "top5", Metric("Top-5", final["top5"], 1 / images, settings)
        for name in [name for name in heads if name not in ("final", "ensemble")]:
            yield f"head/{name}", Metric(f"Top-1, head {name}", heads[name]["top1"], 1 / images, settings)
        if "ensemble" in heads:
            yield "ensemble", Metric("Top-1, ensemble of heads", heads["ensemble"]["top1"], 1 / images, settings)
        yield "nll", loss_metric("Negative log-likelihood", final["nll"], settings)
        yield "ece", loss_metric("Expected calibration error", final["ece"], f"{settings}, {student['bins']} bins")
        for name, share in student["agreement"].items():
            yield f"agreement/{name}", Metric(f"Agreement with the {name}", share, 1 / images, settings, better=None)
        for name, accuracy, count in zip(
            entry["class_names"], final["per_class"], student["class_images"], strict=True
        ):
            if accuracy is not None:
                yield f"class/{name}", Metric(name, accuracy, 1 / count, f"{count} images")

    @classmethod
    def describe(cls, entries: Sequence[AccuracyEntry]) -> str:
        """Return on how many images accuracies were measured."""
        return f"{student_scores(entries[0])['images']} test images, deepest head, after the last epoch."

    @classmethod
    def tables(cls, entry: AccuracyEntry, detailed: bool) -> Iterator[ResultTable]:
        """Yield top-1 of all models, all scores of the student, and the bins of its reliability if they are wanted."""
        yield _top1_table(entry["models"])
        student = student_scores(entry)
        rows = [
            [name, head["top1"], head["top5"], f"{head['nll']:.3f}", f"{head['ece']:.3f}", head["agrees_with_final"]]
            for name, head in student["heads"].items()
        ]
        agreement = [
            f"chooses what the {name} chooses: {100 * share:.1f} %" for name, share in student["agreement"].items()
        ]
        classes = zip(student["heads"]["final"]["per_class"], entry["class_names"], strict=True)
        hardest = sorted((share, name) for share, name in classes if share is not None)[:3]
        names = ", ".join(f"{name} {100 * share:.1f}" for share, name in hardest)
        yield ResultTable(
            "the student on the test images",
            ("head", "top-1", "top-5", "NLL", "ECE", "as the deepest head"),
            rows,
            "; ".join([*agreement, f"hardest classes: {names}"]),
        )
        if detailed:
            yield _reliability_table(student)

    @classmethod
    def page(cls, keys: Collection[str]) -> Iterator[PageItem]:
        """Yield all metrics, reliability diagrams, and the accuracy of every class folded away."""
        classes = [key for key in keys if key.startswith("class/")]
        yield MetricTable(cls.title, [key for key in keys if key not in classes])
        yield ReliabilityChart(
            "Reliability: images sorted by the network's confidence into fifteen bins, all seeds together. A bar is "
            "the accuracy of its bin; on the dashed line it equals the confidence, below it the network is too sure "
            "of itself. Bins with few images are pale."
        )
        yield MetricTable("Top-1 of each class", classes, folded="Every class")


def student_scores(entry: AccuracyEntry) -> PartEntry:
    """Return the student's scores on the test images."""
    return entry["models"][entry["measured"]["model"]]["test"]


def pool_reliability(entries: Sequence[AccuracyEntry]) -> list[BinEntry]:
    """Return the bins of the reliability diagram of several networks together."""
    heads = [student_scores(entry)["heads"]["final"]["reliability"] for entry in entries]
    pooled: list[BinEntry] = []
    for bins in zip(*heads, strict=True):
        images = sum(each["images"] for each in bins)
        confidence = sum(each["images"] * (each["confidence"] or 0.0) for each in bins) / images if images else None
        accuracy = sum(each["images"] * (each["accuracy"] or 0.0) for each in bins) / images if images else None
        low, high = bins[0]["low"], bins[0]["high"]
        pooled.append({"low": low, "high": high, "images": images, "confidence": confidence, "accuracy": accuracy})
    return pooled


def _score(subject: Subject, model: str, part: Part, advance: Any) -> Scores:
    """Return the scores of a model on a part of the data; the student's with its agreement with every other model."""
    from spacedkd.data.dataset import Items
    from spacedkd.evaluation.scores import NotFinite, score

    networks = subject.networks
    others = {}
    if model == networks.student:
        leaders = [name for name in networks.models if name not in (networks.student, "average")]
        others = {name: networks.predict(name) for name in leaders}
    classes, batches = len(networks.data.info.classes), subject.batches(part, advance)
    try:
        return score(networks.predict(model), networks.head_names(model), batches, classes, others)
    except NotFinite as error:
        row = part.first_not_finite() if isinstance(part, Items) else None
        cause = "" if row is None else f" Item {row} of the dataset holds NaN or infinity."
        raise UserError(f"The {model} cannot be measured: {error}{cause}") from None


def _top1_table(models: Mapping[str, Mapping[str, PartEntry]]) -> ResultTable:
    """Return a table of every model on every part of the data, with a column for each head."""
    parts = [(model, name, part["heads"]) for model, parts in models.items() for name, part in parts.items()]
    names = list(dict.fromkeys(name for _, _, heads in parts for name in heads))
    rows = [
        [model, part, *(heads[name]["top1"] if name in heads else None for name in names)]
        for model, part, heads in parts
    ]
    return ResultTable("accuracy in percent", ("model", "images", *names), rows, text_columns=2)


def _reliability_table(student: PartEntry) -> ResultTable:
    rows = [
        [
            f"{100 * each['low']:.1f} to {100 * each['high']:.1f}",
            str(each["images"]),
            each["confidence"],
            each["accuracy"],
        ]
        for each in student["heads"]["final"]["reliability"]
        if each["images"]
    ]
    caption = f"{student['bins']} bins of equal width; ECE is the mean gap, weighted by images"
    columns = ("confidence", "images", "mean confidence", "accuracy")
    return ResultTable("reliability of the deepest head", columns, rows, caption)
