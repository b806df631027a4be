"""Signals that ask a process to stop, and child processes that end with their parent.

This file imports the standard library only: a child process runs it before anything else (see `_Name`).
"""

import copy
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

Stop = Callable[[], bool]
"""a function that is called after every turn and returns whether to stop"""

ASKING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
"""sent by kill and schedulers; by Ctrl-C; by SLURM before its time limit; by a terminal that is closed"""
PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5


class Stopped(Exception):
    """A run was asked to stop. Everything up to its last turn is saved, and `resume` continues it."""

    def __init__(self, folder: Path | str = "", turn: int = 0, turns: int = 0, counted: str = "turns") -> None:
        """`counted` names what `turn` and `turns` count: turns of a run, or runs of a comparison."""
        super().__init__(f"{folder} was stopped after {turn} of {turns} {counted}, and everything is saved.")
        self.folder, self.turn, self.turns, self.counted = folder, turn, turns, counted

    def __reduce__(self) -> Any:  # exceptions with such arguments are not pickled by themselves
        return type(self), (self.folder, self.turn, self.turns, self.counted)


def never_stop() -> bool:
    """Return False."""
    return False


class Signals(AbstractContextManager["Signals"]):
    """A context that remembers whether this process got a signal that asks it to stop.

        with Signals() as stop:
            train(spec, folder, stop=stop)

    After the first signal, calling the object returns True. A second signal, or one that comes before the object was
    ever called, raises a KeyboardInterrupt at once. Signals that were ignored, as by nohup, stay ignored. It works in
    the main thread only.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._asked = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        self._asked = True
        return self.received is not None

    def __enter__(self) -> "Signals":
        for number in ASKING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def code(self) -> int:
        """The exit code of a process that a signal stopped: 128 plus its number, as in shells and schedulers."""
        return 128 + (self.received or signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, self.received = self.received is None, self.received or number
        if first and self._asked:
            name = signal.Signals(number).name
            with suppress(OSError):  # print is not reentrant, and a signal may come while it runs
                os.write(2, f"\n{name}: stopping after this turn. Once more stops at once.\n".encode())
            return
        for other in self._before:  # the next signal ends a process that ignores the KeyboardInterrupt
            signal.signal(other, signal.SIG_DFL)
        raise KeyboardInterrupt


def child_context(hears_signals: bool = False) -> Any:
    """Return a multiprocessing context that spawns processes which end with this one, from their start on.

    A spawned process imports the main module and then what it is to call, which takes seconds if torch is imported. So
    `as_child` is called in it before that; or, if it `hears_signals` itself, only `end_with`.
    """
    context: Any = copy.copy(multiprocessing.get_context("spawn"))
    make, name = context.Process, _Name("end_with" if hears_signals else "as_child")
    context.Process = lambda *args, **options: make(*args, **options, name=name)
    return context


class _Name(str):
    """The name of a process that is about to be spawned, which is that of a function of this file.

    It is the first object that a spawned process reads, before `sys.path` and the main module. Reading it runs this
    file, which imports the standard library only, and calls the function with the number of the process that wrote it.
    """

    def __reduce__(self) -> Any:
        if not Path(__file__).is_file():  # within an archive: the process does the same later
            return str, (str(self),)
        return eval, (f"__import__('runpy').run_path({__file__!r})[{str(self)!r}]({os.getpid()}) or {str(self)!r}",)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Delay signals that ask to stop until the block ends, also in a process that is started inside of it.

    A signal to a whole group of processes would end a child that does not ignore it yet; and if this process were
    interrupted while it starts a child, nothing would end the child.
    """
    received: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # the only one in which handlers run
        for number in ASKING:
            if callable(signal.getsignal(number)):
                handlers[number] = signal.signal(number, lambda number, frame: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


def as_child(parent: int) -> None:
    """Make this process end with its parent, however that ends, and ignore signals that ask to stop.

    Terminals and schedulers send their signals to all processes of a job; the parent decides what is saved first. Only
    a second SIGTERM ends this process.
    """
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL) and None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)  # see signals_wait
    end_with(parent)


def end_with(parent: int) -> None:
    """End this process, whatever it is doing, when the process that started it is gone."""
    starter = os.getppid()  # the parent, or a server that forks processes for it
    if starter != parent and not _lives(parent):  # it ended before this process came here
        os._exit(1)
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
        if os.getppid() != starter:
            os._exit(1)
        return
    threading.Thread(target=_watch, args=(parent, starter), daemon=True).start()


def _watch(parent: int, starter: int) -> None:
    while os.getppid() == starter and (starter == parent or _lives(parent)):
        time.sleep(POLL_SECONDS)
    os._exit(1)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


STARTED_BY = "SPACEDKD_STARTED_BY"
"""an environment variable: the process that started the ranks of a run"""


def end_with_first_rank() -> None:
    """End this process with the first rank of its run, if that started it."""
    if STARTED_BY in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        end_with(int(os.environ[STARTED_BY]))


def killed_by(exit_code: int | None) -> str:
    """Return how a process ended, from its exit code: a signal by its name, with its usual cause.

    >>> killed_by(-9), killed_by(3)
    ('was killed by SIGKILL (out of memory?)', 'ended with exit code 3')
    """
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    crash = " (a crash in native code, not a lack of memory)"
    causes = {"SIGKILL": " (out of memory?)", "SIGSEGV": crash, "SIGABRT": crash}
    causes["SIGBUS"] = " (a full /dev/shm, or a file that was truncated?)"
    return f"was killed by {name}{causes.get(name, '')}"
