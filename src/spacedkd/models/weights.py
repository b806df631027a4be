"""Trained weights to start from: of a finished run, or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
from timm.models import load_state_dict
from torch import Tensor, nn

from spacedkd.errors import UserError

_RUN = ("student/model.safetensors", "model.safetensors")
"""where weights lie in a run folder, and in the student's folder inside it"""


def load_weights(network: nn.Module, place: str, classes: Sequence[str]) -> None:
    """Put trained weights into a network that was built for these classes; anything that does not fit is an error."""
    path = Path(place)
    file = _file(path)
    if path.is_dir():
        _check_classes(file.with_name("config.json"), place, classes)
    found = _read(file, place)
    expected = network.state_dict()
    _check_classifier(network, found, place, len(classes))
    unknown = [key for key in found if key not in expected]
    missing = [key for key in expected if key not in found]
    shapes = [key for key in found if key in expected and found[key].shape != expected[key].shape]
    if unknown or missing or shapes:
        first = (*missing, *unknown, *shapes)[0]
        raise UserError(
            f"The weights in {place} are those of another network than {type(network).__name__} as asked for: "
            f"{len(missing)} missing, {len(unknown)} unknown, {len(shapes)} of another shape, first {first!r}."
        )
    network.load_state_dict(found)


def _file(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"There are no weights at {path}. Name a run folder, a .safetensors file or a torch file.")
    if path.is_file():
        return path
    for inside in _RUN:
        if (path / inside).exists():
            return path / inside
    if (path / "spec.json").exists():
        raise UserError(f"The run in {path} is not finished, so it has no student yet: spacedkd train --resume {path}")
    raise UserError(f"{path} is no run folder: there is no {_RUN[0]} in it.")


def _read(file: Path, place: str) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_state_dict(str(file), use_ema=False, device="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and safetensors all fail in their own ways
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{place} holds no weights that can be read ({line[:120]}).") from None
    if not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{place} holds no weights: it must be a table of names and tensors.")
    return found


def _check_classes(description: Path, place: str, classes: Sequence[str]) -> None:
    names = json.loads(description.read_text(encoding="utf-8")).get("label_names")
    if names is None or list(names) == list(classes):
        return
    if len(names) != len(classes):
        raise _other_classes(place, len(names), len(classes))
    theirs, ours = next((old, new) for old, new in zip(names, classes, strict=True) if old != new)
    raise UserError(
        f"The weights in {place} are for other classes: what they call {theirs!r}, the data calls {ours!r}."
    )


def _check_classifier(network: nn.Module, found: Mapping[str, Tensor], place: str, classes: int) -> None:
    described: dict[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    names = described.get("classifier") or ()
    for name in [names] if isinstance(names, str) else names:
        bias = found.get(f"{name}.bias")
        if bias is not None and len(bias) != classes:
            raise _other_classes(place, len(bias), classes)


def check_published_classes(name: str, classes: int) -> None:
    """Refuse a network's published weights as a teacher that does not learn, if they know other classes."""
    published = timm.get_pretrained_cfg(name)
    if published is not None and published.num_classes != classes:
        raise _other_classes(f"timm's {name}", published.num_classes, classes)


def _other_classes(place: str, theirs: int, ours: int) -> UserError:
    return UserError(
        f"The weights of {place} tell {theirs} classes apart, and the data has {ours}: "
        "a teacher must know the same classes. Train one on this data first."
    )
