"""Comparison of arms: many runs trained at once, over seeds, and their results side by side.

`compare.compare` is the public function, `compare.forecast_comparison` says beforehand what it takes. `scheduler` plans
jobs and trains them in a pool of processes (`pool`) or of a Ray cluster (`ray_pool`); `teacher_sharing` lets arms with
equal teachers train one. `results` computes a comparison from finished runs, `document` is comparison.json.
"""

import lazy_loader

from spacedkd.runtime.errors import with_way_out

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)
