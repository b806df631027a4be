"""Runs to be evaluated, trained once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spacedkd.cli import main
from spacedkd.runtime.errors import on_command_line
from tests.cli.test_cli import TINY
from tests.conftest import made_once


@pytest.fixture(autouse=True)
def command_line() -> Iterator[None]:
    """Let messages name flags also where a part of the command line is called alone."""
    with on_command_line():
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two seeds of two arms, and a spaced self-KD arm with several heads."""
    arms = (("kd", "--method kd"), ("spaced", "--method kd --interval 1ep"), ("self", "--method self-kd"))

    def train(out: Path) -> None:
        for name, flags in arms:
            for seed in ("0", "1"):
                folder = out / name / seed
                main(["train", *TINY, *flags.split(), "--seed", seed, "--set", f"label={name}", "--out", str(folder)])

    return made_once(tmp_path_factory, "runs to evaluate", train)


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(trained, tmp_path / "runs"))
