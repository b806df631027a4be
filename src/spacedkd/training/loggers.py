"""Loggers: who is told what is written into a run's journal, while it is written."""

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

from spacedkd.config.registry import LOGGERS, check_installed
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Linked, UserError, first_line
from spacedkd.runtime.files import Folder, write_json
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.user_code import failed

# Loggers: who is told what is written into a run's journal, while it is written.

Entry = Mapping[str, Any]
"""a line of a journal"""
Key = tuple[int, str, str]
"""which line: turn, event and role"""


class RunLogger(Protocol):
    """Any logger of Lightning's, or an object of your own with the same two methods.

    If it has a method `finalize(status)` as well, that is called at the end with success, aborted or failed.
    """

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """What was found at a step of a role."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """The spec of the run: optimizer.lr and so on."""


def check_loggers(loggers: Sequence[Any]) -> None:
    """Refuse what cannot be told anything."""
    for one in loggers if isinstance(loggers, list | tuple) else [loggers]:
        if not all(callable(getattr(one, name, None)) for name in ("log_metrics", "log_hyperparams")):
            raise UserError(
                "loggers must be a list of objects with log_metrics(metrics, step) and log_hyperparams(params), as "
                f"those of Lightning; got {one!r}. By name they go into the spec: RunSpec(log=['csv'])."
            )


def metrics_of(entry: Entry, pace: float | None = None) -> dict[str, float]:
    """What a line of the journal says, by role; how many images a second the role learned from is not in it.

    >>> metrics_of({"event": "loss", "role": "student", "epoch": 0.5, "lr": 0.1, "losses": {"label": 2.0}})
    {'student/epoch': 0.5, 'student/lr': 0.1, 'student/loss/label': 2.0}
    """
    found = {"epoch": entry["epoch"]}
    if entry["event"] == "loss":
        found |= {"lr": entry["lr"]} | {f"loss/{name}": loss for name, loss in entry["losses"].items()}
    elif entry["event"] == "accuracy":
        scores = entry["accuracy"]
        found |= {f"accuracy/{part}/{head}": score for part in scores for head, score in scores[part].items()}
    else:
        found["skipped"] = 1.0
    found |= {} if pace is None else {"images_per_second": pace}
    return {f"{entry['role']}/{name}": value for name, value in found.items()}


def key_of(entry: Entry) -> Key:
    return entry["turn"], entry["event"], entry["role"]


class Loggers:
    """All loggers of a run: those it names, in its folder or where they keep their runs, and objects of somebody's own.

    The journal is the truth. When a run is taken up, files are made again from what is left of it; a tracker is told
    nothing twice; an object is told all that is written from then on.
    """

    def __init__(self, names: Sequence[str] = (), own: Sequence[RunLogger] = ()) -> None:
        check_installed(names)
        self._names, self._own = names, own
        self._told: dict[str, tuple[RunLogger, frozenset[Key]]] = {}

    def __bool__(self) -> bool:
        return bool(self._names or self._own)

    @contextmanager
    def open(
        self, run: Path, spec: RunSpec, student: str, left: Sequence[Entry], cut: Sequence[Entry]
    ) -> Iterator[None]:
        """While a run is trained: its journal has what is `left`; what was `cut` off will be written again."""
        for one in self._own:
            with _calling(one), suppress(NotImplementedError):  # of Lightning's own CSVLogger
                one.log_hyperparams(flat(to_json(spec)))
        status = "failed"
        try:
            for name in self._names:
                self._told[name] = _opened(name, run, spec, student, left, cut)
            yield
            status = "success" if (run / "result.json").exists() else "aborted"
        finally:
            for name in [*self._told]:
                with self._unharmed(name):
                    _finalize(self._told[name][0], status)
            for one in self._own:
                with _calling(one):
                    _finalize(one, status)

    def log(self, entry: Entry, pace: float | None = None) -> None:
        """A line was written into the journal."""
        if not self:
            return
        metrics, step = metrics_of(entry, pace), entry["step"]
        for name, (logger, known) in [*self._told.items()]:
            if key_of(entry) not in known:
                with self._unharmed(name):
                    logger.log_metrics(dict(metrics), step)
        for one in self._own:
            with _calling(one, f"at step {step} of the {entry['role']}"):
                one.log_metrics(dict(metrics), step)

    @contextmanager
    def _unharmed(self, name: str) -> Iterator[None]:
        """A logger that fails, because of a network or a disk, ends no run; its journal has everything."""
        try:
            yield
        except Exception as error:
            del self._told[name]
            print_notice(
                f"Logging to {name} failed ({type(error).__name__}: {first_line(error)}). The run goes on without it."
            )


@contextmanager
def _calling(logger: RunLogger, when: str = "") -> Iterator[None]:
    """Turn what a logger of the user's raises into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise failed(f"Logger {type(logger).__name__}", error, when) from error


