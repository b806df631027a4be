"""The protocol of instruments: what one measures of a trained network, and how its numbers are named and shown.

An instrument is one file with one frozen dataclass, and its entry in `document.INSTRUMENTS`. From these it gets its
flags, its entry in evaluation.json, its metrics in comparisons, its tables and its section of the report:

    class SparsityEntry(Entry):                    # what evaluation.json holds of it
        zeros: float

    @dataclass(frozen=True)
    class Sparsity(Instrument):
        name = "sparsity"                          # its entry in evaluation.json
        flag = "sparsity"                          # spacedkd evaluate --sparsity
        about = "share of weights that are nearly zero"
        title = "Sparsity"
        entry_type = SparsityEntry
        headlines = (Headline("zeros", "sparse"),)

        below: float = 0.01                        # --below
        "weights with a smaller absolute value count as zero"

        def measure(self, subject):
            weights = [parameter.abs() for parameter in subject.networks.deepest().parameters()]
            small = sum(int((weight < self.below).sum()) for weight in weights)
            return {"zeros": small / sum(weight.numel() for weight in weights)}

        @classmethod
        def metrics(cls, entry):
            yield "zeros", Metric("Weights near zero", entry["zeros"], 0.0, "", better=None)

This module and those of instruments are read by reports and by the command line before torch is imported: what needs
torch imports it within `measure`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypedDict

from spacedkd.runs.schema import Interval
from spacedkd.runtime.errors import UserError

if TYPE_CHECKING:
    from spacedkd.evaluation.subject import Subject

Advance = Callable[[int], None]
"""call with the number of newly finished items"""
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""shows work with this title and this number of items, and gives the function to call as they are finished"""


def lower_first(title: str) -> str:
    """Return a title as it is written within a sentence; acronyms stay as they are.

    >>> lower_first("Pruned weights"), lower_first("NLL per class")
    ('pruned weights', 'NLL per class')
    """
    is_acronym = title[1:2].isupper() or title[1:2].isdigit()
    return title if is_acronym else f"{title[:1].lower()}{title[1:]}"


def silent(_: str, __: int) -> AbstractContextManager[Advance]:
    """Show no progress."""
    return nullcontext(lambda _: None)


class MeasuredOptional(TypedDict, total=False):
    """Keys that may be missing; a class of its own, since `NotRequired` is not seen in a module like this."""

    head: str
    """of the network; "final" is the deepest"""
    label_noise: float
    """the part of the training labels that is wrong on purpose, where there is one"""


class Measured(MeasuredOptional):
    """The network that an instrument was used on."""

    model: str


class Entry(TypedDict):
    """An instrument's entry in evaluation.json; each adds its own keys."""

    measured: Measured


def training_images(entry: Any) -> str:
    """Return how many training images an instrument measured, and whether the labels it compared with are wrong."""
    noise = entry["measured"].get("label_noise")
    labels = "" if noise is None else f" with the labels trained on, {100 * noise:g} % of them wrong"
    return f"{entry['images']} training images{labels}"


class Metric(NamedTuple):
    """One number, and what it needs to be compared with another network's."""

    title: str
    value: float
    resolution: float
    """the smallest difference that the value can have: 1 / images for an accuracy, 1 / images / draws for a mean of
    several; a standard error over seeds is never taken to be smaller than this allows. 0.0 where there is none"""
    settings: str
    """how it was measured, in words such as "200 images, 10 draws": only metrics with equal settings are compared"""
    better: Literal["high", "low"] | None = "high"
    """None where neither is better in itself"""
    unit: Literal["percent", "number"] = "percent"

    def format(self) -> str:
        """Return the value as a terminal shows it."""
        return f"{100 * self.value:.1f}" if self.unit == "percent" else f"{self.value:.3g}"


def loss_metric(title: str, value: float, settings: str) -> Metric:
    """Return a metric of which less is better and that is no accuracy: a loss, an error, a curvature."""
    return Metric(title, value, 0.0, settings, "low", "number")


class Headline(NamedTuple):
    """A metric that overviews show."""

    key: str
    """the key that `metrics` yields, without the instrument's name: "zeros" or "fog/3" """
    column: str = ""
    """its title in a table of many networks; without one only the page shows it"""


Value = str | float | Interval | None
"""of a table: text, an accuracy (shown in percent), a mean accuracy with its interval, or nothing"""


