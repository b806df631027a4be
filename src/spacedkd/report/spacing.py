"""Which arms differ in nothing but their interval, so that a line through them means something."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from spacedkd.duration import Duration, in_steps
from spacedkd.json_form import to_json
from spacedkd.report.runs import Arm
from spacedkd.report.words import data_name, network_name
from spacedkd.schedule import Spaced

# Neither what a run is called, nor its seed, nor where and how often it is measured decides its last accuracy.
_IRRELEVANT = ("label", "seed", "engine", "schedule", "evaluate_every", "save_every", "log_every")


@dataclass(frozen=True)
class Spacing:
    """An arm's place on the interval axis, and what its neighbours there must share with it."""

    arm: Arm
    interval: int
    """in steps; 0 where one network teaches itself at every update"""
    rest: str
    """everything else that decides the numbers"""
    variant: str | None
    """None fits any: plain self KD is the interval 0 of every spaced variant"""
    tail: str | None
    """None fits any: blocks that divide the run leave no tail"""

    @property
    def epochs(self) -> float:
        return self.interval / self.arm.first.steps_per_epoch

    def fits(self, variant: str | None, tail: str | None) -> bool:
        return self.variant in (None, variant) and self.tail in (None, tail)


@dataclass(frozen=True)
class Group:
    """Arms that differ only in their interval, from the shortest to the longest."""

    title: str
    data: str
    spacings: Sequence[Spacing]


def groups(arms: Sequence[Arm]) -> list[Group]:
    """Every set of at least two arms with different intervals and all else equal."""
    placed = [spacing for arm in arms if (spacing := _spacing(arm)) is not None]
    found: dict[tuple[str, ...], Group] = {}
    for rest in dict.fromkeys(spacing.rest for spacing in placed):
        alike = [spacing for spacing in placed if spacing.rest == rest]
        variants = _seen([spacing.variant for spacing in alike])
        for variant, tail in product(variants, _seen([spacing.tail for spacing in alike])):
            members = sorted((s for s in alike if s.fits(variant, tail)), key=lambda s: s.interval)
            if len({spacing.interval for spacing in members}) > 1:
                found.setdefault(tuple(s.arm.label for s in members), _group(members, variant))
    return [*found.values()]


def _group(members: Sequence[Spacing], variant: str | None) -> Group:
    spec = members[0].arm.first.spec
    method = spec.method.name + (f" ({variant})" if variant else "")
    return Group(f"{method}, {network_name(spec.network)}", data_name(spec), members)


def _seen(values: Sequence[str | None]) -> list[str | None]:
    """The distinct values, or only None where nothing else occurs."""
    return [value for value in dict.fromkeys(values) if value is not None] or [None]


def _spacing(arm: Arm) -> Spacing | None:
    """None where the arm has no interval: another kind of schedule, or a single role that nobody teaches."""
    run = arm.first
    plain = to_json(run.spec)
    options = dict(plain["method"]["options"])
    variant = options.pop("variant", None)
    rest = {key: value for key, value in plain.items() if key not in _IRRELEVANT}
    rest["roles"] = max(2, len(run.roles))  # a chain of three is not two with another interval
    rest["method"] = {"name": plain["method"]["name"], "options": options}
    if len(run.roles) == 1:
        return Spacing(arm, 0, _key(rest), None, None) if variant == "plain" else None
    schedule = in_steps(run.spec.schedule, run.steps_per_epoch, run.total_steps)
    if not isinstance(schedule, Spaced):
        return None
    interval = int(Duration.parse(schedule.interval).amount)
    tail = None if run.total_steps % interval == 0 else schedule.tail
    return Spacing(arm, interval, _key(rest), variant, tail)


def _key(rest: dict[str, Any]) -> str:
    return json.dumps(rest, sort_keys=True)
