"""How images were prepared when the student was measured, in words."""

from collections.abc import Mapping
from typing import Any

from spacedkd.data.augmentations import named
from spacedkd.models.description import knows_images
from spacedkd.spec import RunSpec


def in_words(spec: RunSpec, known: Mapping[str, Any]) -> str:
    """Size, scaling and normalisation, for whoever prepares images without timm."""
    if not knows_images(spec.data):
        return "The network was shown what a dataset of its author's gave: prepare inputs in the same way."
    about = known.get("pretrained_cfg") or known
    sentences = [f"{_kind(about)}{_scaled(spec)}, pixels from 0 to 1"]
    if about.get("mean") and about.get("std"):
        mean, std = (", ".join(f"{value:.6g}" for value in about[name]) for name in ("mean", "std"))
        sentences.append(f"then normalised: minus the mean ({mean}), divided by the deviation ({std}) of each channel")
    said = "; ".join(sentences) + "."
    if spec.network.options.get("input_size") is not None:
        size = spec.data.image_size
        first = "left at their own size" if size is None else f"brought to {size} pixels"
        said += (
            f" In training they were {first} first and then scaled (bicubic) as the network wants them; "
            "whoever scales once, as timm does, gets slightly other numbers."
        )
    return said


def _kind(about: Mapping[str, Any]) -> str:
    """Which images, for instance 'RGB images of 32 x 32 pixels'."""
    size = about.get("input_size")
    if not size:
        return "Images"
    channels, height, width = size
    colours = {1: "Gray images", 3: "RGB images"}.get(channels, f"Images of {channels} channels")
    return f"{colours} of {height} x {width} pixels"


def _scaled(spec: RunSpec) -> str:
    if spec.data.image_size is None or not spec.data.augmentation:
        return ""
    fit = named(spec.data.augmentation).fit(spec.data.image_size)
    if fit.shorter is None:
        return ", both sides scaled (bilinear)"
    to = "" if fit.shorter == fit.size else f" to {fit.shorter}"
    return f", the shorter side scaled{to} (bilinear) and the middle cut out"
