"""What a run sees: where images come from, and which batch belongs to which step."""

from spacedkd.runtime.torchvision_compat import declare_missing

declare_missing()  # before anything here imports torchvision
