"""The tables of a reproduced table, as data for any renderer, and how its numbers are written next to the paper's."""

from collections.abc import Mapping, Sequence
from itertools import compress
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple

from spacedkd.paper.report import findings
from spacedkd.reporting.findings import verdict
from spacedkd.reporting.formatting import DASH, MINUS, PLUS_MINUS, bare_p, bounds, decimals_for, plural
from spacedkd.reporting.html import Markup, join, tag
from spacedkd.reporting.markdown import Markdown, escaped
from spacedkd.reporting.table import LEAST_NAME, Cell, Column, Table, group_rows, text_table
from spacedkd.runs.schema import Estimate

if TYPE_CHECKING:
    from spacedkd.paper.catalogue import Entry
    from spacedkd.paper.results import CellResult, Effect, LostCell, Results

Key = tuple[str, str]
"""row and column"""
PAPER_DIGITS = 2
"""number of decimals of percents, as in the paper"""
DIVERGED = ("Row", "Column", "Seed", "Step")
FAILED = ("Row", "Column", "Seed", "What ended it")
ESTIMATE = ("mean", "low", "high", "n")
EFFECT = ("mean", "low", "high", "n", "p", "holm_p", "sign_flip_p", "detectable")


# Single cells


class Unit(NamedTuple):
    """The unit of a cell's numbers, ours and the paper's alike."""

    factor: float
    """from our numbers to the paper's: 100 from parts of one to percent"""
    digits: int

    def text(self, value: float) -> str:
        """Return a number of the paper's; what rounds to nothing has no sign.

        >>> Unit(1, 2).text(71.054), Unit(1, 2).text(-0.001)
        ('71.05', '0.00')
        """
        return f"{round(value, self.digits) + 0.0:.{self.digits}f}".replace("-", MINUS)

    def signed(self, value: float) -> str:
        """Return a difference of the paper's.

        >>> Unit(1, 2).signed(1.38), Unit(1, 2).signed(0.001)
        ('+1.38', '0.00')
        """
        return ("+" if round(value, self.digits) > 0 else "") + self.text(value)

    def ours(self, value: float) -> str:
        """Return a number of ours."""
        return self.text(self.factor * value)

    def our_difference(self, value: float) -> str:
        """Return a difference of ours."""
        return self.signed(self.factor * value)

    def interval(self, difference: "Effect") -> str:
        """Return the interval of one of our differences; empty where one seed gives none."""
        return " to ".join(map(self.our_difference, bounds(difference)))

    def half(self, value: Estimate) -> str | None:
        """Return half the width of an interval; None where one seed gives none."""
        if value["low"] is None or value["high"] is None:
            return None
        return self.ours((value["high"] - value["low"]) / 2)


def unit(cell: "CellResult") -> Unit:
    """Return the unit of a cell: percent, or three digits of a plain number."""
    if cell["unit"] == "percent":
        return Unit(100, PAPER_DIGITS)
    ours = cell["estimate"]["mean"] if cell["estimate"] else None
    return Unit(1, decimals_for(max((abs(value) for value in (ours, cell["paper"]) if value is not None), default=0)))


def difference_unit(cell: "CellResult") -> Unit:
    """Return the unit of a cell's difference, which may be much smaller than the numbers it is of."""
    of, difference = unit(cell), cell["difference"]
    if cell["unit"] == "percent" or not difference:
        return of
    largest = max(abs(value) for value in (difference["mean"], *bounds(difference)))
    return Unit(of.factor, max(of.digits, decimals_for(largest))) if largest else of


def key(cell: "CellResult") -> Key:
    return cell["row"], cell["column"]


def cells_by_key(results: "Results") -> dict[Key, "CellResult"]:
    """Return the cells of a table by row and column."""
    return {key(cell): cell for cell in results["cells"]}


def reference(cell: "CellResult") -> Key | None:
    """Return the cell that the effect of this one is measured against."""
    if not cell["against"]:
        return None
    row, column = cell["against"]
    return row, column


def reference_name(cell: "CellResult") -> str:
    """Return the name of the reference, as short as can be: the column, where it is of the same row."""
    row, column = cell["against"] or ("", "")
    if row == cell["row"]:
        return column
    return row if column == cell["column"] else f"{row}: {column}"


