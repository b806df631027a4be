"""An instrument is one file and an entry in INSTRUMENTS: all else follows. The file is the example of the docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import DataSpec, EngineSpec, NetworkSpec, RunSpec, Spaced, compare

DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"
ADD_IT = """
import sys
from pruning import Pruning
from spacedkd.evaluation.document import INSTRUMENTS
INSTRUMENTS.append(Pruning)
from spacedkd.cli import main
main(sys.argv[1:])
"""
BASE = RunSpec(
    data=DataSpec("digits", train_limit=40),
    network=NetworkSpec("resnet18_small", {"width": 4}),
    epochs=1,
    batch_size=20,
    precision="32-true",
    engine=EngineSpec(threads=1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file of the instrument, and runs of two arms and two seeds."""
    folder = tmp_path_factory.mktemp("instrument")
    section = DOCS.read_text().split("## A new instrument")[1]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.S)
    (folder / "pruning.py").write_text(example)
    spaced = replace(BASE, schedule=Spaced("2st"))
    compare({"online": BASE, "spaced": spaced}, folder / "runs", seeds=2, jobs=1)
    return folder


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ADD_IT, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Path:
    """The same folder after `spacedkd evaluate --pruning` and `spacedkd report`."""
    words = ("evaluate", "runs", "--pruning", "--shares", "0.75", "0.5")
    for step in (words, ("report", "runs", "--against", "online")):
        done = command(folder, *step)
        assert done.returncode == 0, done.stderr
        (folder / f"{step[0]}.txt").write_text(done.stdout)
    return folder


def test_it_is_listed_and_has_flags(folder: Path) -> None:
    listed = command(folder, "list", "instruments").stdout
    assert re.search(r"--pruning +pruning +accuracy with the smallest weights set to zero", listed)
    text = command(folder, "evaluate", "--help").stdout
    assert "--pruning" in text
    assert "--shares" in text
    refused = command(folder, "evaluate", "runs", "--shares", "0.5")
    assert refused.returncode == 2
    assert "--shares belongs to --pruning" in refused.stderr


def test_its_entry_is_in_evaluation_json_and_in_the_terminal(evaluated: Path) -> None:
    evaluation = json.loads((evaluated / "runs/online/seed0/evaluation.json").read_text())
    assert [*evaluation["instruments"]] == ["accuracy", "pruning"]
    assert [*evaluation["instruments"]["pruning"]["accuracy"]] == ["0.5", "0.75"]
    assert re.search(r"run +top-1 +NLL +ECE +pruned", (evaluated / "evaluate.txt").read_text())


def test_a_damaged_entry_is_refused(evaluated: Path, tmp_path: Path) -> None:
    run = evaluated / "runs/spaced/seed1/evaluation.json"
    whole = run.read_text()
    damaged: dict[str, Any] = json.loads(whole)
    damaged["instruments"]["pruning"]["accuracy"]["0.5"] = "half"
    run.write_text(json.dumps(damaged))
    refused = command(evaluated, "report", "runs", "--out", str(tmp_path / "page.html"))
    run.write_text(whole)
    assert refused.returncode == 2
    assert "pruning.accuracy.0.5" in refused.stderr


def test_its_metrics_are_compared_and_drawn(evaluated: Path) -> None:
    comparison = json.loads((evaluated / "runs/comparison.json").read_text())
    metric = comparison["evaluation"]["metrics"]["pruning/0.5"]
    assert metric["title"] == "0.5 of the weights are zero"
    assert metric["arms"]["spaced"]["difference"]["n"] == 2
    page = (evaluated / "runs/report.html").read_text()
    assert 'id="pruning"' in page
    assert "Accuracy of pruned networks" in page
    assert re.search(r'aria-label="Accuracy of spaced at each level\. 0\.5: [\d.]+ %, 0\.75: [\d.]+ %\."', page)
