"""Trained weights to start from: of a finished run, or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import load_file
from timm.models import load_state_dict
from torch import Tensor, nn

from spacedkd.errors import UserError
from spacedkd.models.input_size import Normalisation, Renormalise, show_through
from spacedkd.models.own import is_own
from spacedkd.spec import NetworkSpec

_RUN = ("student/model.safetensors", "model.safetensors")
"""where weights lie in a run folder, and in the student's folder inside it"""


def load_weights(network: nn.Module, place: str, classes: Sequence[str]) -> None:
    """Put trained weights into a network that was built for these classes; anything that does not fit is an error."""
    path = Path(place)
    file = weights_file(path)
    if path.is_dir():
        _check_classes(file.with_name("config.json"), place, classes)
    expected = network.state_dict()
    found = _read(file, place, expected)
    if classes:
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


def weights_file(path: Path) -> Path:
    """The file of weights in a run folder, in its student's folder, or the file itself."""
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


def _read(file: Path, place: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(file) if file.suffix == ".safetensors" else {}
        if found.keys() != expected.keys():  # timm knows what training scripts wrap weights in
            found = load_state_dict(str(file), use_ema=False, device="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and safetensors all fail in their own ways
        line = (str(error).splitlines() or [""])[0][:120]
        raise UserError(f"{place} holds no weights that can be read ({type(error).__name__}: {line}).") from None
    if not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{place} holds no weights: it must be a table of names and tensors.")
    for name, value in found.items():
        if value.isnan().any():
            raise UserError(f"The weights in {place} are no good: {name!r} holds what is not a number.")
    return found


def _check_classes(description: Path, place: str, classes: Sequence[str]) -> None:
    names = described(description).get("label_names")
    if not names or not classes or list(names) == list(classes):
        return
    if len(names) != len(classes):
        raise _other_classes(place, len(names), len(classes))
    theirs, ours = next((old, new) for old, new in zip(names, classes, strict=True) if old != new)
    raise UserError(
        f"The weights in {place} are for other classes: what they call {theirs!r}, the data calls {ours!r}."
    )


def described(description: Path) -> dict[str, Any]:
    """What a student's folder says of its network."""
    try:
        found: dict[str, Any] = json.loads(description.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{description} does not describe the weights beside it: {reason}. Name their file.") from None


def _check_classifier(network: nn.Module, found: Mapping[str, Tensor], place: str, classes: int) -> None:
    described: dict[str, Any] = getattr(network, "pretrained_cfg", {})
    names = described.get("classifier") or ()
    for name in [names] if isinstance(names, str) else names:
        bias = found.get(f"{name}.bias")
        if bias is not None and len(bias) != classes:
            raise _other_classes(place, len(bias), classes)


def check_trained(spec: NetworkSpec, classes: int) -> None:
    """Refuse a teacher that would not learn and does not know the data's classes.

    Of published weights for other classes timm would draw the classifier at random. A function of one's own may give
    its network trained weights itself.
    """
    if is_own(spec.name):
        return
    if not spec.pretrained:
        raise UserError("A teacher that does not learn needs weights: --teacher-weights with a run folder or a file.")
    if spec.options.get("pretrained"):
        check_published(spec.name, classes)


def check_published(name: str, classes: int) -> None:
    """Refuse timm's own weights of a network if they know other classes than the data."""
    published = timm.get_pretrained_cfg(name)
    if published is not None and published.num_classes != classes:
        raise _other_classes(f"timm's {name}", published.num_classes, classes)


def keep_normalisation(network: nn.Module, spec: NetworkSpec, shown: Normalisation | None) -> None:
    """Let a network that will not learn see images normalised as in its own training, where that is known."""
    own: Mapping[str, Any] = {}
    if spec.weights is not None and Path(spec.weights).is_dir():
        known = described(weights_file(Path(spec.weights)).with_name("config.json"))
        own = known.get("pretrained_cfg", known)
    elif spec.options.get("pretrained"):
        own = getattr(network, "pretrained_cfg", {})
    if shown is None or own.get("mean") is None:
        return
    theirs = (tuple(own["mean"]), tuple(own["std"]))
    if theirs != (tuple(shown[0]), tuple(shown[1])):
        show_through(network, Renormalise(shown, theirs))


def _other_classes(place: str, theirs: int, ours: int) -> UserError:
    return UserError(
        f"The weights of {place} tell {theirs} classes apart, and the data has {ours}: "
        "it must know the same classes. Train it on this data first."
    )
