"""The tables about a reproduced table: in the paper's layout, its differences, its other metrics, what was lost."""

from collections.abc import Mapping, Sequence
from itertools import compress

from spacedkd.paper.report.cells import (
    Key,
    cells_of,
    compared,
    difference_unit,
    footnotes,
    half,
    has_paper,
    key,
    ours,
    paper,
    paper_difference,
    shown_best,
    signs,
    unit,
    versus,
)
from spacedkd.paper.report.findings import (
    SUMMARY_HEADS,
    averaged,
    few_seeds,
    measured,
    metric_of,
    metrics,
    summary_lines,
    unfinished,
)
from spacedkd.report.formatting import DASH, PLUS_MINUS, Found, bare_p, plural
from spacedkd.report.html import Markup, join, tag
from spacedkd.report.table import LEAST_NAME, Cell, Column, Table, group_rows, text_table


def layout(found: Found) -> Table:
    """Rows and columns as the paper has them; in a cell ours, the paper's, the signs of both effects, the verdict."""
    cells, best, marks = cells_of(found), shown_best(found), footnotes(found)
    absent = "paper: none" if has_paper(found) else ""
    rows = [
        [Cell(row), *(_cell(cells.get((row, column)), best, marks, absent) for column in found["columns"])]
        for row in found["rows"]
    ]
    columns = [Column("", None), *(Column(column, None) for column in found["columns"])]
    return Table(found["title"], columns, rows, name=found["title"])


def _cell(cell: Found | None, best: set[Key], marks: Mapping[str, str], absent: str) -> Cell:
    if cell is None:
        return Cell("", absent=True)
    mark = tag("sup", marks[cell["note"]]) if cell["note"] else ""
    theirs = paper(cell)
    lines = [
        tag("span", absent if theirs is None else f"paper {theirs}", class_="range"),
        tag("span", said, class_="range") if (said := signs(cell)) else "",
        judged(cell),
    ]
    if cell["estimate"] is None:
        return Cell(join(ours(cell), mark), below=join(*lines))
    value, width = unit(cell).ours(cell["estimate"]["mean"]), half(unit(cell), cell["estimate"])
    quiet = join("" if width is None else f" {PLUS_MINUS} {width}", mark)
    return Cell(value, half=quiet, strong=key(cell) in best, below=join(*lines))


def judged(cell: Found) -> Markup:
    """The verdict as a word of its own line."""
    word = cell["verdict"]
    return tag("span", word, class_=f"judged {word.split()[0]}") if word else Markup()


def differences(found: Found) -> Table:
    """Every difference with its tests and the paper's: a line for each."""
    rows = []
    for cell in compared(found):
        difference, of = cell["difference"], difference_unit(cell)
        rows.append(
            [
                Cell(cell["row"], below=versus(cell)),
                Cell(
                    of.our_difference(difference["mean"]),
                    strong=True,
                    below=of.interval(difference) or "one seed: no interval",
                ),
                Cell(paper_difference(cell) or DASH),
                Cell(judged(cell), below=tag("span", cell["why"], class_="why")) if cell["verdict"] else _nothing(),
                Cell(str(difference["n"])),
                *(_p(difference[name]) for name in ("p", "holm_p", "sign_flip_p")),
                Cell(DASH if difference["detectable"] is None else of.ours(difference["detectable"])),
            ]
        )
    heads = (
        "Compared", "Ours", "Paper", "Verdict", "Seeds", "p, paired t", "p, Holm", "p, sign-flip", "Detectable",
    )  # fmt: skip
    return Table("Differences", [Column(head, None) for head in heads], rows, name="Differences")


def summaries(found: Found) -> Table:
    """What the text says of all differences at once, beside the printed differences and ours."""
    rows = [
        [Cell(one.text, below=tag("span", one.of, class_="why") if one.of else None) for one in line]
        for line in summary_lines(found)
    ]
    return Table("Summaries", [Column(head, None) for head in SUMMARY_HEADS], rows, name="Summaries")


def _p(p: float | None) -> Cell:
    return Cell(DASH if p is None else bare_p(p))


def other_metrics(found: Found) -> Table:
    """The main metric of every finished cell beside the others it has."""
    names = [name for name in found["also"] if any(name in cell["also"] for cell in found["cells"])]
    rows = []
    for cell in (one for one in found["cells"] if one["estimate"] and one["also"]):
        others = [Cell(ours(cell, cell["also"][name])) if name in cell["also"] else _nothing() for name in names]
        rows.append([Cell(cell["row"], below=cell["column"]), Cell(ours(cell), below=_unlike(found, cell)), *others])
    heads = ["Cell", f"{found['metric']['title']} (main)", *(metrics(found)[name] for name in names)]
    return Table("Other metrics", [Column(head, None) for head in heads], rows, name="Other metrics")


