"""Tables as the terminal shows them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from spacedkd.comparison.results import compare_runs
from spacedkd.reporting.table import Cell, Column, Table
from spacedkd.reporting.tables import comparison_tables
from spacedkd.reporting.terminal import rich_table
from spacedkd.schedule import Spaced
from tests.reporting.fake_runs import FakeArm, write_runs

ONLINE = FakeArm("online", [0.70, 0.71, 0.72])
SPACED = FakeArm("spaced [b]", [0.80, 0.82, 0.81], schedule=Spaced("1.5ep"))
PLAIN = FakeArm("plain", [0.7], "self-kd", "plain", roles=("student",))
LIVE = FakeArm("live", [0.8], "self-kd", "live", schedule=Spaced("2ep"))


def text(root: Path, *arms: FakeArm) -> str:
    console = Console(width=80, record=True, file=StringIO())
    console.print(*map(rich_table, comparison_tables(compare_runs(write_runs(root, arms)))))
    return console.export_text()


def printed(root: Path, *arms: FakeArm) -> list[list[str]]:
    """The words of every line."""
    return [line.split() for line in text(root, *arms).splitlines()]


def test_what_spacing_did_is_a_line_for_each_pair(tmp_path: Path) -> None:
    lines = printed(tmp_path / "runs", ONLINE, SPACED, PLAIN, LIVE)
    assert ["kd", "71.0", "81.0", "+10.0", "±", "2.5", "0.003", "x1.0", "x1.0"] in lines
    assert ["self-kd", "70.0", "80.0", "+10.0", "x2.0", "x2.0"] in lines
    assert any(line[:2] == ["spaced", "[b]"] for line in lines)


def test_without_pairs_there_is_no_such_table(tmp_path: Path) -> None:
    lines = printed(tmp_path / "runs", ONLINE, PLAIN)
    assert not any("spacing" in line for line in lines)
    assert any("online" in line for line in lines)


def test_every_arm_has_its_accuracies_and_costs(tmp_path: Path) -> None:
    worse = FakeArm("worse", [0.60, 0.62, 0.61], schedule=Spaced("2ep"))
    lines = printed(tmp_path / "runs", ONLINE, worse, PLAIN)
    assert ["online", "71.0", "±", "2.5", "72.0", "71.0"] in lines
    assert ["worse", "61.0", "±", "2.5", "62.0", "61.0", "-10.0", "±", "2.5", "0.003"] in lines
    assert ["plain", "70.0", "71.0", "0.0"] in lines, "one seed has no interval and no p, and one role no teacher"
    assert ["online", "80", "80", "80", "10240", "40.0"] in lines
    assert ["plain", "40", "40", "40", "5120", "20.0"] in lines


def test_the_leader_is_called_what_the_arms_call_it(tmp_path: Path) -> None:
    mentor = FakeArm("own", [0.7, 0.8], roles=("mentor", "pupil"))
    headings = [line for line in printed(tmp_path / "own", mentor, PLAIN) if line[:1] == ["arm"]]
    assert headings[0] == ["arm", "last", "epoch", "best", "mentor", "vs", "own", "p"]
    headings = [line for line in printed(tmp_path / "both", mentor, ONLINE) if line[:1] == ["arm"]]
    assert headings[0] == ["arm", "last", "epoch", "best", "teacher", "vs", "own", "p"]


def test_names_of_arms_are_whole_words_however_long_they_are(tmp_path: Path) -> None:
    """The widest numbers there are, and a name that is longer than any column."""
    wild = replace(ONLINE, label="online KD, settings of the paper", accuracies=[0.05, 0.99, 0.3])
    other = replace(SPACED, label="spaced KD, settings of the paper", accuracies=[0.5, 0.02, 0.99])
    lines = text(tmp_path, wild, other).splitlines()
    assert all(len(line) <= 80 for line in lines)
    table = lines[: lines.index(next(line for line in lines if line.startswith("deepest head")))]
    for row in (wild, other):
        assert any(line.strip().startswith(" ".join(row.label.split()[:2])) for line in table)
    assert any("50.3 ± 120.5" in line and "+5.7 ± 222.9" in line and "0.923" in line for line in table)
    heads = next(line.split() for line in table if line.split()[:1] == ["arm"])
    assert heads == ["arm", "last", "epoch", "best", "teacher", "difference", "p"]
    assert "differences to online KD, settings of the paper" in " ".join(" ".join(lines).split())


def test_a_short_name_stands_above_the_differences(tmp_path: Path) -> None:
    found = text(tmp_path, ONLINE, PLAIN)
    assert "vs online" in found
    assert "differences to" not in found


def test_a_pair_is_compared_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Over seeds 0 and 1: 70.5 and 81.0; the third seed of the unspaced arm would make it 77.0."""
    more = replace(ONLINE, accuracies=[0.70, 0.71, 0.90])
    two = replace(SPACED, accuracies=[0.80, 0.82])
    said = text(tmp_path / "apart", more, two)
    pair = next(line.split() for line in said.splitlines() if line.split()[:1] == ["kd"])
    assert pair[:4] == ["kd", "70.5", "81.0", "+10.5"]
    assert " ".join(said.split()).count("paired by seed, over the seeds that both arms have") == 1
    assert "seeds that both" not in text(tmp_path / "same", ONLINE, SPACED)


def test_an_indented_name_goes_on_as_far_indented_where_it_is_broken() -> None:
    row = (Cell("", short="  twice the epochs"), Cell("1.5"))
    console = Console(width=22, record=True, file=StringIO())
    console.print(rich_table(Table("", (Column("", "", left=True), Column("", "ours")), (row,), unbroken=True)))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[-3:] == ["    twice the    1.5", "    epochs", ""]
