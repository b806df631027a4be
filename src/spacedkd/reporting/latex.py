"""The renderer of tables as LaTeX that needs nothing but booktabs and graphicx: our row, the paper's beneath it."""

import re
from collections.abc import Iterable, Iterator, Sequence

from spacedkd.reporting.formatting import DASH, MINUS, PLUS_MINUS, THIN_SPACE, TIMES
from spacedkd.reporting.table import Cell, Column, Table

MANY_COLUMNS = 5
"""more of them are as wide as the page, where that has two columns"""
FIT_LINE = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""what follows is made as narrow as a line is, where it is wider"""
MOST_ROWS = 12
"""of one table, each of two lines, so that it fits a page; longer ones continue in further tables"""
_ESCAPES = str.maketrans(
    {
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
)


def escaped(text: str) -> str:
    r"""Return text as LaTeX prints it.

    >>> escaped("5 % of_x & --y")
    '5 \\% of\\_x \\& -{}-y'
    """
    return re.sub("-(?=-)", "-\0", text.replace("\n", " ")).translate(_ESCAPES)


def latex_tables(table: Table, label: str, caption: str, notes: Sequence[str] = ()) -> str:
    """Return a table environment, ready to be pasted, or several of a page each.

    The caption is text; the notes below the last one are LaTeX already.
    """
    parts = [table.rows[first : first + MOST_ROWS] for first in range(0, len(table.rows), MOST_ROWS)]
    lines = [r"% needs \usepackage{booktabs,graphicx}"]
    for number, rows in enumerate(parts, 1):
        is_first, is_last = number == 1, number == len(parts)
        lines += _environment(
            table.document_columns(),
            rows,
            escaped(caption if is_first else f"{table.title}, continued."),
            label if is_first else f"{label}-{number}",
            notes if is_last else (),
        )
    return "\n".join(lines) + "\n"


def _environment(
    columns: Sequence[tuple[int, Column]],
    rows: Sequence[Sequence[Cell]],
    caption: str,
    label: str,
    notes: Iterable[str],
) -> list[str]:
    name = "table*" if len(columns) - 1 > MANY_COLUMNS else "table"
    return [
        rf"\begin{{{name}}}[t]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{label}}}",
        r"\smallskip",
        r"\setlength{\tabcolsep}{3pt}",
        FIT_LINE,
        rf"\begin{{tabular}}{{l{'c' * (len(columns) - 1)}}}",
        r"\toprule",
        _line(escaped(column.document or "") for _, column in columns),
        r"\midrule",
        *_lines(columns, rows),
        r"\bottomrule",
        r"\end{tabular}}",
        *(rf"\par\smallskip{{\footnotesize {note}\par}}" for note in notes),
        rf"\end{{{name}}}",
    ]


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _lines(columns: Sequence[tuple[int, Column]], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        name, *cells = (row[index] for index, _ in columns)
        if number:
            yield r"\addlinespace"
        yield _line([escaped(name.in_document), *map(_cell, cells)])
        if any(cell.paper is not None for cell in cells):
            yield _line([r"\quad paper", *map(_paper, cells)])


def _cell(cell: Cell) -> str:
    if cell.absent:
        return ""
    mark = f"$^{{{cell.mark}}}$" if cell.mark else ""
    if cell.unfinished:
        return f"--{mark}"
    text = escaped(cell.text)
    half = rf" {{\scriptsize {escaped(cell.half.strip())}}}" if cell.half else ""
    return (rf"\textbf{{{text}}}" if cell.strong else text) + half + mark


def _paper(cell: Cell) -> str:
    return "" if cell.absent else "--" if cell.paper is None else escaped(cell.paper)
