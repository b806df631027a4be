"""Lightning Fabric, imported in half the time where torchmetrics is installed, and without its process observer.

All of Fabric is imported here, because it is slow to import. To compare torchmetrics' version Fabric imports
torchmetrics, which imports transformers and scipy.signal if they are installed: two seconds in every process, for a
number that is in the package's metadata.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType


@contextmanager
def _stub_module(package: str) -> Iterator[None]:
    """Let imports of a package find a stub with its `__version__` only, unless the package is imported already."""
    try:
        stub = ModuleType(package)
        stub.__version__ = version(package)  # type: ignore[attr-defined]
    except PackageNotFoundError:
        yield
        return
    module = sys.modules.setdefault(package, stub)
    try:
        yield
    finally:
        if module is stub:
            del sys.modules[package]


with _stub_module("torchmetrics"):
    from lightning_fabric import Fabric as Fabric
    from lightning_fabric.plugins.precision.double import DoublePrecision as DoublePrecision
    from lightning_fabric.strategies.ddp import DDPStrategy as DDPStrategy
    from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy as ModelParallelStrategy
    from lightning_fabric.strategies.strategy import Strategy as Strategy
    from lightning_fabric.wrappers import _FabricModule as _FabricModule


def disable_child_observer(fabric: Fabric) -> None:
    """Keep Fabric from watching the processes that it has started.

    Its observer looks at them every five seconds. Once one has ended with an error it kills all with SIGKILL, also a
    first rank that is about to report the error, or to save. `distributed.watch_ranks` takes its place.
    """
    launcher = fabric.strategy.launcher
    if isinstance(launcher, _SubprocessScriptLauncher):
        # The observer holds this list: it gets an empty one, and the launcher a copy.
        observed, launcher.procs = launcher.procs, [*launcher.procs]
        observed.clear()
