"""Distillation methods, one file each: what every role learns from.

`METHODS` has them by name, `build_method` makes one from a spec, `describe` writes one into a spec. `base.Method` is
the protocol they follow, `losses` has their losses as functions. A method, and torch, is imported when first used.
"""

import lazy_loader

from spacedkd.runtime.errors import with_way_out

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)
