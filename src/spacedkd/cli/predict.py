"""The command `predict`: the classes of images, by a run's student."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table as RichTable
from rich.text import Text

from spacedkd.cli.console import console, say
from spacedkd.cli.flags import flag
from spacedkd.config.spec import ACCELERATORS
from spacedkd.runs.predictions import ImagePrediction
from spacedkd.runs.result import read_run
from spacedkd.runtime.errors import UserError, check_between, pluralize, printable, unknown
from spacedkd.runtime.files import write_text

SHOWN = 50
"""predictions that are printed; a file has all"""


def predict(
    run: Annotated[tyro.conf.Positional[Path], flag("a finished run", metavar="RUN")],
    images: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], flag("image files, or folders of them", metavar="IMAGE ...")
    ],
    *,
    top: Annotated[int, flag("this many of the most probable classes of each image", metavar="K")] = 1,
    csv: Annotated[
        Path | None, flag("write the predictions into this file, a line for each image", metavar="FILE.csv")
    ] = None,
    json: Annotated[Path | None, flag("write a list of predictions into this file", metavar="FILE.json")] = None,
    average: Annotated[bool, flag("use the average of the student's weights (train --average)", "no")] = False,
    best: Annotated[bool, flag("use the student of the best epoch on held-out images (--holdout)", "no")] = False,
    batch_size: Annotated[int, flag("images that are computed at once")] = 64,
    accelerator: Annotated[str, flag("cpu, cuda, mps or auto")] = "auto",
    trust_code: Annotated[bool, flag("import the user code that the student's config.json names", "no")] = False,
) -> None:
    """Predict the classes of images with a trained student.

    Images are resized and normalised as the run's test images were. The probability is the softmax of the logits of the
    deepest head; it is not calibrated.

    Example: spacedkd predict runs/mine photos --top 3 --csv predictions.csv
    """
    if not images:
        raise UserError(f"Name at least one image, or a folder of images: spacedkd predict {run} photos")
    if average and best:
        raise UserError("--average and --best are two students: give one of them.")
    if accelerator not in ACCELERATORS:
        raise unknown("accelerator", accelerator, ACCELERATORS)
    check_between("--top", top, 1)
    check_between("--batch-size", batch_size, 1, 1_000_000)

    for path in (csv, json):
        if path is not None and not path.absolute().parent.is_dir():
            raise UserError(f"There is no folder {path.parent} for {path.name}: make it first.")
    predictions = read_run(run).predict(
        [*images],
        top=top,
        which="average" if average else "best" if best else "last",
        batch_size=batch_size,
        accelerator=accelerator,
        trust_code=trust_code,
    )
    if csv is not None:
        write_text(csv, _as_csv(predictions))
    if json is not None:
        write_text(json, _as_json(predictions))
    console.print(_table(predictions[:SHOWN]))
    if len(predictions) > SHOWN:
        say(f"{len(predictions) - SHOWN} more images are not shown; --csv FILE writes all of them.")
    for path in (csv, json):
        if path is not None:
            say(f"{pluralize(len(predictions), 'prediction')}: {path}")


def _as_csv(predictions: Sequence[ImagePrediction]) -> str:
    text = io.StringIO()
    rows = [prediction.row() for prediction in predictions]
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _as_json(predictions: Sequence[ImagePrediction]) -> str:
    return json.dumps([prediction._asdict() for prediction in predictions], indent=2, ensure_ascii=False) + "\n"


def _table(predictions: Sequence[ImagePrediction]) -> RichTable:
    """Return a row for each image: its name, and every class with its probability in percent."""
    table = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    for prediction in predictions:
        classes = (Text(printable(f"{label} {100 * p:.1f} %")) for label, p in prediction.top.items())
        table.add_row(Text(printable(prediction.image), overflow="fold"), *classes)
    return table
