"""Advice of a report: what the study of spacing and averaging measured in the setting closest to the one at hand.

`study.json` beside this file has the numbers; `python -m studies.spacing --page` writes it with the study's page.
The sentences follow from the intervals, so that they change with the numbers.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypedDict

from spacedkd.config.spec import RunSpec
from spacedkd.reporting.formatting import PLUS_MINUS, bounds, join_words, points
from spacedkd.runs.schema import Estimate
from spacedkd.runtime.documents import read_json

FILE = Path(__file__).with_name("study.json")
LAST = "last iterate"
"""the measure of runs that keep no average"""
SIGNALS = ("mnist1d",)
"""data whose items are signals; those of all other names are images"""


class Contrast(TypedDict):
    """The difference of two arms of the study, arm minus against, in one measure."""

    measure: str
    """last iterate, or average poly:2"""
    arm: str
    against: str
    difference: Estimate
    claim: str
    """better, worse, hint: better, hint: worse, or not told"""


class Regime(TypedDict):
    """The arms of the study that share their data and their learning rate."""

    setting: str
    """the data, network and length, in words"""
    images: bool
    rate: str
    """constant or cosine"""
    label_noise: float
    gains: dict[str, Estimate]
    """arm -> the average of its student's weights minus its last iterate"""
    contrasts: list[Contrast]


@cache
def regimes() -> Sequence[Regime]:
    """Return the regimes of the study that have been measured."""
    return list(read_json(FILE)["regimes"])


def closest(spec: RunSpec, measured: Sequence[Regime]) -> Regime | None:
    """Return the regime that is most like a run: its learning rate must be alike, then its labels, then its data."""
    decays = spec.rate.shape != "constant"
    alike = [regime for regime in measured if (regime["rate"] != "constant") == decays]
    noisy, images = spec.data.label_noise > 0, spec.data.source not in SIGNALS
    return max(
        alike,
        key=lambda regime: ((regime["label_noise"] > 0) == noisy, regime["images"] == images),
        default=None,
    )


def advice(specs: Sequence[RunSpec], measured: Sequence[Regime] | None = None) -> Iterator[str]:
    """Yield what the study measured in the setting closest to these runs; nothing where no setting is like it."""
    regime = closest(specs[0], regimes() if measured is None else measured)
    if regime is None:
        return
    noise = f", {100 * regime['label_noise']:g} % wrong labels" if regime["label_noise"] else ""
    yield f"Measured: {regime['setting']}, learning rate {regime['rate']}{noise}. It may be otherwise here."
    averaged = any(spec.student_average is not None for spec in specs)
    yield from _about_averages(regime, averaged)
    for contrast in regime["contrasts"]:
        if (contrast["measure"] == LAST) != averaged:
            yield _sentence(contrast)


def _about_averages(regime: Regime, averaged: bool) -> Iterator[str]:
    """Yield what an average of the student's weights gained, and the flag that keeps one where none is kept."""
    gains = regime["gains"]
    if not gains:
        return
    helped = [arm for arm, gain in gains.items() if bounds(gain) and min(bounds(gain)) > 0]
    listed = join_words([f"{_points(gain)} for {_title(arm)}" for arm, gain in gains.items()])
    if len(helped) == len(gains):
        flag = "" if averaged else ": --average poly:2 keeps one beside the student, which does not change"
        yield f"Averaging the student's weights helped every arm: {listed}{flag}."
    elif helped:
        yield f"Averaging the student's weights helped {join_words([*map(_title, helped)])} and not all: {listed}."
    else:
        yield f"Averaging the student's weights was not shown to help: {listed}."


def _sentence(contrast: Contrast) -> str:
    arm, against = _title(contrast["arm"]), _title(contrast["against"])
    outcome = {
        "better": f"{arm} was better than {against}",
        "worse": f"{arm} was worse than {against}",
        "hint: better": f"a hint that {arm} is better than {against}",
        "hint: worse": f"a hint that {arm} is worse than {against}",
        "not told": f"{arm} and {against} were not told apart",
    }[contrast["claim"]]
    outcome = outcome[0].upper() + outcome[1:]
    difference = contrast["difference"]
    return f"{outcome}: {_points(difference)} points ({contrast['measure']}, {difference['n']} seeds)."


def _points(difference: Estimate) -> str:
    """Return a difference in points with half of its 95 % interval."""
    ends = bounds(difference)
    half = f" {PLUS_MINUS} {points((ends[1] - ends[0]) / 2).lstrip('+')}" if ends else ""
    return f"{points(difference['mean'])}{half}"


def _title(arm: str) -> str:
    """Return an arm of the study as it stands in a sentence.

    >>> _title("1.5"), _title("online"), _title("no KD")
    ('spaced KD by 1.5 epochs', 'online KD', 'no KD')
    """
    if arm.replace(".", "").isdecimal():
        return f"spaced KD by {arm} epochs"
    return arm if arm == "no KD" else f"{arm} KD"
