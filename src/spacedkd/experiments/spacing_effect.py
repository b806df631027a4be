"""What spacing did: every spaced arm beside the arm that differs from it in nothing but the spacing.

Spaced is an interval of more than one step and less than the whole run. Offline KD, where a role has finished before
the next begins, is the paper's other baseline and not counted; nor is a teacher constantly ahead, or a window.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spacedkd.duration import in_steps, steps_of
from spacedkd.experiments.statistics import Difference, difference, holm
from spacedkd.json_form import to_json
from spacedkd.schedule import Spaced
from spacedkd.spec import RunSpec
from spacedkd.training.result import Result

COSTS = ("updates", "forward_images", "seconds")

# Neither what a run is called, nor its seed, nor where and how often it is measured decides its last accuracy.
_IRRELEVANT = ("label", "seed", "engine", "schedule", "evaluate_every", "save_every", "log_every")


class _Form(NamedTuple):
    """An arm's spacing, and what its partner must share with it."""

    kind: str
    """spaced, online, plain (the method with one role) or other"""
    variant: str | None
    rest: str
    """everything else that decides the numbers"""


def spacing_effects(
    arms: Mapping[str, Sequence[tuple[RunSpec, Result]]], numbers: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Every spaced arm that has an unspaced partner, as plain JSON; `numbers` is what the comparison says of the arms.

    The partner is the same arm at interval one step or, where there is none, the method's plain variant: self KD and
    its like have one role unspaced, so there the difference is that of spacing and of the second role together.
    """
    forms = {label: _form(*runs[0]) for label, runs in arms.items()}
    said = dict(zip(arms, numbers, strict=True))
    pairs = [(label, partner) for label in arms if (partner := _partner(label, forms)) is not None]
    resolutions = [1 / arms[spaced][0][1].plan["test_images"] for spaced, _ in pairs]
    gains = [_gain(said[a], said[b], one) for (a, b), one in zip(pairs, resolutions, strict=True)]
    corrected = holm([None if gain is None else gain.p for gain in gains])
    names = _names([said[spaced] for spaced, _ in pairs])
    return [
        {
            "name": name,
            "method": said[spaced]["method"],
            "variant": forms[spaced].variant,
            "spaced": spaced,
            "unspaced": unspaced,
            "unspaced_form": forms[unspaced].kind,
            "interval": said[spaced]["schedule"],
            "difference": to_json(gain),
            "p_holm": p,
            "cost_ratio": {cost: said[spaced]["cost"][cost] / said[unspaced]["cost"][cost] for cost in COSTS},
        }
        for name, (spaced, unspaced), gain, p in zip(names, pairs, gains, corrected, strict=True)
    ]


def _form(spec: RunSpec, result: Result) -> _Form:
    written = to_json(spec)
    options = dict(written["method"]["options"])
    variant = options.pop("variant", None)
    rest = {key: value for key, value in written.items() if key not in _IRRELEVANT}
    rest["method"] = {"name": spec.method.name, "options": options}
    rest["teacher"] = written["teacher"] or written["network"]
    rest["processes"] = spec.engine.devices * spec.engine.nodes
    return _Form(_kind(spec, result, variant), variant, json.dumps(rest, sort_keys=True))


def _kind(spec: RunSpec, result: Result, variant: str | None) -> str:
    plan = result.plan
    if len(plan["roles"]) == 1:
        return "plain" if variant == "plain" else "other"
    schedule = in_steps(spec.schedule, plan["steps_per_epoch"], plan["total_steps"])
    interval = steps_of(schedule.interval) if isinstance(schedule, Spaced) else 0
    if interval == 1:
        return "online"
    return "spaced" if 1 < interval < plan["total_steps"] else "other"


def _partner(label: str, forms: Mapping[str, _Form]) -> str | None:
    form = forms[label]
    if form.kind != "spaced":
        return None
    alike = {other: found for other, found in forms.items() if found.rest == form.rest}
    online = [other for other, found in alike.items() if found.kind == "online" and found.variant == form.variant]
    plain = [other for other, found in alike.items() if found.kind == "plain"]
    return next(iter(online + plain), None)


def _gain(spaced: Mapping[str, Any], unspaced: Mapping[str, Any], resolution: float) -> Difference | None:
    return difference(_by_seed(spaced), _by_seed(unspaced), resolution)


def _by_seed(arm: Mapping[str, Any]) -> dict[int, float]:
    return {run["seed"]: run["heads"]["final"]["last"] for run in arm["runs"]}


def _names(spaced: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the pairs apart, as short as can be: the method, with the interval, or the spaced arm's label."""
    choices = [(arm["method"], f"{arm['method']} ({arm['schedule']})", arm["label"]) for arm in spaced]
    every = [name for choice in choices for name in choice[:2]]
    return [next((name for name in choice[:2] if every.count(name) == 1), choice[2]) for choice in choices]
