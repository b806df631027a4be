"""What spacing did: every spaced arm beside the arm that differs from it in nothing but the spacing.

Spaced is an interval of more than one step and less than the whole run. Offline KD, where a role has finished before
the next begins, is the paper's other baseline and not counted; nor is a teacher constantly ahead, or a window.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spacedkd.evaluation.confidence import confidence_interval, difference, holm
from spacedkd.json_form import to_json
from spacedkd.run import Run

RATIOS = ("updates", "forward_images", "seconds")
"""the costs that are given as multiples of the partner's"""


def spacing_effects(arms: Mapping[str, Sequence[Run]], numbers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every spaced arm that has an unspaced partner, as plain JSON; `numbers` is what the comparison says of the arms.

    The partner is the same arm at interval one step or, where there is none, the method's plain variant: self KD and
    its like have one role unspaced, so there the difference is that of spacing and of the second role together.
    Accuracies are means over the seeds that both have, as the difference is.
    """
    first = {label: runs[0] for label, runs in arms.items()}
    said = dict(zip(arms, numbers, strict=True))
    by_seed = {label: {run.seed: run.student() for run in runs} for label, runs in arms.items()}
    pairs = [(label, partner) for label in arms if (partner := _partner(label, first)) is not None]
    gains = [difference(by_seed[a], by_seed[b], 1 / first[a].plan["test_images"]) for a, b in pairs]
    corrected = holm([None if gain is None else gain.p for gain in gains])
    names = _names([said[spaced] for spaced, _ in pairs])
    return [
        {
            "name": name,
            "method": said[spaced]["method"],
            "variant": first[spaced].variant,
            "spaced": spaced,
            "unspaced": unspaced,
            "unspaced_form": _kind(first[unspaced]),
            "interval": said[spaced]["schedule"],
            "accuracy": {
                "unspaced": _over(by_seed[unspaced], by_seed[spaced]),
                "spaced": _over(by_seed[spaced], by_seed[unspaced]),
            },
            "difference": to_json(gain),
            "p_holm": p,
            "cost_ratio": _ratios(said[spaced], said[unspaced]),
        }
        for name, (spaced, unspaced), gain, p in zip(names, pairs, gains, corrected, strict=True)
    ]


def _over(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Any:
    """The mean over the seeds that both have; None where they share none."""
    shared = [mine[seed] for seed in sorted(mine.keys() & theirs.keys())]
    return to_json(confidence_interval(shared)) if shared else None


def _ratios(spaced: Mapping[str, Any], unspaced: Mapping[str, Any]) -> dict[str, float | None]:
    """Costs as multiples of the partner's; of seconds there is none where one of them did not train its teacher."""
    ratios: dict[str, float | None] = {name: spaced["cost"][name] / unspaced["cost"][name] for name in RATIOS}
    if any(arm["computed"]["updates"] != arm["cost"]["updates"] for arm in (spaced, unspaced)):
        ratios["seconds"] = None
    return ratios


def _kind(run: Run) -> str:
    """spaced, online, plain (the method with one role) or other."""
    if run.interval is None:
        return "other"
    if run.interval < 2:
        return ("plain", "online")[run.interval]
    return "spaced" if run.interval < run.total_steps else "other"


def _partner(label: str, first: Mapping[str, Run]) -> str | None:
    run = first[label]
    if _kind(run) != "spaced":
        return None
    alike = {other: found for other, found in first.items() if found.all_but_spacing == run.all_but_spacing}
    online = [other for other, found in alike.items() if _kind(found) == "online" and found.variant == run.variant]
    plain = [other for other, found in alike.items() if _kind(found) == "plain"]
    return next(iter(online + plain), None)


def _names(spaced: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the pairs apart, as short as can be: the method, with the interval, or the spaced arm's label."""
    choices = [(arm["method"], f"{arm['method']} ({arm['schedule']})", arm["label"]) for arm in spaced]
    every = [name for choice in choices for name in choice[:2]]
    return [next((name for name in choice[:2] if every.count(name) == 1), choice[2]) for choice in choices]
