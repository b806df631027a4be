"""Snapshots in a folder: a network's weights and BatchNorm statistics after a number of updates, one file each.

    step-586.safetensors                  a folder of snapshots, written by `Snapshots` or by a user's own code
    RUN/path/ROLE/000000586.safetensors   the folder of a run with --record, for each role that it records
    checkpoint-586/                       Hugging Face's Trainer, read only
    epoch=0-step=586.ckpt                 Lightning's Trainer, read only

Our own files are safetensors with a checksum, and are never partly written. A recorded run also has its index,
`path/path.json`: the settings that determine the weights of each role, and the updates after which snapshots are, or
will be, recorded. In files, "path" is an older word for a trajectory and "version" one for a number of updates.
"""

import difflib
import hashlib
import json
import pickle
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spacedkd.runs import tensor_file
from spacedkd.runtime import processes
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import (
    CannotRead,
    Damaged,
    Linked,
    SnapshotsGone,
    UserError,
    first_line,
    pluralize,
    unknown,
)
from spacedkd.runtime.files import Folder, as_folder, make_durable, write_errors, write_json
from spacedkd.runtime.locks import is_held

POLL_SECONDS = 0.2
RECORD = "spacing.json"
"""name of the file of a `Spacing` beside its snapshots: the length and a fingerprint of the teacher's batches"""
TRAINED = "trained"
"""key in a snapshot that holds trained parameters alone: the digest of the frozen ones"""
Settings = Mapping[str, Any]
"""settings that determine the weights of a role, by the names they have in error messages"""


class SnapshotStore(ABC):
    """The snapshots of one network."""

    folder: Path
    network_prefix: str = ""
    """prefix of the bare network's weights in the files"""

    @abstractmethod
    def available(self) -> Mapping[int, Path]:
        """Return the existing snapshots: number of updates -> file or folder."""

    @abstractmethod
    def find(self, update: int) -> Path | None:
        """Return the file or folder of a snapshot; None while it does not exist."""

    @abstractmethod
    def read(self, update: int) -> dict[str, Tensor]:
        """Return the tensors of a snapshot, in the CPU's memory; a file that is cut off or changed is `Damaged`."""

    @abstractmethod
    def save(self, update: int, network: nn.Module) -> Path:
        """Write a snapshot of a network after `update` updates, and return its file."""

    def missing_for_good(self, update: int) -> str | None:
        """Return advice for a snapshot that will never come; None if it may still come."""
        return None

    def frozen_digest(self, update: int) -> str | None:
        """Return the digest of the frozen parameters that a snapshot leaves out; None where it holds all weights."""
        return None

    def load(
        self,
        update: int,
        network: nn.Module,
        prefix: str = "",
        tensors: Mapping[str, Tensor] | None = None,
        check_frozen: bool = True,
    ) -> None:
        """Load the weights and statistics of a snapshot into a network; those of another network are refused.

        `tensors` is what `read` has returned, if it was read before. `check_frozen` compares parameters that the
        snapshot leaves out with the network's.
        """
        tensors, source = self.read(update) if tensors is None else tensors, self.find(update) or self.folder
        frozen = self.frozen_digest(update)
        load_weights(network, tensors, prefix, source, partly=frozen is not None)
        if check_frozen and frozen is not None and frozen != digest_of_frozen(network, leave_out=tensors.keys()):
            raise UserError(
                f"{source} holds trained parameters alone, and the frozen ones of the network given "
                f"({type(network).__name__}) are others: give network= the base that was trained upon."
            )

    def read_when_available(self, update: int, seconds: float) -> dict[str, Tensor] | None:
        """Return the tensors of a snapshot as soon as it is complete; None if it does not come in time.

        A damaged file may be one that another trainer is still writing, so it is refused only when the time is over.
        """
        damaged = None
        for _ in poll(self.folder, f"its snapshot after {pluralize(update, 'update')}", seconds):
            # Checked before looking for the file, so that a snapshot that comes in between is seen.
            missing, damaged = self.missing_for_good(update), None
            if self.find(update) is not None:
                try:
                    return self.read(update)
                except Damaged as error:
                    damaged = error
            elif missing:
                break
        if damaged is not None:
            raise damaged
        return None


def poll(folder: Path, awaited: str, seconds: float) -> Iterator[None]:
    """Yield at once, and then every `POLL_SECONDS` until the seconds are over; a notice names what is awaited."""
    end = time.monotonic() + seconds
    yield
    if seconds:
        processes.print_notice(f"waiting {seconds:g} s at the most for {folder} to get {awaited}")
    while (rest := end - time.monotonic()) > 0:
        time.sleep(min(POLL_SECONDS, rest))
        yield


