"""Networks by name: anything timm has, and our small-image ResNets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf
from torch import nn

from spacedkd.data.images import ImageSet
from spacedkd.errors import UserError, unknown
from spacedkd.models import small_resnet
from spacedkd.models.heads import looking
from spacedkd.models.input_size import Resize, Size, at_own_size, parse_size, why_untiled
from spacedkd.models.weights import load_weights
from spacedkd.spec import NetworkSpec


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights drawn inside come from this seed; the surrounding random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def available(pattern: str = "") -> list[str]:
    """Names of networks, our own first; `pattern` may hold wildcards: 'resnet*'."""
    names: list[str] = timm.list_models(pattern)
    return [*(n for n in small_resnet.NAMES if n in names), *(n for n in names if n not in small_resnet.NAMES)]


def build(spec: NetworkSpec, images: ImageSet, seed: int) -> nn.Module:
    """The network a spec names, sized for these images and classes; its weights depend on the seed alone.

    Of its options `input_size` is ours: the network scales images to that size before it looks at them. All others
    are timm's, with `pretrained` and `checkpoint_path` among them. Trained weights replace the seed's.
    """
    if not timm.is_model(spec.name):
        raise unknown("network", spec.name, available())
    size = _seen_size(spec, images)
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a misfit that timm warns of ends in an error below
        network = _created(spec, images)
    if spec.weights is not None:
        load_weights(network, spec.weights, images.classes)
    if untiled := why_untiled(network, size):
        raise _misfit(spec, images, untiled)
    if size != images.shape[1:]:
        network.add_module("resize", Resize(size))
    _try(network, spec, images)
    return network


def _seen_size(spec: NetworkSpec, images: ImageSet) -> Size:
    """The size images have when the network sees them."""
    asked = spec.options.get("input_size")
    return images.shape[1:] if asked is None else parse_size(asked)


def _usual_size(spec: NetworkSpec) -> tuple[Size, bool]:
    """The size a network was made for, and whether it must be told of any other."""
    usual = timm.get_pretrained_cfg(spec.name) or timm.models.PretrainedCfg(input_size=(3, 224, 224))
    return tuple(usual.input_size[1:]), bool(usual.fixed_input_size)


def _arguments(spec: NetworkSpec, images: ImageSet) -> dict[str, Any]:
    """Everything timm is told about the network."""
    for name in ("num_classes", "in_chans"):
        if name in spec.options:
            raise UserError(f"{name} of a network follows from the data: leave it out of the options of {spec.name}.")
    size = _seen_size(spec, images)
    usual, is_fixed = _usual_size(spec)
    img_size = size[0] if size[0] == size[1] else [*size]  # some networks understand squares only
    fixed = {"img_size": img_size} if is_fixed and size != usual else {}
    given = {name: value for name, value in spec.options.items() if name != "input_size"}
    return {"num_classes": len(images.classes), "in_chans": images.shape[0], **fixed, **given}


def _created(spec: NetworkSpec, images: ImageSet) -> nn.Module:
    try:
        network: nn.Module = timm.create_model(spec.name, **_arguments(spec, images))
        return network
    except UserError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        raise _misfit(spec, images, _reason(error)) from None
    except Exception as error:  # the hub, a proxy, a disk: what fetches weights fails in many ways
        if not (spec.options.get("pretrained") or spec.options.get("checkpoint_path")):
            raise _misfit(spec, images, _reason(error)) from None
        raise UserError(
            f"The weights of {spec.name} cannot be loaded: {_reason(error)} Leave them out to start from random "
            "ones, or name a file that is here: --set network.weights=FILE, or --teacher-weights FILE."
        ) from None


def _try(network: nn.Module, spec: NetworkSpec, images: ImageSet) -> None:
    """Classify two images, so that a misfit shows before training and not in it."""
    try:
        with looking(network):
            logits = network(at_own_size(network, images.shown(torch.arange(2))))
        if not torch.isfinite(logits).all():
            raise ValueError("what it says of them is not a number.")
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        usual, _ = _usual_size(spec)
        way_out = f"Let it scale them: --set network.input_size={max(usual)} (teacher. if it is the teacher)."
        raise _misfit(spec, images, f"{_reason(error)} {way_out}") from None


def _misfit(spec: NetworkSpec, images: ImageSet, reason: str) -> UserError:
    size = "x".join(str(side) for side in (images.shape[0], *_seen_size(spec, images)))
    return UserError(f"Network {spec.name} cannot be built for {size} images: {reason}")


def _reason(error: Exception) -> str:
    line = (str(error).splitlines() or [""])[0].strip() or type(error).__name__
    return line if line.endswith(".") else f"{line}."


# Where weights came from is no part of what the network is.
_ONLY_ONCE = ("num_classes", "pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")


def save(network: nn.Module, spec: NetworkSpec, images: ImageSet, folder: Path) -> None:
    """Weights and description in timm's own form: `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it.

    A network with an `input_size` of its own is described by that size: timm's preparation of images scales to it.
    """
    network = deepcopy(network).to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    described: dict[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    described |= {
        "num_classes": len(images.classes),
        "input_size": (images.shape[0], *_seen_size(spec, images)),
        "mean": images.mean,
        "std": images.std,
    }
    arguments = {name: value for name, value in _arguments(spec, images).items() if name not in _ONLY_ONCE}
    save_for_hf(network, folder, {"label_names": list(images.classes)}, arguments, safe_serialization=True)
