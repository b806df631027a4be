"""What it saves to take the strides of depthwise convolutions afterwards, as ratios measured side by side in one run.

    python -m benchmarks.stride_speed

A step of networks in bfloat16 on a CPU, with one thread, with the strides as they are and as training has them
(`training/device.py`): the early exits of self KD, and a network that is made of such convolutions.
"""

from __future__ import annotations

from copy import deepcopy

import spacedkd.models  # noqa: F401, before timm: makes torchvision importable next to a CPU build of torch

# isort: split
import timm
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import fastest
from spacedkd.models.early_exits import EarlyExits
from spacedkd.training.device import patch_strided_convolutions

BATCH, CLASSES = 128, 25


def step(model: nn.Module, side: int) -> None:
    images = torch.zeros(BATCH, 3, side, side).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        answers = model(images)
    logits = [found.logits for found in answers] if isinstance(answers, tuple) else [answers]
    labels = torch.arange(BATCH) % CLASSES
    torch.stack([F.cross_entropy(found.float(), labels) for found in logits]).sum().backward()


def compare(name: str, model: nn.Module, side: int) -> None:
    plain = model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    patched = deepcopy(plain)
    patch_strided_convolutions(patched, torch.device("cpu"), "bf16-mixed")
    before, after = fastest(lambda: step(plain, side), lambda: step(patched, side), repeats=10)
    times = f"{1000 * before:.0f} ms with strides as they are, {1000 * after:.0f} ms with strides afterwards"
    print(f"{name}, {side} px: {times}, {before / after:.2f} times as fast")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for width, side in ((16, 16), (16, 32), (64, 32)):
        network = timm.create_model("resnet18_small", width=width, num_classes=CLASSES)
        compare(f"ResNet-18 {width} wide with early exits", EarlyExits(network, torch.zeros(1, 3, side, side)), side)
    compare("MobileNetV3-Small", timm.create_model("mobilenetv3_small_100", num_classes=CLASSES), 64)


if __name__ == "__main__":
    main()
