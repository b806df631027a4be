"""Evaluations shown: a section of the page for each instrument, and tables for the terminal.

Instruments describe what they show (`evaluation.instrument`); here it is drawn. `evaluation_sections` sets the metrics
of all arms of a comparison side by side; `evaluation_tables`, `summary_table` and `summary_line` are what the command
`evaluate` prints.
"""

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spacedkd.comparison.document import Arm, ComparisonDocument, MetricOfArm
from spacedkd.evaluation.accuracy import BinEntry
from spacedkd.evaluation.confusion import bytes_of_picture
from spacedkd.evaluation.document import INSTRUMENTS, EvaluationDocument, metrics, most_common, read
from spacedkd.evaluation.instrument import (
    ConfusionMatrix,
    ImageGrid,
    Instrument,
    LevelChart,
    MetricTable,
    PageItem,
    ResultTable,
    RunItem,
    Value,
)
from spacedkd.reporting.charts import Panel, domain, rounded
from spacedkd.reporting.findings import method_and_schedule, verdict
from spacedkd.reporting.formatting import (
    DASH,
    MINUS,
    PLUS_MINUS,
    bounds,
    count,
    decimals_for,
    estimate,
    mean_and_bounds,
    percent,
    percent_tick,
    plain,
    points,
)
from spacedkd.reporting.html import Markup, Sections, folded, grid, html_table, join, note, numbers, tag
from spacedkd.reporting.table import LEAST_NAME, Cell, Column, Table, group_rows, text_table
from spacedkd.runs.schema import Estimate, PairedDifference

LEVELS_CAPTION = (
    "Solid: mean of the arm over seeds, with its 95 % interval. Dashed: mean of {}. Levels are evenly spread."
)


def evaluation_sections(comparison: ComparisonDocument, arms: Sequence[Arm]) -> Sections:
    """Return an overview and a section for each instrument that was used on any run; none where nothing was."""
    document = comparison["evaluation"]
    if document is None:
        return {}
    compared = {key: ComparedMetric(**metric) for key, metric in document["metrics"].items()}
    page = _EvaluationPage(compared, document["reliability"], arms, comparison["against"])
    sections = {"evaluation": ("Is the student really better?", _overview(page, document["notes"]))}
    for instrument in INSTRUMENTS:
        keys = page.keys_of(instrument.name)
        if keys:
            settings = note(document["settings"][instrument.name])
            items = [page.draw(instrument.name, item) for item in instrument.page(keys)]
            sections[instrument.name] = (instrument.title, iter([settings, *items, *_runs(instrument, arms)]))
    return sections


def _runs(instrument: type[Instrument], arms: Sequence[Arm]) -> Iterator[Markup]:
    """Yield what an instrument shows of the first run of each arm; of many arms it is folded away."""
    for arm in arms:
        evaluation = read(arm.first.folder)
        entry = (evaluation or {"instruments": {}})["instruments"].get(instrument.name)
        drawn = [] if entry is None else [_draw_run_item(item) for item in instrument.run_page(entry)]
        if drawn:
            title = f"{arm.label}, seed {arm.first.seed}"
            yield folded(title, *drawn) if len(arms) > 1 else join(*drawn)


def _draw_run_item(item: RunItem) -> Markup:
    return _confusion(item) if isinstance(item, ConfusionMatrix) else _image_grid(item)


MOST_CLASSES = 20
"""classes of a confusion matrix; of more, those with the most errors are shown"""


def _confusion(matrix: ConfusionMatrix) -> Markup:
    """Return a table with a row for each class and a column for each predicted one; the darker, the more images."""
    wrong = {n: images - matrix.counts.get((n, n), 0) for n, images in enumerate(matrix.images)}
    shown = sorted(sorted(wrong, key=lambda n: -wrong[n])[:MOST_CLASSES])
    some = f" The {MOST_CLASSES} of {len(wrong)} classes with the most errors." if len(shown) < len(wrong) else ""
    head = tag("tr", tag("th", "class"), *(tag("th", matrix.classes[n], scope="col") for n in shown))
    rows = []
    for label in shown:
        cells = []
        for other in shown:
            images = matrix.counts.get((label, other), 0)
            share = images / max(matrix.images[label], 1)
            colour = "--good" if label == other else "--bad"
            style = f"background: color-mix(in srgb, var({colour}) {60 * share:.0f}%, transparent)" if images else None
            cells.append(tag("td", str(images) if images else "", style=style))
        rows.append(tag("tr", tag("th", matrix.classes[label], scope="row"), *cells))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="confusion")
    frame = tag("div", table, class_="scroll", role="region", aria_label="Confusion matrix", tabindex=0)
    return join(
        tag("h3", "Confusion matrix"), note(f"Rows: class. Columns: prediction. Numbers: test images.{some}"), frame
    )


