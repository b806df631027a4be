"""What the server that forks a process for each run has done: everything but a backward pass, which starts threads."""

from spacedkd.training.plan import make_plan
from spacedkd.training.setup import set_up
from tests.faults import killing as killing
from tests.faults.kinds import SHORT

set_up(make_plan(SHORT))
