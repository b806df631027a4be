"""Trained weights for networks: from a run, a file or timm's hub, and the config.json that describes them.

`load_weights` puts weights into a network and refuses any that do not fit. `read_config` reads a student's description,
its network, classes and preprocessing. `move_average` is the average of weights.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spacedkd.config.spec import NetworkSpec
from spacedkd.data.inputs import Normalisation
from spacedkd.models.preprocessing import Renormalise, add_preprocessing
from spacedkd.runs.result import check_weights
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.user_code import is_user_code, mark_names

_WEIGHT_FILES = ("student/model.safetensors", "model.safetensors")
"""the file of weights in a run folder, and in the student's folder inside it"""


@contextmanager
def weights_only() -> Iterator[None]:
    """Make torch load nothing but weights within a `with` block, whatever timm asks for: pickles can run code."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before, os.environ[name] = os.environ.get(name), "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


REACH_SECONDS = 5.0
"""time that the hub gets to answer before its cache alone is looked at"""


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Let the Hugging Face hub look at its cache alone within a `with` block, where no network reaches it.

    It would try five times, for a minute, with a line for each. Through a proxy that is not known, so it does.
    """
    from huggingface_hub import constants

    before, host = constants.HF_HUB_OFFLINE, urlsplit(constants.ENDPOINT)
    if not before and not getproxies():
        try:
            socket.create_connection((host.hostname or "", host.port or 443), REACH_SECONDS).close()
        except OSError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def load_weights(network: nn.Module, source: str, classes: Sequence[str], averaged: bool = False) -> None:
    """Load trained weights into a network; refuse missing, unknown and misshapen ones.

    source      a run folder, a student's folder, a .safetensors file or a torch file
    classes     names of the data's classes, which those of the source must equal; () skips the check
    averaged    of a file that also holds a moving average, load the average
    """
    path = Path(source)
    file = weights_file(path)
    if path.is_dir():
        _check_classes(file.with_name("config.json"), source, classes)
    expected = network.state_dict()
    weights = _read_weights(file, source, expected, averaged)
    if classes:
        _check_classifier(network, weights, source, len(classes))
    unknown = [key for key in weights if key not in expected]
    missing = [key for key in expected if key not in weights]
    shaped = {key: value for key, value in expected.items() if not is_lazy(value)}  # lazy ones accept any shape
    misshapen = [key for key in weights if key in shaped and weights[key].shape != shaped[key].shape]
    if wrong := (*missing, *unknown, *misshapen):
        raise UserError(
            f"The weights in {source} do not fit {type(network).__name__} with these options: {len(missing)} missing, "
            f"{len(unknown)} unknown, {len(misshapen)} of another shape, first {wrong[0]!r}."
        )
    network.load_state_dict(weights)


def weights_file(path: Path) -> Path:
    """Return the file of weights in a run folder, in its student's folder, or the file itself.

    Weights of a finished run are refused if their digest is not the one that the run recorded.
    """
    file = _weights_file(path)
    check_weights(file)
    return file


def _weights_file(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"There are no weights at {path}. Name a run folder, a .safetensors file or a torch file.")
    if path.is_file():
        return path
    for file in _WEIGHT_FILES:
        if (path / file).is_file():  # no pipe, which safetensors would wait for
            return path / file
    if (path / "result.json").exists():
        raise UserError(f"The student of {path} is gone. Make it again with: spacedkd train --resume {path}")
    if (path / "spec.json").exists():
        raise UserError(f"The run in {path} is not finished, so it has no student yet: spacedkd train --resume {path}")
    raise UserError(f"{path} is no run folder: there is no {_WEIGHT_FILES[0]} in it.")


