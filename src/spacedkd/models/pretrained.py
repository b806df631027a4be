"""Weights: whether a network of one's own works with those it has, and trained ones from a run, a file, an average."""

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
from spacedkd.runtime.user_code import failed, is_user_code


def check_network(network: nn.Module, name: str, shown: DataInfo) -> None:
    """Show a network two items, so that a misfit shows before training and not in it."""
    several, what = row_count(shown.sample), _describe_shapes(shown.sample)
    cast_where_needed(network, shown.sample)
    try:
        with eval_mode(network):
            answer = call(network, preprocess(network, shown.sample))
    except Exception as error:
        raise failed(f"Network {name}", error, f"on {what}") from error
    logits, features = logits_and_features(answer, name)
    if logits.ndim != 2 or len(logits) != several or not logits.is_floating_point():
        raise UserError(
            f"Network {name} must give float logits [{several}, classes] for {what}, got {_describe_shapes(logits)}."
        )
    if features is not None and (features.ndim < 2 or len(features) != several or not features.is_floating_point()):
        raise UserError(
            f"Network {name} must give float features [{several}, width], got {_describe_shapes(features)}."
        )
    if shown.classes and logits.shape[1] != len(shown.classes):
        raise UserError(
            f"Network {name} tells {logits.shape[1]} classes apart, and the data has {len(shown.classes)}: "
            "let it give as many logits."
        )
    if not torch.isfinite(logits).all():
        check_sample(shown.sample)
        raise UserError(f"Network {name} answers with what is not a number (NaN or infinity) to {what}.")
    _check_timm_interface(network, name, shown.sample, logits)


def check_sample(sample: Inputs) -> None:
    """Refuse NaN and infinity in the inputs a network is tried on, the first test items of a user's dataset."""
    if (row := first_not_finite(sample)) is not None:
        raise UserError(f"Item {row} of the test data holds NaN or infinity: mend it or leave it out.")


def _check_timm_interface(network: nn.Module, name: str, sample: Inputs, logits: Tensor) -> None:
    """Refuse a network that looks like timm's and is not."""
    try:
        with eval_mode(network):
            (read,) = Classifier(network)(sample)
        same = torch.allclose(read.logits, logits, rtol=1e-3, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        same = False
    if not same:
        raise UserError(
            f"Network {name} has timm's forward_features, forward_head and get_classifier, but is not read by them as "
            "timm's are: give them other names."
        )


def _describe_shapes(inputs: Inputs) -> str:
    """What goes into a network, in a few words.

    >>> _shapes(torch.zeros(2, 5)), _shapes({"tokens": torch.zeros(2, 7).long()})
    ('float32 [2, 5]', 'tokens int64 [2, 7]')
    """
    if isinstance(inputs, Tensor):
        return f"{str(inputs.dtype).removeprefix('torch.')} {[*inputs.shape]}"
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key} {_describe_shapes(one)}" for key, one in inputs.items())
    return ", ".join(_describe_shapes(one) for one in inputs)


def error_sentence(error: Exception) -> str:
    """The first line of an error, as a sentence."""
    return first_line(error).removesuffix(".") + "."


_RUN = ("student/model.safetensors", "model.safetensors")
"""where weights lie in a run folder, and in the student's folder inside it"""


