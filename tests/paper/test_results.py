"""What a table says of numbers that are given: which side is better, and how many tests were made."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from spacedkd.config.spec import RunSpec
from spacedkd.evaluation.instrument import Metric
from spacedkd.paper.results import table_results
from spacedkd.paper.table import Axis, Cell, NamedTable, Summary, Table
from spacedkd.paper.verdict import SMALLER, VERDICTS

SCATTER = (-0.004, -0.001, 0.0, 0.001, 0.002, 0.002)
Unit = Literal["percent", "number"]


def made(values: Mapping[str, tuple[float, ...]], paper: Mapping[str, float], unit: Unit = "percent") -> dict[str, Any]:
    """The cells of a table of one row, all but the first of which are measured against the first."""
    first, *_ = values
    cells = [
        Cell("row", column, RunSpec(), paper.get(column), None if column == first else ("row", first))
        for column in values
    ]

    def read(cell: Cell, metric: str) -> dict[int, Metric]:
        better: Literal["high", "low"] = "high" if unit == "percent" else "low"
        return {seed: Metric("", value, 0.0, "", better, unit) for seed, value in enumerate(values[cell.column])}

    table = Table("Title", "Tab. 1", 1, lambda scale: cells, also=())
    return {cell["column"]: cell for cell in table_results(NamedTable("name", "claim", table), cells, read)["cells"]}


def around(mean: float) -> tuple[float, ...]:
    return tuple(mean + (place + 1) * away for place, away in enumerate(SCATTER))


def level(mean: float) -> tuple[float, ...]:
    return tuple(mean + away / 10 for away in SCATTER)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(around(1.0), "agrees"), (around(1.4), "disagrees"), (around(1.2), SMALLER)]
)
def test_of_a_loss_the_lower_one_is_better_in_ours_and_in_the_papers(ours: tuple[float, ...], verdict: str) -> None:
    """The paper: 1.2 falls to 1.0. An effect that is not there rules out a fall of 0.2."""
    found = made({"w/o": level(1.2), "w/": ours}, {"w/o": 1.2, "w/": 1.0}, "number")
    assert found["w/"]["paper_difference"] == -0.2
    assert found["w/"]["verdict"] == verdict


def test_a_percent_of_the_paper_is_a_hundredth_of_ours() -> None:
    found = made({"w/o": level(0.50), "w/": around(0.52)}, {"w/o": 71.05, "w/": 72.43})
    assert found["w/"]["paper_difference"] == 1.38
    assert found["w/"]["verdict"] == "agrees"


def test_holm_counts_the_tests_that_are_not_finished_too() -> None:
    """Three judged effects, of which two have a p: the smaller one times three, the other times two."""
    found = made({"w/o": level(0.5), "1.0": around(0.51), "1.5": around(0.52), "2.0": (0.5,)}, {})
    first, second = (found[column]["difference"] for column in ("1.5", "1.0"))
    assert first["p"] < second["p"]
    assert first["holm_p"] == pytest.approx(3 * first["p"])
    assert second["holm_p"] == pytest.approx(max(3 * first["p"], 2 * second["p"]))
    assert found["2.0"]["difference"]["holm_p"] is None


def test_a_cell_of_another_metric_stands_beside_the_run_it_is_of() -> None:
    """The table is about the first cell's metric, and no metric of a run is listed as another one twice."""
    cells = [Cell("row", "deepest", RunSpec()), Cell("row", "all heads", RunSpec(), metric="ensemble_best")]
    accuracy = {"late": 0.5, "last": 0.51, "ensemble_best": 0.6}
    table = Table("Title", "Tab. 1", 1, lambda scale: cells, also=("last", "ensemble_best"))
    found = table_results(
        NamedTable("name", "claim", table), cells, lambda cell, metric: {0: Metric("", accuracy[metric], 0.01, "")}
    )
    deepest, all_heads = found["cells"]
    assert found["metric"]["name"] == "late"
    assert deepest["estimate"]["mean"] == 0.5
    assert all_heads["estimate"]["mean"] == 0.6
    assert {name: one["mean"] for name, one in deepest["also"].items()} == {"last": 0.51, "ensemble_best": 0.6}
    assert all_heads["also"] == {}


