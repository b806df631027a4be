"""How a run takes its folder: free, begun before, begun again, or where another run ended."""

from collections.abc import Callable
from typing import NamedTuple

from spacedkd.files import write_json
from spacedkd.spec import read_spec
from spacedkd.training import checkpoint
from spacedkd.training.extension import go_back, hand_on
from spacedkd.training.folder import RunFolder
from spacedkd.training.following import Following
from spacedkd.training.plan import Plan
from spacedkd.training.setup import Setup

Planned = Callable[[Plan, int], None]
"""hears what will be done, and how many turns of it are"""


class Beginning(NamedTuple):
    """How a run begins."""

    new: bool = False
    """the folder must be free"""
    restart: bool = False
    """what is there begins again"""
    extend: RunFolder | None = None
    """the run that it goes on from"""
    planned: Planned = lambda plan, done: None
    """called once the folder is held"""

    def take(self, folder: RunFolder, setup: Setup, following: Following) -> bool:
        """Make the folder this run's, which is held; says whether it is the first to be there."""
        spec = setup.plan.spec
        is_new = not folder.spec.exists()
        if is_new:
            if self.extend is not None:
                hand_on(self.extend, folder, setup.plan)
            folder.create(spec)
        elif self.new:
            folder.check_free()
        else:
            folder.check_holds(spec)
            held = read_spec(folder.path)
            if (held.processes_before, held.log) != (spec.processes_before, spec.log):
                folder.create(spec)  # from here on it is a run on another number of processes, or with other loggers
        if self.restart:
            following.check_there(folder.path)
            folder.begin_again()
        folder.handle.remove(folder.failed)  # it is tried again
        following.go_on(folder)
        write_json(folder.classes, setup.plan.data.describe(), folder.handle)
        if checkpoint.generations(folder.checkpoint):
            checkpoint.settle(folder.checkpoint, folder.journal, setup.modules(), folder.handle)
        elif folder.first_checkpoint.exists():
            go_back(folder)
        return is_new
