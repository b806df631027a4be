"""A run stopped anywhere and continued ends with the bits of one that was never stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from spacedkd import OptimizerSpec, RunSpec, Spaced, UserError, train
from spacedkd.config.resolve import resolve_spec
from spacedkd.config.serialization import to_json
from spacedkd.training import Event
from tests.training.stopping import assert_same_run, train_in_parts

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "none": ("none", {}, {}),
    "kd": ("kd", {}, {"schedule": Spaced("1.5ep")}),
    "kd with adamw": ("kd", {}, {"schedule": Spaced("4st", tail="drop"), "optimizer": OptimizerSpec("adamw", 1e-3)}),
    "kd in bf16-true": ("kd", {}, {"schedule": Spaced("1.5ep"), "precision": "bf16-true"}),
    "kd in bf16-mixed": ("kd", {}, {"schedule": Spaced("1.5ep"), "precision": "bf16-mixed"}),
    "self-kd": ("self-kd", {}, {}),
    "self-kd live": ("self-kd", {"variant": "live"}, {"schedule": Spaced("1.5ep")}),
    "self-kd snapshot": ("self-kd", {"variant": "snapshot"}, {"schedule": Spaced("1.5ep")}),
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_again_and_again(tmp_path: Path, tiny_with: Callable[..., RunSpec], case: str) -> None:
    """At turns 2, 10 and 13: before the first save, in the middle of a replay, and between two saves."""
    method, options, changes = CASES[case]
    spec = tiny_with(method, options, **changes)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(spec, whole)
    train_in_parts(spec, parts, 2, 10, 13)
    assert_same_run(whole, parts)


def test_resuming_a_finished_run_touches_nothing(tmp_path: Path, tiny: RunSpec) -> None:
    done = train(tiny, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert train(tiny, tmp_path / "run", if_exists="resume") == done
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_nothing_is_written_over(tmp_path: Path, tiny: RunSpec, tiny_with: Callable[..., RunSpec]) -> None:
    train(tiny, tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run. Continue it with if_exists='resume'"):
        train(tiny, tmp_path / "run")
    with pytest.raises(UserError, match="holds another run"):
        train(tiny_with(seed=5), tmp_path / "run", if_exists="resume")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="not empty and not a run"):
        train(tiny, tmp_path / "else")
    assert [path.name for path in (tmp_path / "else").iterdir()] == ["thesis.tex"]


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path, tiny: RunSpec) -> None:
    def second_one(moment: Event) -> None:
        if moment.turn == 3:
            with pytest.raises(UserError, match="Another process is training"):
                train(tiny, tmp_path / "run", if_exists="resume")

    train(tiny, tmp_path / "run", callback=second_one)


def test_a_bad_run_leaves_no_folder_behind(tmp_path: Path, tiny_with: Callable[..., RunSpec]) -> None:
    with pytest.raises(UserError, match="longer than the run"):
        train(tiny_with(schedule=Spaced("9ep")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_changed_spec_does_not_go_on_from_anothers_checkpoint(
    tmp_path: Path, tiny: RunSpec, tiny_with: Callable[..., RunSpec]
) -> None:
    train(tiny, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    longer = tiny_with(epochs=4)
    (tmp_path / "run" / "spec.json").write_text(json.dumps(to_json(resolve_spec(longer))))
    with pytest.raises(UserError, match="belongs to another spec"):
        train(longer, tmp_path / "run", if_exists="resume")


def test_a_run_whose_costs_were_counted_for_all_roles_together_goes_on(tmp_path: Path, tiny: RunSpec) -> None:
    """As they were before a role could have a path."""
    train(tiny, tmp_path / "whole")

    def stop(moment: Event) -> None:
        if moment.turn == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path / "run", callback=stop)
    saved = tmp_path / "run/checkpoint/latest.safetensors"
    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    position = json.loads(metadata["position"])
    together: Counter[str] = Counter()
    for counts in position["cost"].values():
        together.update(counts)
    position["cost"] = dict(together)
    save_file(load_file(saved), saved, metadata | {"position": json.dumps(position)})
    train(tiny, tmp_path / "run", if_exists="resume")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "run")]
    assert results[0]["cost"] == results[1]["cost"]


def test_a_kill_while_the_folder_is_made_does_no_harm(tmp_path: Path, tiny: RunSpec) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.unfinished").write_text("{")
    train(tiny, tmp_path / "run")
    train(tiny, tmp_path / "clean")
    assert_same_run(tmp_path / "run", tmp_path / "clean")
