"""Loggers that keep files in a run's folder; when it is taken up they are made again from its journal.

Only when a line was written, and how fast the run was then, is not in the journal: that is taken from the files before.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from spacedkd.files import Folder
from spacedkd.training.loggers import Entry, metrics_of

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
