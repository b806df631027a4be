"""What --set does: KEY=VALUE into a spec's JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from spacedkd.errors import UserError


def assign(plain: dict[str, Any], assignments: Iterable[str]) -> None:
    for assignment in assignments:
        place, sign, text = assignment.partition("=")
        if not sign:
            raise UserError(f"--set wants KEY=VALUE, for instance method.temperature=4; got {assignment!r}.")
        put(plain, place.strip(), value(text))


def put(plain: dict[str, Any], place: str, value: Any) -> None:
    """Set what lies at a place such as optimizer.lr."""
    *path, last = place.split(".")
    for part in path:
        if not isinstance(plain.get(part), dict):
            way_out = "Give --teacher NAME too." if part == "teacher" else "See the spec.json of any run for the names."
            raise UserError(f"There is no {place!r} in this spec. {way_out}")
        plain = plain[part]
    # A network or method is a name and its options: method.temperature is short for method.options.temperature.
    if "options" in plain and last not in plain:
        plain = plain["options"]
    plain[last] = value


def value(text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
