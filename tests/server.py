"""What the server that forks processes has done: everything but a backward pass, which starts threads."""

from spacedkd.comparison import pool as pool
from spacedkd.config.resolve import resolve
from spacedkd.training.state import build_state
from tests.faults import killing as killing
from tests.faults.kinds import SHORT

build_state(resolve(SHORT))