@contextmanager
def weights_only() -> Iterator[None]:
    """While it lasts torch reads nothing but weights from any file, whatever timm asks it for: pickles can run code."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before, os.environ[name] = os.environ.get(name), "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def load_weights(network: nn.Module, place: str, classes: Sequence[str], averaged: bool = False) -> None:
    """Put trained weights into a network that was built for these classes; anything that does not fit is an error.

    Of a file that holds a moving average too, that one is taken where it is asked for.
    """
    path = Path(place)
    file = weights_file(path)
    if path.is_dir():
        _check_classes(file.with_name("config.json"), place, classes)
    expected = network.state_dict()
    found = _read_weights(file, place, expected, averaged)
    if classes:
        _check_classifier(network, found, place, len(classes))
    unknown = [key for key in found if key not in expected]
    missing = [key for key in expected if key not in found]
    made = {key: value for key, value in expected.items() if not is_lazy(value)}  # others take the shape they are given
    shapes = [key for key in found if key in made and found[key].shape != made[key].shape]
    if wrong := (*missing, *unknown, *shapes):
        raise UserError(
            f"The weights in {place} are those of another network than {type(network).__name__} as asked for: "
            f"{len(missing)} missing, {len(unknown)} unknown, {len(shapes)} of another shape, first {wrong[0]!r}."
        )
    network.load_state_dict(found)


def weights_file(path: Path) -> Path:
    """The file of weights in a run folder, in its student's folder, or the file itself.

    Weights of a finished run must be those that it ended with.
    """
    file = _weights_file(path)
    check_weights(file)
    return file


def _weights_file(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"There are no weights at {path}. Name a run folder, a .safetensors file or a torch file.")
    if path.is_file():
        return path
    for inside in _RUN:
        if (path / inside).is_file():  # no pipe, which safetensors would wait for
            return path / inside
    if (path / "result.json").exists():
        raise UserError(f"The student of {path} is gone. Make it again with: spacedkd train --resume {path}")
    if (path / "spec.json").exists():
        raise UserError(f"The run in {path} is not finished, so it has no student yet: spacedkd train --resume {path}")
    raise UserError(f"{path} is no run folder: there is no {_RUN[0]} in it.")


def _read_weights(file: Path, place: str, expected: Mapping[str, Tensor], averaged: bool) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(file) if file.suffix == ".safetensors" else {}
        if found.keys() != expected.keys():  # timm knows what training scripts wrap weights in
            with weights_only():
                found = load_state_dict(str(file), use_ema=averaged, device="cpu", weights_only=True)
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
    names = read_config(description).get("label_names")
    if not names or not classes or list(names) == list(classes):
        return
    if len(names) != len(classes):
        raise _classes_error(place, len(names), len(classes))
    theirs, ours = next((old, new) for old, new in zip(names, classes, strict=True) if old != new)
    raise UserError(
        f"The weights in {place} are for other classes: what they call {theirs!r}, the data calls {ours!r}."
    )


def _check_classifier(network: nn.Module, found: Mapping[str, Tensor], place: str, classes: int) -> None:
    names = getattr(network, "pretrained_cfg", {}).get("classifier") or ()
    for name in [names] if isinstance(names, str) else names:
        bias = found.get(f"{name}.bias")
        if bias is not None and len(bias) != classes:
            raise _classes_error(place, len(bias), classes)


def check_trained(spec: NetworkSpec, classes: int) -> None:
    """Refuse a teacher that would not learn and does not know the data's classes.

    Of published weights for other classes timm would draw the classifier at random. A function of one's own may give
    its network trained weights itself.
    """
    if is_user_code(spec.name):
        return
    if not spec.pretrained:
        raise UserError("A teacher that does not learn needs weights: --teacher-weights with a run folder or a file.")
    if spec.options.get("pretrained"):
        check_published(spec.name, classes)


def check_published(name: str, classes: int) -> None:
    """Refuse timm's own weights of a network if they know other classes than the data."""
    published = timm.get_pretrained_cfg(name)
    if published is not None and published.num_classes != classes:
        raise _classes_error(f"timm's {name}", published.num_classes, classes)


def keep_normalisation(network: nn.Module, spec: NetworkSpec, shown: Normalisation | None) -> None:
    """Let a network that will not learn see images normalised as in its own training, where that is known."""
    own: Mapping[str, Any] = {}
    if spec.weights is not None and Path(spec.weights).is_dir():
        known = read_config(weights_file(Path(spec.weights)).with_name("config.json"))
        own = known.get("pretrained_cfg", known)
    elif spec.options.get("pretrained"):
        own = getattr(network, "pretrained_cfg", {})
    if shown is None or own.get("mean") is None or own.get("std") is None:
        return
    theirs = (tuple(own["mean"]), tuple(own["std"]))
    if theirs != (tuple(shown[0]), tuple(shown[1])):
        add_preprocessing(network, Renormalise(shown, theirs))


def _classes_error(place: str, theirs: int, ours: int) -> UserError:
    return UserError(
        f"The weights of {place} tell {theirs} classes apart, and the data has {ours}: "
        "it must know the same classes. Train it on this data first."
    )


@torch.no_grad()
def ema_update(
    average: nn.Module, module: nn.Module, decay: float, share: Callable[[Tensor], Tensor] = lambda value: value
) -> None:
    """average <- d average + (1 - d) module, weights and statistics such as BatchNorm's; whole numbers are copied.

    Processes have statistics of their own; `share` makes one of them everybody's.
    """
    for mine, theirs in zip(average.parameters(), module.parameters(), strict=True):
        mine.lerp_(theirs.to(mine.dtype), 1 - decay)
    for kept, current in zip(average.buffers(), module.buffers(), strict=True):
        if kept.is_floating_point():
            kept.lerp_(share(current).to(kept.dtype), 1 - decay)
        else:
            kept.copy_(current)
