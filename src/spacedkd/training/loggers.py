"""Loggers: CSV, TensorBoard, Weights & Biases, MLflow, or the user's own get the entries of a run's journal.

The journal is the truth; loggers only get copies of its entries. When a run is resumed, entries after its checkpoint
are removed from the journal and written again. So the files of `csv` and `tensorboard` are made again from the journal,
and `wandb` and `mlflow`, which cannot remove entries, do not get those entries twice.
"""

import csv
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from spacedkd.config.serialization import to_json
from spacedkd.config.spec import LOGGERS, RunSpec, check_loggers_installed
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.files import Folder, write_json
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.user_code import user_code_error
from spacedkd.training.loop import Callback

Entry = Mapping[str, Any]
"""an entry of a journal"""
EntryKey = tuple[int, str, str]
"""an entry's turn, event and role, by which it is recognised when it is written again"""


class RunLogger(Protocol):
    """A logger of Lightning's, or an object of your own with the same two methods.

    If it has a method `finalize(status)` too, that is called at the end with success, aborted or failed.
    """

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """Log the metrics of one of a role's steps, such as {"student/loss/label": 2.0}."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Log the spec of the run, such as {"optimizer.lr": 0.1}."""


def check_loggers(loggers: Sequence[Any]) -> None:
    """Refuse objects that are no loggers."""
    for logger in loggers if isinstance(loggers, list | tuple) else [loggers]:
        if not all(callable(getattr(logger, name, None)) for name in ("log_metrics", "log_hyperparams")):
            raise UserError(
                "loggers must be a list of objects with log_metrics(metrics, step) and log_hyperparams(params), as "
                f"those of Lightning; got {logger!r}. By name they go into the spec: RunSpec(log=['csv'])."
            )


def metrics_of(entry: Entry, images_per_second: float | None = None) -> dict[str, float]:
    """Return the numbers of a journal's entry, named by role; the speed is not in the journal and is added.

    >>> metrics_of({"event": "loss", "role": "student", "epoch": 0.5, "lr": 0.1, "losses": {"label": 2.0}})
    {'student/epoch': 0.5, 'student/lr': 0.1, 'student/loss/label': 2.0}
    """
    metrics = {"epoch": entry["epoch"]}
    if entry["event"] == "loss":
        metrics |= {"lr": entry["lr"]} | {f"loss/{name}": loss for name, loss in entry["losses"].items()}
    elif entry["event"] == "accuracy":
        scores = entry["accuracy"]
        name = entry.get("metric", "accuracy")
        metrics |= {f"{name}/{split}/{head}": score for split in scores for head, score in scores[split].items()}
        for split, heads in entry.get("metrics", {}).items():
            metrics |= {f"{name}/{split}/{head}": value for head, by in heads.items() for name, value in by.items()}
    else:
        metrics["skipped"] = 1.0
    metrics |= {} if images_per_second is None else {"images_per_second": images_per_second}
    return {f"{entry['role']}/{name}": value for name, value in metrics.items()}


