"""Make torchvision importable next to a CPU build of torch.

torchvision's wheel on the package index is built for CUDA. With a CPU build of torch its native library does not load,
and its import then fails because it describes two operators, `nms` and `qnms`, that are not declared.
Declaring their schemas is enough; nothing here ever calls them. Where the native library loads, nothing is done.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: torch.library.Library | None = None


def _native_library_loads() -> bool:
    import torch

    spec = importlib.util.find_spec("torchvision")
    folders = (spec.submodule_search_locations if spec else None) or ()
    libraries = [file for folder in folders for ending in ("so", "pyd") for file in Path(folder).glob(f"_C*.{ending}")]
    try:
        torch.ops.load_library(libraries[0])
    except (OSError, IndexError):  # not for this torch, or none
        return False
    return True


def declare_missing() -> None:
    """Declare the operators once, before the first import of torchvision or of timm, which imports it."""
    global _declared
    if _declared is not None or "torchvision" in sys.modules or _native_library_loads():
        return
    import torch

    _declared = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        _declared.define(schema)
