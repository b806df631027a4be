"""The curves of a run, read off its journal in one go: accuracy after each epoch, and every term of the losses."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from spacedkd.runtime.documents import read_journal
from spacedkd.runtime.errors import UserError

# What a result.json and the lines of a journal must hold, so that whoever reads them need not look again.

COUNTED = ("updates", "forward_passes", "backward_passes", "forward_images", "backward_images")

LARGEST = 1e300
"""of a loss: so large ones can still be added and drawn"""


def check_result(written: Any) -> None:
    """Complain, with a ValueError, about the first thing that is not as it must be."""
    _is("it", written, Mapping, "an object with keys and values")
    plan = _at(written, "plan", Mapping)
    roles = _at(plan, "roles", list)
    if not roles or not all(isinstance(role, str) for role in roles):
        raise ValueError(f"plan.roles is {roles!r}, no list of names")
    learners = _at(plan, "learners", Mapping)
    for role in (*roles, *learners):
        _at(learners, role, str)
    for name in ("steps_per_epoch", "total_steps", "test_images"):
        _number(f"plan.{name}", plan.get(name), least=1)
    for cost in (_at(written, "cost", Mapping), plan.get("computed_here", written["cost"])):
        _is("plan.computed_here", cost, Mapping, "an object")
        for name in COUNTED:
            _number(f"cost.{name}", cost.get(name), least=0)
    models = _is("cost.by_model", written["cost"].get("by_model", {}), Mapping, "an object")
    for name, value in models.items():
        _number(f"cost.by_model.{name}", value, least=0)
    _number("seconds", written.get("seconds"), least=0)
    for name, kind in {"best_chosen_on": str, "environment": Mapping, "fingerprint": str}.items():
        _at(written, name, kind)
    if written["best_chosen_on"] not in ("test", "holdout"):
        raise ValueError(f"best_chosen_on is {_shown(written['best_chosen_on'])}, neither test nor holdout")
    _check_accuracy(_at(written, "accuracy", Mapping), roles[-1])
    for name, digest in _is("digests", written.get("digests", {}), Mapping, "an object").items():
        _is(f"digests.{name}", digest, str, "text")


def _check_accuracy(accuracy: Mapping[str, Any], student: str) -> None:
    for role in (student, *accuracy):
        parts = _at(accuracy, role, Mapping)
        for part in ("test", *parts):
            heads = _at(parts, part, Mapping)
            for head in ("final", *heads):
                scores = _at(heads, head, Mapping)
                for name in ("last", "best"):
                    _number(f"accuracy of {role}, {part}, {head}, {name}", scores.get(name), least=0, most=1)
                _number(f"best_epoch of {role}", scores.get("best_epoch"), least=0)


def measured(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The lines of a journal that say how good a role was, each as it must be."""
    return checked(entry for entry in entries if entry.get("event") == "accuracy")


def checked(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The lines of a journal with accuracies or losses, each as it must be."""
    forms = {"accuracy": _check_scores, "loss": _check_losses}
    for entry in entries:
        if entry.get("event") in forms:
            _at(entry, "role", str)
            _number("epoch", entry.get("epoch"), least=0)
            forms[entry["event"]](entry)
            yield entry


def _check_scores(entry: Mapping[str, Any]) -> None:
    parts = _at(entry, "accuracy", Mapping)
    for part in ("test", *parts):
        heads = _at(parts, part, Mapping)
        for head in ("final", *heads):
            _number(f"accuracy of {entry['role']}", heads.get(head), least=0, most=1)


def _check_losses(entry: Mapping[str, Any]) -> None:
    for term, value in _at(entry, "losses", Mapping).items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LARGEST:
            raise ValueError(f"{term} loss of {entry['role']} is {_shown(value)}, no number")


def _at(plain: Mapping[str, Any], name: str, kind: type) -> Any:
    return _is(name, plain.get(name), kind, "text" if kind is str else "a list" if kind is list else "an object")


def _is(name: str, value: Any, kind: type, said: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {_shown(value)}, not {said}")
    return value


def _number(name: str, value: Any, least: float, most: float = math.inf) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or value == math.inf:
        raise ValueError(f"{name} is {_shown(value)}, no number from {least:g} {'up' if most == math.inf else 'to 1'}")


def _shown(value: Any) -> str:
    shown = repr(value)
    return "missing" if value is None else shown if len(shown) < 60 else f"{shown[:60]}..."


MOST_POINTS = 128
"""kept of a loss, however often it was logged"""
Curve = Mapping[float, float]
"""values by the role's own epoch"""
Point = tuple[float, float]


class Curves(NamedTuple):
    accuracy: Mapping[str, Curve]
    """of the deepest head on the test images, for each role that was measured"""
    losses: Mapping[tuple[str, str], "Loss"]
    """for each role and term"""


class Loss:
    """What was logged of one term; when it becomes too long, neighbours are replaced by their mean.

    >>> loss = Loss(most=4)
    >>> for step in range(7):
    ...     loss.add(epoch=step, value=10 * step)
    >>> loss.points
    [(0.5, 5.0), (2.5, 25.0), (4.5, 45.0), (6.0, 60.0)]
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._each = most, 1
        self._kept: array[float] = array("d")
        """epoch, value, epoch, value and so on: a thousand runs have many of them"""
        self._begun: list[Point] = []

    def add(self, epoch: float, value: float) -> None:
        self._begun.append((epoch, value))
        if len(self._begun) == self._each:
            self._kept.extend(_mean(self._begun))
            self._begun = []
        if len(self._kept) == 2 * self._most:
            self._kept = array("d", chain.from_iterable(map(_mean, zip(*[iter(self._closed)] * 2, strict=True))))
            self._each *= 2

    @property
    def _closed(self) -> Iterator[Point]:
        return zip(self._kept[::2], self._kept[1::2], strict=True)

    @property
    def points(self) -> list[Point]:
        """Epoch and value; the last may stand for fewer of what was logged than the others."""
        return [*self._closed, *([_mean(self._begun)] if self._begun else [])]


def _mean(points: Sequence[Point]) -> Point:
    epochs, values = zip(*points, strict=True)
    return sum(epochs) / len(points), sum(values) / len(points)


def read_curves(folder: Path, roles: Sequence[str]) -> Curves:
    """The curves of these roles; whatever else was measured, such as a moving average, is no role."""
    path = folder / "journal.jsonl"
    accuracy: dict[str, dict[float, float]] = {}
    losses: dict[tuple[str, str], Loss] = {}
    try:
        for entry in checked(read_journal(path, within=folder)):
            role, epoch = entry["role"], entry["epoch"]
            if entry["event"] == "accuracy":
                accuracy.setdefault(role, {})[epoch] = entry["accuracy"]["test"]["final"]
                continue
            for term, value in entry["losses"].items():
                losses.setdefault((role, term), Loss()).add(epoch, value)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} cannot be read as a journal: {error}.") from None
    if roles[-1] not in accuracy:
        raise UserError(f"{path} says nothing of how good the {roles[-1]} was.")
    return Curves(
        {role: accuracy[role] for role in roles if role in accuracy},
        {key: loss for key, loss in losses.items() if key[0] in roles},
    )