def open_store(folder: Path, role: str | None = None, wait: float = 0.0) -> SnapshotStore:
    """Open the snapshots in a folder, which may be a run with --record, as soon as there is one."""
    for _ in poll(folder, "its first snapshot", wait):
        if index_file(folder).exists():
            return _open_run(folder, role)
        if role is not None:
            raise UserError(f"role= names a network of a run with --record, and {folder} is none: leave it out.")
        store = FolderSnapshots(folder)
        if store.available():
            return store
    if adapters := next(folder.glob("checkpoint-*/adapter_model.safetensors"), None):
        raise UserError(
            f"{adapters.parent} holds adapters of PEFT alone, under names that are not the network's: train the "
            "teacher with spacing.transformers.teacher(), whose snapshots hold them too."
        )
    waited = f" (waited {wait:g} s)" if wait else ""
    raise UserError(
        f"{folder} has no snapshots: neither step-N.safetensors nor checkpoint-N/ nor ...step=N.ckpt, and it "
        f"is no run with --record. Train the teacher first, or give wait=SECONDS while it is trained{waited}."
    )


# Checkpoints of other trainers, read as snapshots.
# Only tensors are read: a pickle that names anything else is refused, because loading it could run code.

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
        refused = re.search(r"GLOBAL (\S+)", str(error))  # torch's text continues with how to load the pickle anyway
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
    batches, optimizer_steps = _lightning_counts(checkpoint)
    if optimizer_steps > batches:
        raise UserError(
            f"{file.name} counts {optimizer_steps} steps of all optimizers in {batches} batches, and a step of spaced "
            "KD is a batch: save snapshots with spacedkd.integrations.lightning.SnapshotCallback, which counts those."
        )
    return weights


