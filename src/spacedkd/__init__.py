"""Spaced knowledge distillation: train a network with a teacher that learns ahead of it in time.

A run is a spec and a folder:

    from spacedkd import DataSpec, NetworkSpec, RunSpec, Spaced, train

    spec = RunSpec(data=DataSpec("digits"), network=NetworkSpec("resnet18_small", {"width": 16}),
                   schedule=Spaced("1.5ep"), epochs=30)
    run = train(spec, "runs/spaced")
    print(run.accuracy)

The schedule, the losses and the methods also stand alone, for a training loop of your own:

    for turn in Spaced("586st").turns(("teacher", "student"), range(31280)):
        ...  # turn.role learns from batch(turn.step)

A name is imported when it is first used, so what needs no torch does not import it. `__init__.pyi` lists those that a
user needs first; methods are in `spacedkd.methods`, instruments in `spacedkd.evaluation`, streams and batches in
`spacedkd.data`, all schedules in `spacedkd.schedule`.
`import spacedkd.models` makes the networks of this package known to timm.
"""

import lazy_loader

from spacedkd.runtime.errors import with_way_out
from spacedkd.runtime.torchvision_compat import repair_imports

repair_imports()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)