@dataclass(frozen=True)
class ResultTable:
    """A table of one network's results, for the terminal."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str = ""
    text_columns: int = 1
    """columns, from the left, that hold words"""


@dataclass(frozen=True)
class MetricTable:
    """A table of the report: a row for each metric, a column for each arm."""

    title: str
    keys: Sequence[str]
    folded: str = ""
    """the line that unfolds the table; empty where it is always open"""


@dataclass(frozen=True)
class LevelChart:
    """A chart of the report for each arm: how a metric changes with the level of a disturbance, level 0 first."""

    levels: Mapping[float, str]
    """level -> key of the metric"""
    x_title: str
    caption: str
    y_title: str = "accuracy, %"


@dataclass(frozen=True)
class ReliabilityChart:
    """A reliability diagram of the report for each arm: accuracy over confidence, in bins of all seeds together."""

    caption: str


PageItem = MetricTable | LevelChart | ReliabilityChart


@dataclass(frozen=True)
class ConfusionMatrix:
    """A confusion matrix of the report: images by class and predicted class."""

    classes: Sequence[str]
    images: Sequence[int]
    """the images of each class"""
    counts: Mapping[tuple[int, int], int]
    """(class, predicted class) -> images; pairs without any are left out"""


class Picture(NamedTuple):
    """A small picture with the words below it."""

    png: str | None
    """in base64; None where there is only text"""
    text: str
    name: str
    """of its file, or its row"""


@dataclass(frozen=True)
class ImageGrid:
    """Pictures of the report, side by side."""

    title: str
    pictures: Sequence[Picture]


RunItem = ConfusionMatrix | ImageGrid
"""what the report shows of one run, besides the metrics of all arms"""


class Instrument(ABC):
    """One way to measure a trained network. Subclasses are frozen dataclasses; their fields are settings and flags.

    A field `train_images` is the flag --train-images, and the text below the field is its help. Instruments that have a
    setting in common, of the same name and type, share its flag; other settings need names of their own.
    """

    name: ClassVar[str]
    """of the entry in evaluation.json, and before the keys of metrics: `corruptions/fog/3`"""
    flag: ClassVar[str]
    """the flag that chooses it on the command line, without its dashes: "class-nll" for --class-nll. No other flag of
    `spacedkd evaluate` may have this name. Empty for accuracy, which is always measured"""
    about: ClassVar[str]
    """one line for the help"""
    title: ClassVar[str]
    """of its section in the report"""
    entry_type: ClassVar[type[Any]]
    """TypedDict of its entry; evaluation.json is checked against it when it is read"""
    headlines: ClassVar[Sequence[Headline]] = ()
    """the metrics that overviews show"""
    headline_note: ClassVar[str] = ""
    """what those columns are, below a table of many networks"""

    def check_subject(self, subject: Subject) -> None:  # noqa: B027 - most need no check
        """Refuse a network or data that cannot be measured; called before any instrument begins."""

    @abstractmethod
    def measure(self, subject: Subject) -> Any:
        """Return what is measured: a dataclass or a dictionary with the keys of `entry_type`, but for `measured`."""

    @classmethod
    @abstractmethod
    def metrics(cls, entry: Any) -> Iterator[tuple[str, Metric]]:
        """Yield every single number of an entry by its key, without the instrument's name before it."""

    @classmethod
    def describe(cls, entries: Sequence[Any]) -> str:
        """Return how the instrument was set, in a sentence for the report; the first entry is of the reference."""
        return ""

    @classmethod
    def tables(cls, entry: Any, detailed: bool) -> Iterator[ResultTable]:
        """Yield tables of one network's entry; `detailed` asks for those of --calibration and --all as well."""
        rows = [[metric.title, metric.format()] for _, metric in cls.metrics(entry)]
        yield ResultTable(lower_first(cls.title), ("metric", "value"), rows)

    @classmethod
    def page(cls, keys: Collection[str]) -> Iterator[PageItem]:
        """Yield the tables and charts of the report's section; `keys` are the metrics that some arm has, in order."""
        yield MetricTable(cls.title, [*keys])

    @classmethod
    def run_page(cls, entry: Any) -> Iterator[RunItem]:
        """Yield what the report shows of one run's entry; it does so for the first run of each arm."""
        yield from ()


@dataclass(frozen=True)
class EvaluationSpec:
    """The instruments that are used on a trained network; accuracy is always measured.

    >>> from spacedkd.evaluation import EvaluationSpec, WeightNoise
    >>> EvaluationSpec([WeightNoise(draws=3)]).instruments[0].draws
    3
    """

    instruments: Sequence[Instrument] = ()
    batch_size: int = 256
    """batch size"""
    workers: int = 0
    """processes that decode images ahead"""

    def __post_init__(self) -> None:
        check_at_least(self, batch_size=1, workers=0)
        for instrument in self.instruments:
            if not isinstance(instrument, Instrument):
                raise UserError(f"Instruments are objects, such as evaluation.WeightNoise(); got {instrument!r}.")
        names = [instrument.name for instrument in self.instruments]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"The instrument {name} is there {names.count(name)} times: leave one.")


def check_at_least(settings: Any, **least: int) -> None:
    """Refuse a setting that is less than allowed; one that is None is left open."""
    for name, minimum in least.items():
        value = getattr(settings, name)
        if value is not None and value < minimum:
            raise UserError(f"{name} must be at least {minimum}, got {value}.")
