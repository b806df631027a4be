"""Make torchvision importable next to a CPU build of torch.

torchvision's wheel on the package index is built for CUDA. With a CPU build of torch its native library does not load,
and its import then fails because it describes two operators, `nms` and `qnms`, that are not declared.
Declaring their schemas is enough; nothing here ever calls them. Where the native library loads, nothing is done.

`import spacedkd` calls `repair_imports`; from then on any import of torchvision declares them first, whoever imports
it: this package, timm, another trainer, or the user. torch itself is imported no earlier for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: torch.library.Library | None = None


def repair_imports() -> None:
    """Let every import of torchvision from here on declare what it lacks; one that has succeeded needs nothing."""
    if "torchvision" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds torchvision where Python finds it, with a loader that declares the operators first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = None if spec is None else spec.loader
        if spec is None or loader is None:
            return spec
        execute, folders = loader.exec_module, spec.submodule_search_locations or ()

        def declare_and_execute(module: ModuleType) -> None:
            _declare_missing(folders)
            execute(module)

        loader.exec_module = declare_and_execute
        return spec


def _declare_missing(folders: Sequence[str]) -> None:
    """Declare the operators once, unless the native library in one of torchvision's folders does."""
    global _declared
    if _declared is not None or _native_library_loads(folders):
        return
    import torch

    _declared = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        _declared.define(schema)


def _native_library_loads(folders: Sequence[str]) -> bool:
    import torch

    libraries = [file for folder in folders for ending in ("so", "pyd") for file in Path(folder).glob(f"_C*.{ending}")]
    try:
        torch.ops.load_library(libraries[0])
    except (OSError, IndexError):  # not for this torch, or none
        return False
    return True
