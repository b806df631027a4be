"""Spacing adds no training cost: as many updates and passes as without it.

ResNet-18 on CIFAR-100: the updates, and the passes of batches forward and backward through teacher and student, of
online and self KD, unspaced and spaced, as they were counted while the runs trained. The paper's Algorithm 4 takes two
updates for each batch where self KD takes one, so the accuracy of spaced self KD also stands beside that of self KD for
twice the epochs, at equal cost.

Cost of all seeds: 1 min at smoke, 5 h at cpu, 11 h at paper.

    spacedkd reproduce cost --scale cpu
"""

from collections.abc import Iterator

from spacedkd.paper.scales import Scale
from spacedkd.paper.table import Cell, Table, online, spaced
from spacedkd.paper.tables.self_ import self_kd, spaced_self_kd, twice_as_long

UNSPACED, SPACED = "w/o ours", "w/ ours"
COUNTS = {
    "updates": "cost/updates",
    "forward passes": "cost/forward_passes",
    "backward passes": "cost/backward_passes",
}
NETWORK, DATA = "resnet18", "cifar100"


def cells(scale: Scale) -> Iterator[Cell]:
    runs = {
        "online KD": (scale.run(NETWORK, DATA, online), scale.run(NETWORK, DATA, spaced)),
        "self KD": (scale.self_run(NETWORK, DATA, self_kd), scale.self_run(NETWORK, DATA, spaced_self_kd)),
    }
    for label, (without, within) in runs.items():
        for count, metric in COUNTS.items():
            row = f"{label}, {count}"
            yield Cell(row, UNSPACED, without, metric=metric)
            yield Cell(row, SPACED, within, None, (row, UNSPACED), metric)
    row = "self KD, accuracy at equal cost"
    longer = scale.self_run(NETWORK, DATA, twice_as_long)
    yield Cell(row, UNSPACED, longer, note="for twice the epochs")
    yield Cell(row, SPACED, runs["self KD"][1], None, (row, UNSPACED), claims="gain")


TABLE = Table(
    "Training cost",
    "sec. intro: without additional training costs",
    16,
    cells,
    claims="no cost",
    also=(),
    notes=(
        "Counts are of the whole run, also where a student followed a teacher that another run had trained. They do "
        "not depend on the network or the data; seconds are not compared, because runs do not have a machine to "
        "themselves.",
        "Online KD here looks at the teacher after its update, as Algorithm 1 has it, which takes a forward pass of "
        "its own. The released code takes the answers from before the update (--recipe official), which saves that "
        "pass.",
        "Spaced self KD is Algorithm 4: it trains the deepest classifier again in every replay.",
        "Memory is no part of this: the released code keeps the batches of an interval for the replay.",
    ),
)
