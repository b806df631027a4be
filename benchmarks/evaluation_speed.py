"""How fast robustness is measured, as ratios measured side by side in one run.

    python -m benchmarks.evaluation_speed [IMAGES]

1. all nineteen corruptions at three severities for 10 000 32x32 images: the first time, and what they add to the
   evaluation of a second network;
2. BIM with ten steps against ten bare forward and backward passes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import spacedkd.models  # noqa: F401, before timm: makes torchvision importable next to a CPU build of torch

# isort: split
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import fastest
from spacedkd.data import Batch, Images
from spacedkd.data.stream import evaluation_batches
from spacedkd.evaluation.adversarial import attack, perturb
from spacedkd.evaluation.corrupted_images import CorruptedImages
from spacedkd.evaluation.corruptions import CORRUPTIONS as NAMES
from spacedkd.evaluation.corruptions import SEVERITIES, measure_corruptions
from spacedkd.evaluation.scores import correct
from spacedkd.models import Classifier

BATCH = 128


def pictures(count: int) -> Images:
    """Coloured noise that is smooth over a few pixels, as photographs are."""
    generator = torch.Generator().manual_seed(0)
    rough = torch.rand(count, 3, 8, 8, generator=generator)
    pixels = (255 * F.interpolate(rough, 32, mode="bilinear")).to(torch.uint8)
    return Images(pixels, torch.arange(count) % 100, tuple(map(str, range(100))), (0.5,) * 3, (0.25,) * 3)


def network() -> nn.Module:
    model = timm.create_model("resnet18_small", width=16, num_classes=100)
    return Classifier(model).to(memory_format=torch.channels_last).eval().requires_grad_(False)  # type: ignore[call-overload, no-any-return]


def corrupted_images(count: int) -> None:
    images, model = pictures(count), network()
    names, severities = NAMES, SEVERITIES
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        kept = CorruptedImages(images, Path(folder))
        kept.make(names, severities)
        first = time.perf_counter() - start
        print(f"{len(names)} corruptions x {len(severities)} severities of {count} images, first time: {first:.0f} s")

        def batches(name: str, severity: int) -> Iterator[Batch]:
            return (one.to(torch.device("cpu"), True) for one in kept.batches(name, severity, BATCH))

        def shown() -> Iterator[Batch]:
            return (one.to(torch.device("cpu"), True) for one in evaluation_batches(images, BATCH))

        def again() -> None:
            store = CorruptedImages(images, Path(folder))
            store.make(names[:2], severities[:1])
            measure_corruptions(
                model, ["final"], shown(), batches, names=names[:2], severities=severities[:1], images=count
            )

        def clean() -> None:
            for _ in range(3):
                correct(model, ["final"], shown())

        cached, in_memory = fastest(again, clean, repeats=2)
        print(f"a second network takes {cached / in_memory:.2f} times as long as on as many clean images in memory")


def attacks() -> None:
    images, model = pictures(BATCH), network()
    pixels = images.resized(torch.arange(BATCH)).to(memory_format=torch.channels_last)
    ten = attack("bim", 8)

    def ours() -> None:
        perturb(model, images.normalise, pixels, images.labels, ten)

    def bare() -> None:
        for _ in range(ten.steps):
            shown: Tensor = images.normalise(pixels).requires_grad_()
            loss = F.cross_entropy(model(shown)[0].logits, images.labels)
            torch.autograd.grad(loss, shown)

    passes, attacked = fastest(bare, ours, repeats=8)
    print(f"BIM with ten steps runs at {passes / attacked:.2f} of the speed of ten bare forward and backward passes")


if __name__ == "__main__":
    attacks()
    corrupted_images(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
