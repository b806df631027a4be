"""Evaluation of trained networks: accuracy, calibration, robustness and flatness, and statistics over seeds.

`evaluate.evaluate` measures a run (a `subject.Subject`) with instruments: `instrument.Instrument` is their protocol,
each is one file, and `document` lists them (`INSTRUMENTS`) and reads and writes evaluation.json. `scores` counts
accuracy, in training as well. `statistics` has means, intervals and paired differences for everything that compares
arms. Modules of instruments import no torch; what needs it is in `hessian`, `corrupted_images`, `scores` and `subject`.
"""

import lazy_loader

from spacedkd.runtime.errors import with_way_out

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)
