"""Runs that are stopped on their way and taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spacedkd import Run, RunSpec, train
from spacedkd.training import Event
from tests.conftest import assert_same_bits, tensors


class Stopped(Exception):
    pass


def train_until(spec: RunSpec, folder: Path, stop: int, resume: bool = False, **objects: Any) -> None:
    """Train, stopped after this turn."""

    def callback(moment: Event) -> None:
        if moment.turn >= stop:
            raise Stopped

    with pytest.raises(Stopped):
        train(spec, folder, if_exists="resume" if resume else "error", callback=callback, **objects)


def train_in_parts(spec: RunSpec, folder: Path, *stops: int, **objects: Any) -> Run:
    """Train, stopped after each of these turns, and to the end."""
    for number, stop in enumerate(stops):
        train_until(spec, folder, stop, resume=number > 0, **objects)
    return train(spec, folder, if_exists="resume", **objects)


def assert_same_run(one: Path, other: Path) -> None:
    assert_same_bits(tensors(one), tensors(other))
    assert (one / "journal.jsonl").read_bytes() == (other / "journal.jsonl").read_bytes()
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
    students = [(folder / "student" / "model.safetensors").read_bytes() for folder in (one, other)]
    assert students[0] == students[1]
