"""All arms on one axis: how good they were epoch by epoch, how far they were apart, and every term of their losses."""

from collections.abc import Iterable, Iterator, Sequence

from spacedkd.report.arms import Arm, role_colours
from spacedkd.report.charts import Axis, Line, chart
from spacedkd.report.findings import leader_name
from spacedkd.report.formatting import decimals, percent, points
from spacedkd.report.html import MANY, SHOWN, Markup, Titled, tag
from spacedkd.report.plots import mean_curve
from spacedkd.runs.journal import Curve

COLOURS = 8
"""which are told apart; then lines are dashed"""
DASHES = 3
SETTLED = {"accuracy": 0.5, "loss": 0.25}
"""the part of a run after which the axis has room for everything"""
BANDS = 4
"""so many intervals can lie on each other and be told apart; those of more lines are in the numbers alone"""
ACCURACY = Axis("accuracy, %", decimals(2), least=0, most=100)
GAIN = Axis("difference, points", decimals(2), zero=True)
LOSS = Axis("loss", lambda value: f"{value:.4g}")


def key(place: int) -> str:
    """Return the class that shows and hides the lines of an arm, by its index."""
    return f"arm-{place}"


def class_of(place: int) -> str:
    return f"k{place % COLOURS} d{place // COLOURS % DASHES}"


def chooser(arms: Sequence[Arm], against: str) -> Markup:
    """A box to tick for each arm, beside its line; of very many arms only a few are shown at first."""
    few = len(arms) <= MANY
    items = []
    for place, arm in enumerate(arms):
        shown = few or place < SHOWN or arm.label == against
        box = tag("input", type="checkbox", id=f"show-{key(place)}", checked="" if shown else None)
        line = tag("path", d="M0 5L30 5", class_=f"all {class_of(place)}")
        items.append(tag("label", box, tag("svg", line, viewBox="0 0 30 10", aria_hidden="true"), arm.label))
    return tag("fieldset", tag("legend", "Arms shown"), *items, class_="chooser")


def chooser_style(arms: Sequence[Arm]) -> str:
    """Rules that hide the arms whose box is not ticked: no script is needed for that."""
    keys = (key(place) for place in range(len(arms)))
    return "".join(f"body:has(#show-{one}:not(:checked)) g.{one} {{ display: none; }}\n" for one in keys)


def accuracy_charts(arms: Sequence[Arm], against: str) -> Iterator[Titled]:
    """The student's accuracy, the difference to the named arm, and the accuracy of those who lead."""
    students = [_line(place, arm, [run.curves[run.roles[-1]] for run in arm.runs]) for place, arm in enumerate(arms)]
    yield "Student", "mean over seeds", _accuracies("The student's accuracy after each epoch", students)
    base = next(arm for arm in arms if arm.label == against)
    others = [(place, arm.label, arm, base) for place, arm in enumerate(arms) if arm is not base]
    if drawn := differences(others, f"Difference to {against} after each epoch"):
        yield f"Difference to {against}", "mean over seeds, paired by seed", drawn
    leaders = [
        _line(place, arm, [run.curves[run.roles[0]] for run in arm.runs])
        for place, arm in enumerate(arms)
        if arm.first.leader is not None and all(run.roles[0] in run.curves for run in arm.runs)
    ]
    if leaders:
        name, said = leader_name([arm.numbers for arm in arms]), "arms with the same one lie on each other"
        yield name.capitalize(), said, _accuracies(f"The {name}'s accuracy after each epoch", leaders)


def _line(place: int, arm: Arm, curves: Sequence[Curve]) -> Line:
    reached = [(epoch, 100 * value) for epoch, value in mean_curve(curves).items()]
    return Line(arm.label, key(place), class_of(place), reached)


def _accuracies(what: str, lines: Sequence[Line]) -> Markup:
    drawn = [line for line in lines if line.points]
    ends = ", ".join(f"{line.name} {line.points[-1][1]:.1f} %" for line in drawn)
    return chart(f"{what}; at the end: {ends}.", drawn, ACCURACY, SETTLED["accuracy"], wide=True)