def test_further_columns_of_a_row_are_compared_and_counted() -> None:
    """The table is measured against online; that 1.5 is best is about the others, of one row run of two."""
    values = {"online": level(0.50), "1.5": level(0.52), "max": around(0.54)}
    paper = {"online": 71.05, "1.5": 72.43, "max": 72.22}
    every = [
        Cell(
            row,
            column,
            RunSpec(),
            paper[column],
            None if column == "online" else (row, "online"),
            judged=column != "max",
            contrasts=((row, "max"), (row, "2.0")) if column == "1.5" else (),
        )
        for row in ("first", "second")
        for column in values
    ]
    cells = every[:3]
    table = Table("Title", "Tab. 1", 1, lambda scale: every, also=())

    def read(cell: Cell, metric: str) -> dict[int, Metric]:
        return {seed: Metric("", value, 0.0, "") for seed, value in enumerate(values[cell.column])}

    found: Any = table_results(NamedTable("name", "claim", table), cells, read, every)
    (contrast,) = found["contrasts"]
    assert (contrast["row"], contrast["column"], contrast["against"]) == ("first", "1.5", ["first", "max"])
    assert contrast["paper_difference"] == 0.21
    assert contrast["difference"]["mean"] < -0.01
    assert contrast["verdict"] == "disagrees"
    online, spaced, longest = (cell["difference"] for cell in found["cells"])
    less, more = sorted((spaced, contrast["difference"]), key=lambda one: one["p"])
    assert less["holm_p"] == pytest.approx(2 * less["p"])
    assert more["holm_p"] == pytest.approx(max(2 * less["p"], more["p"]))
    assert (online, longest["holm_p"]) == (None, None), "its difference to online KD is not judged"
    assert found["verdict"]["sentence"] == (
        "Mixed: of 4 effects 1 agrees, 1 disagrees, 0 cannot be told, 2 were not run."
    )


def rows_of(gains: Mapping[str, float], paper: Mapping[str, tuple[float, float]]) -> list[Cell]:
    """Two columns for each row, unspaced and spaced; only the average of their differences is judged."""
    return [
        cell
        for row in gains
        for cell in (
            Cell(row, "w/o", RunSpec(), paper[row][0]),
            Cell(row, "w/", RunSpec(), paper[row][1], (row, "w/o"), judged=False),
        )
    ]


def test_numbers_of_the_text_stand_beside_those_of_the_table_and_ours() -> None:
    gains = {"online, a": 0.01, "self, b": 0.03}
    every = rows_of(gains, {"online, a": (70.0, 71.5), "self, b": (60.0, 63.5)})
    summaries = (
        Summary("average", "mean", 2.0),
        Summary("least", "least", 1.5),
        Summary("up to", "greatest", 3.0, "self*"),
    )
    named = NamedTable("name", "claim", Table("Title", "text", 1, lambda scale: every, also=(), summaries=summaries))

    def read(cell: Cell, metric: str) -> dict[int, Metric]:
        values = level(0.5) if cell.column == "w/o" else around(0.5 + gains[cell.row])
        return {seed: Metric("", value, 0.0, "") for seed, value in enumerate(values)}

    average, least, greatest = table_results(named, every, read)["summaries"]
    assert (average["printed"], average["stated"]) == (2.5, 2.0)
    both = [(0.01 * 2 + 0.03 * 2) / 4 + (around(0.0)[seed] - level(0.0)[seed]) for seed in range(6)]
    assert average["ours"]["mean"] == pytest.approx(sum(both) / 6)
    assert average["verdict"] == "agrees"
    assert (least["printed"], least["printed_row"], least["our_row"]) == (1.5, "online, a", "online, a")
    assert (greatest["printed"], greatest["rows"], greatest["verdict"]) == (3.5, 1, None)

    part = table_results(named, every[:2], read, every)
    assert part["summaries"][0]["printed"] == 2.5
    assert (part["summaries"][0]["printed_finished"], part["summaries"][0]["finished"]) == (1.5, 1)
    assert part["summaries"][0]["verdict"] is None, "the average of all rows is judged where all are finished"
    nothing = table_results(named, every, lambda cell, metric: {})["summaries"]
    assert [one["printed"] for one in nothing] == [2.5, 1.5, 3.5], "which are the paper's own, without any run"
    assert [one["ours"] for one in nothing] == [None] * 3


