"""ResNets for small images: timm's ResNet with a 3x3 stride-1 stem and no pooling, at any width.

Importing this module makes them known to timm, so that a saved student opens like any other timm network.

A wider ResNet-18 can mean two things, and both have names. `resnet18x2` has twice the *parameters*: the paper
code's reading, which scales the channels by the square root of the factor. `resnet18_small_w128` has twice the
*channels*, so four times the parameters.
"""

from typing import Any, Literal, get_args

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet, make_blocks
from torch import nn

from spacedkd.runtime.errors import UserError, unknown

Init = Literal["kaiming", "torch"]
"""how the convolutions' first weights are drawn"""


class SmallResNet(ResNet):
    """A ResNet of four stages with 1, 1/2, 1/4 and 1/8 of the image size and 1, 2, 4 and 8 times `width` channels.

    block, layers    the kind of block, and how many each stage has
    width            channels of the stem and of the first stage
    init             draw the convolutions as the paper's self-KD networks do ("kaiming", normal with fan_out) or as its
                     online ones do ("torch", PyTorch's default)

    The other arguments are those of timm's ResNet.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        layers: tuple[int, ...],
        width: float = 64,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        zero_init_last: bool = False,
        init: Init = "kaiming",
    ) -> None:
        if width < 1:
            raise UserError(f"A network's width must be at least 1 channel, got {width}.")
        if init not in get_args(Init):
            raise unknown("init", str(init), get_args(Init))
        channels = tuple(int(width * 2**stage) for stage in range(4))
        super().__init__(
            block, layers, num_classes, in_chans, global_pool=global_pool, channels=channels, drop_rate=drop_rate
        )
        self.conv1 = nn.Conv2d(in_chans, channels[0], kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.maxpool = nn.Identity()
        # timm fixes the stem at 64 channels, so the stages are built once more behind the one above.
        stages, stage_info = make_blocks((block,) * 4, channels, layers, channels[0], drop_path_rate=drop_path_rate)
        for name, stage in stages:
            self.add_module(name, stage)
        self.feature_info = [{"num_chs": channels[0], "reduction": 1, "module": "act1"}]
        self.feature_info += [{**info, "reduction": 2**stage} for stage, info in enumerate(stage_info)]
        if init == "kaiming":
            self.init_weights(zero_init_last=zero_init_last)


_R18 = (2, 2, 2, 2)
_VARIANTS: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...], float]] = {
    "resnet18_small": (BasicBlock, _R18, 64),  # 11 220 132 parameters at 100 classes
    "resnet34_small": (BasicBlock, (3, 4, 6, 3), 64),
    "resnet50_small": (Bottleneck, (3, 4, 6, 3), 64),  # 23 705 252
    "resnet101_small": (Bottleneck, (3, 4, 23, 3), 64),  # 42 697 380
    # As the paper's code rounds: int(64 sqrt(2)) = 90, int(128 sqrt(2)) = 181, ... channels.
    "resnet18x2": (BasicBlock, _R18, 64 * 2**0.5),
    "resnet18x4": (BasicBlock, _R18, 64 * 4**0.5),
    "resnet18x8": (BasicBlock, _R18, 64 * 8**0.5),
    "resnet18_small_w128": (BasicBlock, _R18, 128),
    "resnet18_small_w256": (BasicBlock, _R18, 256),
    "resnet18_small_w512": (BasicBlock, _R18, 512),
}
NAMES = tuple(_VARIANTS)
"""the networks of this module, as timm knows them"""

_CFG = {
    "input_size": (3, 32, 32),
    "fixed_input_size": False,
    "pool_size": None,
    "crop_pct": 1.0,
    "interpolation": "bilinear",
    "mean": (0.5071, 0.4865, 0.4409),
    "std": (0.2673, 0.2564, 0.2762),
    "first_conv": "conv1",
    "classifier": "fc",
    "num_classes": 100,
}
default_cfgs = generate_default_cfgs(dict.fromkeys(NAMES, _CFG))


def _register(name: str) -> None:
    """Register a variant with timm under its name."""

    def entry(pretrained: bool = False, **options: Any) -> SmallResNet:
        variant = dict(zip(("block", "layers", "width"), _VARIANTS[name], strict=True))
        network: SmallResNet = build_model_with_cfg(SmallResNet, name, pretrained, **{**variant, **options})
        return network

    entry.__name__ = name
    register_model(entry)


for _name in NAMES:
    _register(_name)
