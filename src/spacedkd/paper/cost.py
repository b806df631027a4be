"""An estimate of what a table costs, from the passes of its runs alone; `--plan` measures instead."""

from collections.abc import Iterable

from spacedkd.config.spec import NetworkSpec, RunSpec
from spacedkd.paper.scales import LEARNS, REPLAYS, TEACHES, Scale
from spacedkd.paper.table import Cell

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


SPEED = {"smoke": 2.0, "cpu": 120.0, "paper": 10_000.0}


"""GFLOP a second that are assumed: of two cores, where small batches take most of the time at smoke, and of one large
GPU in float32"""


def passes(spec: RunSpec) -> tuple[float, float]:
    """Forward passes of a step through the student's network and through the teacher's."""
    name = spec.method.name
    if name == "none" or (name in ("self-kd", "dlb", "ps-kd") and spec.schedule is None):
        return LEARNS, 0
    if name == "self-kd":
        return LEARNS + REPLAYS, 0
    between = LEARNS + TEACHES if name in ("ban", "takd") else 0  # a network between teacher and student
    return LEARNS + between, LEARNS + TEACHES


def gflop(spec: RunSpec) -> float:
    """Of a whole run."""
    classes = CLASSES.get(spec.data.source, 10)
    images = IMAGES.get(spec.data.source, 899) * (spec.data.class_limit or classes) / classes
    of_student, of_teacher = passes(spec)
    one = of_student * _forward(spec.network, spec) + of_teacher * _forward(spec.teacher or spec.network, spec)
    return one * spec.epochs * (spec.data.train_limit or images)


def _forward(network: NetworkSpec, spec: RunSpec) -> float:
    """GFLOP of one image."""
    side = spec.data.image_size or SIDES.get(spec.data.source, 8)
    if network.name.startswith("resnet"):
        width = float(network.options.get("width", 64))
        return GFLOP[network.name] * (width / 64) ** 2 * (side / 32) ** 2
    return SMALL_GFLOP[network.name] * (side / 16) ** 2 if "img_size" in network.options else GFLOP[network.name]


def hours(cells: Iterable[Cell], scale: Scale) -> float:
    """Of all runs of a table, every one trained alone once."""
    different = {cell.spec.fingerprint(): cell.spec for cell in cells}
    return scale.seeds * sum(map(gflop, different.values())) / SPEED[scale.name] / 3600