def _read_weights(file: Path, source: str, expected: Mapping[str, Tensor], averaged: bool) -> dict[str, Tensor]:
    """Return the tensors of a file by name; refuse NaN and files of anything else."""
    from timm.models import load_state_dict

    try:
        weights: dict[str, Tensor] = load_file(file) if file.suffix == ".safetensors" else {}
        if weights.keys() != expected.keys():  # timm unwraps what training scripts put around weights
            with weights_only():
                weights = load_state_dict(str(file), use_ema=averaged, device="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and safetensors all fail in their own ways
        line = (str(error).splitlines() or [""])[0][:120]
        raise UserError(f"{source} holds no weights that can be read ({type(error).__name__}: {line}).") from None
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UserError(f"{source} holds no weights: it must be a table of names and tensors.")
    for name, value in weights.items():
        if value.isnan().any():
            raise UserError(f"The weights in {source} are unusable: {name!r} holds NaN.")
    return weights


def _check_classes(config: Path, source: str, classes: Sequence[str]) -> None:
    """Refuse a student that was trained for other classes, or for the same in another order."""
    names = read_config(config).get("label_names")
    if not names or not classes or list(names) == list(classes):
        return
    if len(names) != len(classes):
        raise _classes_error(source, len(names), len(classes))
    theirs, ours = next((old, new) for old, new in zip(names, classes, strict=True) if old != new)
    raise UserError(f"The weights in {source} are for other classes: their class {theirs!r} is {ours!r} in the data.")


_CONFIG_TYPES = {
    "architecture": str,
    "made_by": str,
    "label_names": list,
    "options": dict,
    "model_args": dict,
    "pretrained_cfg": dict,
    "mean": list,
    "std": list,
}
"""the type of each entry of a config, at the top and in its `pretrained_cfg`"""


def read_config(path: Path, trust_code: bool = False) -> dict[str, Any]:
    """Return the entries of a student's config.json that are not null; refuse entries of a wrong type.

    Without `trust_code` the user code that it names is marked as not to be imported.
    """
    try:
        return _check_config(mark_names(read_json(path), path, trust_code))
    except (OSError, ValueError) as error:
        why = first_line(error)
        raise UserError(f"{path} does not describe the weights in its folder: {why}. Name their file.") from None


def _check_config(config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise ValueError("it is no object with keys and values")
    for entries in (config, config.get("pretrained_cfg")):
        for name, kind in _CONFIG_TYPES.items():
            value: Any = entries.get(name) if isinstance(entries, dict) else None
            numbers: Any = value if name in ("mean", "std") and isinstance(value, list) else ()
            wrong = value is not None and not isinstance(value, kind)
            if wrong or any(type(number) not in (int, float) for number in numbers):
                raise ValueError(f"its {name} is {value!r}")
        shape: Any = entries.get("input_size") if isinstance(entries, dict) else None
        if shape is not None and not _is_shape(shape):
            raise ValueError(f"its input_size is {shape!r}, and must be channels, height and width")
    return {name: value for name, value in config.items() if value is not None}


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) == 3 and all(type(side) is int and side > 0 for side in shape)


def _check_classifier(network: nn.Module, weights: Mapping[str, Tensor], source: str, classes: int) -> None:
    """Refuse weights whose classifier has another number of classes."""
    names = getattr(network, "pretrained_cfg", {}).get("classifier") or ()
    for name in [names] if isinstance(names, str) else names:
        bias = weights.get(f"{name}.bias")
        if bias is not None and len(bias) != classes:
            raise _classes_error(source, len(bias), classes)


def check_trained(spec: NetworkSpec, classes: int) -> None:
    """Refuse a frozen teacher that has no trained weights for the data's classes.

    With published weights for other classes timm would draw the classifier at random. A user's function may load
    trained weights itself, so it is not checked.
    """
    if is_user_code(spec.name):
        return
    if not spec.pretrained:
        raise UserError("A frozen teacher needs trained weights: --teacher-weights with a run folder or a file.")
    if spec.options.get("pretrained"):
        check_published(spec.name, classes)


def check_published(name: str, classes: int) -> None:
    """Refuse timm's published weights of a network if they have another number of classes."""
    import timm

    published = timm.get_pretrained_cfg(name)
    if published is not None and published.num_classes != classes:
        raise _classes_error(f"timm's {name}", published.num_classes, classes)


def keep_normalisation(network: nn.Module, spec: NetworkSpec, data: Normalisation | None) -> None:
    """Let a frozen network get images normalised as in its own training, where that is known."""
    trained_with: Mapping[str, Any] = {}
    if spec.weights is not None and Path(spec.weights).is_dir():
        config = read_config(weights_file(Path(spec.weights)).with_name("config.json"))
        trained_with = config.get("pretrained_cfg", config)
    elif spec.options.get("pretrained"):
        trained_with = getattr(network, "pretrained_cfg", {})
    if data is None or trained_with.get("mean") is None or trained_with.get("std") is None:
        return
    own = (tuple(trained_with["mean"]), tuple(trained_with["std"]))
    if own != (tuple(data[0]), tuple(data[1])):
        add_preprocessing(network, Renormalise(data, own))


def _classes_error(source: str, theirs: int, ours: int) -> UserError:
    return UserError(
        f"The weights of {source} are for {theirs} classes, and the data has {ours}: a network must know the same "
        "classes. Train it on this data first."
    )


@torch.no_grad()
def move_average(
    average: nn.Module, module: nn.Module, share: float, gather: Callable[[Tensor], Tensor] = lambda value: value
) -> None:
    """Move an average of weights in place: average <- average + share (module - average).

    Buffers such as BatchNorm's statistics are averaged like weights; whole numbers are copied. The processes of a
    run have different buffers; `gather` returns those of the first process in all of them.
    """
    for mean, weight in zip(average.parameters(), module.parameters(), strict=True):
        mean.lerp_(weight.to(mean.dtype), share)
    for mean_buffer, buffer in zip(average.buffers(), module.buffers(), strict=True):
        if mean_buffer.is_floating_point():
            mean_buffer.lerp_(gather(buffer).to(mean_buffer.dtype), share)
        else:
            mean_buffer.copy_(buffer)
