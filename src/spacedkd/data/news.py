"""What a user is told while a data set is being loaded."""

from __future__ import annotations

import multiprocessing
import os
import sys


def tell(line: str) -> None:
    """One line on the terminal; of several processes on a machine, one speaks for all, and helpers are silent."""
    if os.environ.get("LOCAL_RANK", "0") == "0" and multiprocessing.parent_process() is None:
        print(line, file=sys.stderr, flush=True)