def _opened(
    name: str, run: Path, spec: RunSpec, student: str, left: Sequence[Entry], cut: Sequence[Entry]
) -> tuple[RunLogger, frozenset[Key]]:
    """A logger by name that knows what is left of the journal, and the lines it is not to be told again."""
    pass

    place = run / "logs" / name
    try:
        if name == "csv":
            return csv_logger(place, left), frozenset()
        if name == "tensorboard":
            return tensorboard_logger(place, left, flat(to_json(spec)), student), frozenset()
        title = f"{spec.label}, seed {spec.seed}" if spec.label else run.name
        logger: Wandb | Mlflow
        logger = Wandb(place, title) if name == "wandb" else Mlflow(place, title)
        if not logger.is_new:
            return logger, frozenset(map(key_of, cut))
        logger.log_hyperparams(flat(to_json(spec)))
        for entry in left:
            logger.log_metrics(metrics_of(entry), entry["step"])
        return logger, frozenset()
    except Linked:
        raise
    except Exception as error:
        others = ", ".join(other for other in LOGGERS if other != name)
        raise UserError(
            f"Logging to {name} cannot begin ({type(error).__name__}: {first_line(error)}). There are also: {others}."
        ) from error


def _finalize(logger: RunLogger, status: str) -> None:
    end = getattr(logger, "finalize", None)
    if end is not None:
        end(status)


def flat(plain: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Every setting by its place in the spec.

    >>> flat({"seed": 0, "optimizer": {"name": "sgd"}, "teacher": None, "milestones": ["1ep"]})
    {'seed': 0, 'optimizer.name': 'sgd', 'milestones': '1ep'}
    """
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{above}{key}.")
        elif value not in (None, "", []):
            found[f"{above}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return found


# Loggers that keep files in a run's folder; when it is taken up they are made again from its journal.

PACE = "/images_per_second"
FLUSH_SECONDS = 10


def csv_logger(place: Path, entries: Sequence[Entry]) -> CSVLogger:
    """metrics.csv at this place: a row for each line of the journal, written at once."""
    run = Folder(place.parents[1])
    run.refuse_links((f"{place.parent.name}/{place.name}/",))
    paces = dict(_paces(place / "metrics.csv"))
    run.remove_tree(place)
    logger = CSVLogger(place.parent, place.name, version="", flush_logs_every_n_steps=1)
    for entry in entries:
        logger.log_metrics(_as_before(entry, paces), entry["step"])
    return logger


def _paces(file: Path) -> Iterator[tuple[tuple[str, int], float]]:
    """What a file says of how fast a run was: column and step, and images a second."""
    if not file.is_file():  # a pipe would be waited for
        return
    with file.open(encoding="utf-8", errors="replace", newline="") as opened, suppress(csv.Error):
        for row in csv.DictReader(opened):
            for column in [name for name in row if name and name.endswith(PACE) and row[name]]:
                with suppress(ValueError, TypeError):  # of a line that a kill has cut
                    yield (column, int(row["step"])), float(row[column])


def _as_before(entry: Entry, paces: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    logged = entry["event"] == "loss"
    return metrics_of(entry, paces.get((f"{entry['role']}{PACE}", entry["step"])) if logged else None)


def tensorboard_logger(
    place: Path, entries: Sequence[Entry], settings: dict[str, Any], student: str
) -> TensorBoardLogger:
    """TensorBoard's files at this place: a curve for each number, and the settings for its HPARAMS tab."""
    from torch.utils.tensorboard.summary import hparams

    run = Folder(place.parents[1])
    run.refuse_links((f"{place.parent.name}/{place.name}/",))
    before = _scalars(place)
    paces = {key: value for key, (value, _) in before.items() if key[0].endswith(PACE)}
    run.remove_tree(place)
    logger = TensorBoardLogger(place.parent, place.name, version="", flush_secs=FLUSH_SECONDS)
    for summary in hparams(settings, {f"{student}/accuracy/test/final": 0.0}):  # of which the name alone is written
        logger.experiment._get_file_writer().add_summary(summary)
    for entry in entries:
        for tag, value in _as_before(entry, paces).items():
            _, when = before.get((tag, entry["step"]), (0.0, None))
            logger.experiment.add_scalar(tag, value, entry["step"], walltime=when)
    return logger


def _scalars(place: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """What the files at a place say: curve and step, and the value and when it was written."""
    if not place.exists():
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(place), size_guidance={"scalars": 0})
    found.Reload()
    return {
        (tag, one.step): (one.value, one.wall_time) for tag in found.Tags()["scalars"] for one in found.Scalars(tag)
    }


# Loggers that keep runs elsewhere, Weights & Biases and MLflow; what they were told once cannot be taken back.

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
