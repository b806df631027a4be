"""Loggers that keep runs elsewhere, Weights & Biases and MLflow; what they were told once cannot be taken back.

A run remembers by which name they know it, so that it goes on there when it is taken up.
"""

import os
import secrets
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from spacedkd.documents import read_json
from spacedkd.files import Folder, write_json

PROJECT = "spacedkd"
"""unless WANDB_PROJECT, or MLFLOW_EXPERIMENT_NAME, says another"""
LONGEST = 500
"""letters of a setting that every version of MLflow takes"""


class Wandb:
    """A run of Weights & Biases; its own variables (WANDB_MODE, WANDB_PROJECT ...) count."""

    def __init__(self, place: Path, title: str) -> None:
        wandb: Any = import_module("wandb")
        known = _known(place)
        self.is_new = known is None
        name = known or _remembered(place, secrets.token_hex(4))
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(project=project, name=title, id=name, resume="allow", dir=str(place))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")  # its own steps may not go back, and roles have each their own

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._run.log({**metrics, "step": step})

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self._run.config.update(params, allow_val_change=True)

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


class Mlflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says, or where MLflow keeps runs by itself."""

    def __init__(self, place: Path, title: str) -> None:
        mlflow: Any = import_module("mlflow")
        self._client, self._metric, self._param = mlflow.MlflowClient(), mlflow.entities.Metric, mlflow.entities.Param
        known = _known(place)
        self.is_new = known is None
        if known is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            known = _remembered(place, self._client.create_run(number, run_name=title).info.run_id)
        else:
            self._client.update_run(known, status="RUNNING")
        self._id = known

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        found = [self._metric(name, float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=found)

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        found = [self._param(name, str(value)[:LONGEST]) for name, value in params.items()]
        self._client.log_batch(self._id, params=found)

    def finalize(self, status: str) -> None:
        ends = {"success": "FINISHED", "aborted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, ends[status])


def _known(place: Path) -> str | None:
    try:
        return str(read_json(place / "run.json", within=place.parents[1])["id"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _remembered(place: Path, name: str) -> str:
    run = Folder(place.parents[1])
    run.make(place)
    write_json(place / "run.json", {"id": name}, run)
    return name
