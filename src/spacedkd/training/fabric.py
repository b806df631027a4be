"""Lightning Fabric, imported in half the time where torchmetrics is installed too, and without its observer.

Fabric compares torchmetrics' version as it is imported, and does so by importing torchmetrics, which imports
transformers and scipy.signal where they are there: two seconds, in every process, for a number that is in its metadata.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType


@contextmanager
def _version_alone(package: str) -> Iterator[None]:
    """Whoever imports this package meanwhile gets its version and nothing else, unless somebody has imported it."""
    try:
        stand_in = ModuleType(package)
        stand_in.__version__ = version(package)  # type: ignore[attr-defined]
    except PackageNotFoundError:
        yield
        return
    found = sys.modules.setdefault(package, stand_in)
    try:
        yield
    finally:
        if found is stand_in:
            del sys.modules[package]


with _version_alone("torchmetrics"):
    from lightning_fabric import Fabric as Fabric
    from lightning_fabric.plugins.precision.double import DoublePrecision as DoublePrecision
    from lightning_fabric.strategies.ddp import DDPStrategy as DDPStrategy
    from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy as ModelParallelStrategy
    from lightning_fabric.strategies.strategy import Strategy as Strategy
    from lightning_fabric.wrappers import _FabricModule as _FabricModule


def disable_child_observer(fabric: Fabric) -> None:
    """From now on Fabric does not look whether the processes that it has started live.

    It looks every five seconds, and once one has ended with an error it kills all with SIGKILL: also a first rank that
    is about to say what happened, or to save.
    """
    launcher = fabric.strategy.launcher
    if isinstance(launcher, _SubprocessScriptLauncher):
        observed, launcher.procs = launcher.procs, [*launcher.procs]
        observed.clear()
