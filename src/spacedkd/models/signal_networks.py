"""Small networks for signals [B, C, 1, L], such as those of MNIST-1D: seconds a run on one core.

    mlp_1d    two hidden layers, then the classifier; it flattens its input, so it takes small images as well
    cnn_1d    convolutions of 5, 3 and 3 points, each halving the length, with 1, 2 and 4 times `width` channels; their
              mean over all points goes to the classifier

Importing this module makes them known to timm, so that a saved student opens like any other timm network.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from spacedkd.runtime.errors import UserError

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


_CLASSES: dict[str, Callable[..., nn.Module]] = {"mlp_1d": SignalMLP, "cnn_1d": SignalCNN}
NAMES = tuple(_CLASSES)
"""the networks of this module, as timm knows them"""

_CFG = {
    "input_size": (1, 1, 40),
    "pool_size": None,
    "crop_pct": 1.0,
    "interpolation": "bilinear",
    "mean": (0.0,),
    "std": (1.0,),
    "first_conv": None,
    "classifier": "fc",
    "num_classes": 10,
}
default_cfgs = generate_default_cfgs(
    {name: {**_CFG, "fixed_input_size": made is SignalMLP} for name, made in _CLASSES.items()}
)


def _register(name: str) -> None:
    """Register a network with timm under its name."""

    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        network: nn.Module = build_model_with_cfg(_CLASSES[name], name, pretrained, **options)
        return network

    entry.__name__ = name
    register_model(entry)


for _name in NAMES:
    _register(_name)
