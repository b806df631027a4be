"""What the server that forks processes has done: everything but a backward pass, which starts threads."""

from spacedkd.experiments import local_pool as local_pool
from spacedkd.training.plan import make_plan
from spacedkd.training.setup import set_up
from tests.faults import killing as killing
from tests.faults.kinds import SHORT

set_up(make_plan(SHORT))