def _unlike(found: Found, cell: Found) -> str | None:
    """What a cell's number is, where it is not the table's main metric."""
    return None if cell["metric"] == found["metric"]["name"] else metric_of(found, cell)


def _nothing() -> Cell:
    return Cell(DASH, absent=True)


def diverged(found: Found) -> Table:
    """The runs whose training became no number; they are in none of the others."""
    rows = [[Cell(str(one[name])) for name in ("row", "column", "seed", "step")] for one in found["diverged"]]
    columns = [Column(title, title.lower(), left=title in ("Row", "Column")) for title in _DIVERGED]
    return Table("diverged, and not among the numbers", columns, rows, name="Diverged")


def failed(found: Found) -> Table:
    """The runs that an exception or the end of their process has ended; they are in none of the other tables."""
    rows = [[Cell(str(one[name])) for name in ("row", "column", "seed", "said")] for one in found["failed"]]
    columns = [Column(title, title.lower(), left=title != "Seed") for title in _FAILED]
    return Table("failed, and not among the numbers", columns, rows, name="Failed", least_width=LEAST_NAME)


_FAILED = ("Row", "Column", "Seed", "What ended it")
_DIVERGED = ("Row", "Column", "Seed", "Step")


def result_tables(found: Found) -> list[Table]:
    """What a terminal shows: the name of each row over a line for each of its cells; and what diverged or failed."""
    lines = [
        (cell["row"], [cell["column"], ours(cell), paper(cell) or "", *_difference(cell)]) for cell in found["cells"]
    ]
    further = [cell for cell in found["contrasts"] if cell["difference"]]
    lines += [(cell["row"], [versus(cell), "", "", *_difference(cell)]) for cell in further]
    order = {row: place for place, row in enumerate(found["rows"])}
    lines.sort(key=lambda line: order[line[0]])
    used = [any(texts) for texts in zip(*(line for _, line in lines), strict=True)]  # a figure gives no numbers
    columns = [*compress(("", "ours", "paper", "difference", "paper's", "verdict"), used)]
    lines = [(row, [*compress(line, used)]) for row, line in lines]
    said = f"{measured(found)}; {averaged(found)}; differences paired by seed"
    caption = ". ".join(part.removesuffix(".") for part in (said, few_seeds(found), unfinished(found)) if part)
    title = f"{found['title']} ({found['reference']})"
    shown = text_table(title, columns, group_rows(lines), caption, least_width=LEAST_NAME, unbroken=True)
    stated = [[*map(str, line)] for line in summary_lines(found)]
    summary = [text_table("what the text says of all of them", SUMMARY_HEADS, stated)] if stated else []
    lost = {"diverged": diverged, "failed": failed}
    return [shown, *summary, *(table(found) for name, table in lost.items() if found.get(name))]


def _difference(cell: Found) -> list[str]:
    """Ours, the paper's, and the verdict."""
    if not cell["difference"]:
        return ["", "", ""]
    of = difference_unit(cell)
    width = half(of, cell["difference"])
    mine = of.our_difference(cell["difference"]["mean"]) + ("" if width is None else f" {PLUS_MINUS} {width}")
    return [mine, paper_difference(cell) or "", cell["verdict"] or ""]


def listing_table(rows: Sequence[Found]) -> Table:
    """What can be reproduced: the claim, what it is about, what it takes at each scale, how much is there."""
    lines = []
    for row in rows:
        shared = f" ({row['shared']} shared)" if row["shared"] else ""
        costs = ", ".join(f"{scale} {cost}" for scale, cost in row["cost"].items())
        takes = f"{plural(row['runs'], 'run')}{shared}: {costs}"
        about = "; ".join(filter(None, (row["networks"], row["data"])))
        finished = f"finished: {row['finished']}" if row["finished"] else ""
        lines.append([row["name"], "\n".join(filter(None, (row["claim"], about, takes, finished)))])
    columns = ("name", "what the paper claims; networks and data; runs of a seed, cost at each scale")
    caption = (
        "shared: runs that other tables need as well. Costs are of all seeds, each run trained alone: a guess for two "
        "cores, at the paper's scale for one large GPU; --plan measures"
    )
    widest = max((len(row["name"]) for row in rows), default=None)
    return text_table("tables and figures of the paper", columns, lines, caption, left=2, least_width=widest)
