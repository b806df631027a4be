"""A reproduced table as Markdown, with everything needed to judge it, and as CSV, with every number."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from spacedkd.paper.report import findings
from spacedkd.paper.report.cells import (
    cells_of,
    compared,
    difference_unit,
    footnotes,
    has_paper,
    in_points,
    key,
    ours,
    paper,
    paper_difference,
    reference_name,
    shown_best,
    signs,
)
from spacedkd.report.formatting import DASH, Found, bare_p
from spacedkd.report.markdown import escaped, fenced, grid

SPAN = ("mean", "low", "high", "n")
DIFFERENCE = ("mean", "low", "high", "n", "p", "holm_p", "sign_flip_p", "detectable")


def markdown(found: Found) -> str:
    """The table and what it says, for a repository or a notebook."""
    if not found["cells"]:
        return _without_cells(found)
    theirs = "In brackets: the paper's number. " if has_paper(found) else ""
    said = escaped(
        f"Ours: {findings.measured(found)}, {findings.averaged(found)}, at the {findings.scale(found)}. "
        f"{theirs}{findings.BOLD}"
    )
    blocks = [
        *_opening(found),
        said,
        grid(["", *found["columns"]], _layout(found)),
        *(f"<sup>{mark}</sup> {escaped(text)}" for text, mark in footnotes(found).items()),
        *_summaries(found),
        *_differences(found),
        *_fits(found),
        f"## Rule\n\n{escaped(found['rule'])}",
        *_lost(found),
        *_others(found),
        *_ending(found),
    ]
    return "\n\n".join(blocks) + "\n"


def _without_cells(found: Found) -> str:
    """Of a claim that is no table."""
    return "\n\n".join([*_opening(found), *_ending(found)]) + "\n"


def _opening(found: Found) -> Iterator[str]:
    yield f"# {escaped(found['title'])}"
    yield escaped(f"{found['reference']}. The paper's claim: {found['claim']}")
    yield f"**{escaped(found['verdict']['sentence'])}**"


def _ending(found: Found) -> Iterator[str]:
    if found["notes"]:
        yield "## Notes"
        yield "\n".join(f"- {escaped(one)}" for one in found["notes"])
    yield "## How this was made"
    yield escaped(" ".join(filter(None, (findings.cost(found), findings.origin(found)))))
    yield fenced(found["command"])


def _layout(found: Found) -> Iterator[list[str]]:
    cells, best, marks = cells_of(found), shown_best(found), footnotes(found)
    for row in found["rows"]:
        line = [escaped(row)]
        for cell in (cells.get((row, column)) for column in found["columns"]):
            if cell is None:
                line.append("")
                continue
            strong = f"**{ours(cell)}**" if key(cell) in best else ours(cell)
            theirs = "" if cell["paper"] is None else f" ({paper(cell)})"
            line.append(strong + theirs + (f" <sup>{marks[cell['note']]}</sup>" if cell["note"] else ""))
        yield line


def _differences(found: Found) -> Iterator[str]:
    if not compared(found):
        return
    yield "## Differences"
    heads = (
        "", "against", "ours", "95 % interval", "paper", "signs", "verdict", "seeds", "p, paired t", "p, Holm",
        "p, sign-flip", "detectable",
    )  # fmt: skip
    rows = []
    for cell in compared(found):
        of, difference = difference_unit(cell), cell["difference"]
        ps = [DASH if difference[name] is None else escaped(bare_p(difference[name])) for name in DIFFERENCE[4:7]]
        least = DASH if difference["detectable"] is None else of.ours(difference["detectable"])
        verdict = f"**{cell['verdict']}**: {escaped(cell['why'])}" if cell["verdict"] else DASH
        rows.append([
            escaped(f"{cell['row']}: {cell['column']}"), escaped(reference_name(cell)),
            of.our_difference(difference["mean"]) + in_points(cell), of.interval(difference) or DASH,
            paper_difference(cell) or DASH, signs(cell) or DASH, verdict, str(difference["n"]), *ps, least,
        ])  # fmt: skip
    yield grid(heads, rows, words=(0, 1, 5, 6))
    yield escaped(" ".join(filter(None, (findings.TESTS, findings.few_seeds(found)))))


def _summaries(found: Found) -> Iterator[str]:
    if lines := findings.summary_lines(found):
        yield "## What the text says of all of them"
        yield escaped(findings.SUMMARIES)
        yield grid(findings.SUMMARY_HEADS, [[escaped(str(one)) for one in line] for line in lines], words=(0, 5))


def _fits(found: Found) -> Iterator[str]:
    if found["fits"]:
        yield "## Fitted parabolas"
        yield "\n".join(f"- {escaped(fit['row'])}: {escaped(findings.optimum(fit))}" for fit in found["fits"])


def _lost(found: Found) -> Iterator[str]:
    if said := findings.unfinished(found):
        yield said
    if found.get("diverged"):
        lost = [
            f"{one['row']}: {one['column']}, seed {one['seed']}, at step {one['step']}" for one in found["diverged"]
        ]
        yield "## Diverged\n\nThese runs are in none of the numbers."
        yield "\n".join(f"- {escaped(one)}" for one in lost)
    if found.get("failed"):
        lost = [f"{one['row']}: {one['column']}, seed {one['seed']}: {one['said']}" for one in found["failed"]]
        yield "## Failed\n\nThese runs are in none of the numbers; the same command tries them again."
        yield "\n".join(f"- {escaped(one)}" for one in lost)


def _others(found: Found) -> Iterator[str]:
    names = findings.metrics(found)
    cells = [cell for cell in found["cells"] if cell["estimate"] and cell["also"]]
    if cells:
        yield "## Other metrics"
        others = [*found["also"]]
        rows = [
            [
                escaped(f"{cell['row']}: {cell['column']}"),
                ours(cell),
                *(ours(cell, cell["also"][name]) if name in cell["also"] else DASH for name in others),
            ]
            for cell in cells
        ]
        yield grid(["", f"{found['metric']['title']} (main)", *(names[name] for name in others)], rows)


def csv_text(found: Found) -> str:
    """A line for each cell with every number as results.json has it: ours as parts of one, the paper's as printed.

    Cells that are measured against further ones follow, a line for each. Columns `seed_N` are our values by seed; what
    is not there is empty.
    """
    seeds = sorted({seed for cell in found["cells"] for seed in cell["values"]}, key=int)
    heads = [
        "table", "scale", "row", "column", "metric", "unit", "fingerprint",
        *SPAN, *(f"seed_{seed}" for seed in seeds), *(f"{name}_{part}" for name in found["also"] for part in SPAN),
        "paper_as_printed", "against_row", "against_column",
        *(f"difference_{part}" for part in DIFFERENCE), "paper_difference_as_printed", "verdict", "why", "note",
    ]  # fmt: skip
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(heads)
    for cell in (*found["cells"], *found["contrasts"]):
        lines.writerow(
            [
                found["name"], found["scale"]["name"], *(cell[name] for name in heads[2:7]),
                *_parts(cell["estimate"], SPAN), *_parts(cell["values"], seeds),
                *(part for name in found["also"] for part in _parts(cell["also"].get(name), SPAN)),
                cell["paper"], *(cell["against"] or (None, None)),
                *_parts(cell["difference"], DIFFERENCE),
                cell["paper_difference"], cell["verdict"], cell["why"], cell["note"],
            ]
        )  # fmt: skip
    return written.getvalue()


def _parts(of: Found | None, names: Sequence[str]) -> list[Any]:
    return [(of or {}).get(name) for name in names]
