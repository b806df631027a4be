"""Which snapshots a folder holds, in any of the forms that trainers leave them in, and their weights, nothing else.

    step-586.safetensors                        ours, by `Snapshots`, or anybody's
    checkpoint-586/model.safetensors            Hugging Face; sharded with model.safetensors.index.json
    epoch=0-step=586.ckpt                       Lightning; any name with step=N in it
    path/ROLE/000000586.safetensors             a run of spacedkd with --record

The number is that of the updates the weights have had.
"""

import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from spacedkd.runs import tensor_file
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Damaged, UserError, first_line, pluralize, unknown
from spacedkd.runtime.files import Folder
from spacedkd.trajectory.recording import file_of, path_file, place_of
from spacedkd.trajectory.replay import read_paths

INDEX = "model.safetensors.index.json"


class Source(Protocol):
    """Where the snapshots of one run are."""

    prefix: str
    """before all names of the network's weights, unless the user says otherwise"""

    def there(self) -> Mapping[int, Path]:
        """What is there whole, by the number of updates."""
        ...

    def never(self, updates: int) -> str | None:
        """Why a snapshot will not come, however long one waits; None if it may."""
        ...


class Files:
    """A folder of files or folders with the number of updates in their names; all of one kind."""

    prefix = ""
    _kinds = (
        ("step-N.safetensors", re.compile(r"step-(\d+)\.safetensors")),
        ("checkpoint-N/", re.compile(r"checkpoint-(\d+)")),
        ("step=N.ckpt", re.compile(r"(?:.*\W)?step=(\d+)(?!\d).*\.ckpt")),
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def there(self) -> Mapping[int, Path]:
        found: dict[str, dict[int, Path]] = {}
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            for kind, name in self._kinds:
                match = name.fullmatch(path.name)
                if match and (path.is_file() or _weights_in(path)):
                    updates, others = int(match[1]), found.setdefault(kind, {})
                    if updates in others:
                        raise UserError(
                            f"{self.folder} has two snapshots after {pluralize(updates, 'update')}, "
                            f"{others[updates].name} and {path.name}: remove one of them."
                        )
                    others[updates] = path
        if len(found) > 1:
            raise UserError(f"{self.folder} has snapshots of several kinds, {' and '.join(found)}: keep one of them.")
        return next(iter(found.values()), {})

    def never(self, updates: int) -> str | None:
        return None


class Recorded:
    """The path of a role in the folder of a run that records it."""

    prefix = "network."

    def __init__(self, run: Path, role: str | None = None) -> None:
        Folder(run).refuse_links(("path/",))
        paths = read_paths(run)
        if role is None and len(paths) > 1:
            raise UserError(f"{run} has recorded several networks, {', '.join(paths)}: give role= one of them.")
        self.run, self.role = run, role or next(iter(paths))
        if self.role not in paths:
            raise unknown(f"role of {run}", self.role, paths)
        self.total: int = paths[self.role]["settings"]["steps to learn"]
        self._versions: Iterable[int] = paths[self.role]["versions"]

    def there(self) -> Mapping[int, Path]:
        files = {version: file_of(place_of(self.run, self.role), version) for version in self._versions}
        return {version: file for version, file in files.items() if file.exists()}

    def never(self, updates: int) -> str | None:
        if updates not in self._versions:
            return "record it with --record and this interval"
        if (self.run / "result.json").exists():
            return "it was recorded, and removed"
        return None


def source(folder: Path, role: str | None = None) -> Source:
    """Where the snapshots below a folder are."""
    if path_file(folder).exists():
        return Recorded(folder, role)
    if role is not None:
        raise UserError(f"role= names a network of a run with --record, and {folder} is none: leave it out.")
    return Files(folder)


def some(numbers: Iterable[int]) -> str:
    """A few of many numbers.

    >>> some([3, 1, 2]), some(range(9)), some([])
    ('1, 2, 3', '0, 1, 2, ..., 8', 'none')
    """
    known = [str(number) for number in sorted(numbers)]
    return ", ".join(known if len(known) <= 6 else [*known[:3], "...", known[-1]]) or "none"


def _weights_in(folder: Path) -> list[Path]:
    """The files of a Hugging Face checkpoint, if all of them are there."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not (folder / INDEX).is_file():
        return []
    try:
        files = [folder / name for name in dict.fromkeys(read_json(folder / INDEX)["weight_map"].values())]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # it is being written
        return []
    if any(file.parent != folder for file in files):
        raise UserError(f"{folder / INDEX} names files outside of its folder.")
    return files if all(file.is_file() for file in files) else []


def read(snapshot: Path) -> dict[str, Tensor]:
    """The weights and statistics of a snapshot, in the CPU's memory; of pickles too nothing but tensors is read.

    One that is still being written is `Damaged`.
    """
    if snapshot.is_dir():
        return {name: value for file in _weights_in(snapshot) for name, value in _safetensors(file).items()}
    return _lightning(snapshot) if snapshot.suffix == ".ckpt" else _safetensors(snapshot)


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            words = opened.metadata() or {}
            if "checksum" not in words and "digest" not in words:
                return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  it is no mapping
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{file} cannot be read: {first_line(error)}. Make it again.") from None
    return tensor_file.read(file, words.keys() - {"checksum", "digest"})[1]


def _lightning(file: Path) -> dict[str, Tensor]:
    try:
        whole: Any = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))  # the rest of torch's text says how to read it all the same
        if refused is None:
            raise Damaged(f"{file} cannot be read: it is cut off, or holds more than weights. Make it again.") from None
        raise UserError(
            f"{file} holds more than weights (it names {refused[1]}), and reading that could run code. Save it "
            "with save_weights_only=True, or keep objects out of its hyperparameters."
        ) from None
    except (OSError, RuntimeError, EOFError, BadZipFile) as error:
        raise Damaged(f"{file} cannot be read: {first_line(error)}. Make it again.") from None
    found = whole.get("state_dict") if isinstance(whole, dict) else None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{file} holds no weights: it must have a state_dict of tensors, as Lightning writes it.")
    batches, steps = _progress(whole)
    if steps > batches:
        raise UserError(
            f"{file.name} counts {steps} steps of all optimizers in {batches} batches, and a step of spaced KD is a "
            "batch: leave snapshots with spacedkd.integrations.lightning.SnapshotCallback, which counts those."
        )
    return found


def _progress(checkpoint: Mapping[str, Any]) -> tuple[int, int]:
    """Return the batches of a Lightning checkpoint and the steps of manual optimisation in them, if it says so."""
    try:
        loop = checkpoint["loops"]["fit_loop"]
        manual = loop["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
        return int(loop["epoch_loop.batch_progress"]["total"]["ready"]), int(manual)
    except (KeyError, TypeError):
        return 0, 0
