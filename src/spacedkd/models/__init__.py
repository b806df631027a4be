"""What learns: networks by name or of one's own, and the heads that read them.

Importing it makes our small-image ResNets known to timm.
"""

# ruff: noqa: E402
from spacedkd.runtime.torchvision_compat import declare_missing

declare_missing()  # before anything here imports timm, which imports torchvision

from spacedkd.models import small_resnet as small_resnet
