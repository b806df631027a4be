"""Training a run: from a resolved config to a folder with its student, journal, checkpoint and result.

`train.train` is the public function. Inside it, `loop` is the training loop, `roles` are who learns or is replayed,
`callbacks` write and report, `session` opens a run's folder and puts these together. `state` has the models on their
devices, `learner` one model with its optimizer and its update. Other packages and users use `train.train`,
`forecast.forecast`, `loggers.RunLogger`, `loop.Event` and `trained_models.load_run`.
"""

import lazy_loader

from spacedkd.runtime.errors import with_way_out

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)
