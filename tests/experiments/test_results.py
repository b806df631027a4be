"""What a table says of numbers that are given: which side is better, and how many tests were made."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from spacedkd.experiments.evaluation_file import Metric
from spacedkd.experiments.reproduction.results import results
from spacedkd.experiments.reproduction.table import Cell, Named, Table
from spacedkd.spec import RunSpec

SCATTER = (-0.004, -0.001, 0.0, 0.001, 0.002, 0.002)
Unit = Literal["percent", "number"]


def made(
    values: Mapping[str, tuple[float, ...]], paper: Mapping[str, float], unit: Unit = "percent"
) -> dict[str, dict[str, Any]]:
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
    return {cell["column"]: cell for cell in results(Named("name", "claim", table), cells, read)["cells"]}


def around(mean: float) -> tuple[float, ...]:
    return tuple(mean + (place + 1) * away for place, away in enumerate(SCATTER))


def level(mean: float) -> tuple[float, ...]:
    return tuple(mean + away / 10 for away in SCATTER)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(around(1.0), "agrees"), (around(1.4), "disagrees"), (around(1.2), "disagrees")]
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
    found = results(
        Named("name", "claim", table), cells, lambda cell, metric: {0: Metric("", accuracy[metric], 0.01, "")}
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
        )
        for row in ("first", "second")
        for column in values
    ]
    cells = every[:3]
    table = Table("Title", "Tab. 1", 1, lambda scale: every, also=(), contrasts=[("1.5", "max"), ("1.5", "2.0")])

    def read(cell: Cell, metric: str) -> dict[int, Metric]:
        return {seed: Metric("", value, 0.0, "") for seed, value in enumerate(values[cell.column])}

    found = results(Named("name", "claim", table), cells, read, every)
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
