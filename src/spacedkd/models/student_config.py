"""A student's config.json: what it says of its network and of its preprocessing, as we and timm write it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spacedkd.config.spec import DataSpec, NetworkSpec
from spacedkd.data.transforms import get_augmentation
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.user_code import is_user_code, marked


def read_config(description: Path, trust_code: bool = False) -> dict[str, Any]:
    """What a student's folder says of its network."""
    try:
        found = marked(read_json(description), description, trust_code)
        return _check_config(found)
    except (OSError, ValueError) as error:
        why = first_line(error)
        raise UserError(f"{description} does not describe the weights beside it: {why}. Name their file.") from None


_KINDS = {"architecture": str, "made_by": str, "label_names": list}


def _check_config(found: Any) -> dict[str, Any]:
    """A description whose parts are what they should be, where they are there."""
    if not isinstance(found, dict):
        raise ValueError("it is no object with keys and values")
    for known in (found, found.get("pretrained_cfg")):
        for name, kind in _KINDS.items():
            value: Any = known.get(name) if isinstance(known, dict) else None
            numbers: Any = value if name in ("mean", "std") and isinstance(value, list) else ()
            wrong = value is not None and not isinstance(value, kind)
            if wrong or any(type(one) not in (int, float) for one in numbers):
                raise ValueError(f"its {name} is {value!r}")
        shape: Any = known.get("input_size") if isinstance(known, dict) else None
        if shape is not None and not _is_shape(shape):
            raise ValueError(f"its input_size is {shape!r}, and must be channels, height and width")
    return {name: value for name, value in found.items() if value is not None}


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) == 3 and all(type(side) is int and side > 0 for side in shape)


_OF_PUBLISHED_WEIGHTS = {
    *("tag", "license", "description", "origin_url", "paper_name", "paper_ids", "notes", "custom_load"),
    *("test_input_size", "test_crop_pct", "test_pool_size"),
}


"""fields of timm's `pretrained_cfg` that describe weights others have published, and how those were tested"""


def without_published_fields(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return timm's `pretrained_cfg` of a network without the fields that describe published weights.

    >>> without_published({"input_size": (3, 224, 224), "tag": "a1_in1k", "license": "apache-2.0"})
    {'input_size': (3, 224, 224)}
    """
    return {name: value for name, value in about.items() if name not in _OF_PUBLISHED_WEIGHTS}


def prepares_images(data: DataSpec) -> bool:
    """Whether images are prepared by this package, and not by a dataset of the user's."""
    return data.augmentation is not None and not is_user_code(data.source)


def timm_preprocessing(data: DataSpec, network: NetworkSpec, size: Sequence[int]) -> dict[str, Any]:
    """Return the resize and crop of evaluation as fields of timm's `pretrained_cfg`; nothing for a user's dataset.

    `size` is the height and width the network sees. A network with an `input_size` sees images after two scalings, of
    which timm makes one. A target that is no square is squashed: timm's centre crop would ignore the interpolation
    there, and all images are of one shape then.

    >>> timm_preprocessing(DataSpec("photos", augmentation="imagenet", image_size=224), NetworkSpec(), (224, 224))
    {'crop_pct': 0.875, 'crop_mode': 'center', 'interpolation': 'bilinear'}
    """
    if not prepares_images(data):
        return {}
    fit = None if data.image_size is None else get_augmentation(data.augmentation or "").fit(data.image_size)
    scales = network.options.get("input_size") is not None and not is_user_code(network.name)
    squashes = size[0] != size[1] or (fit is not None and fit.shorter is None)
    return {
        "crop_pct": 1.0 if fit is None or fit.shorter is None else crop_fraction(fit.size, fit.shorter),
        "crop_mode": "squash" if squashes else "center",
        "interpolation": "bicubic" if scales else "bilinear",
    }


def crop_fraction(size: int, shorter: int) -> float:
    """The part of a scaled image that is seen, such that timm, which rounds down, scales the shorter side to `shorter`.

    >>> crop_part(224, 256)
    0.875
    >>> all(math.floor(size / crop_part(size, round(size * 8 / 7))) == round(size * 8 / 7) for size in range(8, 600))
    True
    """
    part = size / shorter
    return part if math.floor(size / part) == shorter else size / (shorter + 0.5)
