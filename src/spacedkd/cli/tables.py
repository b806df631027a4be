"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from spacedkd.json_form import to_json
from spacedkd.spec import RunSpec
from spacedkd.training.result import Result


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def of_spec(spec: RunSpec) -> Table:
    """Everything a spec says, a line for each setting."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for key, value in _settings(to_json(spec)):
        table.add_row(key, str(value))
    return table


def _settings(plain: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{above}{key}.")
        elif value not in (None, "", [], {}):
            yield f"{above}{key}", value


def of_run(result: Result) -> Table:
    """Every head of every role, last and best."""
    chosen = result.best_chosen_on
    table = Table(box=box.SIMPLE_HEAD, title="accuracy in percent", title_justify="left")
    for name in ("role", "head", "images", "last epoch", f"best epoch (chosen on {chosen})"):
        table.add_column(name, justify="left" if name in ("role", "head", "images") else "right")
    for role, parts in result.accuracy.items():
        for part, heads in parts.items():
            for head, score in heads.items():
                best = f"{percent(score['best'])} (epoch {score['best_epoch']:g})"
                table.add_row(role, head, part, percent(score["last"]), best)
    return table


def of_scores(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    """One evaluation of a run: model -> part of the data -> head -> accuracy."""
    table = Table(box=box.SIMPLE_HEAD, title="accuracy in percent", title_justify="left")
    heads = list(dict.fromkeys(head for parts in scores.values() for found in parts.values() for head in found))
    for name in ("model", "images", *heads):
        table.add_column(name, justify="right" if name in heads else "left")
    for model, parts in scores.items():
        for part, found in parts.items():
            table.add_row(model, part, *(percent(found[head]) if head in found else "" for head in heads))
    return table


def of_comparison(comparison: Mapping[str, Any]) -> Group:
    """Arms with their accuracy and their paired difference, and what spacing did where it can be told."""
    return Group(_of_arms(comparison), *([_of_spacing(comparison)] if comparison["spacing"] else []))


def _of_arms(comparison: Mapping[str, Any]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title="accuracy of the student on the test images, percent", title_justify="left"
    )
    table.add_column("arm", overflow="fold")
    several = len(comparison["arms"]) > 1
    compared = (Text(f"vs {comparison['against']}"), "p") if several else ()
    for name in ("last epoch", "best", "teacher", *compared):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in comparison["arms"]:
        differences = _gain_cells(arm["difference"])
        table.add_row(
            Text(arm["label"]),
            with_interval(arm["last"]),
            percent(arm["best"]["mean"]),
            percent(arm["teacher"]["mean"]) if arm["teacher"] else "",
            *(differences if several else ()),
        )
    seeds = sorted({arm["last"]["n"] for arm in comparison["arms"]})
    table.caption = (
        f"deepest head; ± half of the 95 % interval over {' or '.join(map(str, seeds))} seed(s); p of the paired "
        f"t-test; best epoch chosen on {', '.join(comparison['best_chosen_on'])} images"
    )
    table.caption_justify = "left"
    return table


def _of_spacing(comparison: Mapping[str, Any]) -> Table:
    """Every spaced arm beside its unspaced partner, with how much more it took."""
    table = Table(box=box.SIMPLE_HEAD, title="what spacing did, percent", title_justify="left")
    table.add_column("method", min_width=8, overflow="fold")
    for name in ("unspaced", "spaced", "difference", "p", "updates", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    reached = {arm["label"]: percent(arm["last"]["mean"]) for arm in comparison["arms"]}
    for pair in comparison["spacing"]:
        ratios = (f"x{pair['cost_ratio'][name]:.1f}" for name in ("updates", "seconds"))
        accuracies = (reached[pair["unspaced"]], reached[pair["spaced"]])
        table.add_row(Text(pair["name"]), *accuracies, *_gain_cells(pair["difference"]), *ratios)
    table.caption = (
        "last epoch, paired by seed, p not corrected for the number of methods; costs as multiples of unspaced"
    )
    table.caption_justify = "left"
    return table


def of_costs(comparison: Mapping[str, Any]) -> Table:
    """What a run of each arm took on average."""
    table = Table(box=box.SIMPLE_HEAD, title="cost of one run, mean over seeds", title_justify="left")
    table.add_column("arm", overflow="fold")
    for name in ("updates", "forward", "backward", "images", "seconds"):
        table.add_column(name, justify="right")
    for arm in comparison["arms"]:
        cost = arm["cost"]
        counts = (cost[name] for name in ("updates", "forward_passes", "backward_passes", "forward_images"))
        table.add_row(Text(arm["label"]), *(f"{count:.0f}" for count in counts), f"{cost['seconds']:.1f}")
    table.caption = "forward and backward passes of whole batches; images that went forward"
    table.caption_justify = "left"
    return table


def _gain_cells(gain: Mapping[str, Any] | None) -> tuple[str, str]:
    if gain is None:
        return "", ""
    return with_interval(gain, sign="+"), "" if gain["p"] is None else f"{gain['p']:.3f}"


def with_interval(estimate: Mapping[str, Any], sign: str = "") -> str:
    mean = f"{100 * estimate['mean']:{sign}.1f}"
    return mean if estimate["low"] is None else f"{mean} ± {50 * (estimate['high'] - estimate['low']):.1f}"
