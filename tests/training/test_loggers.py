"""Loggers say what the journal says, once, however often a run was stopped."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from spacedkd import RunSpec, Spaced, UserError, read_spec, train
from spacedkd.cli import main
from spacedkd.config.serialization import to_json
from spacedkd.runs.journal import read_journal
from tests.cli.test_cli import TINY
from tests.training.stopping import train_until

Point = tuple[str, int, float]
"""metric, step and value"""


def journal(run: Path) -> Iterator[Point]:
    """What a run's journal says, by role, written out a second time."""
    for entry in read_journal(run / "journal.jsonl"):
        role, step = entry["role"], entry["step"]
        yield f"{role}/epoch", step, entry["epoch"]
        if entry["event"] == "loss":
            yield f"{role}/lr", step, entry["lr"]
            for name, loss in entry["losses"].items():
                yield f"{role}/loss/{name}", step, loss
        else:
            for part, heads in entry["accuracy"].items():
                for head, score in heads.items():
                    yield f"{role}/accuracy/{part}/{head}", step, score


def of_csv(run: Path) -> list[Point]:
    with (run / "logs/csv/metrics.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    return [(name, int(row["step"]), float(row[name])) for row in rows for name in row if name != "step" and row[name]]


def of_tensorboard(run: Path) -> list[tuple[str, int, float, float]]:
    """The same, and when it was written."""
    found = EventAccumulator(str(run / "logs/tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return [(tag, one.step, one.value, one.wall_time) for tag in found.Tags()["scalars"] for one in found.Scalars(tag)]


def without_speed(points: Any) -> list[Point]:
    return sorted(point[:3] for point in points if not point[0].endswith("/images_per_second"))


def assert_logged(run: Path) -> None:
    said = sorted(journal(run))
    assert {name.split("/")[0] for name, _, _ in said} >= {"teacher", "student"}
    assert without_speed(of_csv(run)) == said
    close = [(name, step, pytest.approx(value, rel=1e-6)) for name, step, value in said]
    assert without_speed(of_tensorboard(run)) == close
    for points in (of_csv(run), of_tensorboard(run)):
        speeds = [point for point in points if point[0].endswith("/images_per_second")]
        assert len(speeds) == sum(entry["event"] == "loss" for entry in read_journal(run / "journal.jsonl"))
        assert all(point[2] > 0 for point in speeds)


def test_files_say_what_the_journal_says(tmp_path: Path) -> None:
    run = tmp_path / "run"
    main(["train", *TINY, "--interval", "1ep", "--ema", "0.9", "--log", "csv", "tensorboard", "--out", str(run)])
    assert_logged(run)
    assert any(name == "average/accuracy/test/final" for name, _, _ in of_csv(run))
    assert read_spec(run).log == ("csv", "tensorboard")
    hparams = EventAccumulator(str(run / "logs/tensorboard"))
    hparams.Reload()
    assert hparams.PluginTagToContent("hparams")


def test_a_run_that_was_stopped_has_the_same_files(tmp_path: Path, tiny: RunSpec) -> None:
    """Stopped after turn 21, saved after turn 16, which are eight steps of both: what came later is there once."""
    run = tmp_path / "run"
    train_until(replace(tiny, log=("csv", "tensorboard")), run, 21)
    rows, events = of_csv(run), of_tensorboard(run)
    assert max(step for _, step, _ in rows) == 10
    main(["train", "--resume", str(run)])
    assert_logged(run)
    assert {point for point in rows if point[1] < 8} <= {*of_csv(run)}, "the speeds of before are kept"
    losses = {point for point in events if point[1] < 8 and "/loss/" in point[0]}
    assert losses
    assert losses <= {*of_tensorboard(run)}, "and so is when they were written"


def test_what_is_logged_is_no_part_of_what_is_computed(tiny: RunSpec) -> None:
    assert replace(tiny, log=("csv",)).fingerprint() == tiny.fingerprint()
    assert "log" not in to_json(tiny)


WANDB = """
calls = []
class Run:
    def __init__(self): self.config = self
    def define_metric(self, name, step_metric=None): calls.append(["define", name, step_metric])
    def update(self, params, allow_val_change): calls.append(["params", params])
    def log(self, metrics): calls.append(["log", metrics])
    def finish(self, exit_code): calls.append(["finish", exit_code])
def init(**given):
    calls.append(["init", given])
    return Run()
"""
MLFLOW = """
from types import SimpleNamespace as Simple
calls = []
class Metric:
    def __init__(self, key, value, timestamp, step): self.found = [key, step, value]
class Param:
    def __init__(self, key, value): self.found = [key, value]
entities = Simple(Metric=Metric, Param=Param)
class MlflowClient:
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name): calls.append(["experiment", name]); return "7"
    def create_run(self, number, run_name):
        calls.append(["create", number, run_name])
        return Simple(info=Simple(run_id="abc"))
    def update_run(self, run_id, status): calls.append([status, run_id])
    def log_batch(self, run_id, metrics=(), params=()):
        calls.append(["batch", run_id, [one.found for one in metrics], [one.found for one in params]])
    def set_terminated(self, run_id, status): calls.append([status, run_id])
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Modules of these names that write down what they are told."""

    def make(name: str, source: str) -> list[Any]:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        calls: list[Any] = __import__(name).calls
        return calls

    yield make
    for name in ("wandb", "mlflow"):
        sys.modules.pop(name, None)


def test_wandb_is_told_everything_once(tmp_path: Path, tiny: RunSpec, stand_in: Any) -> None:
    calls = stand_in("wandb", WANDB)
    run = tmp_path / "run"
    spec = replace(tiny, log=("wandb",))
    train_until(spec, run, 21)
    train(spec, run, if_exists="resume")
    begun = [call[1] for call in calls if call[0] == "init"]
    assert [one["id"] for one in begun] == 2 * [json.loads((run / "logs/wandb/run.json").read_text())["id"]]
    assert {(one["resume"], one["project"], one["name"]) for one in begun} == {("allow", "spacedkd", "run")}
    assert [call[1]["optimizer.lr"] for call in calls if call[0] == "params"] == [0.02]
    told = [call[1] for call in calls if call[0] == "log"]
    logged = [(name, one["step"], value) for one in told for name, value in one.items()]
    assert without_speed(point for point in logged if point[0] != "step") == sorted(journal(run))
    assert [call[1] for call in calls if call[0] == "finish"] == [1, 0]


def test_mlflow_is_told_what_was_before_it_was_asked_for(tmp_path: Path, tiny: RunSpec, stand_in: Any) -> None:
    calls = stand_in("mlflow", MLFLOW)
    run = tmp_path / "run"
    train_until(tiny, run, 13)
    train_until(replace(tiny, log=("mlflow",)), run, 21, resume=True)
    main(["train", "--resume", str(run)])  # its spec.json has the logger by now
    assert ["create", "7", "run"] in calls
    assert [call[0] for call in calls if call[0] in ("RUNNING", "FAILED", "FINISHED")] == [
        "FAILED",
        "RUNNING",
        "FINISHED",
    ]
    logged = [tuple(point) for call in calls if call[0] == "batch" for point in call[2]]
    assert without_speed(logged) == sorted(journal(run))


def test_a_logger_that_fails_ends_no_run(
    tmp_path: Path, tiny: RunSpec, stand_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("wandb", WANDB.replace('calls.append(["log", metrics])', 'raise ConnectionError("no network")'))
    run = train(replace(tiny, epochs=1, log=("wandb",)), tmp_path / "run")
    assert run.score() >= 0
    said = capsys.readouterr().err
    assert said == "Logging to wandb failed (ConnectionError: no network). The run continues without it.\n"


def test_a_logger_that_cannot_begin_is_one_line_and_takes_no_folder(
    tmp_path: Path, tiny: RunSpec, stand_in: Any
) -> None:
    stand_in("wandb", "calls = []\ndef init(**given): raise PermissionError('no key')\n")
    with pytest.raises(UserError, match=r"Logging to wandb cannot begin \(PermissionError: no key\)"):
        train(replace(tiny, log=("wandb",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "package"),
    [("wandb", "wandb"), ("mlflow", "'spacedkd[mlflow]'"), ("tensorboard", "'spacedkd[tensorboard]'")],
)
def test_a_library_that_is_not_installed_is_one_line(
    tmp_path: Path, tiny: RunSpec, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr("spacedkd.config.spec.find_spec", lambda module: None)
    with pytest.raises(UserError, match=f"Logging to {name} needs a library .*: pip install {re.escape(package)}"):
        train(replace(tiny, log=("csv", name)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_loggers_that_there_are_not_are_refused(tiny: RunSpec) -> None:
    with pytest.raises(UserError, match="Unknown logger 'tensorbord'. Did you mean 'tensorboard'. Available: csv, "):
        replace(tiny, log=("tensorbord",))
    with pytest.raises(UserError, match="Logger csv is named twice"):
        replace(tiny, log=("csv", "csv"))
    with pytest.raises(UserError, match="log_metrics"):
        train(tiny, "nowhere", loggers=[print])  # type: ignore[list-item]


class Own:
    """A logger of somebody's own."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.params: Mapping[str, Any] = {}
        self.status = ""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.points += [(name, step, value) for name, value in metrics.items()]

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.params = params

    def finalize(self, status: str) -> None:
        self.status = status


def test_an_object_is_told_too(tmp_path: Path, tiny: RunSpec) -> None:
    own = Own()
    train(replace(tiny, schedule=Spaced("1ep"), epochs=1), tmp_path / "run", loggers=[own])
    assert without_speed(own.points) == sorted(journal(tmp_path / "run"))
    assert (own.params["method.name"], own.params["schedule.kind"], own.status) == ("kd", "spaced", "success")
