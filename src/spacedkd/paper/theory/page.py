"""The page of the theory experiment: what the paper states, what was measured, and what that says."""

from collections.abc import Callable, Iterator
from pathlib import Path

from spacedkd.paper.theory import findings as words
from spacedkd.paper.theory import plots
from spacedkd.report.formatting import PLUS_MINUS, Found, count
from spacedkd.report.html import Markup, Titled, document, grid, legend, note, paragraph, tag
from spacedkd.runtime.files import write_text

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


def write_theory_page(path: Path, found: Found, command: str) -> None:
    """Write the page; equal numbers give equal bytes."""
    write_text(path, render_theory(found, command), within=path.parent)


def render_theory(found: Found, command: str) -> str:
    """The page as text."""
    sections = {
        "stated": ("What is stated", _stated()),
        "gap": ("The Lemma: is the teacher ahead nearer its minimum?", _gap(found)),
        "steps": ("From the Lemma to the Theorem", _steps(found)),
        "traces": ("Do spaced students end flatter?", _traces(found)),
        "numbers": ("Traces at the end", _numbers(found)),
        "making": ("How this was made", _making(found, command)),
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
    findings = [_item(title, f"{words.finding(found, name)}.") for name, title in words.STATEMENTS.items()]
    outcome = paragraph(words.headline(found)), tag("ul", *findings), note(case)
    return document(
        TITLE,
        kind="Spaced knowledge distillation, theory experiment",
        setting=setting,
        outcome=outcome,
        sections=sections,
        more_style=STYLE,
    )


def _item(title: str, sentence: str) -> Markup:
    return tag("li", tag("b", f"{title}: "), sentence)


def _stated() -> Iterator[Markup]:
    yield paragraph(words.SETTING)
    yield tag("div", *(tag("div", formula) for formula in words.FORMULAS), class_="formula")
    yield tag("ol", *(_item(title, f"{words.MEANINGS[name]}.") for name, title in words.STATEMENTS.items()))
    yield paragraph("Four places in the proofs deserve a look.")
    yield tag("ul", *(tag("li", place) for place in (words.SQUARES, words.ABSOLUTE, words.SIGN, words.SAME)))


def _gap(found: Found) -> Iterator[Markup]:
    finding, every = words.finding(found, "lemma"), words.verdicts(found, "lemma")
    single = words.shares(every, "single") if every else "no"
    yield paragraph(f"{finding[0].upper()}{finding[1:]}. In single runs u(k) ≤ u(t) holds in {single} % of cases.")
    yield _legend(found, ("u(t), online", "online"))
    examples = [
        (f"{one['setting']['name']}, one run", f"interval {_name(one, 1)}", plots.example(one))
        for one in found["settings"]
        if len(one["intervals"]) > 1
    ]
    caption = (
        "Top: mean over all runs, logarithmic. A teacher that is ahead is at a later point of the same curve. Right of "
        "the dashed upright line its loss is under 1 % of the first one: near convergence. Bottom: the first run, step "
        "by step. The gap of a single run goes up and down with the batches: the inequality is one about means."
    )
    yield grid([*_panels(found, plots.gaps), *examples], caption)


def _steps(found: Found) -> Iterator[Markup]:
    yield paragraph(words.follow_up(found))
    if words.verdicts(found, "lemma"):
        yield paragraph("Averaged over all times near convergence, which leaves less to chance:")
        yield tag("ul", *(tag("li", words.by_problem(found, name)) for name in words.STATEMENTS))
    yield paragraph(words.why(found))
    yield paragraph(words.sizes(found))
    key = {"held": "clearly held", "open": "too close to tell", "broken": "clearly broken"}
    swatches = [tag("li", tag("span", class_=f"swatch {kind}"), name) for kind, name in key.items()]
    yield tag("ul", *swatches, class_="legend")
    caption = "Near convergence. Beside each bar: clearly held / clearly broken, in percent of problems and times."
    yield grid(_panels(found, plots.bars), caption)


def _traces(found: Found) -> Iterator[Markup]:
    yield from map(paragraph, words.ends(found))
    yield _legend(found)
    closer = [
        (f"{one['setting']['name']}, near convergence", _described(one), plots.changes(one, near=True))
        for one in found["settings"]
        if any(one["near"])
    ]
    caption = (
        "Exact trace of each spaced student, at its own parameters and with its own teacher, against the online "
        "student's at the same update; mean over runs. Below zero the spaced student is flatter. Top: all of training; "
        "bottom: right of the dashed upright line, near convergence, and without offline."
    )
    yield grid([*_panels(found, plots.changes), *closer], caption)


def _numbers(found: Found) -> Iterator[Markup]:
    yield note(
        "The Hessian of the task's own loss, without a teacher in it, after the last update. The change is a mean over "
        f"problems {PLUS_MINUS} half the width of its 95 % interval."
    )
    names = ("setting", "interval", "trace, online", "trace, spaced", "change", "runs with a smaller one")
    rows = []
    for one in found["settings"]:
        for place, end in enumerate(interval["end"] for interval in one["intervals"]):
            traces = f"{end['online']:.2f}", f"{end['spaced']:.2f}"
            cells = [_name(one, place), *traces, words.with_half(end["change"]), f"{words.share(end['smaller'])} %"]
            head = tag("th", one["setting"]["name"], scope="row")
            rows.append(tag("tr", head, *(tag("td", cell) for cell in cells)))
    heads = tag("tr", *(tag("th", name, scope="col") for name in names))
    yield tag("div", tag("table", tag("thead", heads), tag("tbody", *rows)), class_="scroll", tabindex="0")


def _making(found: Found, command: str) -> Iterator[Markup]:
    first = found["settings"][0]["setting"]
    yield note(
        f"Networks with one hidden layer of {first['width']} units and {count(first['parameters'])} parameters learn "
        f"{first['samples']} random points with {first['inputs']} inputs and random targets, in batches of "
        f"{first['batch_size']}, by plain gradient descent in double precision. {count(first['runs'])} runs for each "
        f"setting: {first['problems']} problems, {first['orders']} orders of the data each. Student and teacher begin "
        f"with the same weights; the teacher's share of the loss is {first['alpha']:g}. φ* is taken from twice as many "
        "updates as the students get."
    )
    check = f"The teacher's loss at φ* is at most {max(one['limit'] for one in found['settings']):.1g}."
    if linear := [one["linear"] for one in found["settings"] if one["linear"] is not None]:
        check += f" Near convergence dᵢ differs from the teacher's real error by {100 * max(linear):.2g} % or less."
    yield note(check)
    yield tag("pre", command, tabindex="0")


def _described(one: Found) -> str:
    return f"learning rate {one['setting']['rate']:g}, {count(one['setting']['steps'])} updates"


def _panels(found: Found, picture: Callable[[Found], Markup]) -> list[Titled]:
    return [(one["setting"]["name"], _described(one), picture(one)) for one in found["settings"]]


def _name(one: Found, place: int) -> str:
    return words.interval_name(one["setting"], one["intervals"][place]["interval"])


def _legend(found: Found, *others: tuple[str, str]) -> Markup:
    one = max(found["settings"], key=lambda setting: len(setting["intervals"]))
    spaced = [(_name(one, place), plots.line_class(place)) for place in range(len(one["intervals"]))]
    return legend([*others, *spaced], "all")
