"""A student's config.json: the network, its classes and its preprocessing, in a form that timm reads too.

Kept apart from `student_io`, so that reading a description imports no network.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spacedkd.config.spec import DataSpec, NetworkSpec
from spacedkd.data.transforms import get_augmentation
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.user_code import is_user_code, mark_names

_TYPES = {
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
        raise UserError(f"{path} does not describe the weights beside it: {why}. Name their file.") from None


def _check_config(config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise ValueError("it is no object with keys and values")
    for entries in (config, config.get("pretrained_cfg")):
        for name, kind in _TYPES.items():
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


_PUBLISHED_FIELDS = {
    *("tag", "license", "description", "origin_url", "paper_name", "paper_ids", "notes", "custom_load"),
    *("test_input_size", "test_crop_pct", "test_pool_size"),
}
"""fields of timm's `pretrained_cfg` that describe weights others have published, and how those were tested"""


def without_published_fields(pretrained_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return timm's `pretrained_cfg` of a network without the fields that describe published weights.

    >>> without_published_fields({"input_size": (3, 224, 224), "tag": "a1_in1k", "license": "apache-2.0"})
    {'input_size': (3, 224, 224)}
    """
    return {name: value for name, value in pretrained_cfg.items() if name not in _PUBLISHED_FIELDS}


def prepares_images(data: DataSpec) -> bool:
    """Return whether this package resizes and normalises the images, and not a user's dataset."""
    return data.augmentation is not None and not is_user_code(data.source)


def timm_preprocessing(data: DataSpec, network: NetworkSpec, size: Sequence[int]) -> dict[str, Any]:
    """Return the resize and crop of evaluation as fields of timm's `pretrained_cfg`; {} for a user's dataset.

    `size` is the height and width of the network's input. A network with an `input_size` gets images after two
    scalings, of which timm makes one. A target that is no square is squashed: timm's centre crop would ignore the
    interpolation there, and all images are of one shape then.

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
    """Return timm's `crop_pct` for a crop of `size` from an image whose shorter side is scaled to `shorter`.

    timm rounds size / crop_pct down, so where size / shorter would end one pixel below, a slightly smaller fraction is
    returned.

    >>> crop_fraction(224, 256)
    0.875
    >>> scaled = {size: round(size * 8 / 7) for size in range(8, 600)}
    >>> all(math.floor(size / crop_fraction(size, shorter)) == shorter for size, shorter in scaled.items())
    True
    """
    fraction = size / shorter
    return fraction if math.floor(size / fraction) == shorter else size / (shorter + 0.5)
