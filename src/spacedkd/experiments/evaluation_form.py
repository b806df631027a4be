"""What an evaluation.json must hold, so that tables, comparisons and pages need not look again."""

import math
from collections.abc import Mapping
from typing import Any

COUNT = "count"
"""a whole number from 1 up"""
_MEAN = {"mean": float, "low": (float,), "high": (float,)}
_BIN = {"low": float, "high": float, "images": int, "confidence": (float,), "accuracy": (float,)}
_HEAD = {
    **{"top1": float, "top5": (float,), "nll": float, "ece": float, "agrees_with_final": float},
    **{"per_class": [(float,)], "reliability": [_BIN]},
}
_PART = {"images": COUNT, "heads": {...: _HEAD}, "bins": int, "class_images": [int], "agreement": {...: float}}
_ATTACK = {"name": str, "epsilon": float, "step": float, "steps": int, "random_start": bool}
_FOUND = {"name": str, "severity": int, "accuracy": {"final": float}}
_LEVEL = {"kind": str, "level": float, "loss": (_MEAN,), "accuracy": _MEAN}
_TRACE = {"method": str, "value": float, "standard_error": float, "stopped": str}
INSTRUMENTS: dict[str, Any] = {
    "accuracy": {"class_names": [str], "models": {...: {...: _PART}}},
    "corruptions": {
        **{"images": COUNT, "names": [str], "severities": [int], "enlarged": int},
        **{"clean": {"final": float}, "mean": {"final": float}, "found": [_FOUND]},
    },
    "adversarial": {
        **{"images": COUNT, "seed": int, "clean": float},
        "attacks": [{"attack": _ATTACK, "accuracy": float}],
    },
    "weight_noise": {
        **{"images": COUNT, "draws": int, "seed": int, "loss": float, "accuracy": float},
        **{"batchnorm": str, "levels": [_LEVEL]},
    },
    "curvature": {
        **{"images": COUNT, "error": float, "batchnorm": str},
        **{"trace": _TRACE, "largest": {"value": float}},
    },
}
"""a kind; (kind,) may be null; [kind] is a list; {name: kind} an object, and {...: kind} one with any names"""


def check(shape: Any, value: Any, where: str) -> None:
    """Complain, with a ValueError, about the first thing that has not its shape."""
    if isinstance(shape, tuple):
        if value is not None:
            check(shape[0], value, where)
    elif isinstance(shape, list):
        for one in _is(value, list, where):
            check(shape[0], one, where)
    elif isinstance(shape, dict):
        _is(value, Mapping, where)
        for name in value if ... in shape else shape:
            if name not in value:
                raise ValueError(f"{where}.{name} is missing")
            check(shape.get(name, shape.get(...)), value[name], f"{where}.{name}")
    elif shape is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{where} is {value!r}, no number")
    elif shape is int or shape is COUNT:
        if isinstance(value, bool) or not isinstance(value, int) or value < (shape is COUNT) or value > 2**63:
            raise ValueError(f"{where} is {value!r}, no count")
    else:
        _is(value, shape, where)


def _is(value: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where} is {value!r}")
    return value
