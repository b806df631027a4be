"""The list of instruments, and evaluation.json: what they measured of one network, and the single numbers in it.

It has an entry for each instrument that was ever used on these weights, with its settings in it. Entries of other
weights, of another network around them or of other data are removed when something is measured again. A new instrument
needs its file and its entry in `INSTRUMENTS`, nothing else.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from spacedkd.evaluation.accuracy import Accuracy
from spacedkd.evaluation.adversarial import Adversarial
from spacedkd.evaluation.confusion import Confusion
from spacedkd.evaluation.corruptions import Corruptions
from spacedkd.evaluation.curvature import Curvature
from spacedkd.evaluation.instrument import Instrument, Metric
from spacedkd.evaluation.weight_noise import WeightNoise
from spacedkd.runs.schema import Requires, check, read_checked
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.files import Folder, write_json

INSTRUMENTS: list[type[Instrument]] = [Accuracy, Confusion, Corruptions, Adversarial, WeightNoise, Curvature]
"""in the order in which they are used, listed and shown"""
FILE = "evaluation.json"


class EvaluationDocument(TypedDict):
    """The contents of evaluation.json."""

    origin: dict[str, Any]
    """which weights were measured, of which run after how many epochs, and on which data"""
    instruments: Annotated[dict[str, Any], Requires("accuracy")]
    """name of an instrument -> its entry"""


def read(folder: Path) -> EvaluationDocument | None:
    """Return a folder's evaluation, or None where it has none; refuse a file that is damaged."""
    path = folder / FILE
    if not Folder(folder).exists(path):
        return None
    way_out = "Delete it to measure again; it may be damaged, or of another version."
    return read_checked(path, EvaluationDocument, within=folder, rule=_check_entries, way_out=way_out)


def _check_entries(evaluation: EvaluationDocument) -> None:
    """Check the entry of every instrument, and that its metrics can be computed."""
    for instrument in INSTRUMENTS:
        if instrument.name in evaluation["instruments"]:
            check(evaluation["instruments"][instrument.name], instrument.entry_type, instrument.name)
    try:
        metrics(evaluation)
    except (ArithmeticError, LookupError) as error:
        raise ValueError(f"it lacks numbers ({error!r})") from None


def _check_entry(name: str, entry: Any) -> None:
    """Refuse an entry of an instrument that `read` would refuse."""
    try:
        json.dumps(entry)
        for instrument in INSTRUMENTS:
            if instrument.name == name:
                check(entry, instrument.entry_type, name)
                for key, metric in instrument.metrics(entry):
                    check(metric.value, float, f"{name}/{key}")
        json.dumps(entry, allow_nan=False)  # also where the type of an entry says nothing
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        what = first_line(error) if isinstance(error, ValueError | TypeError) else f"it lacks numbers ({error!r})"
        raise UserError(
            f"What the instrument {name} measured cannot be written: {what.removesuffix('.')}. {FILE} is as it was."
        ) from error


def write(folder: Path, origin: Mapping[str, Any], entries: Mapping[str, Any]) -> EvaluationDocument:
    """Add entries to the folder's evaluation.json, and return all of it.

    Earlier entries of the same weights on the same data stay; all others are removed. An entry that could not be read
    again, such as one with NaN in it, is refused, and nothing is written.
    """
    for name, entry in entries.items():
        _check_entry(name, entry)
    before, identity = read(folder), ("weights_digest", "network", "data")
    if before is not None and all(before["origin"].get(name) == origin.get(name) for name in identity):
        entries = {**before["instruments"], **entries}
    evaluation: EvaluationDocument = {"origin": dict(origin), "instruments": dict(entries)}
    write_json(folder / FILE, evaluation, folder)
    return evaluation


def metrics(evaluation: EvaluationDocument) -> dict[str, Metric]:
    """Return every number of an evaluation by a key such as corruptions/fog/3.

    All are of the student's deepest head, but those that name another one, as corruptions/fog/3/ensemble does.
    """
    return {
        f"{instrument.name}/{key}": metric
        for instrument in INSTRUMENTS
        if instrument.name in evaluation["instruments"]
        for key, metric in instrument.metrics(evaluation["instruments"][instrument.name])
    }


def most_common(measured: Sequence[Metric]) -> Metric:
    """Return a metric with the most common settings."""
    settings = Counter(metric.settings for metric in measured).most_common(1)[0][0]
    return next(metric for metric in measured if metric.settings == settings)
