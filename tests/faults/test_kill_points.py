"""A kill at any operation on a file, or between two, and a run that goes on ends with the bits of one left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.faults.killing import Point, assert_same, finished, killed, traced
from tests.faults.kinds import KINDS

EVERY = bool(os.environ.get("EVERY_KILL_POINT"))
"""`make faults` tries the first, the middle and the last of every name in every kind of run; `make test` a few"""
PARTS = 4 if EVERY else 1
"""in which the points of a kind are tried, so that all cores have something to do"""

Whole = Callable[[str], tuple[Path, list[Point]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Runs that nobody kills, each trained once, with all of their points."""
    known: dict[str, tuple[Path, list[Point]]] = {}

    def train(kind: str) -> tuple[Path, list[Point]]:
        if kind not in known:
            folder = tmp_path_factory.mktemp("whole") / "runs"
            known[kind] = folder, traced(kind, folder)
        return known[kind]

    return train


def by_name(points: Iterable[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.name, []).append(point)
    return found


SEVERAL = ("comparison", "pipeline", "two ranks")
"""kinds whose processes come to some of their points more or less often, as one is ahead of the other"""


def chosen(kind: str, points: Iterable[Point]) -> list[Point]:
    """Every third name of plain KD; of other kinds one, another one for each."""
    named = by_name(points)
    if EVERY:
        return sorted({one for same in named.values() for one in (same[0], same[len(same) // 2], same[-1])})
    middles = [same[len(same) // 2] for same in named.values()]
    if kind == "kd":
        return middles[::3]
    return [middles[[*KINDS].index(kind) % len(middles)]]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if EVERY or KINDS[kind].tested])
def test_killed_at_a_point_and_taken_up(tmp_path: Path, whole: Whole, kind: str, part: int) -> None:
    expected, points = whole(kind)
    for point in chosen(kind, points)[part::PARTS]:
        folder = tmp_path / str(point).replace("/", "-")
        assert killed(kind, folder, point) or kind in SEVERAL, f"{point} was not reached"
        finished(kind, folder)
        try:
            assert_same(kind, expected, folder)
        except AssertionError as error:
            raise AssertionError(f"killed at: {point}") from error


def test_every_operation_that_matters_is_a_point(whole: Whole) -> None:
    """Written out, so that a file that is no longer flushed, or is renamed too early, shows."""
    names = {*by_name(whole("kd")[1])}
    assert {"update", "evaluation", "save", "finish"} <= names
    assert {f"{what} run/{file}" for what in ("fsync", "write") for file in ("journal.jsonl",)} <= names
    for file in ("spec.json", "classes.json", "result.json", "checkpoint/latest.safetensors"):
        assert {f"{what} run/{file}.unfinished" for what in ("write", "fsync")} <= names, file
        assert f"rename run/{file}" in names, file
    assert by_name(whole("kd")[1])["rename run/result.json"] == [Point("rename run/result.json")]
    names = {*by_name(whole("recorded path")[1])}
    assert {"hand over", "fsync run/path/teacher/journal.jsonl"} <= names
    assert any(name.startswith("rename run/path/teacher/0") for name in names)
    names = {*by_name(whole("cached targets")[1])}
    assert {"rename run/targets/targets.json", "fsync run/targets/targets.json.unfinished"} <= names
    assert any(name.startswith("rename run/targets/0") for name in names)
