"""Processes that are forked by a server which has imported everything, in place of those that are spawned.

They begin in no time, where a process that is spawned imports torch first. What a test starts by a command spawns.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess

SERVER = "tests.server"
_get_context: Callable[[str | None], BaseContext] = multiprocessing.get_context


class _Process(ForkServerProcess):
    """Has the environment of the moment it is started in, as a spawned one does."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        assert SERVER in sys.modules, "the server has imported nothing"
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Context(ForkServerContext):
    Process = _Process


def start() -> None:
    """Start the server, from where it finds what it is to import; it says nothing of what it does not find."""
    multiprocessing.set_forkserver_preload([SERVER])
    forkserver.ensure_running()


def context() -> ForkServerContext:
    return _Context()


def get_context(method: str | None = None) -> BaseContext:
    """In place of multiprocessing's."""
    return context() if method == "spawn" else _get_context(method)
