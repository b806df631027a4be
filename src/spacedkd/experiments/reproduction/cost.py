"""What a table costs, from the passes of its runs alone; `--plan` measures instead."""

from collections.abc import Iterable

from spacedkd.experiments.reproduction.scales import Scale
from spacedkd.experiments.reproduction.table import Cell
from spacedkd.spec import RunSpec

GFLOP = {
    "resnet18_small": 1.11,
    "resnet50_small": 2.60,
    "resnet101_small": 5.02,
    "resnet18x2": 2.2,
    "resnet18x4": 4.44,
    "resnet18x8": 8.87,
    "deit_tiny_patch16_224": 2.5,
    "pit_ti_224": 1.4,
}
"""of one image forward: ResNets at 32x32 pixels and 64 channels, transformers at 224x224"""
SMALL_GFLOP = {"deit_tiny_patch16_224": 0.021, "pit_ti_224": 0.02}
"""of the small forms at 16x16 pixels"""
IMAGES = {"cifar100": 50_000, "tiny-imagenet": 100_000, "imagenet-100": 128_000, "imagenet-1k": 1_281_167}
CLASSES = {"cifar100": 100, "tiny-imagenet": 200, "imagenet-100": 100, "imagenet-1k": 1000}
SIDES = {"cifar100": 32, "tiny-imagenet": 64, "imagenet-100": 224, "imagenet-1k": 224}
SPEED = {"smoke": 2.0, "cpu": 120.0, "paper": 30_000.0}
"""GFLOP a second that are assumed: of two cores, where small batches take most of the time at smoke, and of one large
GPU in bfloat16"""

ALONE, TWO, REPLAYED = 3, 7, 6.5
"""forward passes a step: one network that learns; teacher and student; one network that learns and replays"""


def passes(spec: RunSpec) -> float:
    """Forward passes of a step, a backward pass counted as two."""
    if spec.method.name == "none" or (spec.schedule is None and spec.method.name == "self-kd"):
        return ALONE
    if spec.method.name == "self-kd":
        return REPLAYED
    return TWO + (4 if spec.method.name in ("ban", "takd") else 0)


def gflop(spec: RunSpec) -> float:
    """Of a whole run."""
    side = spec.data.image_size or SIDES.get(spec.data.source, 8)
    one = GFLOP[spec.network.name]
    if spec.network.name.startswith("resnet"):
        one *= (float(spec.network.options.get("width", 64)) / 64) ** 2 * (side / 32) ** 2
    elif "img_size" in spec.network.options:
        one = SMALL_GFLOP[spec.network.name] * (side / 16) ** 2
    classes = CLASSES.get(spec.data.source, 10)
    images = IMAGES.get(spec.data.source, 899) * (spec.data.class_limit or classes) / classes
    return one * passes(spec) * spec.epochs * (spec.data.train_limit or images)


def hours(cells: Iterable[Cell], scale: Scale) -> float:
    """Of all runs of a table, every one trained alone once."""
    different = {cell.spec.fingerprint(): cell.spec for cell in cells}
    return scale.seeds * sum(map(gflop, different.values())) / SPEED[scale.name] / 3600
