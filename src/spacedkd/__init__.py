from spacedkd.torchvision_operators import declare_missing as _d

_d()
