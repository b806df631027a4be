"""How a run is trained, saved and continued."""

from spacedkd.runtime.torchvision_compat import declare_missing

declare_missing()  # before anything here imports timm, which imports torchvision
