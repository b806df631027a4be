"""The entry point of the command line; an interrupt during the imports, which take a while, ends it in one line."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parent.parent:
    del sys.path[0]  # the current folder, in which `spacedkd` does not look for libraries either


def main() -> None:
    """Run the command line."""
    from spacedkd.runtime.signals import end_with_first_rank

    end_with_first_rank()  # before the slow imports
    gc.set_threshold(10_000)  # hardly anything that is imported is garbage
    atexit.register(gc.freeze)  # memory goes with the process, so the last collection need not search it
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where it is ignored, as in the background
        signal.signal(signal.SIGINT, _exit_at_once)
    command = _command()
    signal.signal(signal.SIGINT, handler)
    command()


def _command() -> Callable[[], None]:
    """Return the command line; where its libraries are not installed, print how to install them, and exit."""
    from spacedkd.runtime.errors import not_installed

    try:
        from spacedkd.cli import main as command
    except ModuleNotFoundError as error:
        explained = not_installed("The command line", error)
        if explained is None:
            raise
        print(f"spacedkd: {explained}", file=sys.stderr)
        sys.exit(2)
    return command


def _exit_at_once(number: int, frame: object) -> None:
    os.write(2, b"\nspacedkd: Stopped before anything began.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
