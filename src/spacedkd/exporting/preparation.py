"""How images were prepared when the student was measured, in timm's terms and in words."""

import math
from collections.abc import Mapping
from typing import Any

from spacedkd.data.augmentations import named
from spacedkd.spec import RunSpec


def in_timm_form(spec: RunSpec) -> dict[str, Any]:
    """What timm is told of it; nothing where the data is prepared by a dataset of somebody's own.

    A network that scales images itself sees them after two scalings, of which timm makes one.
    """
    if not knows_images(spec):
        return {}
    chosen, size = named(spec.data.augmentation or ""), spec.data.image_size
    fit = None if size is None else chosen.fit(size)
    scaling = "bilinear" if spec.network.options.get("input_size") is None else "bicubic"
    if fit is not None and fit.shorter is None:
        return {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": scaling}
    part = 1.0 if fit is None or fit.shorter is None else crop_part(fit.size, fit.shorter)
    return {"crop_pct": part, "crop_mode": "center", "interpolation": scaling}


def knows_images(spec: RunSpec) -> bool:
    """Whether the images were prepared here, and not by a dataset that was given."""
    return spec.data.augmentation is not None and "data" not in spec.objects and ":" not in spec.data.source


def crop_part(size: int, shorter: int) -> float:
    """The part of a scaled image that is seen, such that timm, which rounds down, scales the shorter side to `shorter`.

    >>> crop_part(224, 256)
    0.875
    >>> all(math.floor(size / crop_part(size, round(size * 8 / 7))) == round(size * 8 / 7) for size in range(8, 600))
    True
    """
    part = size / shorter
    return part if math.floor(size / part) == shorter else size / (shorter + 0.5)


def in_words(spec: RunSpec, known: Mapping[str, Any]) -> str:
    """Size, scaling and normalisation, for whoever prepares images without timm."""
    if not knows_images(spec):
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
