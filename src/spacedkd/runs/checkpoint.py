"""Everything a run needs to go on, in one file that is replaced whole or not at all; the one before it is kept, too."""

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
from spacedkd.runs.tensor_file import spread, spread_like, whole
from spacedkd.runtime.documents import parse_json
from spacedkd.runtime.errors import Damaged, Linked, UserError, printable
from spacedkd.runtime.files import Folder

WORDS = ("fingerprint", "position", "optimizers")


@dataclass
class Position:
    """How far a run has come."""

    turns: int = 0
    """turns done; a resumed run skips as many"""
    role: str = ""
    """whose stretch of turns is going on"""
    journal_bytes: int = 0
    seconds: float = 0.0
    cost: dict[str, dict[str, int]] = field(default_factory=dict)
    """of each role's turns"""
    journal_digest: str = ""
    """SHA-256 of as many bytes of the journal; checkpoints of earlier versions have none"""
    best_digest: str = ""
    """SHA-256 of the weights of the best student so far, where there is one"""

    def __post_init__(self) -> None:
        if any(isinstance(count, int) for count in self.cost.values()):  # saved when all roles were counted together
            self.cost = {"": self.cost}  # type: ignore[dict-item]


def previous(path: Path) -> Path:
    """Where the checkpoint lies that was the latest before this one."""
    return path.with_name(f"previous{path.suffix}")


def generations(path: Path) -> list[Path]:
    """The checkpoints there are of a run, the latest first."""
    return [one for one in (path, previous(path)) if _run_of(path).exists(one)]


def save(
    path: Path,
    fingerprint: str,
    position: Position,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    writes: bool = True,
    start: Callable[[Callable[[], None]], None] = lambda write: write(),
    within: Folder | None = None,
) -> None:
    """Write models and optimizers; the file that was there before is kept as the previous one.

    They are copied at once, and written by whoever `start` lets do it. A kill at any moment leaves a whole file. Where
    models are spread over processes, all of them must call this, and one `writes`.
    """
    found: dict[str, Tensor] = {}
    for name, model in models.items():
        found |= {f"model/{name}/{key}": value for key, value in model.state_dict().items()}
    states = {name: _plain(one.state_dict(), f"optimizer/{name}", found) for name, one in optimizers.items()}
    gathered = {name: whole(tensor, keep=writes) for name, tensor in found.items()}
    if not writes:
        return
    tensors = tensor_file.on_host(gathered)
    words = {"fingerprint": fingerprint, "position": json.dumps(vars(position)), "optimizers": json.dumps(states)}
    folder = within or _run_of(path)
    start(lambda: _write(path, tensors, words, folder))


def _write(path: Path, tensors: Mapping[str, Tensor], words: Mapping[str, str], folder: Folder) -> None:
    folder.make(path.parent)
    tensor_file.write(path, tensors, words, before=previous(path), within=folder)


def _run_of(path: Path) -> Folder:
    """The folder of the run that has its checkpoint at this path."""
    return Folder(path.parent.parent)


class CheckpointFile(NamedTuple):
    """A checkpoint that is whole."""

    path: Path
    position: Position
    why: str
    """what is wrong with the latest, where this is the one before it"""


def newest(path: Path, journal: Path | None = None, models: Mapping[str, nn.Module] | None = None) -> CheckpointFile:
    """The latest checkpoint that is whole, has all of these models, and whose journal is as it was written then."""
    wrong = "" if _run_of(path).exists(path) else f"{path} is missing."
    needed = [f"model/{name}/{key}" for name, model in (models or {}).items() for key in model.state_dict()]
    for one in generations(path):
        try:
            words, _ = tensor_file.read(one, WORDS, tensors=False, needed=needed, within=_run_of(path))
            position = _position(one, words)
        except Damaged as error:
            wrong = wrong or str(error)
            continue
        if journal is not None and (fault := _fault_of(journal, position)):
            wrong = wrong or fault
            continue
        return CheckpointFile(one, position, "" if one == path else wrong)
    run = path.parent.parent
    raise Damaged(f"{wrong} Begin again in the same folder with: spacedkd train --resume {run} --restart")