def _image_grid(images: ImageGrid) -> Markup:
    """Return pictures side by side, each with its words; nothing where there are none."""
    figures = []
    for picture in images.pictures:
        png = None if picture.png is None else bytes_of_picture(picture.png)
        if png is None:
            continue
        shown = tag("img", src=f"data:image/png;base64,{base64.b64encode(png).decode()}", alt=picture.text, width=96)
        figures.append(tag("figure", shown, tag("figcaption", picture.text), title=picture.name, class_="picture"))
    return join(tag("h3", images.title), tag("div", *figures, class_="pictures")) if figures else Markup()


def _overview(page: "_EvaluationPage", notes: Sequence[str]) -> Iterator[Markup]:
    yield note(
        "The student after its last epoch, deepest head: mean over seeds ± half the width of its 95 % interval, and "
        f"below the difference to {page.against}, paired by seed, with its 95 % interval. Accuracies are in "
        "percent, their differences in points. Where a lower number is the better one, the line says so. Many numbers "
        "are compared at once, here and below, so that some intervals miss zero by chance."
    )
    yield from map(note, notes)
    keys = [f"{instrument.name}/{headline.key}" for instrument in INSTRUMENTS for headline in instrument.headlines]
    yield page.table("Evaluation", [key for key in keys if key in page.metrics])


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of a comparison's evaluation: one number of every arm."""

    title: str
    unit: str
    """percent or number"""
    better: str | None
    """high, low, or None where neither is"""
    arms: Mapping[str, MetricOfArm]
    """label -> estimate, difference and values by seed"""

    def format(self, value: float, near: float) -> str:
        """Return a value with as many decimals as give the number `near` three digits; percent always with one."""
        if self.unit == "percent":
            return percent(value)
        return count(value) if abs(near) >= 1000 else f"{value:.{decimals_for(near)}f}".replace("-", MINUS)

    def format_signed(self, value: float, near: float) -> str:
        """Return a difference with its sign; of percentages in points."""
        if self.unit == "percent":
            return points(value)
        return ("+" if value > 0 else "") + self.format(value, near)

    def verdict(self, difference: PairedDifference) -> str | None:
        """Return `better` or `worse` where the whole interval is on one side of zero and one side is the better one."""
        side = verdict(difference)
        if side not in ("better", "worse") or self.better is None:
            return None
        if self.better == "high":
            return side
        return "worse" if side == "better" else "better"

    def cell(self, label: str) -> Cell:
        """Return an arm's mean, and below it the difference to the reference."""
        if label not in self.arms:
            return Cell(DASH, absent=True)
        value, difference = self.arms[label]["estimate"], self.arms[label]["difference"]
        mean, half = value["mean"], ""
        if interval := bounds(value):
            low, high = interval
            half = f" {PLUS_MINUS} {self.format((high - low) / 2, mean)}"
        below = None if difference is None else self._difference(difference, mean)
        return Cell(self.format(mean, mean), half=half, strong=True, below=below)

    def _difference(self, difference: PairedDifference, near: float) -> str:
        gain = self.format_signed(difference["mean"], near)
        if not bounds(difference):
            return f"{gain} (one seed)"
        word = self.verdict(difference)
        interval = " to ".join(self.format_signed(bound, near) for bound in bounds(difference))
        mean = gain if word is None else tag("b", f"{gain} {word}", class_=word)
        return join(mean, tag("span", f" ({interval})", class_="range"))


