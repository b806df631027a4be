"""Tiny runs on real images, small enough that a whole training takes a second."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from filelock import FileLock
from safetensors.torch import load_file
from torch import Tensor

import spacedkd.models  # noqa: F401  before anything imports timm or torchvision
from spacedkd import DataSpec, Duration, EngineSpec, MethodSpec, NetworkSpec, OptimizerSpec, RunSpec
from tests.forked import get_context, start
from tests.skipped import pytest_terminal_summary  # noqa: F401  a hook of pytest

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # so too in processes that tests start: all share the cores
# A job in the background, or under nohup, starts with these ignored, and the command leaves ignored signals so.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

READS = "get_class_tokenization_with_field"
TINY = RunSpec(
    data=DataSpec("digits", train_limit=40),
    network=NetworkSpec("resnet18_small", {"width": 4, "layers": [1, 1, 1, 1]}),
    epochs=3,
    batch_size=8,
    optimizer=OptimizerSpec(lr=0.02),
    precision="32-true",
    log_every=Duration(2, "st"),
    save_every=Duration(4, "st"),
    engine=EngineSpec(threads=1),
)
"""Five steps an epoch, fifteen in all."""


def pytest_configure() -> None:
    """Look for no garbage among the thousands of tests that are collected, nor ever in what was imported for them."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of a module that share what is made once are one worker's, so that it is."""
    made: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    shared = any(one.scope == "module" for found in made.values() for one in found)
    if shared and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


LONG = (
    "test_examples.py",
    "test_stopping.py",
    "test_user_code.py",
    "test_pipeline.py",
    "test_options.py",
    "test_result.py",
)
"""tests that come before others, because one of them takes seconds: none is left for the end, when other workers wait;
pytest-xdist itself begins with the groups of most tests"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray's come last where whatever a process forks after them crashes (seen with Ray 2.60 and Python 3.13.0)."""
    items.sort(key=lambda item: not item.nodeid.partition("::")[0].endswith(LONG))
    if sys.version_info >= (3, 13):
        items.sort(key=lambda item: "test_ray.py" in item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Processes that runs start here begin at once; those of commands in processes of their own are as ever."""
    start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", get_context)
        yield


@pytest.fixture(scope="session", autouse=True)
def sources_are_read_once() -> Iterator[None]:
    """Tyro reads the source of every class of flags for each command line, which is a third of what that takes."""
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(tyro._docstrings, READS):
            patch.setattr(tyro._docstrings, READS, cache(getattr(tyro._docstrings, READS)))
        yield


@pytest.fixture
def tiny() -> RunSpec:
    return TINY


@pytest.fixture
def tiny_with() -> Callable[..., RunSpec]:
    """The tiny run with another method and other changes."""

    def make(method: str = "kd", options: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
        return replace(TINY, method=MethodSpec(method, options or {}), **changes)

    return make


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that is made by the first worker of pytest that asks; all others wait for it and only read."""
    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_name(f"{name}, unfinished")
            make(unfinished)
            unfinished.rename(folder)
    return folder


def tensors(folder: Path) -> dict[str, Tensor]:
    """Everything in a run's checkpoint: models and optimizers."""
    return load_file(folder / "checkpoint" / "latest.safetensors")


def of_model(folder: Path, model: str) -> dict[str, Tensor]:
    """A model's saved parameters, buffers and optimizer state."""
    return {name: value for name, value in tensors(folder).items() if name.split("/")[1] == model}


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert one, "nothing was compared"
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} tensors differ, first {different[0]}"
