"""Loggers: who is told what is written into a run's journal, while it is written."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from spacedkd.data.parallel import tell
from spacedkd.errors import Linked, UserError, first_line
from spacedkd.json_form import to_json
from spacedkd.logger_names import LOGGERS, check_installed
from spacedkd.own_code import failed
from spacedkd.spec import RunSpec

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
    def opened(
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

    def note(self, entry: Entry, pace: float | None = None) -> None:
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
            tell(f"Logging to {name} failed ({type(error).__name__}: {first_line(error)}). The run goes on without it.")


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
    from spacedkd.training import log_files, trackers

    place = run / "logs" / name
    try:
        if name == "csv":
            return log_files.csv_logger(place, left), frozenset()
        if name == "tensorboard":
            return log_files.tensorboard_logger(place, left, flat(to_json(spec)), student), frozenset()
        title = f"{spec.label}, seed {spec.seed}" if spec.label else run.name
        logger: trackers.Wandb | trackers.Mlflow
        logger = trackers.Wandb(place, title) if name == "wandb" else trackers.Mlflow(place, title)
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