@dataclass(frozen=True)
class _EvaluationPage:
    """The metrics of all arms, drawn as instruments describe it."""

    metrics: Mapping[str, ComparedMetric]
    """by key, such as corruptions/fog/3"""
    reliability: Mapping[str, Sequence[BinEntry]]
    """label -> bins of all its seeds together"""
    arms: Sequence[Arm]
    against: str

    def keys_of(self, instrument: str) -> list[str]:
        """Return the keys of an instrument's metrics, without its name."""
        prefix = f"{instrument}/"
        return [key.removeprefix(prefix) for key in self.metrics if key.startswith(prefix)]

    def draw(self, instrument: str, item: PageItem) -> Markup:
        """Return a table or a chart that an instrument describes."""
        if isinstance(item, MetricTable):
            table = self.table(item.title, [f"{instrument}/{key}" for key in item.keys])
            return folded(item.folded, table) if item.folded else table
        if isinstance(item, LevelChart):
            return self.level_charts(instrument, item)
        return self.reliability_charts(item.caption)

    def table(self, title: str, keys: Sequence[str]) -> Markup:
        """Return a row for each metric; arms that have none of them get no column."""
        compared = [self.metrics[key] for key in keys]
        labels = [arm.label for arm in self.arms if any(arm.label in metric.arms for metric in compared)]
        heads = ["", *(f"{label} (reference)" if label == self.against else label for label in labels)]
        rows = []
        for metric in compared:
            unit = ", %" if metric.unit == "percent" else ""
            hint = "lower is better" if metric.better == "low" else None
            rows.append([Cell(metric.title + unit, below=hint), *map(metric.cell, labels)])
        return html_table(Table(title, [Column(head, None) for head in heads], rows, name=title))

    def level_charts(self, instrument: str, chart: LevelChart) -> Markup:
        """Return a chart for each arm that was measured at the levels of the reference, all on the same axes.

        Levels lie evenly in their order. Where the reference was not measured, the first arm that was takes its place.
        """
        by_level = {level: self.metrics[f"{instrument}/{key}"] for level, key in chart.levels.items()}
        measured = {
            arm.label: [level for level in sorted(by_level) if arm.label in by_level[level].arms] for arm in self.arms
        }
        levels = next((mine for mine in (measured[self.against], *measured.values()) if len(mine) > 1), [])
        if not levels:
            return Markup()
        estimates = {
            label: [by_level[level].arms[label]["estimate"] for level in levels]
            for label, mine in measured.items()
            if {*levels} <= {*mine}
        }
        values = [value for mine in estimates.values() for each in mine for value in (each["mean"], *bounds(each))]
        area = Panel((-0.2, len(levels) - 0.8), rounded(*domain(values, 0, 1)), right=14)
        frame = area.frame([*enumerate(map(plain, levels))], area.percent_ticks(), chart.x_title, chart.y_title)
        lines = {label: [(x, each["mean"]) for x, each in enumerate(mine)] for label, mine in estimates.items()}
        dashed = area.line(lines[self.against], "all leader") if self.against in lines else ""

        def picture(label: str) -> Markup:
            means = [percent(each["mean"]) for each in estimates[label]]
            dots = [
                area.estimate(x, each, f"{by_level[level].title}: {mean} %", 3.6)
                for x, (level, each, mean) in enumerate(zip(levels, estimates[label], means, strict=True))
            ]
            reached = ", ".join(f"{plain(level)}: {mean} %" for level, mean in zip(levels, means, strict=True))
            reference = "" if label == self.against else dashed
            alt = f"Accuracy of {label} at each level. {reached}."
            drawing = area.draw(alt, frame, reference, area.line(lines[label], "all student"), *dots)
            return join(drawing, _level_numbers(alt, chart.x_title, levels, estimates[label]))

        pictures = [
            (arm.label, method_and_schedule(arm.numbers), picture(arm.label))
            for arm in self.arms
            if arm.label in estimates
        ]
        return grid(pictures, f"{chart.caption} {LEVELS_CAPTION.format(self.against)}")

    def reliability_charts(self, caption: str) -> Markup:
        """Return a reliability diagram for each arm that was measured."""
        ece = self.metrics["accuracy/ece"].arms
        errors = {label: f"expected calibration error {ece[label]['estimate']['mean']:.3f}" for label in ece}
        labels = [arm.label for arm in self.arms if arm.label in self.reliability]
        pictures = [(label, errors.get(label, ""), _reliability(label, self.reliability[label])) for label in labels]
        return grid(pictures, caption)


def _level_numbers(alt: str, x_title: str, levels: Sequence[float], estimates: Sequence[Estimate]) -> Markup:
    heads = (x_title, "mean, %", "low, %", "high, %")
    rows = ([plain(level), *mean_and_bounds(each, percent)] for level, each in zip(levels, estimates, strict=True))
    return numbers(alt, [(head, None) for head in heads], rows)


class _Bar(NamedTuple):
    """A bin of the reliability diagram that has images."""

    low: float
    high: float
    images: int
    confidence: float
    accuracy: float