def _fault_of(journal: Path, position: Position) -> str:
    """What is wrong with a journal, up to where a checkpoint knows it; nothing where it is as it was written."""
    run = Folder(journal.parent)
    if run.size(journal) < position.journal_bytes:
        return f"{journal} is shorter than its checkpoint says."
    if position.journal_digest and run.digest(journal, position.journal_bytes) != position.journal_digest:
        return f"{journal} was changed or damaged: it is not what was written until turn {position.turns}."
    return ""


def positions(path: Path) -> list[tuple[str, int]]:
    """Return fingerprint and turns of each checkpoint there is, as their headers have them; nothing else is read."""
    found = []
    for one in generations(path):
        try:
            with _run_of(path).reading(one) as opened, safe_open(f"/dev/fd/{opened.fileno()}", framework="pt") as file:
                words = file.metadata() or {}
            found.append((words["fingerprint"], _position(one, words).turns))
        except (SafetensorError, OSError, LookupError, Linked) as error:
            raise Damaged(f"{one} cannot be read: {error}.") from None
    return found


def promote_newest(path: Path, journal: Path, models: Mapping[str, nn.Module], within: Folder | None = None) -> None:
    """Make the newest checkpoint that is whole the latest, and say so if it is the older one."""
    found = newest(path, journal, models)
    if found.path != path:
        line = f"{found.why} Going on from the checkpoint before it, which is of turn {found.position.turns}."
        print(printable(line), file=sys.stderr, flush=True)  # also from a worker of a comparison
        (within or _run_of(path)).rename(found.path, path)  # a damaged one never takes the place of the last whole one


def _position(path: Path, words: Mapping[str, str]) -> Position:
    try:
        return Position(**parse_json(words["position"], "its position"))
    except (ValueError, TypeError, AttributeError):
        raise Damaged(f"{path} is damaged: it does not say how far it is.") from None


def copy_for_extension(path: Path, to: Path, fingerprint: str, within: Folder | None = None) -> Position:
    """Write a checkpoint once more, as that of another run; says how far it is."""
    words, tensors = tensor_file.read(path, WORDS, within=_run_of(path))
    handed = {name: words[name] for name in WORDS} | {"fingerprint": fingerprint}
    tensor_file.write(to, tensors, handed, within=within or _run_of(to))
    return _position(path, words)


def load(
    path: Path,
    fingerprints: Collection[str],
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> Position:
    """Put saved models and optimizers back in place; returns how far the run had come."""
    words, tensors = tensor_file.read(path, WORDS, within=_run_of(path))
    if words["fingerprint"] not in fingerprints:
        raise UserError(f"{path} belongs to another spec than the spec.json beside it. Start again in a new folder.")
    for name, model in models.items():
        prefix = f"model/{name}/"
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if missing := model.state_dict().keys() - own.keys():
            raise Damaged(f"{path} is damaged: {min(missing)} of {name} is missing.")
        model.load_state_dict(spread(own, model))
    states = parse_json(words["optimizers"], f"{path}: its optimizers")
    for name, optimizer in optimizers.items():
        if name not in states:
            raise Damaged(f"{path} is damaged: the optimizer of {name} is missing.")
        optimizer.load_state_dict(_laid_out(_filled(states[name], tensors), optimizer))
    return _position(path, words)


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A state as JSON; its tensors go among the others, and their names stand in for them."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"items": [[key, _plain(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_plain(item, f"{name}/{place}", tensors) for place, item in enumerate(value)]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"What the optimizer keeps as {name} cannot be saved: {value!r}. Use another optimizer.")


def _filled(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `_plain`."""
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "tensor":
        return tensors[content].clone()  # aligned as torch aligns: sums over an odd address have other bits
    if kind == "dtype":
        return getattr(torch, content)
    if kind == "items":
        return {key: _filled(item, tensors) for key, item in content}
    return {"list": list, "tuple": tuple}[kind](_filled(item, tensors) for item in content)


def _laid_out(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same memory layout as before, because in low precision the order of additions shows in the bits."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def laid(value: Any, parameter: nn.Parameter) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            return value
        if isinstance(parameter, DTensor):
            return spread_like(value, parameter)
        return torch.empty_like(parameter, dtype=value.dtype, device="cpu").copy_(value)

    slots = {index: {k: laid(v, parameters[index]) for k, v in slot.items()} for index, slot in state["state"].items()}
    return {**state, "state": slots}
