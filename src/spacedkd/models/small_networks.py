"""Networks of this package: ResNets for small images, and small networks for signals [B, C, 1, L].

Importing this module makes them known to timm, so that a saved student opens like any other timm network.

    resnet18_small, ...    timm's ResNets with a 3x3 stride-1 stem and no pooling, at any width
    mlp_1d                 two hidden layers, then the classifier; it flattens its input, so it takes small images too
    cnn_1d                 convolutions of 5, 3 and 3 points, each halving the length, with 1, 2 and 4 times `width`
                           channels; their mean over all points goes to the classifier

A wider ResNet-18 can mean two things, and both have names. `resnet18x2` has twice the *parameters*: the paper
code's reading, which scales the channels by the square root of the factor. `resnet18_small_w128` has twice the
*channels*, so four times the parameters.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet, make_blocks
from torch import Tensor, nn

from spacedkd.runtime.errors import UserError, unknown

# ResNets for small images

Init = Literal["kaiming", "torch"]
"""how the convolutions' first weights are drawn"""


class SmallResNet(ResNet):  # type: ignore[misc]  # timm is untyped
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


# Networks for signals

_KERNELS = (5, 3, 3)


class _SignalNetwork(nn.Module):
    """Blocks, one after the other, and a classifier on the features behind the last one; the methods are timm's."""

    def __init__(self, blocks: Sequence[nn.Module], widths: Sequence[int], num_classes: int, drop_rate: float) -> None:
        super().__init__()
        self.num_classes, self.num_features = num_classes, widths[-1]
        self.blocks = nn.Sequential(*blocks)
        self.drop = nn.Dropout(drop_rate)
        self.fc: nn.Module = nn.Linear(widths[-1], num_classes) if num_classes else nn.Identity()
        self.feature_info = [
            {"num_chs": width, "reduction": 1, "module": f"blocks.{number}"} for number, width in enumerate(widths)
        ]

    def get_classifier(self) -> nn.Module:
        """Return the layer that gives the logits."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Give the network a new classifier; for 0 classes none, so that it returns its features."""
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward_features(self, inputs: Tensor) -> Tensor:
        """Return the features behind the last block."""
        features: Tensor = self.blocks(inputs)
        return features

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of features, or what the classifier is given."""
        pooled: Tensor = self.drop(features.mean((2, 3)) if features.ndim == 4 else features)
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [B, classes]."""
        return self.forward_head(self.forward_features(inputs))


class SignalMLP(_SignalNetwork):
    """A multilayer perceptron of `depth` hidden layers of `width` units.

    norm         BatchNorm behind every hidden layer
    drop_rate    dropout before the classifier
    """

    def __init__(
        self,
        width: int = 100,
        depth: int = 2,
        norm: bool = False,
        *,
        in_chans: int = 1,
        num_classes: int = 10,
        img_size: int | Sequence[int] = (1, 40),
        drop_rate: float = 0.0,
    ) -> None:
        _check_sizes(width=width, depth=depth)
        height, length = (img_size, img_size) if isinstance(img_size, int) else img_size
        sizes = [in_chans * height * length, *[width] * depth]
        blocks = []
        for number, (inputs, units) in enumerate(pairwise(sizes)):
            flat = [] if number else [nn.Flatten()]
            normed = [nn.BatchNorm1d(units)] if norm else []
            blocks.append(nn.Sequential(*flat, nn.Linear(inputs, units, bias=not norm), *normed, nn.ReLU()))
        super().__init__(blocks, sizes[1:], num_classes, drop_rate)


class SignalCNN(_SignalNetwork):
    """A convolutional network of three stages with `width`, 2 and 4 times `width` channels.

    norm         BatchNorm behind every convolution
    drop_rate    dropout before the classifier
    """

    def __init__(
        self,
        width: int = 16,
        norm: bool = True,
        *,
        in_chans: int = 1,
        num_classes: int = 10,
        drop_rate: float = 0.0,
    ) -> None:
        _check_sizes(width=width)
        channels = [in_chans, *(width * 2**stage for stage in range(len(_KERNELS)))]
        blocks = []
        for inputs, outputs, points in zip(channels, channels[1:], _KERNELS, strict=False):
            # A signal is an image one pixel high, so that everything made for images takes it.
            conv = nn.Conv2d(inputs, outputs, (1, points), stride=(1, 2), padding=(0, points // 2), bias=not norm)
            blocks.append(nn.Sequential(conv, *([nn.BatchNorm2d(outputs)] if norm else []), nn.ReLU()))
        super().__init__(blocks, channels[1:], num_classes, drop_rate)
        for stage, info in enumerate(self.feature_info):
            info["reduction"] = 2 ** (stage + 1)

    def forward_features(self, inputs: Tensor) -> Tensor:
        """Return the maps [B, C, 1, L] behind the last stage; refuse images, which have more than one row."""
        if inputs.shape[2] != 1:
            rows, points = inputs.shape[2:]
            raise UserError(
                f"Network cnn_1d takes signals, one row of points, and the data has {rows}x{points} images: use "
                "--network resnet18_small, or --data mnist1d."
            )
        return super().forward_features(inputs)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"A network's {name} must be at least 1, got {size}.")


# The registration with timm

_CLASSES: dict[str, Callable[..., nn.Module]] = {
    **dict.fromkeys(_VARIANTS, SmallResNet),
    "mlp_1d": SignalMLP,
    "cnn_1d": SignalCNN,
}
OUR_NAMES = tuple(_CLASSES)
"""the networks of this module, as timm knows them"""

_CFG = {"fixed_input_size": False, "pool_size": None, "crop_pct": 1.0, "interpolation": "bilinear", "classifier": "fc"}
_RESNET_CFG = {
    **_CFG,
    "input_size": (3, 32, 32),
    "mean": (0.5071, 0.4865, 0.4409),
    "std": (0.2673, 0.2564, 0.2762),
    "first_conv": "conv1",
    "num_classes": 100,
}
_SIGNAL_CFG = {
    **_CFG,
    "input_size": (1, 1, 40),
    "mean": (0.0,),
    "std": (1.0,),
    "first_conv": None,
    "num_classes": 10,
}
default_cfgs = generate_default_cfgs(
    {
        **dict.fromkeys(_VARIANTS, _RESNET_CFG),
        "mlp_1d": {**_SIGNAL_CFG, "fixed_input_size": True},
        "cnn_1d": _SIGNAL_CFG,
    }
)


def _register(name: str) -> None:
    """Register a network with timm under its name."""
    variant = dict(zip(("block", "layers", "width"), _VARIANTS[name], strict=True)) if name in _VARIANTS else {}

    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        network: nn.Module = build_model_with_cfg(_CLASSES[name], name, pretrained, **{**variant, **options})
        return network

    entry.__name__ = name
    register_model(entry)


for _name in OUR_NAMES:
    _register(_name)
