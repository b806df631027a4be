"""An instrument is one file and an entry in INSTRUMENTS: all else follows. The file is the example of the docs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spacedkd import DataSpec, EngineSpec, NetworkSpec, RunSpec, Spaced, UserError, compare, evaluate
from spacedkd.evaluation import EvaluationSpec
from spacedkd.evaluation.document import INSTRUMENTS
from spacedkd.evaluation.instrument import Entry, Instrument, Metric
from tests import forked

DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"
ADD_IT = """
import sys
from pruning import Pruning
from spacedkd.evaluation.document import INSTRUMENTS
INSTRUMENTS.append(Pruning)
from spacedkd.cli import main
main(sys.argv[1:])
"""
CLASS_NLL = """
from dataclasses import dataclass
from spacedkd.evaluation.instrument import Entry, Instrument, loss_metric

class ClassNLLEntry(Entry):
    worst: float

@dataclass(frozen=True)
class ClassNLL(Instrument):
    name, flag, about, title, entry_type = "class_nll", "class-nll", "the worst class", "NLL per class", ClassNLLEntry

    at_least: float = 0.5
    "a smaller value counts as this one"

    def measure(self, subject):
        return {"worst": self.at_least}

    @classmethod
    def metrics(cls, entry):
        yield "worst", loss_metric("NLL of the worst class", entry["worst"], "")
"""
ADD_CLASS_NLL = ADD_IT.replace("pruning", "class_nll").replace("Pruning", "ClassNLL")
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
    _, example = re.findall(r"```python\n(.*?)```", section, re.S)
    (folder / "pruning.py").write_text(example)
    (folder / "class_nll.py").write_text(CLASS_NLL)
    spaced = replace(BASE, schedule=Spaced("2st"))
    compare({"online": BASE, "spaced": spaced}, folder / "runs", seeds=2, jobs=1)
    return folder


def command(folder: Path, *words: str, add: str = ADD_IT) -> forked.Done:
    return forked.run("-c", add, *words, cwd=folder, env={**os.environ, "COLUMNS": "200"})


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


def test_a_flag_may_have_a_hyphen(folder: Path) -> None:
    """Help, list, messages and the words of a command agree on it."""
    listed, text, refused, done = (
        command(folder, *words.split(), add=ADD_CLASS_NLL)
        for words in (
            "list instruments",
            "evaluate --help",
            "evaluate runs --at-least 1",
            "evaluate runs/online/seed0 --class-nll --at-least 1",
        )
    )
    assert re.search(r"--class-nll +class_nll +the worst class", listed.stdout)
    assert "--class-nll" in text.stdout
    assert "--at-least belongs to --class-nll" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "NLL per class" in done.stdout
    assert (
        json.loads((folder / "runs/online/seed0/evaluation.json").read_text())["instruments"]["class_nll"]["worst"] == 1
    )


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (("at_least: float", "batch_size: float"), ("class_nll", "--batch-size", "spacedkd evaluate")),
        (('"class-nll"', '"flatness"'), ("class_nll", "--flatness", "weight_noise")),
        (("at_least: float = 0.5", "draws: float = 0.5"), ("class_nll", "draws", "weight_noise", "types")),
    ],
)
def test_clashing_flags_are_one_line(change: tuple[str, str], names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "class_nll.py").write_text(CLASS_NLL.replace(*change))
    refused = command(tmp_path, "evaluate", "runs", add=ADD_CLASS_NLL)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert all(name in refused.stderr for name in names), refused.stderr
    assert command(tmp_path, "list", "schedules", add=ADD_CLASS_NLL).returncode == 0


class LossEntry(Entry):
    """The entry of an instrument that measures what no file can hold."""

    loss: float


@dataclass(frozen=True)
class Loss(Instrument):
    """A loss that is not a number."""

    name, flag, about, title, entry_type = "loss", "loss", "a loss", "Loss", LossEntry
    value: ClassVar[Any] = float("nan")

    def measure(self, subject: Any) -> Any:
        return {"loss": self.value}

    @classmethod
    def metrics(cls, entry: LossEntry) -> Iterator[tuple[str, Metric]]:
        yield "loss", Metric("Loss", entry["loss"], 0.0, "")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "much", None, {1, 2}])
def test_what_cannot_be_read_again_is_not_written(folder: Path, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spacedkd.evaluation.document.INSTRUMENTS", [*INSTRUMENTS, Loss])
    monkeypatch.setattr(Loss, "value", value)
    run = folder / "runs/spaced/seed0"
    evaluate(run)
    before = (run / "evaluation.json").read_bytes()
    with pytest.raises(UserError, match="loss") as refused:
        evaluate(run, EvaluationSpec([Loss()]))
    assert "\n" not in str(refused.value)
    if isinstance(value, float):
        assert f"loss.loss is {value:g}" in str(refused.value)
    assert (run / "evaluation.json").read_bytes() == before
    evaluate(run)


def test_a_mistake_in_its_code_is_one_line_with_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the file is ours, of which no frame is the user's: here no frame is anybody's."""
    monkeypatch.setattr(Loss, "measure", methodcaller("nothing"))
    with pytest.raises(UserError, match="The instrument loss fails: AttributeError") as refused:
        evaluate(folder / "runs/spaced/seed0", EvaluationSpec([Loss()]))
    assert isinstance(refused.value.__cause__, AttributeError)
