"""A comparison that was copied or moved keeps its order, and the arm that differences are taken to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spacedkd.cli import main
from spacedkd.comparison.document import write_comparison
from spacedkd.comparison.results import compare_runs
from spacedkd.runtime.files import HOST, write_json
from spacedkd.schedule import Spaced
from tests.reporting.fake_runs import FakeArm, write_runs

ARMS = [
    FakeArm("zeta", [0.70, 0.71]),
    FakeArm("alpha", [0.80, 0.82], schedule=Spaced("1.5ep")),
    FakeArm("mu", [0.6, 0.7], schedule=Spaced("2ep")),
]


@pytest.mark.parametrize("form", ["relative", "whole paths, as before"])
@pytest.mark.parametrize("how", [shutil.copytree, shutil.move])
def test_a_comparison_elsewhere_is_the_same(tmp_path: Path, form: str, how: Any) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    comparison = compare_runs(write_runs(here, ARMS), against="mu")
    write = write_comparison if form == "relative" else write_json
    write(here / "comparison.json", comparison)
    how(here, there)
    main(["report", str(there)])
    rewritten = json.loads((there / "comparison.json").read_text())
    assert [arm["label"] for arm in rewritten["arms"]] == ["zeta", "alpha", "mu"]
    assert rewritten["against"] == "mu"
    folders = [run["folder"] for arm in rewritten["arms"] for run in arm["runs"]]
    assert all((there / folder / "result.json").exists() and not Path(folder).is_absolute() for folder in folders)


def test_what_a_killed_comparison_left_unfinished_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / f"comparison.json.{HOST}_999999999_0badcafe.unfinished"
    leftover.write_text("{")
    comparison: Any = {"arms": [], "diverged": [], "failed": []}
    write_comparison(tmp_path / "comparison.json", comparison)
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.json"]
