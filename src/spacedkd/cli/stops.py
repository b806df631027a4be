"""What somebody is told who stops a command, and what it ends with."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spacedkd.cli.progress import Watched
from spacedkd.runtime import processes
from spacedkd.runtime.errors import printable
from spacedkd.runtime.signals import Signals, Stopped


@contextmanager
def until_stopped(way_on: Callable[[], str]) -> Iterator[Signals]:
    """While this lasts, a signal that asks to stop lets the turn that is going on end, and all be saved.

    The command then ends with 128 and the signal's number; of several processes the first one speaks for all.
    """
    with Signals() as stop:
        try:
            yield stop
        except (Stopped, KeyboardInterrupt) as end:
            saved = isinstance(end, Stopped)
            say_error(f"{'Stopped, and everything is saved' if saved else 'Stopped at once'}. Go on with: {way_on()}")
            if saved and stop.received is None:  # another rank was asked
                stop.received = signal.SIGTERM
            sys.exit(0 if processes.rank() else stop.code)  # a rank that fails would have the first one killed


def say_error(line: str) -> None:
    """Of several processes the first one speaks for all; where nobody can hear it, the exit code says it."""
    if processes.rank() == 0:
        with suppress(OSError):
            text = f"spacedkd: {printable(line)}"
            Watched(stderr=True).print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
