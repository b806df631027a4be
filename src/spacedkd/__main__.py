"""Where the command begins: what it needs takes a while to import, and may be interrupted, too."""

import atexit
import gc
import os
import signal
import sys
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parent.parent:
    del sys.path[0]  # the current folder, in which `spacedkd` does not look for libraries either


def main() -> None:
    """The command line."""
    from spacedkd.runtime.signals import end_with_first_rank

    end_with_first_rank()  # also while the rest is imported
    gc.set_threshold(10_000)  # hardly anything that is imported is garbage
    atexit.register(gc.freeze)  # what is left at the end goes with the process, and need not be looked through
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not ignored, as in the background
        signal.signal(signal.SIGINT, _at_once)
    from spacedkd.cli import main as command

    signal.signal(signal.SIGINT, usual)
    command()


def _at_once(number: int, frame: object) -> None:
    os.write(2, b"\nspacedkd: Stopped before anything began.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