def _lightning_counts(checkpoint: Mapping[str, Any]) -> tuple[int, int]:
    """Return the batches of a checkpoint and the steps of manual optimisation in them; zeros if it lacks the counts."""
    try:
        loop = checkpoint["loops"]["fit_loop"]
        manual = loop["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
        return int(loop["epoch_loop.batch_progress"]["total"]["ready"]), int(manual)
    except (KeyError, TypeError):
        return 0, 0


# A folder of snapshots, ours or another trainer's


class FolderSnapshots(SnapshotStore):
    """Files or folders with the number of updates in their names, all of one kind; ours are step-N.safetensors."""

    _kinds = (
        ("step-N.safetensors", re.compile(r"step-(\d+)\.safetensors")),
        ("checkpoint-N/", HUGGING_FACE_NAME),
        ("step=N.ckpt", LIGHTNING_NAME),
    )

    def __init__(self, folder: Path, overwrite: bool = False) -> None:
        """Without `overwrite`, `save` refuses to replace a snapshot by other weights."""
        self.folder, self.overwrite = folder, overwrite

    def available(self) -> Mapping[int, Path]:
        kinds: dict[str, dict[int, Path]] = {}
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            for kind, name in self._kinds:
                match = name.fullmatch(path.name)
                if match and (path.is_file() or hugging_face_files(path)):
                    update, snapshots = int(match[1]), kinds.setdefault(kind, {})
                    if update in snapshots:
                        raise UserError(
                            f"{self.folder} has two snapshots after {pluralize(update, 'update')}, "
                            f"{snapshots[update].name} and {path.name}: remove one of them."
                        )
                    snapshots[update] = path
        own = self._kinds[0][0]
        if len(kinds) > 1 and own in kinds and (self.folder / RECORD).is_file():  # with checkpoints of the same run
            return kinds[own]
        if len(kinds) > 1:
            raise UserError(f"{self.folder} has snapshots of several kinds, {' and '.join(kinds)}: keep one of them.")
        return next(iter(kinds.values()), {})

    def find(self, update: int) -> Path | None:
        return self.available().get(update)

    def read(self, update: int) -> dict[str, Tensor]:
        snapshot = self.available()[update]
        if snapshot.suffix == ".ckpt":
            return read_lightning(snapshot)
        files = hugging_face_files(snapshot) if snapshot.is_dir() else [snapshot]
        return {name: tensor for file in files for name, tensor in _read_safetensors(file).items()}

    def frozen_digest(self, update: int) -> str | None:
        file = self.available()[update]
        return _read_metadata(file).get(TRAINED) if file.suffix == ".safetensors" else None

    def own_files(self) -> dict[int, Path]:
        """Return the snapshots of our own kind, also beside those of others: number of updates -> file."""
        files = [*self.folder.iterdir()] if self.folder.is_dir() else []
        matches = ((self._kinds[0][1].fullmatch(file.name), file) for file in files)
        return {int(match[1]): file for match, file in matches if match}

    def remove_after(self, update: int) -> None:
        """Remove our snapshots after more updates, where this is the first of several processes."""
        for later, file in self.own_files().items() if is_first_process() else ():
            if later > update:
                file.unlink()

    def save(self, update: int, network: nn.Module, trained_only: bool = False) -> Path:
        """Write a snapshot, where this is the first of several processes. One that is there already must be equal."""
        file = self.folder / f"step-{update}.safetensors"
        if not is_first_process():
            return file
        state = state_of(network, trained_only)
        tensors = tensor_file.copy_to_cpu(state)
        if file.exists() and not self.overwrite:
            _check_equal(file, tensors)
            return file
        with write_errors(self.folder):
            make_durable(self.folder)
        trained = {TRAINED: digest_of_frozen(unwrapped(network), leave_out=state.keys())} if trained_only else {}
        tensor_file.write(file, tensors, {"updates": str(update), **trained})
        return file


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; one that spacedkd has written is checked against its checksum."""
    metadata = _read_metadata(file)
    if "checksum" in metadata or "digest" in metadata:
        return tensor_file.read(file, metadata.keys() - {"checksum", "digest"})[1]
    with _damage(file), safe_open(file, framework="pt", device="cpu") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  it is no mapping


def _read_metadata(file: Path) -> dict[str, str]:
    with _damage(file), safe_open(file, framework="pt", device="cpu") as opened:
        return opened.metadata() or {}


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{file} cannot be read: {first_line(error)}. Make it again.") from None


def is_first_process() -> bool:
    """Return whether this is the process that writes, of those of torch.distributed or of a launcher."""
    is_alone = not (distributed.is_available() and distributed.is_initialized())
    return (processes.rank() if is_alone else distributed.get_rank()) == 0


def _check_equal(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a snapshot whose file holds other weights: snapshots of two runs would be mixed."""
    saved = _read_safetensors(file)
    if saved.keys() != tensors.keys() or not all(_equal_bits(saved[name], tensors[name]) for name in tensors):
        raise UserError(
            f"{file} holds other weights than this run has after as many updates: it is from another run, or a resume "
            "did not give the same bits. Choose another folder, delete this one, or give overwrite=True."
        )


def _equal_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit by bit, NaN included."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


# A run with --record


class RunSnapshots(SnapshotStore):
    """The snapshots of one role in the folder of the run that records it."""

    network_prefix = "network."
    _name = re.compile(r"(\d{9})\.safetensors")

    def __init__(self, run: Folder | Path, role: str, recorded: Sequence[int] = ()) -> None:
        """Open the snapshots of a role in a run's folder; `recorded` are the updates that the run records."""
        self.handle = as_folder(run)
        """handle of the run's folder: no link below it is followed"""
        self.run, self.role, self.recorded = self.handle.path, role, recorded
        self.folder = self.run / "path" / role

    def file(self, update: int) -> Path:
        """Return the file that a snapshot has, or will have."""
        return self.folder / f"{update:09d}.safetensors"

    def find(self, update: int) -> Path | None:
        return self.file(update) if self.handle.exists(self.file(update)) else None

    def available(self) -> Mapping[int, Path]:
        names = (self._name.fullmatch(name) for name in self.handle.names(self.folder))
        return {int(name[1]): self.folder / name[0] for name in names if name}

    def read(self, update: int) -> dict[str, Tensor]:
        metadata = self._metadata(update)
        written, tensors = tensor_file.read(self.file(update), metadata.keys(), within=self.handle)
        if {name: written[name] for name in metadata} != metadata:
            raise Damaged(f"{self.file(update)} is damaged: it says that it is another snapshot.")
        return tensors

    def save(self, update: int, network: nn.Module) -> Path:
        tensors = tensor_file.copy_to_cpu(state_of(network))
        tensor_file.write(self.file(update), tensors, self._metadata(update), within=self.handle)
        return self.file(update)

    def _metadata(self, update: int) -> dict[str, str]:
        """Return what the file says of itself, so that a snapshot that was moved or renamed is refused."""
        return {"role": self.role, "version": str(update)}

    def remove_before(self, update: int) -> None:
        """Remove all snapshots after fewer updates."""
        for earlier, file in self.available().items():
            if earlier < update:
                self.handle.remove(file)

    def missing_for_good(self, update: int) -> str | None:
        if update not in self.recorded:
            return "record it with --record and this interval"
        if (self.run / "result.json").exists():
            return "it was recorded, and removed"
        return None


class RecordedRole(NamedTuple):
    """A role in the index of a recorded run."""

    settings: Settings
    updates: list[int]
    """updates after which snapshots are, or will be, recorded"""


def index_file(run: Path) -> Path:
    """Return the path of a recorded run's index: settings that determine each role's weights, recorded updates."""
    return run / "path" / "path.json"


def read_index(run: Path) -> dict[str, RecordedRole]:
    """Return the roles that a run records; an index that is gone or damaged raises `SnapshotsGone`."""
    file = index_file(run)
    with refuse_damage(file):
        index: dict[str, dict[str, Any]] = read_json(file, within=run)
        if not index:
            raise ValueError("it names no role")
        return {
            role: RecordedRole(dict(entry["settings"]), [int(update) for update in entry["versions"]])
            for role, entry in index.items()
        }


def write_index(run: Folder, roles: Mapping[str, RecordedRole]) -> None:
    """Write the index of a run that records these roles."""
    index = {role: {"settings": entry.settings, "versions": entry.updates} for role, entry in roles.items()}
    write_json(index_file(run.path), index, run)


def recording_lock(run: Path) -> Path:
    """Return the lock that a process holds while it records a run."""
    return run / "path" / ".writing"


def is_recording(run: Path) -> bool:
    """Return whether a process records a run now; a kill releases its lock."""
    return index_file(run).exists() and is_held(recording_lock(run))


@contextmanager
def refuse_damage(file: Path) -> Iterator[None]:
    """Raise errors in the contents of a recorded file as `SnapshotsGone`, in one line."""
    try:
        yield
    except (CannotRead, Linked) as error:
        raise SnapshotsGone(str(error)) from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = first_line(error).removesuffix(".")
        raise SnapshotsGone(f"{file} is damaged ({reason}). Record the teacher again in a new folder.") from None


def _open_run(run: Path, role: str | None) -> RunSnapshots:
    Folder(run).refuse_links(("path/",))
    roles = read_index(run)
    networks = [name for name, entry in roles.items() if "average" not in entry.settings]
    if role is None and len(networks) > 1:
        raise UserError(f"{run} has recorded several networks, {', '.join(roles)}: give role= one of them.")
    role = role or next(iter(roles))
    if role not in roles:
        raise unknown(f"role of {run}", role, roles)
    return RunSnapshots(run, role, roles[role].updates)


# Reading and loading the weights of a network


def unwrapped(network: nn.Module) -> nn.Module:
    """Return a network without DDP and torch.compile."""
    while isinstance(network, DistributedDataParallel) or hasattr(network, "_orig_mod"):
        network = network.module if isinstance(network, DistributedDataParallel) else network._orig_mod  # type: ignore[assignment]
    return network


def state_of(network: nn.Module, trained_only: bool = False) -> dict[str, Tensor]:
    """Return a network's weights and statistics by the names they have without DDP and torch.compile.

    With `trained_only`, parameters that do not require gradients are left out.
    """
    network = unwrapped(network)
    frozen = _frozen(network) if trained_only else {}
    state = {name: value for name, value in network.state_dict().items() if name not in frozen}
    for name, value in state.items():
        if not isinstance(value, Tensor) or isinstance(value, DTensor):
            kind = "sharded over processes" if isinstance(value, DTensor) else type(value).__name__
            raise UserError(f"{name} of {type(network).__name__} is {kind}: a snapshot holds whole tensors alone.")
    return state


def _frozen(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that do not require gradients; tied ones by each of their names."""
    parameters = network.named_parameters(remove_duplicate=False)
    return {name: value for name, value in parameters if not value.requires_grad}


def digest_of_frozen(network: nn.Module, leave_out: Collection[str]) -> str:
    """Return a digest of a network's parameters besides those left out: their names, shapes and first numbers.

    All numbers of a language model would take minutes; the first ones tell other weights as well.
    """
    digest = hashlib.sha256()
    for name, value in sorted(network.named_parameters(remove_duplicate=False)):
        if name not in leave_out:
            first = value.detach().reshape(-1)[:64].cpu().to(torch.bfloat16)  # a base may be loaded in any precision
            digest.update(f"{name} {[*value.shape]} ".encode() + _bits(first).numpy().tobytes())
    return digest.hexdigest()


def load_weights(
    network: nn.Module, tensors: Mapping[str, Tensor], prefix: str, source: Path, partly: bool = False
) -> None:
    """Load the tensors whose names begin with `prefix` into a network; they must be exactly its own.

    A tensor that the network has under two names (tied weights) may be saved under one of them. With `partly`,
    parameters that have no tensor stay as they are.
    """
    expected = network.state_dict()
    if partly:
        parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
        expected = {name: value for name, value in expected.items() if name in tensors or name not in parameters}
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    missing = [name for name in expected if name not in own]
    for name in [*missing]:
        twin = next((other for other in own if other in expected and _is_tied(expected[name], expected[other])), None)
        if twin is not None:
            own[name] = own[twin]
            missing.remove(name)
    extra = [name for name in own if name not in expected]
    misshapen = [name for name in own if name in expected and own[name].shape != expected[name].shape]
    misfit = f"The weights in {source} are not those of the network given ({type(network).__name__}): "
    if missing or extra:
        raise UserError(f"{misfit}{_describe_names(missing, extra, expected=expected, tensors=tensors, prefix=prefix)}")
    if misshapen:
        name = misshapen[0]
        raise UserError(f"{misfit}{name!r} is {[*own[name].shape]} there and {[*expected[name].shape]} in the network.")
    network.load_state_dict(own, strict=not partly)


def _is_tied(one: Tensor, other: Tensor) -> bool:
    return one.numel() > 0 and one.data_ptr() == other.data_ptr() and one.shape == other.shape


def _describe_names(
    missing: list[str],
    extra: list[str],
    *,
    expected: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    prefix: str,
) -> str:
    """Return a text about the names that do not fit, names similar to them, and a prefix with which they would fit."""
    parts = []
    if missing:
        near = [name for name in tensors if name.endswith(f".{missing[0]}")]
        near = near or difflib.get_close_matches(missing[0], tensors, n=2, cutoff=0.4)
        instead = f"; a similar name there is {' or '.join(map(repr, near[:2]))}" if near else ""
        parts.append(f"{missing[0]!r} is missing in the file ({_count_names(missing)}){instead}")
    if extra:
        near = difflib.get_close_matches(extra[0], expected, n=1, cutoff=0.4)
        instead = f", which has {near[0]!r}" if near else ""
        parts.append(f"{prefix + extra[0]!r} is unknown to the network ({_count_names(extra)}){instead}")
    way_out = "Give the network that was trained, or prefix= if its names begin with something more"
    first = next(iter(expected), "")
    for name in tensors:
        other = name.removesuffix(first)
        if other != prefix and name.endswith(first) and all(other + own in tensors for own in expected):
            way_out = f"Give prefix={other!r}" if other else "Leave prefix= out"
            break
    return f"{'; '.join(parts)}. {way_out}."


def _count_names(names: list[str]) -> str:
    return f"{len(names)} name{'s' * (len(names) > 1)} in all"


def shorten(numbers: Iterable[int]) -> str:
    """Return numbers as text; of more than six only the first three and the last.

    >>> shorten([3, 1, 2]), shorten(range(9)), shorten([])
    ('1, 2, 3', '0, 1, 2, ..., 8', 'none')
    """
    words = [str(number) for number in sorted(numbers)]
    return ", ".join(words if len(words) <= 6 else [*words[:3], "...", words[-1]]) or "none"


# Settings that determine what is in files


def describe_setting(settings: Settings, name: str, most: int = 60) -> str:
    """Return the value of a setting as the text of an error has it: JSON, of which the beginning is shown."""
    text = json.dumps(settings.get(name))
    return text if len(text) <= most else f"{text[:most]}..."


def as_json(settings: Settings) -> dict[str, Any]:
    """Return settings as they are read from a file, where lists stand for tuples; refuse what JSON cannot have."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    except (TypeError, ValueError) as error:
        raise UserError(f"settings must be names and values that JSON has: {first_line(error)}.") from None
    return plain


def first_difference(recorded: Settings, wanted: Settings) -> str | None:
    """Return the name of the first setting that differs."""
    plain = as_json(wanted)
    return next((name for name in {**recorded, **plain} if recorded.get(name) != plain.get(name)), None)
