"""The examples run and learn."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from spacedkd import MethodSpec, RunSpec, Spaced, read_spec, train
from spacedkd.json_form import to_json
from tests.conftest import assert_same_bits, tensors

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"own_loop", "own_method", "spaced_versus_online"}


def test_own_loop() -> None:
    accuracy = example("own_loop")["main"]()
    assert min(accuracy.values()) > 0.8


def test_spaced_versus_online(tmp_path: Path) -> None:
    accuracy = example("spaced_versus_online")["main"](tmp_path, epochs=2)
    assert accuracy.keys() == {"online", "spaced"}


def test_own_method(tmp_path: Path, tiny: RunSpec) -> None:
    """Passed to train(), and named on the command line as whoever wrote it would, from the folder it lies in."""
    (tmp_path / "work").mkdir()
    source = (EXAMPLES / "own_method.py").read_text()
    assert len(source.splitlines()) < 40
    (tmp_path / "work" / "own_method.py").write_text(source)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(to_json(replace(tiny, epochs=1))))
    command = [str(Path(sys.executable).with_name("spacedkd")), "train", "--spec", str(spec), "--out", "run"]
    own = ["--method", "own_method:Confidence", "--interval", "2st", "--set", "method.strength=0.8"]
    subprocess.run([*command, *own], check=True, cwd=tmp_path / "work", stdout=subprocess.DEVNULL)
    typed = read_spec(tmp_path / "work" / "run")
    assert typed.method == MethodSpec("own_method:Confidence", {"strength": 0.8})

    method = example("own_method")["Confidence"](strength=0.8)
    train(replace(tiny, epochs=1, schedule=Spaced("2st")), tmp_path / "passed", method=method)
    assert_same_bits(tensors(tmp_path / "work" / "run"), tensors(tmp_path / "passed"))
