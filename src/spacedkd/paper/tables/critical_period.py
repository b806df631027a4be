"""Spacing helps more in the later stage of training than in the early one.

ResNet-18 on CIFAR-100, spaced by 1.5 epochs from epoch 0, 10, ... 70 of 80 on, for 10 epochs or to the end, and online
KD before and after. Shorter runs have the same parts of their length.

Cost of all seeds: 1 min at smoke, 20 h at cpu, 41 h at paper.

    spacedkd reproduce critical-period --scale cpu
"""

from collections.abc import Iterator
from functools import partial

from spacedkd.paper.scales import Scale
from spacedkd.paper.table import Axis, Cell, Table, online, spaced, spaced_from

END = 80
STARTS = range(0, END, 10)
LENGTH = 10
LATER = 40
"""epochs between an early start and the late one that is compared with it"""
WINDOWS = {"for 10 epochs": LENGTH, "to the end": None}


def cells(scale: Scale) -> Iterator[Cell]:
    for row, length in WINDOWS.items():
        yield Cell(row, "online", scale.run("resnet18", arm=online))
        for start in STARTS:
            ends = length is not None and start + length < END
            arm = partial(spaced_from, start=scale.part(start), length=scale.part(LENGTH) if ends else None)
            whole = start == 0 and not ends
            spec, early = scale.run("resnet18", arm=spaced if whole else arm), start - LATER
            yield Cell(row, str(start), spec, against=(row, str(early) if early >= 0 else "online"), judged=early >= 0)


TABLE = Table(
    "Critical period of spaced KD",
    "Fig. time a, b",
    6,
    cells,
    axis=Axis("spaced from this epoch of 80 on", {str(start): start for start in STARTS}),
    notes=(
        "The paper shows a figure without numbers, so no cell has one of its own, and its text names neither network, "
        "data nor starts: these are chosen.",
        "The paper does not say what happens before and after: here it is online KD.",
        "At the scale cpu the window from 70 on is the last 7.5 epochs, and the mean is over the last ten: its first "
        "two evaluations are before that window, and within the one from 60 on.",
        "Spaced from 0 to the end is spaced KD itself, and from 70 for 10 epochs is to the end.",
        "Starts of the second half are measured against those 40 epochs before them, which is what the claim is about; "
        "those of the first half against online KD.",
    ),
)
