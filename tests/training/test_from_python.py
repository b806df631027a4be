"""Calls from Python: cells that are run again, names in place of specs, torch as it was, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from spacedkd import MethodSpec, NetworkSpec, RunSpec, UserError, compare, evaluate, train
from spacedkd.methods import KD
from spacedkd.reporting.terminal import SafeConsole
from spacedkd.runs.journal import read_journal
from spacedkd.training.train import IfExists
from tests.conftest import TINY, assert_same_bits, tensors

SHORT = replace(TINY, epochs=1)


class Small(nn.Module):
    """A network that only a test knows."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


OWN = replace(SHORT, network=NetworkSpec())


# Running a cell again


def test_a_cell_that_is_run_again(tmp_path: Path) -> None:
    first = train(SHORT, tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run. Continue it with if_exists='resume'"):
        train(SHORT, tmp_path / "run")
    turns: list[Any] = []
    assert train(SHORT, tmp_path / "run", if_exists="resume", callback=turns.append) == first
    assert turns == []
    again = train(SHORT, tmp_path / "run", if_exists="restart", callback=turns.append)
    assert len(turns) == 10
    assert (again.accuracies, again.digests) == (first.accuracies, first.digests)
    assert len([*read_journal(tmp_path / "run" / "journal-before-1.jsonl")]) > 0
    with pytest.raises(UserError, match="if_exists.*'again'.*resume"):
        train(SHORT, tmp_path / "run", if_exists="again")  # type: ignore[arg-type]


@pytest.mark.parametrize("if_exists", ["resume", "restart"])
def test_a_cell_whose_run_does_not_exist_yet_trains_it(tmp_path: Path, if_exists: IfExists) -> None:
    assert train(SHORT, tmp_path / "run", if_exists=if_exists).cost["updates"] == 10


def test_a_comparison_that_is_run_again(tmp_path: Path) -> None:
    arms = {"online": SHORT, "spaced": replace(SHORT, schedule="1ep")}
    first = compare(arms, tmp_path / "runs", seeds=1, jobs=1)
    result = tmp_path / "runs/spaced/seed0/result.json"
    written = result.stat().st_ino
    assert compare(arms, tmp_path / "runs", seeds=1, jobs=1).results.accuracy.equals(first.results.accuracy)
    assert result.stat().st_ino == written
    with pytest.raises(UserError, match="already holds a run"):
        compare(arms, tmp_path / "runs", seeds=1, jobs=1, if_exists="error")
    trained: list[Any] = []
    again = compare(
        {**arms, "spaced": replace(arms["spaced"], epochs=2)},
        tmp_path / "runs",
        seeds=1,
        jobs=1,
        if_exists="restart",
        callback=lambda job, event: trained.append((job.label, event.turns)),
    )
    assert {*trained} == {("online", 10), ("spaced", 20)}
    assert again.results.accuracy[0] == first.results.accuracy[0]


# Names and objects


def test_names_are_understood_where_objects_are(tmp_path: Path) -> None:
    spec = replace(SHORT, method=MethodSpec(), network=NetworkSpec())
    run = train(spec, tmp_path / "run", method="dkd", network=TINY.network, data="digits", teacher="resnet18_small")
    assert (run.spec.method.name, run.spec.network, run.spec.data.source) == ("dkd", TINY.network, "digits")
    with pytest.raises(UserError, match="method is given twice"):
        train(replace(SHORT, method="dkd"), tmp_path / "other", method="kd")
    assert RunSpec(evaluate_every="10st", optimizer="adamw").optimizer.name == "adamw"


def test_a_comparison_takes_objects(tmp_path: Path) -> None:
    """Also such that another process cannot import, as those of a notebook are."""
    hidden: dict[str, Any] = {"nn": nn, "Small": Small, "__name__": "__main__"}
    exec("def narrow():\n    return Small(2)\n", hidden)
    arms = {"narrow": OWN, "wide": OWN}
    networks: dict[str, Callable[..., nn.Module]] = {"narrow": hidden["narrow"], "wide": Small}
    compared = compare(arms, tmp_path / "runs", seeds=1, jobs=2, network=networks, method={"wide": KD(temperature=9.0)})
    assert (compared.failed, compared.diverged) == ([], [])
    wide = compared.arms["wide"].runs[0]
    alone = train(replace(wide.spec, objects={}, network="resnet18_small"), tmp_path / "alone", network=Small)
    assert_same_bits(tensors(wide.folder), tensors(alone.folder))
    assert wide.spec.method.options["temperature"] == 9.0
    weights = tensors(compared.arms["narrow"].runs[0].folder)
    assert any(weight.shape == (2, 64) for weight in weights.values())
    with pytest.raises(UserError, match="Unknown arm 'other'"):
        compare(arms, tmp_path / "runs", network={"other": Small})


# Torch is as it was


def settings() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return deterministic, fills, cudnn.benchmark, cudnn.allow_tf32, torch.get_num_threads()


class Broken(Exception):
    pass


def test_torch_is_as_it_was_before_a_call(tmp_path: Path) -> None:
    threads = replace(SHORT, engine=replace(SHORT.engine, threads=2))

    def fail(*event: Any) -> None:
        raise Broken

    before = settings()
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
    ours = settings()
    try:
        run = train(threads, tmp_path / "run")
        assert settings() == ours
        evaluate(run, threads=2)
        assert settings() == ours
        compare({"one": SHORT}, tmp_path / "runs", seeds=1, jobs=1)
        assert settings() == ours
        with pytest.raises(Broken):
            train(threads, tmp_path / "broken", callback=fail)
        assert settings() == ours
        with pytest.raises(Broken):
            compare({"one": SHORT}, tmp_path / "broken-too", seeds=1, jobs=1, callback=fail)
        assert settings() == ours
    finally:
        torch.use_deterministic_algorithms(before[0][0], warn_only=before[0][1])
        torch.backends.cudnn.benchmark = before[2]


# Progress


class Shell:
    """What IPython shows in a notebook: its displays, each with all that was drawn."""

    kernel = object()

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def display(self, thing: Any, display_id: bool = False) -> Any:
        self.drawn.append(thing._repr_html_())
        return SimpleNamespace(update=lambda thing: self.drawn.append(thing._repr_html_()))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shell.display))
    return shell


def test_a_notebook_shows_a_bar_for_each_role(tmp_path: Path, notebook: Shell) -> None:
    run = train(SHORT, tmp_path / "run")
    assert 'value="1"' in notebook.drawn[-1]
    assert all(f">{role}</td>" in notebook.drawn[-1] for role in ("teacher", "student"))
    assert f"accuracy {100 * run.accuracy:.1f} %" in notebook.drawn[-1]
    before = len(notebook.drawn)
    train(SHORT, tmp_path / "silent", progress=False)
    assert len(notebook.drawn) == before


def test_a_notebook_shows_a_bar_for_each_run(tmp_path: Path, notebook: Shell) -> None:
    compare({"one": SHORT}, tmp_path / "runs", seeds=2, jobs=1)
    assert ">2 of 2</td>" in notebook.drawn[-1]
    assert all(f">one, seed {seed}</td>" in notebook.drawn[-1] for seed in (0, 1))


def test_a_terminal_shows_bars_and_a_pipe_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(SHORT, tmp_path / "piped")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(SafeConsole, "is_terminal", True)
    train(SHORT, tmp_path / "watched")
    assert "student epoch 1.0" in capsys.readouterr().out
    train(SHORT, tmp_path / "silent", progress=False)
    assert capsys.readouterr().out == ""
