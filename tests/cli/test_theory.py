"""The theory verb: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spacedkd.cli import main

SMALL = ["--problems", "2", "--orders", "2", "--steps", "30"]


def test_it_writes_numbers_and_a_page_twice_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("one", "two"):
        main(["theory", "--out", str(tmp_path / folder), *SMALL])
    said = capsys.readouterr().out
    assert "The Lemma" in said
    assert "theory.html" in said.replace("\n", "")
    found = json.loads((tmp_path / "one" / "theory.json").read_text())
    assert [one["setting"]["name"] for one in found["settings"]] == ["tanh", "gelu", "tanh, small rate"]
    assert (tmp_path / "one" / "theory.json").read_bytes() == (tmp_path / "two" / "theory.json").read_bytes()
    assert "--problems 2 --orders 2 --steps 30" in (tmp_path / "one" / "theory.html").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--orders", "1"], "needs at least two of them, got 1"),
        (["--problems", "0"], "at least one of problems, got 0"),
        (["--steps", "1"], "at least 2 steps, got 1"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["theory", "--out", str(tmp_path / "out"), *flags])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit):
        main(["theory", "--out", str(tmp_path / "file"), *SMALL])
    assert "(File exists): give --out another name" in capsys.readouterr().err
