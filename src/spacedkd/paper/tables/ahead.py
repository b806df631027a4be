"""A teacher that is constantly ahead and keeps moving does not help: it is standing still that does.

ResNet-18 on CIFAR-100 with a teacher 0 to 2.5 epochs ahead; 0 is online KD, and spaced KD stands beside them.

Cost of all seeds: 1 min at smoke, 9 h at cpu, 18 h at paper.

    spacedkd reproduce ahead --scale cpu
"""

from collections.abc import Iterator
from functools import partial

from spacedkd.paper.scales import Scale
from spacedkd.paper.table import Axis, Cell, Table, ahead, compare_with_column, online, spaced

NUMBERS = {0: 71.05, 0.5: 70.67, 1: 70.85, 1.5: 70.69, 2: 71.04, 2.5: 70.78}


def cells(scale: Scale) -> Iterator[Cell]:
    row = "ResNet-18, CIFAR-100"
    arms = {lead: partial(ahead, epochs=lead) if lead else online for lead in NUMBERS}
    row_cells = [Cell(row, str(lead), scale.run("resnet18", arm=arms[lead]), NUMBERS[lead]) for lead in NUMBERS]
    yield from compare_with_column(row_cells, "0")
    yield Cell(row, "spaced 1.5", scale.run("resnet18", arm=spaced), 72.43, (row, "0"), judged=False)


TABLE = Table(
    "A teacher constantly ahead",
    "Tab. time",
    7,
    cells,
    axis=Axis("lead, epochs", {str(lead): lead for lead in NUMBERS}),
    claims="no gain",
    notes=(
        "Spaced KD, whose teacher stands still, is no part of this table of the paper; it shows what a gain would be "
        "here, and its number is that of the main table.",
        "The teacher stops where the run ends, so for as many epochs as its lead the student's last ones have a "
        "teacher that stands still. The paper does not say how its runs end.",
        "The lead of 2.5 epochs of the paper's table has no interval beside it in the other tables.",
    ),
)
