"""Spaced students lie in wider minima: with noise on their weights they have a lower training loss and more accuracy.

The students of online and spaced KD on CIFAR-100, with Gaussian noise on their weights, on training images.

Cost of all seeds: 1 min at smoke, 20 h at cpu, 41 h at paper.

    spacedkd reproduce noise --scale cpu
"""

from collections.abc import Iterator
from itertools import product

from spacedkd.experiments.reproduction.arms import online, spaced
from spacedkd.experiments.reproduction.scales import TITLES, Scale
from spacedkd.experiments.reproduction.table import Axis, Cell, Instruments, Table

LEVELS = (0.05, 0.1, 0.2, 0.3, 0.5)
NETWORKS = ("resnet18", "resnet50", "resnet101")
ARMS = {"w/o": online, "w/ 1.5": spaced}


def cells(scale: Scale) -> Iterator[Cell]:
    for network, what in product(NETWORKS, ("accuracy", "loss")):
        for arm, make in ARMS.items():
            spec = scale.run(network, arm=make)
            for level in (0, *LEVELS):
                against = (f"{TITLES[network]}, {what}, w/o", str(level)) if arm == "w/ 1.5" else None
                metric = f"weight_noise/{f'relative/{level:.12g}' if level else 'clean'}/{what}"
                row = f"{TITLES[network]}, {what}, {arm}"
                yield Cell(row, str(level), spec, against=against, metric=metric, judged=level > 0)


TABLE = Table(
    "Loss and accuracy under weight noise",
    "Fig. noise",
    11,
    cells,
    axis=Axis("deviation of the noise, part of a tensor's root mean square", {str(x): x for x in (0, *LEVELS)}),
    instruments=Instruments(noise=LEVELS),
    also=(),
    notes=(
        "The paper shows a figure without numbers and does not say how its noise is scaled; here it is a part of each "
        "tensor's root mean square, on at most 2000 training images that are not varied.",
        "What is judged is how good students are at a level of noise, not how much they lose by it: the paper says "
        "both, and the column 0 has where they began.",
        "Of losses, in nats, the lower one is better. evaluation.json of every run has absolute noise as well.",
    ),
)
