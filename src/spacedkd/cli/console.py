"""Where everything that is said goes."""

from __future__ import annotations

import os

from rich.console import Console

console = Console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")  # one of several processes speaks for all


def say(text: str) -> None:
    """A line as it is, for people to copy from: not broken, not coloured, no markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
