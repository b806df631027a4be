"""What was measured of the trained networks: calibration, robustness and flatness, all arms side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spacedkd.report import Arm
from spacedkd.report.axes import Panel
from spacedkd.report.markup import NOTHING, Markup, folded, grid, note, panel, section, tag, text
from spacedkd.report.measures import Measure, levels_panels, table
from spacedkd.report.numbers import count, percent, percent_tick

GLANCE = ("accuracy/top1", "accuracy/nll", "accuracy/ece", "corruptions/mean", "adversarial/mean")
FLATNESS = ("weight_noise/mean", "curvature/trace", "curvature/largest")
LEVELS = "Solid: mean of the arm over seeds, with its 95 % interval. Dashed: mean of {}. Levels are evenly spread."


class Evaluation(NamedTuple):
    """What was measured, of whom, and whom the others are compared with."""

    found: Mapping[str, Any]
    measured: Mapping[str, Measure]
    arms: Sequence[Arm]
    against: str

    def of(self, instrument: str) -> dict[str, Measure]:
        return {key: one for key, one in self.measured.items() if key.startswith(f"{instrument}/")}

    def table(self, name: str, shown: Iterable[Measure]) -> Markup:
        return table(name, [*shown], self.arms, self.against)

    def section(self, instrument: str, name: str, title: str, *content: Markup) -> Markup:
        return section(name, title, note(self.found["settings"][instrument]), *content)

    def response(self, at: str, clean: str, x_title: str, said: str, y_title: str = "accuracy, %") -> Markup:
        """How accuracy falls with the levels of the measures `at`/level, from the clean measure on, for each arm."""
        levels = {0.0: self.measured[clean]}
        levels |= {float(key.split("/")[2]): one for key, one in self.of(at).items() if not key.endswith("/loss")}
        pictures = levels_panels(self.arms, self.against, levels, x_title, y_title)
        return grid(pictures, f"{said} {LEVELS.format(self.against)}") if pictures else NOTHING


def evaluation_sections(comparison: Mapping[str, Any], arms: Sequence[Arm]) -> list[Markup]:
    """A section for each instrument that was used on any run; none where nothing was measured."""
    found = comparison.get("evaluation")
    if found is None:
        return []
    measured = {key: Measure(**one) for key, one in found["metrics"].items()}
    evaluation = Evaluation(found, measured, arms, comparison["against"])
    sections = {
        "accuracy": _calibration,
        "corruptions": _corruptions,
        "adversarial": _adversarial,
        "weight_noise": _weight_noise,
        "curvature": _curvature,
    }
    return [_glance(evaluation), *(make(evaluation) for name, make in sections.items() if evaluation.of(name))]


def _glance(evaluation: Evaluation) -> Markup:
    shown = [evaluation.measured[key] for key in (*GLANCE, *FLATNESS) if key in evaluation.measured]
    said = (
        "The student after its last epoch, deepest head: mean over seeds ± half the width of its 95 % interval, and "
        f"below the difference to {evaluation.against}, paired by seed, with its 95 % interval. Accuracies are in "
        "percent, their differences in points. Where a lower number is the better one, the line says so. Many numbers "
        "are compared at once, here and below, so that some intervals miss zero by chance."
    )
    notes = [note(one) for one in evaluation.found["notes"]]
    return section(
        "evaluation", "Is the student really better?", note(said), *notes, evaluation.table("Evaluation", shown)
    )


def _calibration(evaluation: Evaluation) -> Markup:
    mine, bins = evaluation.of("accuracy"), evaluation.found["reliability"]
    errors = {
        label: f"expected calibration error {one['estimate']['mean']:.3f}"
        for label, one in mine["accuracy/ece"].arms.items()
    }
    pictures = [
        panel(arm.label, errors.get(arm.label, ""), _reliability(arm, bins[arm.label]))
        for arm in evaluation.arms
        if arm.label in bins
    ]
    caption = (
        "Reliability: images sorted by the network's confidence into fifteen bins, all seeds together. A bar is the "
        "accuracy of its bin; on the dashed line it equals the confidence, below it the network is too sure of itself. "
        "Bins with few images are pale."
    )
    classes = evaluation.of("accuracy/class")
    return evaluation.section(
        "accuracy",
        "calibration",
        "Accuracy and calibration",
        evaluation.table("Accuracy and calibration", (one for key, one in mine.items() if key not in classes)),
        grid(pictures, caption),
        folded("Every class", evaluation.table("Top-1 of each class", classes.values())),
    )


def _reliability(arm: Arm, bins: Sequence[Mapping[str, Any]]) -> Markup:
    area = Panel((0, 1), (0, 1), right=14)
    most = max(one["images"] for one in bins)
    bars = [_bar(area, one, most) for one in bins if one["images"]]
    ticks = [(value, percent_tick(value)) for value in (0, 0.25, 0.5, 0.75, 1)]
    frame = area.frame(ticks, ticks, "confidence, %", "accuracy, %")
    diagonal = tag("line", class_="mark", x1=area.to_x(0), y1=area.to_y(0), x2=area.to_x(1), y2=area.to_y(1))
    return area.draw(f"Reliability of {arm.label}.", frame, *bars, diagonal)


def _bar(area: Panel, one: Mapping[str, Any], most: int) -> Markup:
    sure, right = percent(one["confidence"]), percent(one["accuracy"])
    title = f"{count(one['images'])} images: confidence {sure} %, right {right} %"
    left, end, top = area.to_x(one["low"]), area.to_x(one["high"]), area.to_y(one["accuracy"])
    shape = {"x": left + 0.8, "y": top, "width": end - left - 1.6, "height": area.to_y(0) - top}
    opacity = f"{0.25 + 0.75 * min(1.0, 10 * one['images'] / most):.2f}"
    return tag("rect", tag("title", text(title)), class_="bar", **shape, fill_opacity=opacity)


def _corruptions(evaluation: Evaluation) -> Markup:
    mine, by_severity = evaluation.of("corruptions"), evaluation.of("corruptions/severity")
    said = "Mean accuracy over all corruptions."
    shown = ("corruptions/mean", *by_severity)
    kinds = [key for key in mine if key.count("/") == 1 and key not in ("corruptions/clean", "corruptions/mean")]
    each = [one for key, one in mine.items() if key.count("/") == 2 and key not in by_severity]
    return evaluation.section(
        "corruptions",
        "corruptions",
        "Corrupted images",
        evaluation.response("corruptions/severity", "corruptions/clean", "severity (0: clean)", said),
        evaluation.table("Accuracy on corrupted images", (mine[key] for key in (*shown, *kinds))),
        folded("Every corruption at every severity", evaluation.table("Each severity", each)),
    )


def _adversarial(evaluation: Evaluation) -> Markup:
    mine = evaluation.of("adversarial")
    names = [key.split("/")[1] for key in mine if key.count("/") == 2]
    drawn = "bim" if "bim" in names else names[0]
    said = f"Accuracy under {drawn.upper()}."
    return evaluation.section(
        "adversarial",
        "adversarial",
        "Adversarial images",
        evaluation.response(f"adversarial/{drawn}", "adversarial/clean", "epsilon, pixel values", said),
        evaluation.table("Accuracy under attack", mine.values()),
    )


def _weight_noise(evaluation: Evaluation) -> Markup:
    mine = evaluation.of("weight_noise")
    clean, y_title = "weight_noise/clean/accuracy", "training accuracy, %"
    grids = [
        evaluation.response(f"weight_noise/{kind.lower()}", clean, f"{kind.lower()} noise", said, y_title)
        for kind in ("Absolute", "Relative")
        for said in [f"{kind} noise on all weights."]
    ]
    summary = (clean, "weight_noise/clean/loss", "weight_noise/mean")
    rest = [one for key, one in mine.items() if key not in summary]
    return evaluation.section(
        "weight_noise",
        "noise",
        "Noise on the weights",
        *grids,
        evaluation.table("With noise on the weights", (mine[key] for key in summary)),
        folded("Every level", evaluation.table("Each level of noise", rest)),
    )


def _curvature(evaluation: Evaluation) -> Markup:
    shown = evaluation.table("Curvature", evaluation.of("curvature").values())
    return evaluation.section("curvature", "curvature", "Curvature", shown)
