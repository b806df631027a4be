"""A reproduced table in all its forms: the same numbers as its results.json, in forms that other programs can read."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest

from spacedkd.paper.catalogue import Entry
from spacedkd.paper.report import csv_text, latex, listing_table, markdown, result_tables
from spacedkd.paper.report.findings import few_seeds, measured
from spacedkd.paper.report.tables import best_cells, unit
from spacedkd.reporting.latex import FIT_LINE
from tests.paper.fake_results import (
    DEIT,
    HOSTILE,
    PAPER,
    R18,
    R50,
    Document,
    cell,
    intervals,
    losses,
    results,
    values,
    without_cells,
)

BOTH = pytest.mark.parametrize("found", [intervals(), losses()], ids=["intervals", "losses"])


def leaves(of: Any) -> list[float]:
    """Every number inside."""
    if isinstance(of, dict):
        return [number for inner in of.values() for number in leaves(inner)]
    return [of] if isinstance(of, (int, float)) else []


@BOTH
def test_csv_has_every_number_of_every_cell(found: Document) -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(found))))
    for line, one in zip(lines, [*found["cells"], *found["contrasts"]], strict=True):
        assert None not in line
        assert (line["row"], line["column"], line["note"]) == (one["row"], one["column"], one["note"])
        numbers = sorted(float(text) for text in line.values() if re.fullmatch(r"-?[\d.]+(e-?\d+)?", text or ""))
        text = [float(one["fingerprint"])] if re.fullmatch(r"\d+(e\d+)?", one["fingerprint"]) else []
        names = [float(name) for name in (one["row"], one["column"]) if re.fullmatch(r"[\d.]+", name)]
        assert numbers == sorted([*leaves(one), *text, *names])
    first = next(line for line in lines if line["difference_mean"])
    same = next(one for one in found["cells"] if one["difference"])
    assert float(first["difference_holm_p"]) == same["difference"]["holm_p"]
    assert float(first["paper_difference_as_printed"]) == same["paper_difference"]
    assert float(first["seed_3"]) == same["values"]["3"]
    assert float(first["best_high"]) == same["also"]["best"]["high"]
    assert [first["against_row"], first["against_column"]] == same["against"]


def unescaped(row: str) -> list[str]:
    """The cells of a line of LaTeX."""
    assert row.endswith(r" \\")
    return [one.strip() for one in re.split(r"(?<!\\)&", row[:-3])]


def body(text: str) -> list[str]:
    inside = text.split("\\toprule\n")[1].split("\\bottomrule")[0]
    return [line for line in inside.splitlines() if line not in (r"\midrule", r"\addlinespace")]


@BOTH
def test_latex_is_of_one_piece(found: Document) -> None:
    text = latex(found)
    for environment in ("table*" if len(found["columns"]) > 5 else "table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}") == 1
    # what is left without escaped letters: braces nest, mathematics closes, and nothing has a meaning of its own
    bare = re.sub(r"\\[\\{}$&#%_,]", "", text.split("\n", 1)[1].replace(FIT_LINE, "{"))
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#%_~<>|\u2212\u00b1\u2013\u2009]", bare)
    assert all(re.search(r"\$[^$]*\^[^$]*\$", part) for part in re.findall(r"\$?\^\S*", bare))
    (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert columns == "l" + "c" * len(found["columns"])
    assert {len(unescaped(row)) for row in body(text)} == {len(columns)}
    assert f"\\label{{tab:{found['name']}}}" in text


def test_the_papers_numbers_are_spoken_of_where_there_are_some() -> None:
    found = intervals()
    bare = found | {"cells": [one | {"paper": None, "paper_difference": None} for one in found["cells"]]}
    assert "the paper's number" in latex(found)
    assert "the paper's number" not in latex(bare)
    assert "In brackets: the paper's number" in markdown(found)
    assert "In brackets" not in markdown(bare)


def test_latex_keeps_the_two_dashes_of_a_flag_apart() -> None:
    assert "with -{}-recipe official, or 1--2" in latex(losses() | {"notes": ["with --recipe official, or 1\u20132"]})


def test_latex_prints_ours_with_half_intervals_and_the_papers_beneath() -> None:
    found = intervals()
    head, ours, theirs, *_ = (unescaped(row) for row in body(latex(found)))
    assert head == ["", "w/o KD", "online", "w/ 0.5", "w/ 1.0", "w/ 1.5", "w/ 2.0", "w/ max"]
    assert theirs == [r"\quad paper", *(f"{number:.2f}" for number in PAPER[R18].values())]
    for text, one in zip(ours[1:], found["cells"], strict=False):
        mean, half = one["estimate"]["mean"], (one["estimate"]["high"] - one["estimate"]["low"]) / 2
        bare = text.replace(r"\textbf{", "").replace("}", "").replace("$^{a$", "")
        assert bare == rf"{100 * mean:.2f} {{\scriptsize $\pm$ {100 * half:.2f}"
    assert [text for text in ours if "textbf" in text] == [ours[6]]
    assert ours[5].endswith("$^{a}$")
    assert r"test accuracy, mean over the last ten epochs, \%, mean over 2 to 6 seeds $\pm$ half" in latex(found)
    assert r"{\footnotesize $^{a}$ Printed as s = 1.5, but made with 1.0.\par}" in latex(found)


def test_latex_leaves_out_the_line_of_a_paper_that_has_no_number() -> None:
    rows = [unescaped(row) for row in body(latex(intervals()))]
    assert [row[0] for row in rows[1:]] == [R18, r"\quad paper", R50, r"\quad paper", DEIT]
    assert rows[3][6:] == ["--", "--"], "not finished"
    assert rows[5][1:] == ["", rows[5][2], "", "", rows[5][5], "", ""], "no such cell"


def test_latex_of_many_rows_goes_on_in_tables_of_a_page() -> None:
    many = [cell(f"row {number}", "online", [0.5, 0.6], 70.0) for number in range(30)]
    text = latex(results("many", many, notes=["A note."]))
    assert re.findall(r"\\label\{(.*)\}", text) == ["tab:many", "tab:many-2", "tab:many-3"]
    tables = text.split(r"\end{table}")[:-1]
    assert [[*map(int, re.findall(r"row (\d+) &", one))] for one in tables] == [
        [*range(12)],
        [*range(12, 24)],
        [*range(24, 30)],
    ]
    assert [("continued" in one, "A note." in one) for one in tables] == [(False, False), (True, False), (True, True)]


def test_bold_is_what_the_intervals_show() -> None:
    """R18 rises to s = 2; in R50 all spaced cells fall below online, and no KD is above; lower losses are better."""
    assert best_cells(intervals()) == {(R18, "w/ 2.0"), (R50, "w/o KD")}
    assert best_cells(losses()) == {("L1", "online"), ("MSE (Sum)", "spaced"), ("loss under noise", "spaced")}
    unknown = losses()
    for one in unknown["cells"]:
        one.pop("better", None)
    assert ("loss under noise", "spaced") not in best_cells(unknown)
    rising = [cell("a", "none", [0.5, 0.51]), cell("a", "online", [0.6, 0.61], None, ("a", "none"))]
    rising.append(cell("a", "spaced", [0.7, 0.71], None, ("a", "online")))
    assert best_cells(results("rising", rising)) == {("a", "spaced")}, "one in a row of references"
    unclear = [cell("a", "online", [0.5, 0.6]), cell("a", "spaced", [0.61, 0.55], None, ("a", "online"))]
    assert best_cells(results("unclear", unclear)) == set()


def test_bold_is_only_among_equal_seeds() -> None:
    """The third arm is best by its mean over two seeds, of which the others have six."""
    cells = [
        cell("a", "online", values(0.50)),
        cell("a", "spaced", values(0.55, 0.5), None, ("a", "online")),
        cell("a", "few", {0: 0.60, 1: 0.601}, None, ("a", "online")),
    ]
    assert best_cells(results("seeds", cells)) == {("a", "spaced")}
    others = [cells[0], cells[2]]
    assert best_cells(results("seeds", others)) == set()
    assert "over the same seeds" in markdown(results("seeds", others))


def summarised() -> Document:
    rows = [cell("a", "w/o", values(0.5), 70.0), cell("a", "w/", values(0.52, 1, 6, 1), 71.0, ("a", "w/o"))]
    ours = {"mean": 0.0191, "low": 0.01, "high": 0.0282, "n": 6}
    average = {
        "statement": "the average of all", "of": "mean", "stated": 2.14, "printed": 2.3163, "printed_row": None,
        "rows": 24, "finished": 2, "printed_finished": 1.91, "ours": ours, "our_row": None,
        "verdict": "agrees", "why": "the sign is the paper's",
    }  # fmt: skip
    extreme = average | {
        "statement": "the least",
        "stated": 1.19,
        "printed_row": "b",
        "ours": None,
        "verdict": None,
        "why": "",
    }
    return results("gains", rows, summaries=[average, extreme])


def test_what_the_text_says_of_all_rows_is_in_every_form() -> None:
    found = summarised()
    line = "| the average of all | +2.14 | +2.32 | +1.91 (2 of 24 rows) | +1.91 \u00b1 0.91 | agrees (the sign"
    assert line in markdown(found)
    assert "| the least | +1.19 | +2.32 (b) | \u2013 | not finished | \u2013 |" in markdown(found)
    assert r"The average of all: stated +2.14, printed differences +2.32, ours +1.91 $\pm$ 0.91." in latex(found)
    _, table = result_tables(found)
    assert [one.in_terminal for one in table.rows[0]][:2] == ["the average of all", "+2.14"]


@BOTH
def test_markdown_tables_have_as_many_cells_in_every_line(found: Document) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", markdown(found), re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_markdown_says_it_all() -> None:
    found = intervals(seeds=3)
    text = markdown(found)
    assert text.startswith("# Performance of different intervals\n\nTab. extend\\_main")
    assert "**Spacing helps here, too.**\n\nOurs: " in text
    one = next(one for one in found["cells"] if one["column"] == "w/ 1.5")
    half = (one["estimate"]["high"] - one["estimate"]["low"]) / 2
    assert f"{100 * one['estimate']['mean']:.2f} \u00b1 {100 * half:.2f} (72.43) <sup>a</sup>" in text
    assert f"| +{100 * one['difference']['mean']:.2f} points | " in text
    interval = "(95 % interval 0.90 to 2.00), the paper's at 1.30; agrees: it bends down"
    assert f"ResNet-18, CIFAR-100: fit: best at 1.45 {interval}" in text
    assert "- all 2 rows: fit: best at 1.25, the paper's at 1.30\n" in text
    beyond = markdown(found | {"fits": [found["fits"][0] | {"optimum": 2.0}]})
    assert "fit: best at 2.00, the end of what was measured (95 % interval 0.90 to 2.00), the paper's" in beyond
    assert "fewer than 6 seeds can never reach p \\< 0.05 exactly" in text
    assert "w/ 1.0, seed 3, at step 1234" in text
    assert "12 runs are not finished" in text
    assert found["rule"] in text
    assert "```\nspacedkd reproduce interval --scale cpu\n```" in text
    assert "42 runs, 36 of them from a teacher that another run had trained; 4 h 6 min by the clock" in text
    assert "torch 2.13.0" in text


def test_names_are_text_in_markdown() -> None:
    text = markdown(losses())
    assert "<b>" not in text
    assert re.sub(r"\\(.)", r"\1", text).count(HOSTILE) >= 3


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (1, "Where one seed alone is finished there is no interval and no test"),
        (3, "With 3 seeds the exact test has 8 outcomes and its p is 0.25 at the least"),
        (5, "With 5 seeds the exact test has 32 outcomes and its p is 0.0625 at the least"),
        (6, None),
    ],
)
def test_what_few_seeds_can_never_show(seeds: int, said: str | None) -> None:
    remark = few_seeds(intervals(seeds))
    assert (remark is None) if said is None else (remark or "").startswith(said)


def test_equal_counts_are_said_to_be_equal() -> None:
    both = [
        cell("a", "w/o", [11760.0] * 2, unit="number"),
        cell("a", "w/", [11760.0] * 2, None, ("a", "w/o"), unit="number"),
    ]
    assert "| 0 | 0 to 0 | \u2013 | equal | " in markdown(results("cost", both))


def test_numbers_have_three_digits_and_percents_two_decimals() -> None:
    one = cell("a", "b", [0.01234, 0.01236], 0.0118, unit="number")
    assert (unit(one).ours(one["estimate"]["mean"]), unit(one).text(one["paper"])) == ("0.0123", "0.0118")
    assert unit(cell("a", "b", [0.5])).ours(0.53126) == "53.13"


def shown(found: Document) -> list[list[str]]:
    return [[cell.in_terminal for cell in row] for row in result_tables(found)[0].rows]


def test_the_terminal_has_a_line_for_each_cell() -> None:
    found = intervals()
    lines = shown(found)
    assert len(lines) == 3 + len(found["cells"]) + len(found["contrasts"])
    (contrast,) = (line for line in lines if line[0] == "  w/ 1.5 vs w/ max")
    assert contrast[1:3] == ["", ""]
    assert contrast[3].startswith("+1.20 ")
    assert contrast[4:] == ["+0.21", "agrees"]
    above = {place: line[0] for place, line in enumerate(lines) if line[1:] == [""] * 5}
    assert above == {0: R18, 9: R50, 17: DEIT}
    one, line = found["cells"][2], lines[3]
    assert line[0] == "  w/ 0.5"
    assert line[1].startswith(f"{100 * one['estimate']['mean']:.2f} \u00b1 ")
    assert line[2] == "72.02"
    assert line[3].startswith(f"+{100 * one['difference']['mean']:.2f} \u00b1 ")
    assert line[4:] == ["+0.97", "agrees"]
    assert lines[15][1:] == ["not finished", "73.28", "", "", ""]
    assert [table.name for table in result_tables(found)] == ["", "Diverged"]


def test_the_terminal_leaves_out_what_the_paper_does_not_give() -> None:
    found = intervals()
    for one in (*found["cells"], *found["contrasts"]):
        one["paper"] = one["paper_difference"] = None
    (table, _) = result_tables(found)
    assert [column.short for column in table.columns] == ["", "ours", "difference", "verdict"]
    assert {len(row) for row in table.rows} == {4}


def test_the_list_of_what_can_be_reproduced() -> None:
    entry = Entry(
        "critical-period", "Late is better.", networks="ResNet-18", data="CIFAR-100", runs=42, shared=36,
        cost={"smoke": "1 min", "cpu": "4 h", "paper": "12 d"}, finished="3 of 42",
    )  # fmt: skip
    table = listing_table([entry])
    (line,) = [[cell.in_terminal for cell in cells] for cells in table.rows]
    assert line == [
        "critical-period",
        "Late is better.\nResNet-18; CIFAR-100\n"
        "42 runs (36 shared): smoke 1 min, cpu 4 h, paper 12 d\nfinished: 3 of 42",
    ]
    assert table.least_width == len("critical-period")
    assert listing_table([]).rows == []


def test_a_claim_without_a_table() -> None:
    """The theory has no cells, no runs, and nothing that could be missing."""
    found = without_cells()
    assert "## Notes\n\n- Lemma: it holds" in markdown(found)
    assert "|" not in markdown(found)
    assert latex(found) == "% theory: no table. Spacing helps here, too.\n"
    assert len(csv_text(found).splitlines()) == 1
    assert result_tables(found)[0].rows == []


def test_a_table_of_which_nothing_is_finished() -> None:
    found = results("new", [cell("a", "online", {}, 70.0), cell("a", "spaced", {}, 71.0, ("a", "online"))], missing=4)
    found = json.loads(json.dumps(found))
    assert "no finished seed" in markdown(found)
    assert [unescaped(row)[1:] for row in body(latex(found))[1:]] == [["--", "--"], ["70.00", "71.00"]]
    assert len(csv_text(found).splitlines()) == 3
    assert shown(found)[1][1] == "not finished"


def test_what_is_measured_is_said_of_every_metric_a_row_may_have() -> None:
    found = intervals()
    main, best = found["metric"]["title"], found["also"]["best"]
    assert measured(found) == main
    found["cells"][-1]["metric"] = "best"
    assert measured(found) == f"{main}; where a row says so, {best}"
    found["cells"][-1]["metric"] = "at/20"
    assert measured(found) == f"{main} (the first cell; the others likewise, as rows and columns say)"
