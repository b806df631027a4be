"""The schedule that --interval, --ahead, --window and --tail stand for."""

from __future__ import annotations

from dataclasses import replace

from spacedkd.errors import UserError
from spacedkd.schedule import Ahead, Offline, Online, Schedule, Spaced, Window


def make_schedule(
    base: Schedule | None, interval: str | None, ahead: str | None, window: str | None, tail: str | None
) -> Schedule:
    """The base changed by whatever is given; a window keeps the interval it is about, and the other way round."""
    if ahead is not None:
        if (interval, window, tail) != (None, None, None):
            raise UserError("--ahead is a schedule of its own: leave out --interval, --window and --tail.")
        return Ahead(ahead)
    nothing = base is None and interval is None
    if nothing and window is None:
        raise UserError("--tail needs an --interval to belong to, for instance --interval 1.5ep.")
    inside = _inside((base.inside if isinstance(base, Window) else base) or Online(), interval, tail)
    if window is not None:
        if nothing or inside == Online():
            raise UserError(f"--window {window} needs an --interval to space by, for instance --interval 1.5ep.")
        return _windowed(inside, window)
    return replace(base, inside=inside) if isinstance(base, Window) else inside


def _inside(base: Schedule, interval: str | None, tail: str | None) -> Schedule:
    if interval is not None:
        named = {"online": Online, "offline": Offline}
        base = named[interval]() if interval in named else _spaced(interval)
    if tail is None:
        return base
    if not isinstance(base, Spaced):
        raise UserError("--tail needs an --interval to belong to.")
    return Spaced(base.interval, tail)  # type: ignore[arg-type]


def _spaced(interval: str) -> Spaced:
    try:
        return Spaced(interval)
    except UserError as error:
        raise UserError(
            f"--interval {interval}: {error} Also possible: --interval online, --interval offline."
        ) from None


def _windowed(inside: Schedule, window: str) -> Window:
    for sign, end in (("..", "stop"), ("+", "length")):
        start, found, length = window.partition(sign)
        if found:
            return Window(inside, Online(), start, **{end: length})
    raise UserError(f"--window wants from..to (20ep..40ep) or from+length (20ep+10ep), got {window!r}.")
