"""Trained weights for networks: from a run, a file or timm's hub; and checks of a network on two items.

`load_weights` puts weights into a network and refuses any that do not fit. `check_network` runs a user's network on two
items of the data before training. `ema_update` is the moving average of weights.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.models import load_state_dict
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spacedkd.config.spec import NetworkSpec
from spacedkd.data.inputs import DataInfo, Inputs, Normalisation, call, first_not_finite, row_count
from spacedkd.models.classifier import Classifier, eval_mode, logits_and_features
from spacedkd.models.preprocessing import Renormalise, add_preprocessing, cast_where_needed, preprocess
from spacedkd.models.student_config import read_config
from spacedkd.runs.result import check_weights
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.user_code import is_user_code, user_code_error


def check_network(network: nn.Module, name: str, info: DataInfo) -> None:
    """Run a user's network on two items of the data, so that a misfit shows before training and not in it.

    It must return finite float logits [2, classes] and, if any, float features [2, width].
    """
    items, shapes = row_count(info.sample), _describe_shapes(info.sample)
    cast_where_needed(network, info.sample)
    try:
        with eval_mode(network):
            output = call(network, preprocess(network, info.sample))
    except Exception as error:
        raise user_code_error(f"Network {name}", error, f"on {shapes}") from error
    logits, features = logits_and_features(output, name)
    if logits.ndim != 2 or len(logits) != items or not logits.is_floating_point():
        raise UserError(
            f"Network {name} must give float logits [{items}, classes] for {shapes}, got {_describe_shapes(logits)}."
        )
    if features is not None and (features.ndim < 2 or len(features) != items or not features.is_floating_point()):
        raise UserError(f"Network {name} must give float features [{items}, width], got {_describe_shapes(features)}.")
    if info.classes and logits.shape[1] != len(info.classes):
        raise UserError(
            f"Network {name} gives {logits.shape[1]} logits, and the data has {len(info.classes)} classes: "
            "let it give one logit for each class."
        )
    if not torch.isfinite(logits).all():
        check_sample(info.sample)
        raise UserError(f"Network {name} gives logits that are not finite (NaN or infinity) for {shapes}.")
    _check_timm_interface(network, name, info.sample, logits)


def check_sample(sample: Inputs) -> None:
    """Refuse NaN and infinity in the items a network is checked on, the first test items of a user's dataset."""
    if (row := first_not_finite(sample)) is not None:
        raise UserError(f"Item {row} of the test data holds NaN or infinity: correct it or leave it out.")


def _check_timm_interface(network: nn.Module, name: str, sample: Inputs, logits: Tensor) -> None:
    """Refuse a network that has timm's methods by name, but gives other logits through them."""
    try:
        with eval_mode(network):
            (prediction,) = Classifier(network)(sample)
        same = torch.allclose(prediction.logits, logits, rtol=1e-3, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        same = False
    if not same:
        raise UserError(
            f"Network {name} has methods called forward_features, forward_head and get_classifier, but not with timm's "
            "meaning: give them other names."
        )


def _describe_shapes(inputs: Inputs) -> str:
    """Return types and shapes of a network's inputs as text.

    >>> _describe_shapes(torch.zeros(2, 5)), _describe_shapes({"tokens": torch.zeros(2, 7).long()})
    ('float32 [2, 5]', 'tokens int64 [2, 7]')
    """
    if isinstance(inputs, Tensor):
        return f"{str(inputs.dtype).removeprefix('torch.')} {[*inputs.shape]}"
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key} {_describe_shapes(value)}" for key, value in inputs.items())
    return ", ".join(_describe_shapes(value) for value in inputs)


def error_sentence(error: Exception) -> str:
    """Return the first line of an error as a sentence."""
    return first_line(error).removesuffix(".") + "."


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
def ema_update(
    average: nn.Module, module: nn.Module, decay: float, share: Callable[[Tensor], Tensor] = lambda value: value
) -> None:
    """Update a moving average in place: average <- d average + (1 - d) module.

    Buffers such as BatchNorm's statistics are averaged like weights; whole numbers are copied. Processes have buffers
    of their own; `share` makes those of one process everybody's.
    """
    for mean, weight in zip(average.parameters(), module.parameters(), strict=True):
        mean.lerp_(weight.to(mean.dtype), 1 - decay)
    for mean_buffer, buffer in zip(average.buffers(), module.buffers(), strict=True):
        if mean_buffer.is_floating_point():
            mean_buffer.lerp_(share(buffer).to(mean_buffer.dtype), 1 - decay)
        else:
            mean_buffer.copy_(buffer)