def _reliability(label: str, bins: Sequence[BinEntry]) -> Markup:
    area = Panel((0, 1), (0, 1), right=14)
    filled = []
    for entry in bins:
        confidence, accuracy = entry["confidence"], entry["accuracy"]
        if confidence is not None and accuracy is not None:
            filled.append(_Bar(entry["low"], entry["high"], entry["images"], confidence, accuracy))
    most = max((bar.images for bar in filled), default=0)
    ticks = [(value, percent_tick(value)) for value in (0, 0.25, 0.5, 0.75, 1)]
    frame = area.frame(ticks, ticks, "confidence, %", "accuracy, %")
    diagonal = tag("line", class_="mark", x1=area.to_x(0), y1=area.to_y(0), x2=area.to_x(1), y2=area.to_y(1))
    alt = f"Reliability of {label}."
    heads = ("confidence from, %", "to, %", "images", "mean confidence, %", "accuracy, %")
    rows = [
        [percent(bar.low), percent(bar.high), count(bar.images), percent(bar.confidence), percent(bar.accuracy)]
        for bar in filled
    ]
    picture = area.draw(alt, frame, *(_draw_bar(area, bar, most) for bar in filled), diagonal)
    return join(picture, numbers(alt, [(head, None) for head in heads], rows))


def _draw_bar(area: Panel, bar: _Bar, most: int) -> Markup:
    """Return the bar of one bin; the fewer images it has, the paler it is."""
    confidence, accuracy = percent(bar.confidence), percent(bar.accuracy)
    title = f"{count(bar.images)} images: confidence {confidence} %, right {accuracy} %"
    start, end, top = area.to_x(bar.low), area.to_x(bar.high), area.to_y(bar.accuracy)
    shape = {"x": start + 0.8, "y": top, "width": end - start - 1.6, "height": area.to_y(0) - top}
    opacity = f"{0.25 + 0.75 * min(1.0, 10 * bar.images / most):.2f}"
    return tag("rect", tag("title", title), class_="bar", **shape, fill_opacity=opacity)


# Evaluations in the terminal.


def evaluation_tables(evaluation: EvaluationDocument, detailed: bool) -> Iterator[Table]:
    """Yield the tables of every instrument that was used; `detailed` adds the bins of calibration."""
    for instrument in INSTRUMENTS:
        if instrument.name in evaluation["instruments"]:
            yield from map(_to_table, instrument.tables(evaluation["instruments"][instrument.name], detailed))


def _to_table(table: ResultTable) -> Table:
    rows = [[_format(value) for value in row] for row in table.rows]
    return text_table(table.title, table.columns, rows, table.caption, left=table.text_columns)


def _format(value: Value) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return percent(value) if isinstance(value, int | float) else estimate(value)


def describe_origin(evaluation: EvaluationDocument) -> str:
    """Return which weights an evaluation.json is about."""
    origin = evaluation["origin"]
    if "weights" in origin:
        return f"weights: {origin['weights']}"
    if origin["epochs"] is None:
        return f"not finished, after {origin['turns']} of {origin['of_turns']} turns"
    return f"after the last of {origin['epochs']:g} epochs"


def _columns() -> dict[str, str]:
    """Return the metrics that overviews show: key -> title of the column."""
    return {
        f"{instrument.name}/{headline.key}": headline.column
        for instrument in INSTRUMENTS
        for headline in instrument.headlines
        if headline.column
    }


def summary_line(evaluation: EvaluationDocument) -> str:
    """Return the most important numbers of one network, in one line."""
    measured = metrics(evaluation)
    return ", ".join(f"{column} {measured[key].format()}" for key, column in _columns().items() if key in measured)


def summary_table(evaluations: Mapping[Path, EvaluationDocument]) -> Table:
    """Return a table with a line for each network, grouped by the folder above its own."""
    by_folder = {folder: metrics(evaluation) for folder, evaluation in evaluations.items()}
    columns = _columns()
    by_key = {key: [measured[key] for measured in by_folder.values() if key in measured] for key in columns}
    settings = {key: most_common(values).settings for key, values in by_key.items() if values}
    above = Path(os.path.commonpath([folder.resolve().parent for folder in by_folder]))
    lines = []
    for folder, measured in by_folder.items():
        unlike = {key: "*" for key, usual in settings.items() if key in measured and measured[key].settings != usual}
        cells = [measured[key].format() + unlike.get(key, "") if key in measured else "" for key in settings]
        path = folder.resolve().relative_to(above)
        lines.append(("" if path.parent == Path() else str(path.parent), [path.name, *cells]))
    notes = [
        instrument.headline_note
        for instrument in INSTRUMENTS
        if instrument.headline_note and any(key.startswith(f"{instrument.name}/") for key in settings)
    ]
    if any(cell.endswith("*") for _, cells in lines for cell in cells[1:]):
        notes.append("* measured with other settings or images, so not to be compared")
    heads = ("run", *(columns[key] for key in settings))
    return text_table("the students, deepest head", heads, group_rows(lines), "; ".join(notes), least_width=LEAST_NAME)