def pair_name(cell: "CellResult") -> str:
    """Return which two columns a difference is of."""
    return f"{cell['column']} vs {reference_name(cell)}"


def format_ours(cell: "CellResult", value: Estimate | None = None) -> str:
    """Return a cell's estimate, or another of its metrics, with half its 95 % interval; or why there is none."""
    shown = value or cell["estimate"]
    if shown is None:
        return "not measured" if cell.get("runs") else "not finished"
    half = unit(cell).half(shown)
    return unit(cell).ours(shown["mean"]) + ("" if half is None else f" {PLUS_MINUS} {half}")


def format_paper(cell: "CellResult") -> str | None:
    """Return the paper's number; None where it prints none."""
    return None if cell["paper"] is None else unit(cell).text(cell["paper"])


def format_paper_difference(cell: "CellResult") -> str | None:
    return None if cell["paper_difference"] is None else difference_unit(cell).signed(cell["paper_difference"])


def has_paper_numbers(results: "Results") -> bool:
    """Return whether the paper prints numbers at all: some of its figures have none."""
    return any(cell["paper"] is not None for cell in results["cells"])


def signs(cell: "CellResult") -> str | None:
    """Return the sign of the effect in ours and in the paper; None where there is no difference."""
    difference = cell["difference"]
    if not difference:
        return None
    if difference["low"] == difference["high"] == 0:  # counts may be exactly equal
        ours = "equal"
    else:
        ours = {"better": "effect +", "worse": f"effect {MINUS}"}.get(verdict(difference) or "", "unclear")
    paper = cell["paper_difference"]
    return ours + ("" if paper is None else f" (paper {'+' if paper > 0 else MINUS if paper < 0 else '0'})")


def compared_cells(results: "Results") -> list["CellResult"]:
    """Return the cells that have a difference; contrasts, which have another one, come last."""
    return [cell for cell in (*results["cells"], *results["contrasts"]) if cell["difference"]]


