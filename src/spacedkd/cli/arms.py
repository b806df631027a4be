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
    for name in METHODS if list(methods) == [ALL] else methods:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, ALL])
        arms |= _arms_of(name, base)
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
    unspaced = dict([parse_arm(f"{name}: --method {name}", replace(base, interval=None))])
    if name == "none":
        return unspaced
    if base.interval is None:
        raise UserError("--methods compares each method unspaced and spaced: say how far, --interval 1.5ep.")
    spaced = dict([parse_arm(f"{name} spaced: --method {name}", base)])
    alone = build_method(unspaced[name].method)
    learners = build_method(spaced[f"{name} spaced"].method).learners
    if len(alone.roles) == 1 and len({*learners.values()}) > 1:
        unspaced |= dict([parse_arm(f"{name} online: --method {name} --interval online", base)])
    return unspaced | spaced
