"""The page of the theory experiment, theory.html: the paper's statements, the measurements, and the findings.

`write_theory` writes theory.json and theory.html. Without torch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from spacedkd.paper.theory import findings
from spacedkd.paper.theory.findings import STATEMENTS, SettingResults, TheoryResults, format_share, interval_name
from spacedkd.reporting.charts import Panel, Point, Tick, label, rounded, thinned, ticks
from spacedkd.reporting.formatting import PLUS_MINUS, count
from spacedkd.reporting.html import Markup, Titled, document, grid, join, legend, note, paragraph, tag
from spacedkd.runtime.files import write_json, write_text

STYLE = """
path.online { stroke: var(--ink); stroke-dasharray: 5 3; stroke-width: 1.8; }
path.one-of-4 { stroke: var(--middle-1); } path.two-of-4 { stroke: var(--student); }
path.three-of-4 { stroke: var(--middle-2); } path.four-of-4 { stroke: var(--leader); }
rect.held { fill: var(--student); } rect.open { fill: var(--rule); } rect.broken { fill: var(--leader); }
.group { fill: var(--ink); font-size: 12.5px; font-weight: 600; }
.formula { overflow-x: auto; font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 0.9rem; }
.swatch { display: inline-block; width: 14px; height: 14px; }
.swatch.held { background: var(--student); } .swatch.open { background: var(--rule); }
.swatch.broken { background: var(--leader); }
"""
TITLE = "A teacher ahead in time: the theory, measured"


def write_theory(folder: Path, results: TheoryResults, command: str) -> None:
    """Write theory.json and theory.html into a folder; equal results give equal bytes."""
    write_json(folder / "theory.json", results, folder)
    write_text(folder / "theory.html", render_theory(results, command), folder)


def render_theory(results: TheoryResults, command: str) -> str:
    """Return the page as text; `command` is what was typed."""
    sections = {
        "stated": ("What is stated", _statements()),
        "gap": ("The Lemma: is the teacher ahead nearer its minimum?", _gaps(results)),
        "steps": ("From the Lemma to the Theorem", _steps(results)),
        "traces": ("Do spaced students end flatter?", _traces(results)),
        "numbers": ("Traces at the end", _end_table(results)),
        "making": ("How this was made", _provenance(results, command)),
    }
    setting = (
        "The paper argues that a teacher which learns ahead of its student leads the student to a flatter "
        "minimum. This page measures each step of that argument in the setting it is made in."
    )
    case = (
        "A case is one problem (data and first weights) at one time near convergence, with expectations over the order "
        "of the data. Clear means that the paired 95 % interval lies on one side of zero; of statements about equal "
        "sides, chance alone breaks 2.5 %. Ranges are over settings and intervals."
    )
    counts = [_item(title, f"{findings.finding(results, name)}.") for name, title in STATEMENTS.items()]
    return document(
        TITLE,
        kind="Spaced knowledge distillation, theory experiment",
        setting=setting,
        outcome=(paragraph(findings.headline(results)), tag("ul", *counts), note(case)),
        sections=sections,
        more_style=STYLE,
    )


# Sections


def _item(title: str, sentence: str) -> Markup:
    return tag("li", tag("b", f"{title}: "), sentence)


def _statements() -> Iterator[Markup]:
    yield paragraph(findings.SETTING)
    yield tag("div", *(tag("div", formula) for formula in findings.FORMULAS), class_="formula")
    yield tag("ol", *(_item(title, f"{findings.MEANINGS[name]}.") for name, title in STATEMENTS.items()))
    yield paragraph("Four places in the proofs deserve a look.")
    yield tag("ul", *(tag("li", gap) for gap in findings.GAPS_IN_THE_PROOFS))


def _gaps(results: TheoryResults) -> Iterator[Markup]:
    finding, statements = findings.finding(results, "lemma"), findings.near_convergence(results, "lemma")
    single = findings.share_range(statements, "single") if statements else "no"
    yield paragraph(f"{finding[0].upper()}{finding[1:]}. In single runs u(k) ≤ u(t) holds in {single} % of cases.")
    yield _legend(results, ("u(t), online", "online"))
    examples = [
        (f"{setting['setting']['name']}, one run", f"interval {_interval_name(setting, 1)}", draw_example(setting))
        for setting in results["settings"]
        if len(setting["intervals"]) > 1
    ]
    caption = (
        "Top: mean over all runs, logarithmic. A teacher that is ahead is at a later point of the same curve. Right of "
        "the dashed upright line its loss is under 1 % of the first one: near convergence. Bottom: the first run, step "
        "by step. The gap of a single run goes up and down with the batches: the inequality is one about means."
    )
    yield grid([*_panels(results, draw_gaps), *examples], caption)


def _steps(results: TheoryResults) -> Iterator[Markup]:
    yield paragraph(findings.conclusion_finding(results))
    if findings.near_convergence(results, "lemma"):
        yield paragraph("Averaged over all times near convergence, which leaves less to chance:")
        yield tag("ul", *(tag("li", findings.problem_finding(results, name)) for name in STATEMENTS))
    yield paragraph(findings.sign_finding(results))
    yield paragraph(findings.size_finding(results))
    key = {"held": "clearly held", "open": "too close to tell", "broken": "clearly broken"}
    swatches = [tag("li", tag("span", class_=f"swatch {kind}"), name) for kind, name in key.items()]
    yield tag("ul", *swatches, class_="legend")
    caption = "Near convergence. Beside each bar: clearly held / clearly broken, in percent of problems and times."
    yield grid(_panels(results, draw_verdicts), caption)


def _traces(results: TheoryResults) -> Iterator[Markup]:
    yield from map(paragraph, findings.end_findings(results))
    yield _legend(results)
    near = [
        (f"{setting['setting']['name']}, near convergence", _training(setting), draw_traces(setting, near=True))
        for setting in results["settings"]
        if any(setting["near"])
    ]
    caption = (
        "Exact trace of each spaced student, at its own parameters and with its own teacher, against the online "
        "student's at the same update; mean over runs. Below zero the spaced student is flatter. Top: all of training; "
        "bottom: right of the dashed upright line, near convergence, and without offline."
    )
    yield grid([*_panels(results, draw_traces), *near], caption)


def _end_table(results: TheoryResults) -> Iterator[Markup]:
    yield note(
        "The Hessian of the task's own loss, without a teacher in it, after the last update. The change is a mean over "
        f"problems {PLUS_MINUS} half the width of its 95 % interval."
    )
    names = ("setting", "interval", "trace, online", "trace, spaced", "change", "runs with a smaller one")
    rows = []
    for setting in results["settings"]:
        for index, interval in enumerate(setting["intervals"]):
            end = interval["end"]
            cells = (
                _interval_name(setting, index),
                f"{end['online']:.2f}",
                f"{end['spaced']:.2f}",
                findings.format_change(end["change"]),
                f"{format_share(end['smaller'])} %",
            )
            head = tag("th", setting["setting"]["name"], scope="row")
            rows.append(tag("tr", head, *(tag("td", cell) for cell in cells)))
    heads = tag("tr", *(tag("th", name, scope="col") for name in names))
    yield tag("div", tag("table", tag("thead", heads), tag("tbody", *rows)), class_="scroll", tabindex="0")


def _provenance(results: TheoryResults, command: str) -> Iterator[Markup]:
    first = results["settings"][0]["setting"]
    yield note(
        f"Networks with one hidden layer of {first['width']} units and {count(first['parameters'])} parameters learn "
        f"{first['samples']} random points with {first['inputs']} inputs and random targets, in batches of "
        f"{first['batch_size']}, by plain gradient descent in double precision. {count(first['runs'])} runs for each "
        f"setting: {first['problems']} problems, {first['orders']} orders of the data each. Student and teacher begin "
        f"with the same weights; the teacher's share of the loss is {first['alpha']:g}. φ* is taken from twice as many "
        "updates as the students get."
    )
    check = f"The teacher's loss at φ* is at most {max(setting['limit'] for setting in results['settings']):.1g}."
    if errors := [setting["linear"] for setting in results["settings"] if setting["linear"] is not None]:
        check += f" Near convergence dᵢ differs from the teacher's real error by {100 * max(errors):.2g} % or less."
    yield note(check)
    yield tag("pre", command, tabindex="0")


def _training(setting: SettingResults) -> str:
    return f"learning rate {setting['setting']['rate']:g}, {count(setting['setting']['steps'])} updates"


def _panels(results: TheoryResults, draw: Callable[[SettingResults], Markup]) -> list[Titled]:
    return [(setting["setting"]["name"], _training(setting), draw(setting)) for setting in results["settings"]]


def _interval_name(setting: SettingResults, index: int) -> str:
    return interval_name(setting["setting"], setting["intervals"][index]["interval"])


def _legend(results: TheoryResults, *others: tuple[str, str]) -> Markup:
    longest = max(results["settings"], key=lambda setting: len(setting["intervals"]))
    spaced = [(_interval_name(longest, index), _line_class(index)) for index in range(len(longest["intervals"]))]
    return legend([*others, *spaced], "all")


# Plots

MOST_POINTS = 130
TIME = "student's update t"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw_gaps(setting: SettingResults) -> Markup:
    """Draw u over training, of the online teacher and of the spaced ones, on a logarithmic axis."""
    times = setting["times"]
    online, *spaced = (
        [(t, math.log10(value)) for t, value in zip(times, gap, strict=True) if value > 0]
        for gap in (setting["gap"], *(interval["gap"] for interval in setting["intervals"]))
    )
    values = [y for points in (online, *spaced) for _, y in points]
    panel = Panel((0, times[-1]), (math.floor(min(values)), math.ceil(max(values))), right=12)
    first, last = setting["gap"][0], setting["gap"][-1]
    return panel.draw(
        f"Teacher gap over training, {setting['setting']['name']}: online from {first:.2g} to {last:.2g}.",
        panel.frame(_time_ticks(panel), _power_ticks(panel), TIME, "teacher gap u, mean over runs"),
        *_lines(panel, spaced),
        panel.line(thinned(online, MOST_POINTS), "all online"),
        _near_line(panel, setting),
    )


def draw_example(setting: SettingResults) -> Markup:
    """Draw a few dozen steps of a single run: u(t) goes up and down, u(k(t)) stays for an interval."""
    start, gap, interval = setting["example"]["start"], setting["example"]["gap"], setting["intervals"][1]["interval"]
    points, last = [*enumerate(gap, start)], start + len(gap) - 1
    teachers = {t: -(-t // interval) * interval for t in range(start + 1, last + 1)}
    spaced = [(x, gap[k - start]) for t, k in teachers.items() if k <= last for x in (t - 1, t)]
    panel = Panel((start, last), rounded(0, max(gap)), left=44, right=12)
    rises = sum(after > before for before, after in pairwise(gap))
    return panel.draw(
        f"One run near convergence, {setting['setting']['name']}: the gap rises at {rises} of {len(gap) - 1} steps.",
        panel.frame(_time_ticks(panel), ticks(*panel.y, most=5), TIME, "teacher gap u, one run"),
        panel.line(spaced, f"all {_line_class(1)}"),
        panel.line(points, "all online"),
    )


def draw_traces(setting: SettingResults, near: bool = False) -> Markup:
    """Draw how much larger a spaced student's trace is than the online student's, over training.

    `near` draws the times near convergence, without offline, whose differences dwarf all others.
    """
    indices = [index for index, is_near in enumerate(setting["near"]) if is_near or not near]
    times = [setting["times"][index] for index in indices]
    steps = setting["setting"]["steps"]
    intervals = [interval for interval in setting["intervals"] if not near or interval["interval"] < steps]
    curves = [
        [(setting["times"][index], 100 * interval["change"][index]) for index in indices] for interval in intervals
    ]
    values = [y for points in curves for _, y in points] + [0.0]
    panel = Panel((times[0] if near else 0, times[-1]), rounded(min(values), max(values)), left=40, right=12)
    zero = panel.to_y(0)
    ends = ", ".join(
        f"{interval_name(setting['setting'], interval['interval'])} {findings.signed_percent(interval['change'][-1])}"
        for interval in intervals
    )
    return panel.draw(
        f"Trace of spaced students against online KD over training, {setting['setting']['name']}; at the end: {ends}.",
        panel.frame(_time_ticks(panel), ticks(*panel.y), TIME, "trace against online KD, %"),
        tag("line", class_="mark", x1=panel.left, x2=panel.width - panel.right, y1=zero, y2=zero),
        *_lines(panel, curves),
        "" if near else _near_line(panel, setting),
    )


def draw_verdicts(setting: SettingResults) -> Markup:
    """Draw how many cases clearly held, were too close to tell or clearly broken, by statement and interval."""
    rows: list[Markup] = []
    descriptions = []
    top = 0.0
    for name, title in STATEMENTS.items():
        rows.append(label(title, 2, top + 14, class_="group"))
        top += 20
        for interval in setting["intervals"]:
            verdicts = interval["verdicts"]["near"]
            if not verdicts:
                continue
            spaced, held = interval_name(setting["setting"], interval["interval"]), verdicts[name]["held"]
            rows.append(_bar(spaced, held, verdicts[name]["broken"], top))
            descriptions.append(f"{title}, {spaced}: held {format_share(held)} %")
            top += 17
        top += 8
    return Panel((0, 1), (0, 1), height=top).draw(f"{setting['setting']['name']}. {'; '.join(descriptions)}.", *rows)


def _bar(name: str, held: float, broken: float, top: float) -> Markup:
    start, width = 74.0, 196.0
    pieces, x = [], start
    for kind, value in (("held", held), ("open", 1 - held - broken), ("broken", broken)):
        if value > 0:
            pieces.append(tag("rect", class_=kind, x=x, y=top + 2, width=max(value * width, 0.1), height=12))
        x += value * width
    shares = f"{format_share(held)} / {format_share(broken)} %"
    return join(label(name, start - 6, top + 12, "end"), *pieces, label(shares, start + width + 6, top + 12))


def _lines(panel: Panel, curves: Sequence[Sequence[Point]]) -> list[Markup]:
    """Return a line for each interval."""
    return [
        panel.line(thinned(points, MOST_POINTS), f"all {_line_class(index)}")
        for index, points in enumerate(curves)
        if points
    ]


def _line_class(index: int) -> str:
    return ("one-of-4", "two-of-4", "three-of-4", "four-of-4")[index % 4]


def _near_line(panel: Panel, setting: SettingResults) -> Markup:
    """Return an upright line where the teacher comes near convergence; nothing where it never does."""
    near = [t for t, is_near in zip(setting["times"], setting["near"], strict=True) if is_near]
    if not near:
        return Markup()
    x = panel.to_x(near[0])
    return tag("line", class_="mark", x1=x, x2=x, y1=panel.top, y2=panel.height - panel.bottom)


def _time_ticks(panel: Panel) -> list[Tick]:
    return ticks(*panel.x, most=5, whole=True)


def _power_ticks(panel: Panel) -> list[Tick]:
    low, high = (round(value) for value in panel.y)
    step = max(1, -(-(high - low) // 5))
    return [(value, power(value)) for value in range(low, high + 1, step)]


def power(exponent: float) -> str:
    """Return a power of ten as an axis writes it.

    >>> power(-3), power(0)
    ('10⁻³', '1')
    """
    return "1" if exponent == 0 else f"10{f'{exponent:.0f}'.translate(_SUPERSCRIPTS)}"
