"""What was measured of the trained networks: calibration, robustness and flatness, all arms side by side."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spacedkd.report.arms import Arm
from spacedkd.report.charts import Panel, domain, rounded
from spacedkd.report.findings import how, verdict
from spacedkd.report.formatting import (
    DASH,
    MINUS,
    PLUS_MINUS,
    Found,
    bounds,
    count,
    decimals_for,
    percent,
    percent_tick,
    plain,
    points,
)
from spacedkd.report.html import Markup, Sections, folded, grid, html_table, join, note, numbers, tag
from spacedkd.report.table import Cell, Column, Table

# Measured numbers, all arms side by side: tables with a line for each number, pictures of how accuracy falls.

LEVELS = "Solid: mean of the arm over seeds, with its 95 % interval. Dashed: mean of {}. Levels are evenly spread."


@dataclass(frozen=True)
class Measure:
    """One number as all arms have it."""

    title: str
    unit: str
    """percent or number"""
    better: str | None
    """high, low, or None where neither is"""
    arms: Mapping[str, Found]

    def written(self, value: float, near: float) -> str:
        """A value with as many decimals as give the number `near` three digits; percent always with one."""
        if self.unit == "percent":
            return percent(value)
        return count(value) if abs(near) >= 1000 else f"{value:.{decimals_for(near)}f}".replace("-", MINUS)

    def signed(self, value: float, near: float) -> str:
        if self.unit == "percent":
            return points(value)
        return ("+" if value > 0 else "") + self.written(value, near)

    def judged(self, difference: Found) -> str | None:
        """`better` or `worse` where the whole interval is on one side of zero and one side is the better one."""
        found = verdict(difference)
        if found not in ("better", "worse") or self.better is None:
            return None
        if self.better == "high":
            return found
        return "worse" if found == "better" else "better"

    def cell(self, label: str) -> Cell:
        """What an arm has of it, and below how far that is from the reference."""
        if label not in self.arms:
            return Cell(DASH, absent=True)
        value, difference = self.arms[label]["estimate"], self.arms[label]["difference"]
        near = value["mean"]
        half = f" {PLUS_MINUS} {self.written((value['high'] - value['low']) / 2, near)}" if bounds(value) else ""
        below = None if difference is None else self._difference(difference, near)
        return Cell(self.written(near, near), half=half, strong=True, below=below)

    def _difference(self, difference: Found, near: float) -> str:
        gain = self.signed(difference["mean"], near)
        if not bounds(difference):
            return f"{gain} (one seed)"
        judged = self.judged(difference)
        interval = " to ".join(self.signed(bound, near) for bound in bounds(difference))
        mean = gain if judged is None else tag("b", f"{gain} {judged}", class_=judged)
        return join(mean, tag("span", f" ({interval})", class_="range"))


class Evaluation(NamedTuple):
    """What was measured, of whom, and whom the others are compared with."""

    found: Found
    measured: Mapping[str, Measure]
    arms: Sequence[Arm]
    against: str

    def of(self, instrument: str) -> dict[str, Measure]:
        return {key: one for key, one in self.measured.items() if key.startswith(f"{instrument}/")}

    def table(self, name: str, measures: Iterable[Measure]) -> Markup:
        """A line for each measure; arms that have none of them get no column."""
        shown = [*measures]
        labels = [arm.label for arm in self.arms if any(arm.label in one.arms for one in shown)]
        heads = ["", *(f"{label} (reference)" if label == self.against else label for label in labels)]
        rows = []
        for one in shown:
            unit, hint = ", %" if one.unit == "percent" else "", "lower is better" if one.better == "low" else None
            rows.append([Cell(one.title + unit, below=hint), *map(one.cell, labels)])
        return html_table(Table(name, [Column(head, None) for head in heads], rows, name=name))

    def response(self, of: str, clean: str, x_title: str, said: str, y_title: str = "accuracy, %") -> Markup:
        """How accuracy falls with the levels of the measures `of`/level, from the clean measure on.

        A picture for each arm that was measured at the levels of the reference, all on the same axes; levels lie evenly
        in their order. Where the reference was not measured, the first arm that was takes its place.
        """
        at = {0.0: self.measured[clean]}
        at |= {float(key.split("/")[2]): one for key, one in self.of(of).items() if not key.endswith("/loss")}
        had = {arm.label: [level for level in sorted(at) if arm.label in at[level].arms] for arm in self.arms}
        levels = next((mine for mine in (had[self.against], *had.values()) if len(mine) > 1), [])
        if not levels:
            return Markup()
        found = {
            label: [at[level].arms[label]["estimate"] for level in levels]
            for label, mine in had.items()
            if {*levels} <= {*mine}
        }
        values = [v for estimates in found.values() for one in estimates for v in (one["mean"], *bounds(one))]
        area = Panel((-0.2, len(levels) - 0.8), rounded(*domain(values, 0, 1)), right=14)
        frame = area.frame([*enumerate(map(plain, levels))], area.percent_ticks(), x_title, y_title)
        lines = {label: [(place, one["mean"]) for place, one in enumerate(mine)] for label, mine in found.items()}
        dashed = area.line(lines[self.against], "all leader") if self.against in lines else ""

        def picture(label: str) -> Markup:
            means = [percent(one["mean"]) for one in found[label]]
            dots = [
                area.estimate(place, one, f"{at[level].title}: {mean} %", 3.6)
                for place, (level, one, mean) in enumerate(zip(levels, found[label], means, strict=True))
            ]
            reached = ", ".join(f"{plain(level)}: {mean} %" for level, mean in zip(levels, means, strict=True))
            drawn = "" if label == self.against else dashed, area.line(lines[label], "all student")
            said = f"Accuracy of {label} at each level. {reached}."
            return join(area.draw(said, frame, *drawn, *dots), _numbers(said, x_title, levels, found[label]))

        pictures = [(arm.label, how(arm.numbers), picture(arm.label)) for arm in self.arms if arm.label in found]
        return grid(pictures, f"{said} {LEVELS.format(self.against)}")


def _numbers(said: str, x_title: str, levels: Sequence[float], reached: Sequence[Found]) -> Markup:
    heads = (x_title, "mean, %", "low, %", "high, %")
    rows = (
        [plain(level), percent(one["mean"]), *(map(percent, bounds(one)) if bounds(one) else (DASH, DASH))]
        for level, one in zip(levels, reached, strict=True)
    )
    return numbers(said, [(head, None) for head in heads], rows)


# What was measured of the trained networks: calibration, robustness and flatness, all arms side by side.

GLANCE = ("accuracy/top1", "accuracy/nll", "accuracy/ece", "corruptions/mean", "adversarial/mean")
FLATNESS = ("weight_noise/mean", "curvature/trace", "curvature/largest")


def evaluation_sections(comparison: Found, arms: Sequence[Arm]) -> Sections:
    """A section for each instrument that was used on any run; none where nothing was measured."""
    found = comparison.get("evaluation")
    if found is None:
        return {}
    measured = {key: Measure(**one) for key, one in found["metrics"].items()}
    evaluation = Evaluation(found, measured, arms, comparison["against"])
    sections = {
        "calibration": ("Accuracy and calibration", "accuracy", _calibration),
        "corruptions": ("Corrupted images", "corruptions", _corruptions),
        "adversarial": ("Adversarial images", "adversarial", _adversarial),
        "noise": ("Noise on the weights", "weight_noise", _weight_noise),
        "curvature": ("Curvature", "curvature", _curvature),
    }
    return {"evaluation": ("Is the student really better?", _glance(evaluation))} | {
        name: (title, [note(found["settings"][instrument]), *content(evaluation)])
        for name, (title, instrument, content) in sections.items()
        if evaluation.of(instrument)
    }


def _glance(evaluation: Evaluation) -> Iterator[Markup]:
    yield note(
        "The student after its last epoch, deepest head: mean over seeds ± half the width of its 95 % interval, and "
        f"below the difference to {evaluation.against}, paired by seed, with its 95 % interval. Accuracies are in "
        "percent, their differences in points. Where a lower number is the better one, the line says so. Many numbers "
        "are compared at once, here and below, so that some intervals miss zero by chance."
    )
    yield from map(note, evaluation.found["notes"])
    shown = (evaluation.measured[key] for key in (*GLANCE, *FLATNESS) if key in evaluation.measured)
    yield evaluation.table("Evaluation", shown)


def _calibration(evaluation: Evaluation) -> Iterator[Markup]:
    mine, classes = evaluation.of("accuracy"), evaluation.of("accuracy/class")
    yield evaluation.table("Accuracy and calibration", (one for key, one in mine.items() if key not in classes))
    ece = mine["accuracy/ece"].arms
    errors = {label: f"expected calibration error {ece[label]['estimate']['mean']:.3f}" for label in ece}
    bins = evaluation.found["reliability"]
    labels = [arm.label for arm in evaluation.arms if arm.label in bins]
    pictures = [(label, errors.get(label, ""), _reliability(label, bins[label])) for label in labels]
    caption = (
        "Reliability: images sorted by the network's confidence into fifteen bins, all seeds together. A bar is the "
        "accuracy of its bin; on the dashed line it equals the confidence, below it the network is too sure of itself. "
        "Bins with few images are pale."
    )
    yield grid(pictures, caption)
    yield folded("Every class", evaluation.table("Top-1 of each class", classes.values()))


def _reliability(label: str, bins: Sequence[Found]) -> Markup:
    area = Panel((0, 1), (0, 1), right=14)
    most = max(one["images"] for one in bins)
    bars = [_bar(area, one, most) for one in bins if one["images"]]
    ticks = [(value, percent_tick(value)) for value in (0, 0.25, 0.5, 0.75, 1)]
    frame = area.frame(ticks, ticks, "confidence, %", "accuracy, %")
    diagonal = tag("line", class_="mark", x1=area.to_x(0), y1=area.to_y(0), x2=area.to_x(1), y2=area.to_y(1))
    said = f"Reliability of {label}."
    heads = ("confidence from, %", "to, %", "images", "mean confidence, %", "accuracy, %")
    rows = [
        [
            percent(one["low"]),
            percent(one["high"]),
            count(one["images"]),
            *map(percent, (one["confidence"], one["accuracy"])),
        ]
        for one in bins
        if one["images"]
    ]
    return join(area.draw(said, frame, *bars, diagonal), numbers(said, [(head, None) for head in heads], rows))


def _bar(area: Panel, one: Found, most: int) -> Markup:
    sure, right = percent(one["confidence"]), percent(one["accuracy"])
    title = f"{count(one['images'])} images: confidence {sure} %, right {right} %"
    left, end, top = area.to_x(one["low"]), area.to_x(one["high"]), area.to_y(one["accuracy"])
    shape = {"x": left + 0.8, "y": top, "width": end - left - 1.6, "height": area.to_y(0) - top}
    opacity = f"{0.25 + 0.75 * min(1.0, 10 * one['images'] / most):.2f}"
    return tag("rect", tag("title", title), class_="bar", **shape, fill_opacity=opacity)


def _corruptions(evaluation: Evaluation) -> Iterator[Markup]:
    mine, by_severity = evaluation.of("corruptions"), evaluation.of("corruptions/severity")
    said = "Mean accuracy over all corruptions."
    yield evaluation.response("corruptions/severity", "corruptions/clean", "severity (0: clean)", said)
    kinds = [key for key in mine if key.count("/") == 1 and key not in ("corruptions/clean", "corruptions/mean")]
    shown = ("corruptions/mean", *by_severity, *kinds)
    yield evaluation.table("Accuracy on corrupted images", (mine[key] for key in shown))
    each = [one for key, one in mine.items() if key.count("/") == 2 and key not in by_severity]
    yield folded("Every corruption at every severity", evaluation.table("Each severity", each))


def _adversarial(evaluation: Evaluation) -> Iterator[Markup]:
    mine = evaluation.of("adversarial")
    names = [key.split("/")[1] for key in mine if key.count("/") == 2]
    drawn = "bim" if "bim" in names else names[0]
    said = f"Accuracy under {drawn.upper()}."
    yield evaluation.response(f"adversarial/{drawn}", "adversarial/clean", "epsilon, pixel values", said)
    yield evaluation.table("Accuracy under attack", mine.values())


def _weight_noise(evaluation: Evaluation) -> Iterator[Markup]:
    mine, clean, y_title = evaluation.of("weight_noise"), "weight_noise/clean/accuracy", "training accuracy, %"
    for kind in ("absolute", "relative"):
        said = f"{kind.capitalize()} noise on all weights."
        yield evaluation.response(f"weight_noise/{kind}", clean, f"{kind} noise", said, y_title)
    summary = (clean, "weight_noise/clean/loss", "weight_noise/mean")
    yield evaluation.table("With noise on the weights", (mine[key] for key in summary))
    rest = [one for key, one in mine.items() if key not in summary]
    yield folded("Every level", evaluation.table("Each level of noise", rest))


def _curvature(evaluation: Evaluation) -> Iterator[Markup]:
    yield evaluation.table("Curvature", evaluation.of("curvature").values())
