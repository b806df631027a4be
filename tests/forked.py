"""Processes that are forked by a server which has imported everything, in place of those that are spawned.

They begin in no time, where a process that is spawned imports torch first. `Command` is a command as such a process;
what a test starts by `subprocess` is spawned.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from pathlib import Path
from types import ModuleType

SERVER = "tests.server"
_get_context: Callable[[str | None], BaseContext] = multiprocessing.get_context


class _Process(ForkServerProcess):
    """Has the environment of the moment it is started in, as a spawned one does."""

    environment: Mapping[str, str] | None = None
    """its environment, where that is another one"""

    def start(self) -> None:
        self._environment = dict(os.environ if self.environment is None else self.environment)
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


class Command:
    """Python with these words, as `subprocess.Popen` starts it, but forked: `-c CODE`, `-m MODULE` or a script.

    It is a process of its own, in a folder, an environment and a session of its own, that signals end and that starts
    others.
    What only a new interpreter has is not tested by it: variables that Python itself reads, and what happens at exit.
    """

    def __init__(self, *words: str | Path, cwd: Path | str | None = None, env: Mapping[str, str] | None = None) -> None:
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._files = [folder / name for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        process = _Process(target=_run, args=([*map(str, words)], str(cwd or Path.cwd()), self._files))
        process.environment = env
        process.daemon = True  # pytest ends those that a failed test has left
        process.start()
        assert process.pid is not None
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        """Return its exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("the command", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; return what it has printed, and its errors."""
        self.wait(timeout)
        out, errors = (file.read_text() for file in self._files)
        return out, errors


def run(*words: str | Path, cwd: Path | str | None = None, env: Mapping[str, str] | None = None) -> Done:
    """As `subprocess.run` with captured output, but forked."""
    command = Command(*words, cwd=cwd, env=env)
    out, errors = command.communicate()
    return Done([*map(str, words)], command.wait(), out, errors)


Done = subprocess.CompletedProcess[str]


def _run(words: list[str], folder: str, files: list[Path]) -> None:
    """Do in the forked process what Python does with these words."""
    for number, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
        setattr(sys, file.name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115  until the end
    os.setsid()
    os.chdir(folder)
    vars(multiprocessing.current_process())["_config"]["daemon"] = False  # it may start others
    first, *more = words
    if first == "-c":
        code, *more = more
        sys.argv, main = ["-c", *more], ModuleType("__main__")
        sys.path.insert(0, "")
        sys.modules["__main__"] = main
        exec(code, main.__dict__)
    elif first == "-m":
        module, *more = more
        sys.argv = [module, *more]
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  as Python does
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
