"""Checkpoints: models, optimizers and the position of a run in one file, replaced whole or not at all.

The checkpoint before the latest one is kept, too. If the latest is damaged, a run resumes from that one.
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spacedkd.runs import tensor_file
from spacedkd.runs.tensor_file import gather, shard_like, shard_state
from spacedkd.runtime.documents import parse_json
from spacedkd.runtime.errors import Damaged, Linked, UserError, printable
from spacedkd.runtime.files import Folder

METADATA = ("fingerprint", "position", "optimizers")
"""names of the texts in a checkpoint, next to its tensors"""


@dataclass
class Position:
    """The progress of a run: turns, journal, cost and time."""

    turns: int = 0
    """turns taken; a resumed run skips as many"""
    role: str = ""
    """the role whose block of turns is not complete"""
    journal_bytes: int = 0
    seconds: float = 0.0
    cost: dict[str, dict[str, int]] = field(default_factory=dict)
    """role -> name of a count -> count, of the turns of that role"""
    journal_digest: str = ""
    """SHA-256 of the first `journal_bytes` of the journal; checkpoints of earlier versions have none"""
    best_digest: str = ""
    """SHA-256 of the weights in best/, where there is a best student"""
    scales: dict[str, dict[str, float]] = field(default_factory=dict)
    """model -> state of its loss scaler, in 16-mixed"""

    def __post_init__(self) -> None:
        if any(isinstance(count, int) for count in self.cost.values()):  # an early version counted all roles together
            self.cost = {"": self.cost}  # type: ignore[dict-item]


def previous(path: Path) -> Path:
    """Return the path of the checkpoint that was the latest before this one."""
    return path.with_name(f"previous{path.suffix}")


def generations(path: Path) -> list[Path]:
    """Return the paths of the checkpoints that a run has, the latest first; `path` is that of the latest."""
    return [file for file in (path, previous(path)) if _run_of(path).exists(file)]


def save(
    path: Path,
    fingerprint: str,
    position: Position,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    writes: bool = True,
    start: Callable[[Callable[[], None]], None] = lambda write: write(),
    within: Folder | None = None,
) -> None:
    """Write models and optimizers; the checkpoint that was the latest is kept as the previous one.

    The tensors are copied now; `start` gets a function that writes the copies, and may call it in a thread. A kill at
    any time leaves a whole file. Where models are sharded over processes, every process must call this, because the
    shards are gathered, and only one `writes`.
    """
    sharded: dict[str, Tensor] = {}
    for name, model in models.items():
        sharded |= {f"model/{name}/{key}": value for key, value in model.state_dict().items()}
    states = {
        name: _to_json(optimizer.state_dict(), f"optimizer/{name}", sharded) for name, optimizer in optimizers.items()
    }
    gathered = {name: gather(tensor, keep=writes) for name, tensor in sharded.items()}
    if not writes:
        return
    tensors = tensor_file.copy_to_cpu(gathered)
    metadata = {"fingerprint": fingerprint, "position": json.dumps(vars(position)), "optimizers": json.dumps(states)}
    folder = within or _run_of(path)

    def write() -> None:
        folder.make(path.parent)
        tensor_file.write(path, tensors, metadata, before=previous(path), within=folder)

    start(write)


def _run_of(path: Path) -> Folder:
    """Return the folder of the run that has its checkpoint at this path."""
    return Folder(path.parent.parent)


class CheckpointFile(NamedTuple):
    """A checkpoint that was read and is whole."""

    path: Path
    position: Position
    damage: str
    """error of the latest checkpoint, if this is the one before it"""


def newest(path: Path, journal: Path | None = None, models: Mapping[str, nn.Module] | None = None) -> CheckpointFile:
    """Return the latest checkpoint that is whole, has all these models, and fits the journal.

    The journal fits if it begins with the bytes that it had when the checkpoint was written. Where no checkpoint fits,
    the first reason is refused as `Damaged`.
    """
    damage = "" if _run_of(path).exists(path) else f"{path} is missing."
    needed = [f"model/{name}/{key}" for name, model in (models or {}).items() for key in model.state_dict()]
    for file in generations(path):
        try:
            metadata, _ = tensor_file.read(file, METADATA, tensors=False, needed=needed, within=_run_of(path))
            position = _parse_position(file, metadata)
        except Damaged as error:
            damage = damage or str(error)
            continue
        if journal is not None and (fault := _journal_damage(journal, position)):
            damage = damage or fault
            continue
        return CheckpointFile(file, position, "" if file == path else damage)
    run = path.parent.parent
    raise Damaged(f"{damage} Restart in the same folder with: spacedkd train --resume {run} --restart")


def _journal_damage(journal: Path, position: Position) -> str:
    """Return the error in the part of a journal that a checkpoint covers; empty text if there is none."""
    run = Folder(journal.parent)
    if run.size(journal) < position.journal_bytes:
        return f"{journal} is shorter than its checkpoint says."
    if position.journal_digest and run.digest(journal, position.journal_bytes) != position.journal_digest:
        return f"{journal} was changed or damaged: it is not what was written until turn {position.turns}."
    return ""


def positions(path: Path) -> list[tuple[str, int]]:
    """Return fingerprint and turns of each checkpoint that a run has; only the headers of the files are read."""
    headers = []
    for path_of_one in generations(path):
        try:
            with (
                _run_of(path).reading(path_of_one) as opened,
                safe_open(f"/dev/fd/{opened.fileno()}", framework="pt") as file,
            ):
                metadata = file.metadata() or {}
            headers.append((metadata["fingerprint"], _parse_position(path_of_one, metadata).turns))
        except (SafetensorError, OSError, LookupError, Linked) as error:
            raise Damaged(f"{path_of_one} cannot be read: {error}.") from None
    return headers


def promote_newest(path: Path, journal: Path, models: Mapping[str, nn.Module], within: Folder | None = None) -> None:
    """Make the newest checkpoint that is whole the latest, and print a line if it is the previous one."""
    whole = newest(path, journal, models)
    if whole.path != path:
        line = f"{whole.damage} Resuming from the checkpoint before it, which is of turn {whole.position.turns}."
        print(printable(line), file=sys.stderr, flush=True)  # also from a worker of a comparison
        # So the next save does not replace the only whole checkpoint by the damaged one.
        (within or _run_of(path)).rename(whole.path, path)


def _parse_position(path: Path, metadata: Mapping[str, str]) -> Position:
    try:
        return Position(**parse_json(metadata["position"], "its position"))
    except (ValueError, TypeError, AttributeError):
        raise Damaged(f"{path} is damaged: it has no valid position.") from None


def copy_for_extension(path: Path, to: Path, fingerprint: str, within: Folder | None = None) -> Position:
    """Copy a checkpoint to another run, which has this fingerprint; return its position."""
    metadata, tensors = tensor_file.read(path, METADATA, within=_run_of(path))
    copied = {name: metadata[name] for name in METADATA} | {"fingerprint": fingerprint}
    tensor_file.write(to, tensors, copied, within=within or _run_of(to))
    return _parse_position(path, metadata)


def load(
    path: Path,
    fingerprints: Collection[str],
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> Position:
    """Load saved models and optimizers, and return the position; a checkpoint of another spec is refused."""
    metadata, tensors = tensor_file.read(path, METADATA, within=_run_of(path))
    if metadata["fingerprint"] not in fingerprints:
        raise UserError(f"{path} belongs to another spec than the run's spec.json. Start again in a new folder.")
    for name, model in models.items():
        prefix = f"model/{name}/"
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if missing := model.state_dict().keys() - own.keys():
            raise Damaged(f"{path} is damaged: {min(missing)} of {name} is missing.")
        model.load_state_dict(shard_state(own, model))
    states = parse_json(metadata["optimizers"], f"{path}: its optimizers")
    for name, optimizer in optimizers.items():
        if name not in states:
            raise Damaged(f"{path} is damaged: the optimizer of {name} is missing.")
        optimizer.load_state_dict(_restore_layout(_from_json(states[name], tensors), optimizer))
    return _parse_position(path, metadata)


def _to_json(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return an optimizer's state as JSON, with names in place of tensors; the tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"items": [[key, _to_json(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_to_json(item, f"{name}/{index}", tensors) for index, item in enumerate(value)]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"The optimizer's state {name} cannot be saved: {value!r}. Use another optimizer.")


def _from_json(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return an optimizer's state from JSON: the inverse of `_to_json`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        # A tensor in the mapped file may begin at any address, and vectorized sums from there have other bits.
        return tensors[content].clone()
    if kind == "dtype":
        return getattr(torch, content)
    if kind == "items":
        return {key: _from_json(item, tensors) for key, item in content}
    return {"list": list, "tuple": tuple}[kind](_from_json(item, tensors) for item in content)


def _restore_layout(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state with the memory layout of the parameters (channels last, say), and sharded as they are.

    In low precision the order of additions shows in the bits, and that order follows the layout.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def like(value: Any, parameter: nn.Parameter) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            return value
        if isinstance(parameter, DTensor):
            return shard_like(value, parameter)
        return torch.empty_like(parameter, dtype=value.dtype, device="cpu").copy_(value)

    slots = {index: {k: like(v, parameters[index]) for k, v in slot.items()} for index, slot in state["state"].items()}
    return {**state, "state": slots}
