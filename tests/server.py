"""What the server that forks processes has done: everything but a backward pass, which starts threads.

The package's own command line is not imported: its console looks at the environment then, which differs by process.
"""

import gc

import rich.live
import rich.progress
import rich.table
import tyro.extras

from spacedkd.comparison import pool
from spacedkd.config.resolve import resolve
from spacedkd.training.state import build_state
from tests.faults import killing
from tests.faults.kinds import SHORT

build_state(resolve(SHORT))
gc.freeze()  # so that a process which looks for garbage touches, and so copies, none of it
__all__ = ["killing", "pool", "rich", "tyro"]
