"""What was measured of the trained networks: calibration, robustness and flatness, all arms side by side."""

from collections.abc import Iterator, Sequence

from spacedkd.report import Arm
from spacedkd.report.axes import Panel
from spacedkd.report.markup import Markup, Sections, folded, grid, join, note, numbers, tag
from spacedkd.report.measures import Evaluation, Measure
from spacedkd.report.numbers import Found, count, percent, percent_tick

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
