"""Spacing the teacher by 1.5 epochs makes online KD better, on every network and data set.

Fourteen pairs of networks and data sets, three arms each; the runs of CIFAR-100 and Tiny-ImageNet are shared with
`interval`.

Cost of all seeds: 8 min at smoke, 80 h at cpu, 3543 h at paper.

    spacedkd reproduce online --scale cpu
"""

from collections.abc import Iterator

from spacedkd.paper.scales import Scale, title
from spacedkd.paper.table import Cell, Table, no_kd, online, spaced

ARMS = {"w/o KD": no_kd, "online": online, "spaced 1.5": spaced}
NUMBERS = {
    ("resnet18", "cifar100"): (68.12, 71.05, 72.43),
    ("resnet50", "cifar100"): (69.62, 71.85, 73.77),
    ("resnet101", "cifar100"): (70.04, 72.03, 73.22),
    ("deit_tiny", "cifar100"): (64.77, 65.67, 67.30),
    ("pit_tiny", "cifar100"): (73.45, 74.14, 75.55),
    ("resnet18", "tiny-imagenet"): (53.08, 59.19, 60.75),
    ("resnet50", "tiny-imagenet"): (56.41, 60.99, 63.30),
    ("resnet101", "tiny-imagenet"): (56.99, 61.29, 63.76),
    ("deit_tiny", "tiny-imagenet"): (50.23, 51.82, 54.20),
    ("pit_tiny", "tiny-imagenet"): (57.89, 58.25, 60.25),
    ("resnet18", "imagenet-100"): (77.82, 78.73, 80.39),
    ("resnet50", "imagenet-100"): (77.95, 79.78, 82.43),
    ("deit_tiny", "imagenet-100"): (70.52, 70.72, 73.34),
    ("pit_tiny", "imagenet-100"): (76.10, 76.60, 78.34),
}
OTHER_INTERVALS = {
    ("resnet101", "cifar100"): "73.22 is the number of s = 1.0 and 2.0; the appendix has 72.91 for s = 1.5",
    ("pit_tiny", "cifar100"): "75.55 is the number of s = 0.5; the appendix has 75.27 for s = 1.5",
    ("deit_tiny", "tiny-imagenet"): "54.20 is the number of s = 0.5; the appendix has 52.92 for s = 1.5",
}
AGAINST = {"online": "w/o KD", "spaced 1.5": "online"}


def cells(scale: Scale) -> Iterator[Cell]:
    for (network, data), numbers in NUMBERS.items():
        row = title(network, data)
        for (column, arm), number in zip(ARMS.items(), numbers, strict=True):
            note = OTHER_INTERVALS.get((network, data), "") if column == "spaced 1.5" else ""
            against = (row, AGAINST[column]) if column in AGAINST else None
            judged = column == "spaced 1.5"  # which is what the claim is about
            yield Cell(row, column, scale.run(network, data, arm), number, against, note=note, judged=judged)


TABLE = Table(
    "Overall performance of online KD",
    "Tab. main_results",
    1,
    cells,
    notes=("The paper does not say which classes ImageNet-100 has, and the released code has no such data.",),
)
