"""The examples run and learn."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

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


def test_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import own_method  # type: ignore[import-not-found, unused-ignore]

    assert 0 <= own_method.main(tmp_path / "run", epochs=2) <= 1
