"""The notebooks of docs/notebooks run from top to bottom, shortened, in a namespace of their own."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = {
    "first-comparison": {"epochs=12": "epochs=2", "seeds=3": "seeds=2, jobs=1"},
    "own-data-and-network": {"epochs=12": "epochs=2"},
    "spacing-in-your-trainer": {"STEPS, INTERVAL = 150, 30": "STEPS, INTERVAL = 20, 5"},
}
"""notebook -> what is shortened in it"""
FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


def code_of(name: str) -> list[str]:
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line, which a notebook shows."""
    *body, last = ast.parse(cell).body
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return None


def test_every_notebook_is_run_and_holds_no_output() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*NOTEBOOKS}
    for path in FOLDER.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code"), path


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells, unused = code_of(name), {*NOTEBOOKS[name]}
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        for long, short in NOTEBOOKS[name].items():
            if long in cell:
                cell = cell.replace(long, short)
                unused.discard(long)
        value = run_cell(cell, names)
        show = getattr(value, "_repr_html_", None)
        assert show is None or "<" in show()
    assert not unused, "what is shortened is in the notebook"