def key_of(entry: Entry) -> EntryKey:
    """Return a key that distinguishes an entry of the journal from all others."""
    return entry["turn"], entry["event"], entry["role"]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return every setting of a spec's JSON by its dotted name; empty ones are left out.

    >>> flatten({"seed": 0, "optimizer": {"name": "sgd"}, "teacher": None, "milestones": ["1ep"]})
    {'seed': 0, 'optimizer.name': 'sgd', 'milestones': '1ep'}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif value not in (None, "", []):
            flat[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return flat


class Loggers(Callback):
    """All loggers of a run: those its spec names, and objects of the user.

    A named logger that fails is dropped with a notice, and the run continues. An error of a user's object ends the run.
    When a run is resumed, a user's object gets all entries that are written from then on.
    """

    def __init__(self, names: Sequence[str] = (), user_loggers: Sequence[RunLogger] = ()) -> None:
        check_loggers_installed(names)
        self._names, self._user_loggers = names, user_loggers
        self._named: dict[str, tuple[RunLogger, frozenset[EntryKey]]] = {}
        """name -> logger, and the keys of entries it already has"""

    def __bool__(self) -> bool:
        return bool(self._names or self._user_loggers)

    @contextmanager
    def open(
        self, run: Path, spec: RunSpec, student: str, entries: Sequence[Entry], removed: Sequence[Entry]
    ) -> Iterator[None]:
        """Open all loggers while a run is trained, and finalize them with its status.

        `entries` are those the journal has now; `removed` are those a resume has cut off, which will be written again.
        """
        for logger in self._user_loggers:
            with _user_errors(logger), suppress(NotImplementedError):  # of Lightning's own CSVLogger
                logger.log_hyperparams(flatten(to_json(spec)))
        status = "failed"
        try:
            for name in self._names:
                self._named[name] = _open_named(name, run, spec, student, entries, removed)
            yield
            status = "success" if (run / "result.json").exists() else "aborted"
        finally:
            for name in [*self._named]:
                with self._drop_on_error(name):
                    _finalize(self._named[name][0], status)
            for logger in self._user_loggers:
                with _user_errors(logger):
                    _finalize(logger, status)

    def on_log(self, entry: Entry, images_per_second: float | None = None) -> None:
        """Log an entry that was written into the journal."""
        if not self:
            return
        metrics, step = metrics_of(entry, images_per_second), entry["step"]
        for name, (logger, logged) in [*self._named.items()]:
            if key_of(entry) not in logged:
                with self._drop_on_error(name):
                    logger.log_metrics(dict(metrics), step)
        for logger in self._user_loggers:
            with _user_errors(logger, f"at step {step} of the {entry['role']}"):
                logger.log_metrics(dict(metrics), step)

    @contextmanager
    def _drop_on_error(self, name: str) -> Iterator[None]:
        """Drop a named logger whose network or disk fails: the journal has everything."""
        try:
            yield
        except Exception as error:
            del self._named[name]
            print_notice(
                f"Logging to {name} failed ({type(error).__name__}: {first_line(error)}). The run continues without it."
            )


@contextmanager
def _user_errors(logger: RunLogger, when: str = "") -> Iterator[None]:
    """Turn an error of the user's logger into a `UserError` of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise user_code_error(f"Logger {type(logger).__name__}", error, when) from error


def _open_named(
    name: str, run: Path, spec: RunSpec, student: str, entries: Sequence[Entry], removed: Sequence[Entry]
) -> tuple[RunLogger, frozenset[EntryKey]]:
    """Return a logger that has all entries, and the keys of those it must not get again."""
    folder = run / "logs" / name
    # A tracker's folder is its own except for run.json, which is written here.
    Folder(run).refuse_links([f"logs/{name}/" if name in ("csv", "tensorboard") else f"logs/{name}/run.json"])
    try:
        if name == "csv":
            return csv_logger(folder, entries), frozenset()
        if name == "tensorboard":
            return tensorboard_logger(
                folder, entries, flatten(to_json(spec)), f"{student}/{spec.judged_by}"
            ), frozenset()
        title = f"{spec.label}, seed {spec.seed}" if spec.label else run.name
        logger: Wandb | Mlflow
        logger = Wandb(folder, title) if name == "wandb" else Mlflow(folder, title)
        if not logger.is_new:
            return logger, frozenset(map(key_of, removed))
        logger.log_hyperparams(flatten(to_json(spec)))
        for entry in entries:
            logger.log_metrics(metrics_of(entry), entry["step"])
        return logger, frozenset()
    except Exception as error:
        others = ", ".join(other for other in LOGGERS if other != name)
        raise UserError(
            f"Logging to {name} cannot begin ({type(error).__name__}: {first_line(error)}). There are also: {others}."
        ) from error


def _finalize(logger: RunLogger, status: str) -> None:
    finalize = getattr(logger, "finalize", None)
    if finalize is not None:
        finalize(status)


# Loggers that write files into the run's folder.
# A resume makes the files again from the journal. Only the time of an entry and the speed are not in the journal: they
# are read from the files before.

SPEED = "/images_per_second"
FLUSH_SECONDS = 10


def csv_logger(folder: Path, entries: Sequence[Entry]) -> CSVLogger:
    """Return a logger of `metrics.csv` in this folder, one row for each entry, written at once."""
    speeds = dict(_read_csv_speeds(folder / "metrics.csv"))
    Folder(folder.parents[1]).remove_tree(folder)
    logger = CSVLogger(folder.parent, folder.name, version="", flush_logs_every_n_steps=1)
    for entry in entries:
        logger.log_metrics(_metrics_with_speed(entry, speeds), entry["step"])
    return logger


def _read_csv_speeds(file: Path) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield (column, step) and images a second, as far as a file that a kill may have cut has them."""
    if not file.is_file():  # opening a named pipe would wait for ever
        return
    with file.open(encoding="utf-8", errors="replace", newline="") as opened, suppress(csv.Error):
        for row in csv.DictReader(opened):
            for column in [name for name in row if name and name.endswith(SPEED) and row[name]]:
                with suppress(ValueError, TypeError):  # of a line that a kill has cut
                    yield (column, int(row["step"])), float(row[column])


def _metrics_with_speed(entry: Entry, speeds: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    """Return an entry's metrics with the speed that was logged with it before a resume."""
    is_loss = entry["event"] == "loss"
    return metrics_of(entry, speeds.get((f"{entry['role']}{SPEED}", entry["step"])) if is_loss else None)


def tensorboard_logger(
    folder: Path, entries: Sequence[Entry], settings: dict[str, Any], score: str
) -> TensorBoardLogger:
    """Return a logger of TensorBoard files in this folder, with the settings for its HPARAMS tab."""
    from torch.utils.tensorboard.summary import hparams

    scalars = _read_scalars(folder)
    speeds = {key: value for key, (value, _) in scalars.items() if key[0].endswith(SPEED)}
    Folder(folder.parents[1]).remove_tree(folder)
    logger = TensorBoardLogger(folder.parent, folder.name, version="", flush_secs=FLUSH_SECONDS)
    for summary in hparams(settings, {f"{score}/test/final": 0.0}):  # only the metric's name is written
        logger.experiment._get_file_writer().add_summary(summary)
    for entry in entries:
        for tag, value in _metrics_with_speed(entry, speeds).items():
            _, wall_time = scalars.get((tag, entry["step"]), (0.0, None))
            logger.experiment.add_scalar(tag, value, entry["step"], walltime=wall_time)
    return logger


def _read_scalars(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Return (tag, step) -> (value, wall time) of the TensorBoard files in a folder."""
    if not folder.exists():
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        (tag, scalar.step): (scalar.value, scalar.wall_time)
        for tag in events.Tags()["scalars"]
        for scalar in events.Scalars(tag)
    }


# Loggers that keep runs elsewhere: Weights & Biases and MLflow.
# The run's folder keeps the id they know the run by, so that a resumed run continues there.

PROJECT = "spacedkd"
"""unless WANDB_PROJECT, or MLFLOW_EXPERIMENT_NAME, names another"""
PARAM_LENGTH = 500
"""letters of a setting that every version of MLflow accepts"""


class Wandb:
    """A run of Weights & Biases; its own variables (WANDB_MODE, WANDB_PROJECT ...) count."""

    def __init__(self, folder: Path, title: str) -> None:
        wandb: Any = import_module("wandb")
        run_id = _read_id(folder)
        self.is_new = run_id is None
        run_id = run_id or _save_id(folder, secrets.token_hex(4))
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(project=project, name=title, id=run_id, resume="allow", dir=str(folder))
        # W&B's own steps may not go back, but every role counts its own: steps are an ordinary metric.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._run.log({**metrics, "step": step})

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self._run.config.update(params, allow_val_change=True)

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


class Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or where MLflow keeps runs by default."""

    def __init__(self, folder: Path, title: str) -> None:
        mlflow: Any = import_module("mlflow")
        self._client, self._metric, self._param = mlflow.MlflowClient(), mlflow.entities.Metric, mlflow.entities.Param
        run_id = _read_id(folder)
        self.is_new = run_id is None
        if run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            run_id = _save_id(folder, self._client.create_run(number, run_name=title).info.run_id)
        else:
            self._client.update_run(run_id, status="RUNNING")
        self._id = run_id

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        values = [self._metric(name, float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=values)

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        settings = [self._param(name, str(value)[:PARAM_LENGTH]) for name, value in params.items()]
        self._client.log_batch(self._id, params=settings)

    def finalize(self, status: str) -> None:
        statuses = {"success": "FINISHED", "aborted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, statuses[status])


def _read_id(folder: Path) -> str | None:
    """Return the id a tracker knows the run by; None if the run is new to it."""
    try:
        return str(read_json(folder / "run.json", within=folder.parents[1])["id"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _save_id(folder: Path, run_id: str) -> str:
    run = Folder(folder.parents[1])
    run.make(folder)
    write_json(folder / "run.json", {"id": run_id}, run)
    return run_id
