"""Everything a run needs to go on, in one safetensors file that is replaced whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from spacedkd.errors import UserError


@dataclass
class Position:
    """How far a run has come."""

    turns: int = 0
    """turns done; a resumed run skips as many"""
    role: str = ""
    """whose stretch of turns is going on"""
    journal_bytes: int = 0
    seconds: float = 0.0
    cost: dict[str, int] = field(default_factory=dict)


def save(
    path: Path,
    fingerprint: str,
    position: Position,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> None:
    """Write models and optimizers. A kill at any moment leaves either the old file or the new one."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, model in models.items():
        tensors |= {f"model/{name}/{key}": value for key, value in model.state_dict().items()}
    for name, optimizer in optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                kind = tensors if isinstance(value, Tensor) else plain
                kind[f"optimizer/{name}/{index}/{key}"] = value
    metadata = {"fingerprint": fingerprint, "position": json.dumps(vars(position)), "plain": json.dumps(plain)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, unfinished, metadata)
    with unfinished.open("r+b") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def load(
    path: Path, fingerprint: str, models: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> Position:
    """Put saved models and optimizers back in place; returns how far the run had come."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a checkpoint: {error}. Start the run again in a new folder.") from None
    if metadata.get("fingerprint") != fingerprint:
        raise UserError(f"{path} belongs to another spec than the spec.json beside it. Start again in a new folder.")
    for name, model in models.items():
        model.load_state_dict(_under(tensors, f"model/{name}/"))
    saved = {**tensors, **json.loads(metadata["plain"])}
    for name, optimizer in optimizers.items():
        _load_optimizer(optimizer, _under(saved, f"optimizer/{name}/"))
    return Position(**json.loads(metadata["position"]))


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in saved.items():
        index, _, what = key.partition("/")
        parameter = parameters[int(index)]
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            # The same memory layout as before, because in low precision the order of additions shows in the bits.
            value = torch.empty_like(parameter, dtype=value.dtype, device="cpu").copy_(value)
        state.setdefault(int(index), {})[what] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _under(named: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
