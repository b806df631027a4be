"""Networks: built by name, by timm or by a user's function, and wrapped with the heads that methods need.

`factory.build_network` makes a network from a spec, `classifier.Classifier` gives it the form that methods call,
`early_exits`, `branches` and `feature_hooks` add heads inside it, `pretrained` loads weights, and `student_io` saves
and opens trained students. Importing the package registers our own networks with timm: `small_networks`, ResNets for
small images and networks for signals.
"""

from importlib.util import find_spec

import lazy_loader

from spacedkd.runtime.errors import with_way_out

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)

if find_spec("timm") is not None:  # a slim install has none
    from spacedkd.models import small_networks as small_networks
