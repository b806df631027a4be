"""Networks: built by name, by timm or by a user's function, and wrapped with the heads that methods need.

`factory.build_network` makes a network from a spec, `classifier.Classifier` gives it the form that methods call,
`early_exits`, `branches` and `feature_hooks` add heads inside it, `pretrained` loads weights, and `student_io` saves
and opens trained students. Importing the package registers our own networks with timm: `small_networks`, ResNets for
small images and networks for signals.
"""

# ruff: noqa: E402
from spacedkd.runtime.torchvision_compat import declare_missing

declare_missing()  # before anything here imports timm, which imports torchvision

from spacedkd.models import small_networks as small_networks
