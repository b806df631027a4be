"""Checkpoints of other trainers, read as snapshots: Hugging Face's folders checkpoint-N and Lightning's step=N.ckpt.

Of both nothing but tensors is read: a pickle that names anything else is refused, because loading it could run code.
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import Tensor

from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Damaged, UserError, first_line

HUGGING_FACE_NAME = re.compile(r"checkpoint-(\d+)")
LIGHTNING_NAME = re.compile(r"(?:.*\W)?step=(\d+)(?!\d).*\.ckpt")
_INDEX = "model.safetensors.index.json"


def hugging_face_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a Hugging Face checkpoint, or an empty list while some of them are missing."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not (folder / _INDEX).is_file():
        return []
    try:
        files = [folder / name for name in dict.fromkeys(read_json(folder / _INDEX)["weight_map"].values())]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the index is being written
        return []
    if any(file.parent != folder for file in files):
        raise UserError(f"{folder / _INDEX} names files outside of its folder.")
    return files if all(file.is_file() for file in files) else []


def read_lightning(file: Path) -> dict[str, Tensor]:
    """Return the state_dict of a Lightning checkpoint; a file that is cut off is `Damaged`."""
    try:
        checkpoint: Any = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))  # torch's text goes on with how to load the pickle anyway
        if refused is None:
            raise Damaged(f"{file} cannot be read: it is cut off, or holds more than weights. Make it again.") from None
        raise UserError(
            f"{file} holds more than weights (it names {refused[1]}), and reading that could run code. Save it "
            "with save_weights_only=True, or keep objects out of its hyperparameters."
        ) from None
    except (OSError, RuntimeError, EOFError, BadZipFile) as error:
        raise Damaged(f"{file} cannot be read: {first_line(error)}. Make it again.") from None
    weights = checkpoint.get("state_dict") if isinstance(checkpoint, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UserError(f"{file} holds no weights: it must have a state_dict of tensors, as Lightning writes it.")
    batches, optimizer_steps = _progress(checkpoint)
    if optimizer_steps > batches:
        raise UserError(
            f"{file.name} counts {optimizer_steps} steps of all optimizers in {batches} batches, and a step of spaced "
            "KD is a batch: leave snapshots with spacedkd.integrations.lightning.SnapshotCallback, which counts those."
        )
    return weights


def _progress(checkpoint: Mapping[str, Any]) -> tuple[int, int]:
    """Return the batches of a checkpoint and the steps of manual optimisation in them, or zeros if it has neither."""
    try:
        loop = checkpoint["loops"]["fit_loop"]
        manual = loop["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
        return int(loop["epoch_loop.batch_progress"]["total"]["ready"]), int(manual)
    except (KeyError, TypeError):
        return 0, 0
