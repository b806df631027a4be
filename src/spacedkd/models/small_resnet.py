"""ResNets for small images: timm's ResNet with a 3x3 stride-1 stem and no pooling, at any width.

Importing this module makes them known to timm, so that a saved student opens like any other timm network.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet, make_blocks
from torch import nn

from spacedkd.errors import UserError


class SmallResNet(ResNet):
    """Four stages with 1, 1/2, 1/4 and 1/8 of the image size and 1, 2, 4 and 8 times `width` channels."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        layers: tuple[int, ...],
        width: int = 64,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        zero_init_last: bool = False,
    ) -> None:
        if width < 1:
            raise UserError(f"A network's width must be at least 1 channel, got {width}.")
        channels = tuple(width * 2**stage for stage in range(4))
        super().__init__(
            block, layers, num_classes, in_chans, global_pool=global_pool, channels=channels, drop_rate=drop_rate
        )
        self.conv1 = nn.Conv2d(in_chans, width, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity()
        # timm fixes the stem at 64 channels, so the stages are built once more behind the one above.
        stages, stage_info = make_blocks((block,) * 4, channels, layers, width, drop_path_rate=drop_path_rate)
        for name, stage in stages:
            self.add_module(name, stage)
        self.feature_info = [{"num_chs": width, "reduction": 1, "module": "act1"}]
        self.feature_info += [{**info, "reduction": 2**stage} for stage, info in enumerate(stage_info)]
        self.init_weights(zero_init_last=zero_init_last)


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
default_cfgs = generate_default_cfgs({f"resnet{depth}_small": _CFG for depth in (18, 34, 50, 101)})
NAMES = tuple(default_cfgs)


def _build(variant: str, pretrained: bool, **options: Any) -> SmallResNet:
    network: SmallResNet = build_model_with_cfg(SmallResNet, variant, pretrained, **options)
    return network


@register_model
def resnet18_small(pretrained: bool = False, **options: Any) -> SmallResNet:
    """11 220 132 parameters at 100 classes and width 64."""
    return _build("resnet18_small", pretrained, block=BasicBlock, layers=(2, 2, 2, 2), **options)


@register_model
def resnet34_small(pretrained: bool = False, **options: Any) -> SmallResNet:
    return _build("resnet34_small", pretrained, block=BasicBlock, layers=(3, 4, 6, 3), **options)


@register_model
def resnet50_small(pretrained: bool = False, **options: Any) -> SmallResNet:
    """23 705 252 parameters at 100 classes and width 64."""
    return _build("resnet50_small", pretrained, block=Bottleneck, layers=(3, 4, 6, 3), **options)


@register_model
def resnet101_small(pretrained: bool = False, **options: Any) -> SmallResNet:
    """42 697 380 parameters at 100 classes and width 64."""
    return _build("resnet101_small", pretrained, block=Bottleneck, layers=(3, 4, 23, 3), **options)
