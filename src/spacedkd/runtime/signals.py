"""Being asked to stop, by a signal or by whoever started this process, and ending with it."""

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
"""asked after every turn whether to stop"""

ASKING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
"""kill and schedulers; Ctrl-C; SLURM some time before a time limit; a terminal that is closed"""
PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5


class Stopped(Exception):
    """A run was asked to stop: everything up to its last turn is saved, and it goes on with `resume`."""

    def __init__(self, folder: Path | str = "", turn: int = 0, turns: int = 0, counted: str = "turns") -> None:
        """Of a comparison, what is `counted` is its runs."""
        super().__init__(f"{folder} was stopped after {turn} of {turns} {counted}, and everything is saved.")
        self.folder, self.turn, self.turns, self.counted = folder, turn, turns, counted

    def __reduce__(self) -> Any:  # to another process
        return type(self), (self.folder, self.turn, self.turns, self.counted)


def never_stop() -> bool:
    return False


class Signals(AbstractContextManager["Signals"]):
    """Says whether this process was asked to stop, by one of the signals that mean it, while this lasts.

        with Signals() as stop:
            train(spec, folder, stop=stop)

    The first signal is remembered, for whoever asks. A second one, or one that comes before anybody has asked, is a
    KeyboardInterrupt at once. Signals that were ignored, as by nohup, still are. For the main thread alone.
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
        """What a process that was stopped ends with: 128 and the number of the signal, as shells and schedulers say."""
        return 128 + (self.received or signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, self.received = self.received is None, self.received or number
        if first and self._asked:
            name = signal.Signals(number).name
            with suppress(OSError):  # no print, which could be interrupted by itself
                os.write(2, f"\n{name}: stopping after this turn. Once more stops at once.\n".encode())
            return
        for other in self._before:  # whoever does not listen to this either is ended by the next
            signal.signal(other, signal.SIG_DFL)
        raise KeyboardInterrupt


def child_context(hears_signals: bool = False) -> Any:
    """Return a context of multiprocessing whose processes are spawned, and end with this one from their start on.

    A spawned process imports the main module, and then whatever it is to call, which takes seconds where torch is
    among it. So `as_child` is called in it before that, or, where it `hears_signals`, only `end_with`.
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
    """Let signals that ask to stop wait while this lasts; they also wait for a process that is started in it.

    A signal to a whole group of processes would end a child that has not come to ignore it yet, and a child that is
    half started when this process is interrupted would be nobody's.
    """
    received: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # which alone runs handlers
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
    """Make this process one that its parent ends: with it, whatever ends it, and not by what a terminal sends to all.

    A scheduler, too, sends its signals to all processes of a job; what is to be saved here, the parent says. Only a
    second SIGTERM ends it.
    """
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL) and None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)  # see signals_wait
    end_with(parent)


def end_with(parent: int) -> None:
    """End this process, whatever it is doing, when the one that started it is gone."""
    starter = os.getppid()  # the parent, or a server that forks for it
    if starter != parent and not _lives(parent):  # it went before this
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
"""the variable that tells the ranks of a run which process started them"""


def end_with_first_rank() -> None:
    """Of a run's processes that the first one started, each ends with it."""
    if STARTED_BY in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        end_with(int(os.environ[STARTED_BY]))


def killed_by(exit_code: int | None) -> str:
    """What ended a process, from its exit code: a signal by its name, with what that usually means.

    >>> killed_by(-9), killed_by(3)
    ('was killed by SIGKILL (out of memory?)', 'ended with exit code 3')
    """
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    means = {"SIGKILL": " (out of memory?)", "SIGSEGV": " (a crash in native code, not want of memory)"}
    means |= {"SIGABRT": means["SIGSEGV"], "SIGBUS": " (a full /dev/shm, or a file that was cut?)"}
    return f"was killed by {name}{means.get(name, '')}"
