"""The arms of a comparison: written one by one, or a method at a time, unspaced and spaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spacedkd.cli.flags import RunFlags, parse_arm
from spacedkd.errors import UserError, unknown
from spacedkd.methods import METHODS, build_method
from spacedkd.spec import RunSpec

ALL = "all"


def make_arms(written: Sequence[str], methods: Sequence[str], base: RunFlags) -> dict[str, RunSpec]:
    """Every arm by its name: those written as 'NAME: FLAGS', then those of the methods."""
    arms = dict(parse_arm(text, base) for text in written)
    if len(arms) < len(written):
        raise UserError("Two arms have the same name; give each its own.")
    if methods and base.interval in (None, "online", "offline"):
        raise UserError("--methods compares each method unspaced and spaced: say how far, --interval 1.5ep.")
    for name in METHODS if ALL in methods else methods:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, ALL])
        own = _arms_of(name, base)
        for label in own.keys() & arms.keys():
            raise UserError(f"--methods would add an arm called {label!r}, but there is one. Give yours another name.")
        arms |= own
    if not arms:
        raise UserError(
            "compare needs arms: --arm 'online: --method kd' --arm 'spaced: --method kd --interval 1.5ep', "
            "or --methods kd dkd --interval 1.5ep."
        )
    return arms


def _arms_of(name: str, base: RunFlags) -> dict[str, RunSpec]:
    """A method unspaced and spaced; where spacing brings in a student of its own, also with that student online.

    >>> [*_arms_of("dkd", RunFlags(interval="2ep"))]
    ['dkd', 'dkd spaced']
    """
    never = replace(base, interval=None, ahead=None, window=None, tail=None)
    unspaced = dict([parse_arm(f"{name}: --method {name}", never)])
    if name == "none":
        return unspaced
    spaced = dict([parse_arm(f"{name} spaced: --method {name}", base)])
    alone = build_method(unspaced[name].method)
    learners = build_method(spaced[f"{name} spaced"].method).learners
    if len(alone.roles) == 1 and len({*learners.values()}) > 1:
        unspaced |= dict([parse_arm(f"{name} online: --method {name} --interval online", never)])
    return unspaced | spaced
