"""What was measured of the trained networks: calibration, robustness and flatness, all arms side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spacedkd.report import response
from spacedkd.report.axes import Panel, Tick
from spacedkd.report.layout import folded, grid, note, panel, section
from spacedkd.report.markup import Markup, tag, text
from spacedkd.report.measures import Measure, measures, table
from spacedkd.report.numbers import count, percent_tick
from spacedkd.report.runs import Arm

GLANCE = ("accuracy/top1", "accuracy/nll", "accuracy/ece", "corruptions/mean", "adversarial/mean")
FLATNESS = ("weight_noise/mean", "curvature/trace", "curvature/largest")


def evaluation_sections(comparison: Mapping[str, Any], arms: Sequence[Arm]) -> list[Markup]:
    """A section for each instrument that was used on any run; none where nothing was measured."""
    found = comparison.get("evaluation")
    if found is None:
        return []
    measured, against = measures(found["metrics"]), comparison["against"]
    sections = [
        _glance(found, measured, arms, against),
        _calibration(found, measured, arms, against),
        _corruptions(found, measured, arms, against),
        _adversarial(found, measured, arms, against),
        _weight_noise(found, measured, arms, against),
        _curvature(found, measured, arms, against),
    ]
    return [one for one in sections if one is not None]


def _glance(found: Mapping[str, Any], measured: Mapping[str, Measure], arms: Sequence[Arm], against: str) -> Markup:
    shown = [measured[key] for key in (*GLANCE, *FLATNESS) if key in measured]
    said = (
        "The student after its last epoch, deepest head: mean over seeds ± half the width of its 95 % interval, and "
        f"below the difference to {against}, paired by seed, with its 95 % interval. Accuracies are in percent, their "
        "differences in points. Where a lower number is the better one, the line says so. Many numbers are compared "
        "at once, here and below, so that some intervals miss zero by chance."
    )
    notes = [note(one) for one in found["notes"]]
    return section(
        "evaluation", "Is the student really better?", note(said), *notes, table("Evaluation", shown, arms, against)
    )


def _calibration(
    found: Mapping[str, Any], measured: Mapping[str, Measure], arms: Sequence[Arm], against: str
) -> Markup | None:
    mine = {key: one for key, one in measured.items() if key.startswith("accuracy/")}
    if not mine:
        return None
    shown = [one for key, one in mine.items() if not key.startswith("accuracy/class/")]
    classes = [one for key, one in mine.items() if key.startswith("accuracy/class/")]
    pictures = [
        panel(arm.label, _sure(found, arm), _reliability(arm, found["reliability"][arm.label]))
        for arm in arms
        if arm.label in found["reliability"]
    ]
    caption = (
        "Reliability: images sorted by the network's confidence into fifteen bins, all seeds together. A bar is the "
        "accuracy of its bin; on the dashed line it equals the confidence, below it the network is too sure of itself. "
        "Bins with few images are pale."
    )
    return section(
        "calibration",
        "Accuracy and calibration",
        note(found["settings"]["accuracy"]),
        table("Accuracy and calibration", shown, arms, against),
        grid(pictures, caption),
        folded("Every class", table("Top-1 of each class", classes, arms, against)),
    )


def _sure(found: Mapping[str, Any], arm: Arm) -> str:
    mine = found["metrics"]["accuracy/ece"]["arms"].get(arm.label)
    return "" if mine is None else f"expected calibration error {mine['estimate']['mean']:.3f}"


def _reliability(arm: Arm, bins: Sequence[Mapping[str, Any]]) -> Markup:
    area = Panel((0, 1), (0, 1), right=14)
    most = max(one["images"] for one in bins)
    bars = [_bar(area, one, most) for one in bins if one["images"]]
    ticks = [Tick(value, percent_tick(value)) for value in (0, 0.25, 0.5, 0.75, 1)]
    frame = area.frame(ticks, ticks, "confidence, %", "accuracy, %")
    diagonal = tag("line", class_="mark", x1=area.to_x(0), y1=area.to_y(0), x2=area.to_x(1), y2=area.to_y(1))
    return area.draw(f"Reliability of {arm.label}.", frame, *bars, diagonal)


def _bar(area: Panel, one: Mapping[str, Any], most: int) -> Markup:
    title = f"{count(one['images'])} images: confidence {_pct(one['confidence'])}, right {_pct(one['accuracy'])}"
    left, right, top = area.to_x(one["low"]), area.to_x(one["high"]), area.to_y(one["accuracy"])
    return tag(
        "rect",
        tag("title", text(title)),
        class_="bar",
        x=left + 0.8,
        y=top,
        width=right - left - 1.6,
        height=area.to_y(0) - top,
        fill_opacity=f"{0.25 + 0.75 * min(1.0, 10 * one['images'] / most):.2f}",
    )


def _pct(share: float) -> str:
    return f"{100 * share:.1f} %"


def _corruptions(
    found: Mapping[str, Any], measured: Mapping[str, Measure], arms: Sequence[Arm], against: str
) -> Markup | None:
    mine = {key: one for key, one in measured.items() if key.startswith("corruptions/")}
    if not mine:
        return None
    severities = [key for key in mine if "/severity/" in key]
    kinds = [key for key in mine if key.count("/") == 1 and key not in ("corruptions/clean", "corruptions/mean")]
    each = [key for key in mine if key.count("/") == 2 and key not in severities]
    points = {float(key.rpartition("/")[2]): mine[key] for key in severities}
    points = {0.0: mine["corruptions/clean"], **points}
    pictures = response.panels(arms, against, points, "severity (0: clean)", "accuracy, %")
    shown = [mine[key] for key in ("corruptions/mean", *severities, *kinds)]
    return section(
        "corruptions",
        "Corrupted images",
        note(found["settings"]["corruptions"]),
        grid(pictures, f"Mean accuracy over all corruptions. {response.CAPTION.format(against)}"),
        table("Accuracy on corrupted images", shown, arms, against),
        folded("Every corruption at every severity", table("Each severity", [mine[k] for k in each], arms, against)),
    )


def _adversarial(
    found: Mapping[str, Any], measured: Mapping[str, Measure], arms: Sequence[Arm], against: str
) -> Markup | None:
    mine = {key: one for key, one in measured.items() if key.startswith("adversarial/")}
    if not mine:
        return None
    names = list(dict.fromkeys(key.split("/")[1] for key in mine if key.count("/") == 2))
    drawn = "bim" if "bim" in names else names[0]
    points = {
        float(key.rpartition("/")[2]): one for key, one in mine.items() if key.startswith(f"adversarial/{drawn}/")
    }
    pictures = response.panels(
        arms, against, {0.0: mine["adversarial/clean"], **points}, "epsilon, pixel values", "accuracy, %"
    )
    return section(
        "adversarial",
        "Images changed to deceive",
        note(found["settings"]["adversarial"]),
        grid(pictures, f"Accuracy under {drawn.upper()}. {response.CAPTION.format(against)}"),
        table("Accuracy under attack", [*mine.values()], arms, against),
    )


def _weight_noise(
    found: Mapping[str, Any], measured: Mapping[str, Measure], arms: Sequence[Arm], against: str
) -> Markup | None:
    mine = {key: one for key, one in measured.items() if key.startswith("weight_noise/")}
    if not mine:
        return None
    grids = []
    for kind in ("absolute", "relative"):
        points = {
            float(key.split("/")[2]): one
            for key, one in mine.items()
            if key.startswith(f"weight_noise/{kind}/") and key.endswith("/accuracy")
        }
        if points:
            clean = {0.0: mine["weight_noise/clean/accuracy"]}
            pictures = response.panels(arms, against, {**clean, **points}, f"{kind} noise", "training accuracy, %")
            caption = f"{kind.capitalize()} noise on all weights. {response.CAPTION.format(against)}"
            grids.append(grid(pictures, caption))
    summary = [
        key for key in ("weight_noise/clean/accuracy", "weight_noise/clean/loss", "weight_noise/mean") if key in mine
    ]
    rest = [one for key, one in mine.items() if key not in summary]
    return section(
        "noise",
        "Noise on the weights",
        note(found["settings"]["weight_noise"]),
        *grids,
        table("With noise on the weights", [mine[key] for key in summary], arms, against),
        folded("Every level", table("Each level of noise", rest, arms, against)),
    )


def _curvature(
    found: Mapping[str, Any], measured: Mapping[str, Measure], arms: Sequence[Arm], against: str
) -> Markup | None:
    mine = [one for key, one in measured.items() if key.startswith("curvature/")]
    if not mine:
        return None
    return section(
        "curvature",
        "Curvature",
        note(found["settings"]["curvature"]),
        table("Curvature", mine, arms, against),
    )
