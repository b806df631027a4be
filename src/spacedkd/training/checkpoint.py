"""Everything a run needs to go on, in one safetensors file that is replaced whole or not at all."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spacedkd.errors import UserError
from spacedkd.files import write_whole
from spacedkd.training.sharding import spread, spread_like, whole


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

    def __post_init__(self) -> None:
        if any(isinstance(count, int) for count in self.cost.values()):  # saved when all roles were counted together
            self.cost = {"": self.cost}  # type: ignore[dict-item]


def save(
    path: Path,
    fingerprint: str,
    position: Position,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    writes: bool = True,
) -> None:
    """Write models and optimizers. A kill at any moment leaves either the old file or the new one.

    Where models are spread over processes all of them must call this, and one `writes`.
    """
    found: dict[str, Tensor] = {}
    for name, model in models.items():
        found |= {f"model/{name}/{key}": value for key, value in model.state_dict().items()}
    states = {name: _plain(one.state_dict(), f"optimizer/{name}", found) for name, one in optimizers.items()}
    tensors = {name: whole(tensor, keep=writes) for name, tensor in found.items()}
    if not writes:
        return
    metadata = {"fingerprint": fingerprint, "position": json.dumps(vars(position)), "optimizers": json.dumps(states)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path, alone=True) as unfinished:
        save_file(apart(tensors), unfinished, metadata)


def read_position(path: Path) -> Position:
    """How far the run of a checkpoint has come."""
    return Position(**json.loads(_read(path, tensors=False)[0]["position"]))


def _read(path: Path, tensors: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = file.keys() if tensors else ()
            return file.metadata(), {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a checkpoint: {error}. Start the run again in a new folder.") from None


def load(
    path: Path,
    fingerprints: Collection[str],
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> Position:
    """Put saved models and optimizers back in place; returns how far the run had come."""
    metadata, tensors = _read(path)
    if metadata.get("fingerprint") not in fingerprints:
        raise UserError(f"{path} belongs to another spec than the spec.json beside it. Start again in a new folder.")
    for name, model in models.items():
        prefix = f"model/{name}/"
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        model.load_state_dict(spread(own, model))
    states = json.loads(metadata["optimizers"])
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(_laid_out(_filled(states[name], tensors), optimizer))
    return Position(**json.loads(metadata["position"]))


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own, as the format wants it: tied weights share theirs."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().contiguous()
        storage = plain.untyped_storage().data_ptr()
        apart[name] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return apart


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Names tensors by what is in them: equal bits, equal name."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode() + raw.tobytes())
    return found.hexdigest()[:16]


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