def arch(height: float, bend: float) -> dict[str, float]:
    return {f"{x:g}": height + bend * (2.8 * x - x**2) for x in (0.0, 0.5, 1.0, 1.5, 2.0)}


def fitted(rows: Mapping[str, Mapping[str, float]], paper: Mapping[str, float], unjudged: str = "") -> Any:
    columns = [*paper]
    cells = [
        Cell(row, column, RunSpec(), paper[column], None if column == "0" else (row, "0"))
        for row in rows
        for column in columns
    ]
    axis = Axis("interval", {column: float(column) for column in columns})
    table = Table("Title", "Fig. 1", 1, lambda scale: cells, axis, fitted=True, also=())

    def read(cell: Cell, metric: str) -> dict[int, Metric]:
        mean = rows[cell.row][cell.column]
        return {
            seed: Metric("", mean + away * (1 + (columns.index(cell.column) + seed) % 3), 0.0, "")
            for seed, away in enumerate(SCATTER)
        }

    return table_results(NamedTable("name", "claim", table), cells, read, unjudged=unjudged)


def test_the_parabola_through_all_rows_is_judged_and_counted() -> None:
    paper = {column: 100 * value for column, value in arch(0.7, 0.006).items()}
    found = fitted({"a": arch(0.5, 0.03), "b": arch(0.6, 0.02)}, paper)
    assert [(fit["row"], fit["verdict"]) for fit in found["fits"]] == [
        ("a", "agrees"),
        ("b", "agrees"),
        ("all 2 rows", "agrees"),
    ]
    assert "of 11 effects" in found["verdict"]["sentence"], "four differences and a parabola a row, and that of both"
    assert fitted({"a": arch(0.5, 0.03)}, paper)["verdict"]["sentence"].count("of 5 effects") == 1
    upwards = fitted({"a": arch(0.5, -0.03), "b": arch(0.6, -0.02)}, paper)
    assert [fit["verdict"] for fit in upwards["fits"]] == ["disagrees"] * 3


def test_a_scale_without_verdicts_has_the_same_numbers_and_says_why_none_is_given() -> None:
    rows, paper = {"a": arch(0.5, 0.03)}, {column: 100 * value for column, value in arch(0.7, 0.006).items()}
    judged, bare = fitted(rows, paper), fitted(rows, paper, "two seeds show nothing")
    assert [cell["difference"] for cell in bare["cells"]] == [cell["difference"] for cell in judged["cells"]]
    assert any(cell["difference"]["holm_p"] for cell in bare["cells"] if cell["difference"])
    assert {cell["verdict"] for cell in (*bare["cells"], *bare["fits"])} == {None}
    assert [bare["verdict"][word] for word in VERDICTS] == [0, 0, 0, 0]
    assert bare["verdict"]["sentence"] == "Not judged: two seeds show nothing."
    assert bare["rule"] == "No verdicts are given: two seeds show nothing."


@pytest.mark.parametrize(("ours", "verdict"), [(100.0, "agrees"), (90.0, "agrees"), (200.0, "disagrees")])
def test_a_count_is_judged_by_whether_it_is_higher(ours: float, verdict: str) -> None:
    cells = [
        Cell("row", "w/o", RunSpec(), metric="cost/updates"),
        Cell("row", "w/", RunSpec(), None, ("row", "w/o"), "cost/updates"),
    ]
    table = Table("Title", "text", 1, lambda scale: cells, claims="no cost", also=())

    def read(cell: Cell, metric: str) -> dict[int, Metric]:
        value = ours if cell.column == "w/" else 100.0
        return dict.fromkeys(range(3), Metric("", value, 0.0, "", "low", "number"))

    found = table_results(NamedTable("name", "claim", table), cells, read)
    assert found["cells"][1]["verdict"] == verdict
    assert "A claim of no cost" in found["rule"]