def differences(compared: Iterable[tuple[int, str, Arm, Arm]], what: str) -> Markup:
    """Return a chart of the differences of arms after each epoch that both were measured at.

    Each comes with the index that decides its colour and the name of its line. Nothing where no seed is shared.
    """
    lines = [_difference(*one) for one in compared]
    drawn = [line for line in lines if line.points]
    if not drawn:
        return Markup()
    ends = ", ".join(f"{line.name} {points(line.points[-1][1] / 100)}" for line in drawn)
    said = f"{what}, in points; at the end: {ends}."
    return chart(said, drawn, GAIN, SETTLED["accuracy"], wide=True, bands=len(drawn) <= BANDS)


def _difference(place: int, name: str, arm: Arm, base: Arm) -> Line:
    from spacedkd.evaluation.statistics import paired_difference  # scipy's, which only a page that is made needs

    ours, theirs = ({run.seed: run.curves[run.roles[-1]] for run in one.runs} for one in (arm, base))
    seeds = sorted(ours.keys() & theirs.keys())
    shared = sorted(set.intersection(*({*one[seed]} for one in (ours, theirs) for seed in seeds))) if seeds else []
    line, band = [], []
    for epoch in shared:
        mine, others = ({seed: 100 * one[seed][epoch] for seed in seeds} for one in (ours, theirs))
        found = paired_difference(mine, others, resolution=100 / base.first.plan["test_images"])
        assert found is not None, "they share a seed"
        line.append((epoch, found.mean))
        if found.low is not None and found.high is not None:
            band.append((epoch, found.low, found.high))
    return Line(name, key(place), class_of(place), line, band)


def loss_charts(arms: Sequence[Arm]) -> list[Titled]:
    """A picture for each role and term, those of students first; all arms that have it are in it."""
    found: dict[tuple[str, str], list[Line]] = {}
    behind: dict[tuple[str, str], int] = {}
    for place, arm in enumerate(arms):
        for role, term, curve in _mean_losses(arm):
            behind.setdefault((role, term), len(arm.first.roles) - arm.first.roles.index(role))
            found.setdefault((role, term), []).append(Line(arm.label, key(place), class_of(place), curve))
    return [
        (f"{role}: {term}", "", chart(f"The {term} loss of the {role}, mean over seeds.", lines, LOSS, SETTLED["loss"]))
        for (role, term), lines in sorted(found.items(), key=lambda item: behind[item[0]])
    ]


def roles_chart(arm: Arm) -> Markup:
    """The accuracy of all roles of an arm."""
    lines = []
    for role, class_ in reversed(role_colours(arm.first.roles).items()):
        by_seed = [[(x, 100 * y) for x, y in run.curves[role].items()] for run in arm.runs if role in run.curves]
        mean = [*mean_curve([dict(curve) for curve in by_seed]).items()]
        if mean:
            lines.append(Line(role, f"role-{class_}", class_, mean, seeds=by_seed if len(by_seed) > 1 else ()))
    ends = ", ".join(f"{line.name} {percent(line.points[-1][1] / 100)} %" for line in lines)
    return chart(f"Accuracy after each epoch; at the end: {ends}.", lines, ACCURACY, wide=True)


def role_losses(arm: Arm) -> list[Titled]:
    """A picture for each term of the loss, with all roles that have it."""
    class_of_role, found = role_colours(arm.first.roles), dict[str, list[Line]]()
    for role, term, curve in _mean_losses(arm):
        class_ = class_of_role[role]
        found.setdefault(term, []).append(Line(role, f"role-{class_}", class_, curve))
    return [(term, "", chart(f"The {term} loss.", lines, LOSS, SETTLED["loss"])) for term, lines in found.items()]


def _mean_losses(arm: Arm) -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    every = dict.fromkeys(name for run in arm.runs for name in run.journal.losses)
    for role, term in every:
        logged = [dict(run.journal.losses[role, term].points) for run in arm.runs if (role, term) in run.journal.losses]
        if mean := mean_curve(logged):
            yield role, term, [*mean.items()]
