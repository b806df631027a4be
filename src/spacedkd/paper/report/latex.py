"""A reproduced table as LaTeX that needs nothing but booktabs and graphicx: our row, the paper's beneath it."""

import re
from collections.abc import Iterable, Iterator, Sequence

from spacedkd.paper.report import findings
from spacedkd.paper.report.cells import cells_of, footnotes, half, has_paper, key, paper, shown_best, unit
from spacedkd.report.formatting import DASH, MINUS, PLUS_MINUS, THIN_SPACE, TIMES, Found

MANY_COLUMNS = 5
"""more of them are as wide as the page, where that has two columns"""
FITTING = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""what follows is made as narrow as a line is, where it is wider"""
MOST_ROWS = 12
"""of one table, each of two lines, so that it fits a page; longer ones go on in further tables"""
_WRITTEN = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # at the start of a line LaTeX takes it for an option of the line before
    **{letter: f"\\{letter}" for letter in "$&#%_"},
    MINUS: "$-$",
    DASH: "--",
    PLUS_MINUS: r"$\pm$",
    TIMES: r"$\times$",
    THIN_SPACE: r"\,",
    "\N{NO-BREAK SPACE}": "~",
    "\N{LESS-THAN OR EQUAL TO}": r"$\leq$",
    "\N{GREATER-THAN OR EQUAL TO}": r"$\geq$",
    "\N{RIGHTWARDS ARROW}": r"$\rightarrow$",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
    "\N{GREEK SMALL LETTER BETA}": r"$\beta$",
    "\N{GREEK SMALL LETTER EPSILON}": r"$\epsilon$",
    "\N{GREEK SMALL LETTER SIGMA}": r"$\sigma$",
    "\N{SUPERSCRIPT TWO}": "$^2$",
    "\0": "{}",  # between dashes, which it would join
}
_ESCAPES = str.maketrans(_WRITTEN)


def escaped(text: str) -> str:
    r"""Text as LaTeX prints it.

    >>> escaped("5 % of_x & --y")
    '5 \\% of\\_x \\& -{}-y'
    """
    return re.sub("-(?=-)", "-\0", text.replace("\n", " ")).translate(_ESCAPES)


def latex(found: Found) -> str:
    """A table environment, ready to be pasted, or several of a page each; only a remark where there is no table."""
    if not found["cells"]:
        return f"% {found['name']}: no table. {' '.join(found['verdict']['sentence'].split())}\n"
    rows = found["rows"]
    parts = [rows[first : first + MOST_ROWS] for first in range(0, len(rows), MOST_ROWS)]
    lines = [r"% needs \usepackage{booktabs,graphicx}"]
    for place, part in enumerate(parts, 1):
        first, last = place == 1, place == len(parts)
        caption = _caption(found) if first else rf"{escaped(found['title'])}, continued."
        label = found["name"] if first else f"{found['name']}-{place}"
        lines += _environment(found, part, caption, label, _notes(found) if last else ())
    return "\n".join(lines) + "\n"


def _environment(found: Found, rows: Sequence[str], caption: str, label: str, notes: Iterable[str]) -> list[str]:
    columns = found["columns"]
    table = "table*" if len(columns) > MANY_COLUMNS else "table"
    return [
        rf"\begin{{{table}}}[t]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{label}}}",
        r"\smallskip",
        r"\setlength{\tabcolsep}{3pt}",
        FITTING,
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        _line("", *map(escaped, columns)),
        r"\midrule",
        *_rows(found, rows),
        r"\bottomrule",
        r"\end{tabular}}",
        *(rf"\par\smallskip{{\footnotesize {note}\par}}" for note in notes),
        rf"\end{{{table}}}",
    ]


def _caption(found: Found) -> str:
    parts = [
        found["title"],
        f"Ours: {findings.measured(found)}, {findings.averaged(found)}",
        findings.capital(findings.scale(found)),
        f"Beneath: the paper's numbers ({found['reference']})" if has_paper(found) else found["reference"],
        findings.BOLD,
    ]
    return ". ".join(escaped(part.removesuffix(".")) for part in parts) + "."


def _line(*cells: str) -> str:
    return " & ".join(cells) + r" \\"


def _rows(found: Found, rows: Sequence[str]) -> Iterator[str]:
    cells, best, marks = cells_of(found), shown_best(found), footnotes(found)
    for place, row in enumerate(rows):
        mine, theirs = [escaped(row)], [r"\quad paper"]
        for cell in (cells.get((row, column)) for column in found["columns"]):
            mine.append("" if cell is None else _ours(cell, key(cell) in best, marks.get(cell["note"])))
            theirs.append("" if cell is None else _number(paper(cell)))
        if place:
            yield r"\addlinespace"
        yield _line(*mine)
        if {*theirs[1:]} - {"", "--"}:
            yield _line(*theirs)


def _ours(cell: Found, strong: bool, mark: str | None) -> str:
    raised = f"$^{{{mark}}}$" if mark else ""
    if cell["estimate"] is None:
        return f"--{raised}"
    mean = escaped(unit(cell).ours(cell["estimate"]["mean"]))
    width = half(unit(cell), cell["estimate"])
    return (rf"\textbf{{{mean}}}" if strong else mean) + (rf" {{\scriptsize $\pm$ {width}}}" if width else "") + raised


def _number(text: str | None) -> str:
    return "--" if text is None else escaped(text)


def _notes(found: Found) -> Iterable[str]:
    yield from (f"$^{{{mark}}}$ {escaped(text)}" for text, mark in footnotes(found).items())
    for statement, stated, printed, _, ours, _ in findings.summary_lines(found):
        yield escaped(
            f"{findings.capital(str(statement))}: stated {stated}, printed differences {printed}, ours {ours}."
        )
    yield from map(escaped, found["notes"])
