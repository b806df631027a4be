"""The tables: what every arm reached, what it cost, and the spec behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spacedkd.json_form import to_json
from spacedkd.report.markup import Markup, join, tag, text
from spacedkd.report.numbers import DASH, TIMES, count, estimate, p_value, plain, points, ratio, seconds
from spacedkd.report.runs import Arm
from spacedkd.report.words import network_name, verdict

COSTS = {
    "updates": "Optimizer updates",
    "forward_passes": "Forward passes",
    "backward_passes": "Backward passes",
    "forward_images": "Images seen",
    "seconds": "Seconds",
}


def results(arms: Sequence[Arm], against: str) -> Markup:
    """Accuracies in percent; a column that no arm fills is left out."""
    columns = {
        "last": "Last epoch",
        "best": "Best epoch",
        "ensemble": "Ensemble, last",
        "ensemble_best": "Ensemble, best",
        "teacher": "Teacher",
    }
    shown = {key: name for key, name in columns.items() if any(arm.numbers[key] for arm in arms)}
    rows = []
    for arm in arms:
        cells = [_estimate_cell(arm.numbers[key], strong=key == "last") for key in shown]
        absent = "reference" if arm.label == against else "no shared seed"
        gain = [_difference_cell(arm.numbers["difference"], absent)] if len(arms) > 1 else []
        rows.append([_arm_cell(arm), *cells, *gain, cell(text(len(arm.runs)))])
    difference = [f"Difference vs {against}, points"] if len(arms) > 1 else []
    heads = ["Arm", *shown.values(), *difference, "Seeds"]
    return framed_table("Results", heads, rows, [arm.label == against for arm in arms])


def costs(arms: Sequence[Arm], against: str) -> Markup:
    """Mean over the runs of an arm, and how often the named arm's."""
    base = next(arm for arm in arms if arm.label == against).numbers["cost"]
    rows = [[_arm_cell(arm), *(_cost_cell(arm.numbers["cost"], base, name) for name in COSTS)] for arm in arms]
    return framed_table("Cost", ["Arm", *COSTS.values()], rows, [arm.label == against for arm in arms])


def spacing(pairs: Sequence[Mapping[str, Any]], arms: Mapping[str, Arm]) -> Markup:
    """Unspaced and spaced side by side, with what the difference is and what it cost."""
    corrected = ["p, Holm"] if len(pairs) > 1 else []
    ratios = {name: COSTS[name] for name in ("updates", "forward_images", "seconds")}
    rows = []
    for pair in pairs:
        named = tag("small", text(f"{pair['spaced']} vs {pair['unspaced']}"))
        reached = [_estimate_cell(arms[pair[form]].numbers["last"], strong=False) for form in ("unspaced", "spaced")]
        p = cell(text(DASH if pair["p_holm"] is None else p_value(pair["p_holm"]).removeprefix("p = ")))
        times = [cell(text(f"{TIMES}{ratio(pair['cost_ratio'][name])}")) for name in ratios]
        head = tag("th", text(pair["name"]), named, scope="row")
        rows.append([head, *reached, _difference_cell(pair["difference"]), *([p] if corrected else []), *times])
    heads = ["Method", "Unspaced", "Spaced", "Difference, points", *corrected, *ratios.values()]
    return framed_table("What spacing did", heads, rows, [False] * len(pairs))


def specs(arms: Sequence[Arm]) -> Markup:
    """Everything that decided the numbers of each arm, folded away."""
    return join(*(_spec(arm) for arm in arms))


def _spec(arm: Arm) -> Markup:
    spec = arm.first.spec
    rate = f"{spec.optimizer.name}, lr {spec.optimizer.lr:g} ({spec.rate.shape})"
    essence = f"{network_name(spec.network)}, {plain(spec.epochs)} epochs, batch {count(spec.batch_size)}, {rate}"
    prints = "; ".join(f"seed {run.spec.seed}: {run.result['fingerprint']}" for run in arm.runs)
    written = json.dumps(to_json(spec), indent=2, ensure_ascii=False)
    return tag(
        "details",
        tag("summary", tag("b", text(arm.label)), tag("small", text(f"{arm.how}; {essence}"))),
        tag("p", text(f"Fingerprints: {prints}. Below, the spec of seed {spec.seed}.")),
        tag("pre", tag("code", text(written)), tabindex=0),
    )


def framed_table(name: str, heads: Sequence[str], rows: Sequence[Sequence[Markup]], named: Sequence[bool]) -> Markup:
    """A table that scrolls inside its own frame where the screen is narrow."""
    head = tag("tr", *(tag("th", text(title), scope="col") for title in heads))
    body = [tag("tr", *row, class_="named" if marked else None) for row, marked in zip(rows, named, strict=True)]
    table = tag("table", tag("caption", text(name), class_="unseen"), tag("thead", head), tag("tbody", *body))
    hint = tag("p", text("Scroll the table sideways for more columns."), class_="note hint", aria_hidden="true")
    label = f"{name}, scrolls sideways"
    return join(hint, tag("div", table, class_="scroll", role="region", aria_label=label, tabindex=0))


def _arm_cell(arm: Arm) -> Markup:
    return tag("th", text(arm.label), tag("small", text(arm.how)), scope="row")


def cell(*content: Markup, class_: str | None = None) -> Markup:
    return tag("td", *content, class_=class_)


def _estimate_cell(value: Mapping[str, Any] | None, strong: bool) -> Markup:
    if value is None:
        return cell(text(DASH), class_="none")
    mean, _, half = estimate(value).partition(" ")
    return cell(tag("b" if strong else "span", text(mean)), tag("span", text(f" {half}"), class_="half"))


def _difference_cell(difference: Mapping[str, Any] | None, absent: str = "no shared seed") -> Markup:
    if difference is None:
        return cell(text(absent), class_="none")
    judged = verdict(difference)
    mean = tag("b", text(points(difference["mean"])))
    if judged is None:
        return cell(mean, tag("small", text("1 shared seed: no interval")))
    p = "" if difference["p"] is None else f", {p_value(difference['p'])}"
    interval = f"{points(difference['low'])} to {points(difference['high'])}{p}"
    return cell(mean, tag("span", text(judged), class_=f"verdict {judged.split()[0]}"), tag("small", text(interval)))


def _cost_cell(cost: Mapping[str, float], base: Mapping[str, float], name: str) -> Markup:
    written = seconds(cost[name]) if name == "seconds" else count(cost[name])
    times = f"{TIMES}{ratio(cost[name] / base[name])}" if base[name] else ""
    return cell(text(written), tag("small", text(times)))
