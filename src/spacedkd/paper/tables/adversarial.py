"""Spaced students resist an adversarial attack (BIM) better.

The students of online and spaced KD on CIFAR-100, attacked in ten steps.

Cost of all seeds: 1 min at smoke, 20 h at cpu, 41 h at paper.

    spacedkd reproduce adversarial --scale cpu
"""

from collections.abc import Iterator

from spacedkd.paper.scales import TITLES, Scale
from spacedkd.paper.table import Cell, Instruments, Table, online, spaced

NUMBERS = {"resnet18": (31.33, 31.44), "resnet50": (31.32, 31.70), "resnet101": (31.70, 33.69)}
EPSILONS = (1.0, 2.0)


def cells(scale: Scale) -> Iterator[Cell]:
    for epsilon in EPSILONS:
        for network, numbers in NUMBERS.items():
            row = f"{TITLES[network]}, epsilon {epsilon:g}/255"
            unspaced, ours = numbers if epsilon == EPSILONS[0] else (None, None)
            metric = f"adversarial/bim/{epsilon:g}"
            yield Cell(row, "w/o", scale.run(network, arm=online), unspaced, metric=metric)
            yield Cell(
                row, "w/ 1.5", scale.run(network, arm=spaced), ours, (row, "w/o"), metric, judged=ours is not None
            )


TABLE = Table(
    "Accuracy under an adversarial attack",
    "Tab. adversarial",
    13,
    cells,
    instruments=Instruments(epsilons=EPSILONS),
    also=(),
    notes=("The paper says neither how far its attack goes nor in how many steps; its numbers stand beside 1/255.",),
)
