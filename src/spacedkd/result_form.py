"""What a result.json and the lines of a journal must hold, so that whoever reads them need not look again."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
