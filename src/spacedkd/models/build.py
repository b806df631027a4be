"""Networks by name: anything timm has, and our small-image ResNets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf
from torch import nn

from spacedkd.data.stream import Images
from spacedkd.errors import UserError, unknown
from spacedkd.models import small_resnet
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


def build(spec: NetworkSpec, images: Images, seed: int) -> nn.Module:
    """The network a spec names, sized for these images and classes; its weights depend on the seed alone."""
    if not timm.is_model(spec.name):
        raise unknown("network", spec.name, available())
    with seeded(seed):
        try:
            network: nn.Module = timm.create_model(spec.name, **_arguments(spec, images))
            return _tried(network, images)
        except UserError:
            raise
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            size = "x".join(str(side) for side in images.pixels.shape[1:])
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise UserError(f"Network {spec.name} cannot be built for {size} images: {reason}") from None


def _arguments(spec: NetworkSpec, images: Images) -> dict[str, Any]:
    return {"num_classes": len(images.classes), "in_chans": images.pixels.shape[1], **spec.options}


def _tried(network: nn.Module, images: Images) -> nn.Module:
    """The network after it has classified two images, so that a misfit shows before training and not in it."""
    network.eval()
    with torch.no_grad():
        network(images.normalised(images.pixels[:2]))
    return network.train()


def save(network: nn.Module, spec: NetworkSpec, images: Images, folder: Path) -> None:
    """Weights and description in timm's own form: `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it."""
    network = deepcopy(network).to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    arguments = _arguments(spec, images)
    described: dict[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    described |= {
        "num_classes": arguments["num_classes"],
        "input_size": tuple(images.pixels.shape[1:]),
        "mean": images.mean,
        "std": images.std,
    }
    del arguments["num_classes"]
    save_for_hf(network, folder, {"label_names": list(images.classes)}, arguments, safe_serialization=True)
