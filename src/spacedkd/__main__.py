"""Where the command begins: what it needs takes a while to import, and may be interrupted, too."""

import os
import signal


def main() -> None:
    """The command line."""
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