def gains_by_seed(cell: "CellResult", other: "CellResult") -> dict[int, float]:
    """Return how far a cell is from another, over the seeds both have."""
    ours, theirs = cell["values"], other["values"]
    return {int(seed): ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def best_cells(results: "Results") -> set[Key]:
    """Return the cells to print in bold: the best ones, but only where a difference is shown.

    Of a cell and those with the same seeds that are measured against it, the best one: if it is another one, its
    interval lies on the good side of zero; if it is the cell itself, the intervals of all others lie on the bad one. A
    cell that another is shown to be better than is never among them. Means over other seeds are not compared.
    """
    cells = cells_by_key(results)
    groups: dict[Key, list[CellResult]] = {}
    for cell in cells.values():
        of = reference(cell)
        if of in cells and _side(cell) and cell["difference"] and cell["values"].keys() == cells[of]["values"].keys():
            groups.setdefault(of, []).append(cell)
    best, beaten = set(), set()
    for of, others in groups.items():
        verdicts = {key(cell): _verdict(cell) for cell in others}
        leading = max(others, key=_gain)
        if verdicts[key(leading)] == "better":
            best.add(key(leading))
            beaten.add(of)
        elif {*verdicts.values()} == {"worse"}:
            best.add(of)
    return best - beaten


def _side(cell: "CellResult") -> int:
    """Return 1 where more is better, -1 where less is, 0 where neither is known; a cell may say so in `better`."""
    return {"high": 1, "low": -1}.get(cell.get("better") or ("high" if cell["unit"] == "percent" else ""), 0)


def _gain(cell: "CellResult") -> float:
    assert cell["difference"] is not None
    return _side(cell) * cell["difference"]["mean"]


def _verdict(cell: "CellResult") -> str | None:
    word = verdict(cell["difference"])
    swapped = {"better": "worse", "worse": "better"}
    return swapped.get(word, word) if word and _side(cell) < 0 else word


def footnotes(results: "Results") -> Mapping[str, str]:
    """Return the mark of each footnote of a cell: a, b, ..., z, aa, bb, ...; equal ones share it."""
    texts = dict.fromkeys(cell["note"] for cell in results["cells"] if cell["note"])
    marks = [ascii_lowercase[index % 26] * (1 + index // 26) for index in range(len(texts))]
    return dict(zip(texts, marks, strict=True))


# Tables


def layout(results: "Results") -> Table:
    """Return rows and columns as the paper has them: in a cell ours, the paper's, the signs of both, the verdict."""
    cells, best, marks = cells_by_key(results), best_cells(results), footnotes(results)
    no_number = "paper: none" if has_paper_numbers(results) else ""
    rows = [
        [Cell(row), *(_layout_cell(cells.get((row, column)), best, marks, no_number) for column in results["columns"])]
        for row in results["rows"]
    ]
    names = ["", *results["columns"]]
    columns = [Column(name, None, left=index == 0, document=name) for index, name in enumerate(names)]
    return Table(results["title"], columns, rows, name=results["title"])


def _layout_cell(cell: "CellResult | None", best: set[Key], marks: Mapping[str, str], no_number: str) -> Cell:
    if cell is None:
        return Cell("", absent=True)
    mark = marks[cell["note"]] if cell["note"] else ""
    paper, sign = format_paper(cell), signs(cell)
    below = join(
        tag("span", no_number if paper is None else f"paper {paper}", class_="range"),
        tag("span", sign, class_="range") if sign else "",
        _judgement(cell),
    )
    if cell["estimate"] is None:
        return Cell(format_ours(cell), mark=mark, below=below, paper=paper, unfinished=True)
    half = unit(cell).half(cell["estimate"])
    return Cell(
        unit(cell).ours(cell["estimate"]["mean"]),
        half="" if half is None else f" {PLUS_MINUS} {half}",
        mark=mark,
        strong=key(cell) in best,
        below=below,
        paper=paper,
    )


def _judgement(cell: "CellResult") -> Markup:
    """Return the verdict as an element of the page."""
    word = cell["verdict"]
    return tag("span", word, class_=f"judged {word.split()[0]}") if word else Markup()


def differences(results: "Results") -> Table:
    """Return a row for every difference, with its tests and the paper's."""
    columns = [
        Column("Compared", None, left=True, document=""),
        Column(None, None, left=True, document="against"),
        Column("Ours", None, document="ours"),
        Column(None, None, document="95 % interval"),
        Column("Paper", None, document="paper"),
        Column(None, None, left=True, document="signs"),
        Column("Verdict", None, left=True, document="verdict"),
        Column("Seeds", None, document="seeds"),
        Column("p, paired t", None, document="p, paired t"),
        Column("p, Holm", None, document="p, Holm"),
        Column("p, sign-flip", None, document="p, sign-flip"),
        Column("Detectable", None, document="detectable"),
    ]
    return Table("Differences", columns, [*map(_difference_row, compared_cells(results))], name="Differences")


def _difference_row(cell: "CellResult") -> list[Cell]:
    difference, of = cell["difference"], difference_unit(cell)
    assert difference is not None
    mean, interval = of.our_difference(difference["mean"]), of.interval(difference)
    points = " points" if cell["unit"] == "percent" else ""
    detectable = difference["detectable"]
    return [
        Cell(cell["row"], document=f"{cell['row']}: {cell['column']}", below=pair_name(cell)),
        Cell(reference_name(cell)),
        Cell(tag("b", mean), document=mean + points, below=interval or "one seed: no interval"),
        Cell(interval or DASH),
        Cell(format_paper_difference(cell) or DASH),
        Cell(signs(cell) or DASH),
        _verdict_cell(cell),
        Cell(str(difference["n"])),
        *(Cell(DASH if p is None else bare_p(p)) for p in (difference["p"], difference["holm_p"])),
        Cell(DASH if difference["sign_flip_p"] is None else bare_p(difference["sign_flip_p"])),
        Cell(DASH if detectable is None else of.ours(detectable)),
    ]


def _verdict_cell(cell: "CellResult") -> Cell:
    if not cell["verdict"]:
        return _nothing()
    document = Markdown(f"**{cell['verdict']}**: {escaped(cell['why'])}")
    return Cell(_judgement(cell), document=document, below=tag("span", cell["why"], class_="why"))


def _nothing() -> Cell:
    return Cell(DASH, absent=True)


def summaries(results: "Results") -> Table:
    """Return what the text says of all differences at once, beside the printed differences and ours."""
    heads = findings.SUMMARY_HEADS
    columns = [Column(head, head, left=index in (0, len(heads) - 1), document=head) for index, head in enumerate(heads)]
    rows = [[_summary_cell(part) for part in line] for line in findings.summary_lines(results)]
    return Table("what the text says of all of them", columns, rows, name="Summaries")


def _summary_cell(part: findings.Part) -> Cell:
    text = str(part)
    return Cell(part.text, text, text, below=tag("span", part.of, class_="why") if part.of else None)


def other_metrics(results: "Results") -> Table:
    """Return the main metric of every finished cell beside the others it has."""
    titles = findings.metrics(results)
    cells = [cell for cell in results["cells"] if cell["estimate"] and cell["also"]]
    main = f"{results['metric']['title']} (main)"
    columns = [Column("Cell", None, left=True, document=""), Column(main, None, document=main)]
    for name in results["also"]:
        is_shown = any(name in cell["also"] for cell in results["cells"])
        columns.append(Column(titles[name] if is_shown else None, None, document=titles[name]))
    rows = []
    for cell in cells:
        is_main = cell["metric"] == results["metric"]["name"]
        rows.append(
            [
                Cell(cell["row"], document=f"{cell['row']}: {cell['column']}", below=cell["column"]),
                Cell(format_ours(cell), below=None if is_main else findings.metric_of(results, cell)),
                *(
                    Cell(format_ours(cell, cell["also"][name])) if name in cell["also"] else _nothing()
                    for name in results["also"]
                ),
            ]
        )
    return Table("Other metrics", columns, rows, name="Other metrics")


def diverged(results: "Results") -> Table:
    """Return the runs whose training became no number; they are in none of the other tables."""
    columns = [Column(title, title.lower(), left=title in ("Row", "Column")) for title in DIVERGED]
    rows = [[*_lost_cells(run), Cell(str(run.get("step")))] for run in results["diverged"]]
    return Table("diverged, and not among the numbers", columns, rows, name="Diverged")


def failed(results: "Results") -> Table:
    """Return the runs that an exception or the end of their process has ended; they are in none of the others."""
    columns = [Column(title, title.lower(), left=title != "Seed") for title in FAILED]
    rows = [[*_lost_cells(run), Cell(run.get("said", ""))] for run in results.get("failed", ())]
    return Table("failed, and not among the numbers", columns, rows, name="Failed", least_width=LEAST_NAME)


def _lost_cells(run: "LostCell") -> list[Cell]:
    return [Cell(run["row"]), Cell(run["column"]), Cell(str(run["seed"]))]


def result_tables(results: "Results") -> list[Table]:
    """Return the tables for a terminal: a line for each cell below the name of its row; summaries; lost runs."""
    lines = [
        (cell["row"], [cell["column"], format_ours(cell), format_paper(cell) or "", *_terminal_difference(cell)])
        for cell in results["cells"]
    ]
    contrasts = [cell for cell in results["contrasts"] if cell["difference"]]
    lines += [(cell["row"], [pair_name(cell), "", "", *_terminal_difference(cell)]) for cell in contrasts]
    order = {row: index for index, row in enumerate(results["rows"])}
    lines.sort(key=lambda line: order[line[0]])
    used = [any(texts) for texts in zip(*(line for _, line in lines), strict=True)]  # a figure gives no numbers
    columns = [*compress(("", "ours", "paper", "difference", "paper's", "verdict"), used)]
    lines = [(row, [*compress(line, used)]) for row, line in lines]
    about = f"{findings.measured(results)}; {findings.averaged(results)}; differences paired by seed"
    remarks = (about, findings.few_seeds(results), findings.unfinished(results))
    caption = ". ".join(remark.removesuffix(".") for remark in remarks if remark)
    title = f"{results['title']} ({results['reference']})"
    main = text_table(title, columns, group_rows(lines), caption, least_width=LEAST_NAME, unbroken=True)
    shown = [main]
    if results.get("summaries"):
        shown.append(summaries(results))
    if results.get("diverged"):
        shown.append(diverged(results))
    if results.get("failed"):
        shown.append(failed(results))
    return shown


def _terminal_difference(cell: "CellResult") -> list[str]:
    """Return our difference, the paper's, and the verdict."""
    if not cell["difference"]:
        return ["", "", ""]
    of = difference_unit(cell)
    half = of.half(cell["difference"])
    ours = of.our_difference(cell["difference"]["mean"]) + ("" if half is None else f" {PLUS_MINUS} {half}")
    return [ours, format_paper_difference(cell) or "", cell["verdict"] or ""]


def all_numbers(results: "Results") -> Table:
    """Return a row for each cell with all numbers of results.json: ours as parts of one, the paper's as printed.

    Cells that are measured against further ones follow, a row for each. Columns `seed_N` are our values by seed; what
    is not there is empty.
    """
    seeds = sorted({seed for cell in results["cells"] for seed in cell["values"]}, key=int)
    identity = ("row", "column", "metric", "unit", "fingerprint")
    heads = [
        "table", "scale", *identity,
        *ESTIMATE, *(f"seed_{seed}" for seed in seeds),
        *(f"{name}_{part}" for name in results["also"] for part in ESTIMATE),
        "paper_as_printed", "against_row", "against_column",
        *(f"difference_{part}" for part in EFFECT), "paper_difference_as_printed", "verdict", "why", "note",
    ]  # fmt: skip
    rows = [
        [
            results["name"], results["scale"]["name"], *_values(cell, identity),
            *_values(cell["estimate"], ESTIMATE), *_values(cell["values"], seeds),
            *(part for name in results["also"] for part in _values(cell["also"].get(name), ESTIMATE)),
            cell["paper"], *(cell["against"] or (None, None)), *_values(cell["difference"], EFFECT),
            cell["paper_difference"], cell["verdict"], cell["why"], cell["note"],
        ]
        for cell in (*results["cells"], *results["contrasts"])
    ]  # fmt: skip
    cells = [[Cell("" if value is None else str(value)) for value in row] for row in rows]
    return Table(results["title"], [Column(None, None, document=head) for head in heads], cells)


def _values(of: Any, names: Sequence[str]) -> list[Any]:
    return [(of or {}).get(name) for name in names]


def listing_table(entries: "Sequence[Entry]") -> Table:
    """Return what can be reproduced: the claim, what it is about, what it takes at each scale, how much is there."""
    lines = []
    for entry in entries:
        shared = f" ({entry.shared} shared)" if entry.shared else ""
        costs = ", ".join(f"{scale} {cost}" for scale, cost in entry.cost.items())
        takes = f"{plural(entry.runs, 'run')}{shared}: {costs}"
        about = "; ".join(filter(None, (entry.networks, entry.data)))
        finished = f"finished: {entry.finished}" if entry.finished else ""
        lines.append([entry.name, "\n".join(filter(None, (entry.claim, about, takes, finished)))])
    columns = ("name", "what the paper claims; networks and data; runs of a seed, cost at each scale")
    caption = (
        "shared: runs that other tables need as well. Costs are of all seeds, each run trained alone: a guess for two "
        "cores, at the paper's scale for one large GPU; --plan measures"
    )
    widest = max((len(entry.name) for entry in entries), default=None)
    return text_table("tables and figures of the paper", columns, lines, caption, left=2, least_width=widest)


def index_table(every: "Sequence[Results]", links: Sequence[str]) -> Table:
    """Return a row for each table that was made: its claim, the verdict, and how many runs are missing."""
    heads = ["table or figure", "claim", "verdict", *findings.VERDICTS, "scale and seeds", "runs missing"]
    words = (0, 1, 2, len(heads) - 2)
    rows = [
        [
            Cell(results["title"], document=Markdown(f"[{escaped(results['title'])}]({link})")),
            Cell(results["claim"]),
            Cell(results["verdict"]["sentence"]),
            *(Cell(str(results["verdict"][word])) for word in findings.VERDICTS),
            Cell(findings.scale_and_seeds(results)),
            Cell(str(results.get("missing", 0))),
        ]
        for results, link in zip(every, links, strict=True)
    ]
    return Table("", [Column(None, None, index in words, head) for index, head in enumerate(heads)], rows)
