"""Spaced students lie in wider minima: with noise on their weights the training loss rises less, and accuracy is kept.

The students of online and spaced KD on CIFAR-100, and the network trained alone, which the paper calls independent,
with Gaussian noise on their weights, on training images. The paper does not say how its noise is scaled, so both kinds
are measured and judged: absolute noise has one deviation for all weights, relative noise a part of each tensor's root
mean square.

Cost of all seeds: 1 min at smoke, 24 h at cpu, 49 h at paper.

    spacedkd reproduce noise --scale cpu
"""

from collections.abc import Iterator
from itertools import product

from spacedkd.evaluation.weight_noise import ABSOLUTE_LEVELS, RELATIVE_LEVELS
from spacedkd.paper.scales import TITLES, Arm, Scale
from spacedkd.paper.table import Axis, Cell, Instruments, Key, Table, no_kd, online, spaced

LEVELS = {"absolute": ABSOLUTE_LEVELS, "relative": RELATIVE_LEVELS}
NETWORKS = ("resnet18", "resnet50", "resnet101")
ALONE, UNSPACED, SPACED = "independent", "w/o", "w/ 1.5"
ARMS: dict[str, Arm] = {ALONE: no_kd, UNSPACED: online, SPACED: spaced}
ACCURACY, LOSS, RISE = "accuracy", "loss", "rise of the loss"
METRICS = {ACCURACY: "accuracy", LOSS: "loss", RISE: "rise"}
JUDGED = {ACCURACY: (UNSPACED,), LOSS: (), RISE: (UNSPACED, ALONE)}
"""what the text says of spaced students: a higher accuracy than online KD has, a lower rise of the loss than both"""
NO_NOISE = "0"


def cells(scale: Scale) -> Iterator[Cell]:
    for network, kind, what in product(NETWORKS, LEVELS, METRICS):
        specs = {arm: scale.run(network, arm=make) for arm, make in ARMS.items()}
        columns = {f"{level:g}": f"weight_noise/{kind}/{level:.12g}/{METRICS[what]}" for level in LEVELS[kind]}
        if what != RISE:
            columns = {NO_NOISE: f"weight_noise/clean/{METRICS[what]}"} | columns
        for (arm, spec), (name, metric) in product(specs.items(), columns.items()):
            against: Key | None = None
            contrasts: tuple[Key, ...] = ()
            if arm == SPACED:
                against = (row(network, kind, what, UNSPACED), name)
                contrasts = tuple((row(network, kind, what, other), name) for other in JUDGED[what][1:])
            judged = bool(JUDGED[what]) and name != NO_NOISE
            yield Cell(
                row(network, kind, what, arm), name, spec, None, against, metric, judged=judged, contrasts=contrasts
            )


def row(network: str, kind: str, what: str, arm: str) -> str:
    return f"{TITLES[network]}, {kind} noise, {what}, {arm}"


TABLE = Table(
    "Loss and accuracy under weight noise",
    "Fig. noise",
    11,
    cells,
    axis=Axis(
        "deviation of the noise",
        {NO_NOISE: 0.0} | {f"{level:g}": level for level in (*ABSOLUTE_LEVELS, *RELATIVE_LEVELS)},
    ),
    instruments=Instruments(noise=RELATIVE_LEVELS, absolute_noise=ABSOLUTE_LEVELS),
    also=(),
    notes=(
        "The paper shows a figure without numbers and does not say how its noise is scaled. Absolute noise has the "
        "same deviation for all weights; relative noise is a part of each tensor's root mean square, so that it does "
        "not depend on a scale of weights that a normalisation undoes. Both are measured on at most 2000 training "
        "images that are not varied, ten draws a level.",
        "Its text says that spaced students keep a higher accuracy and have lower loss deviations than online KD, "
        "and that their loss rises much less than that of the independent model. So the accuracy at a level is "
        "judged against online KD, and the rise of the loss, from no noise to that level, against both. The loss "
        "itself, which the figure shows, is not judged: a lower loss at every level may be a lower loss without "
        "noise.",
        "The independent model is taken to be the same network trained without a teacher.",
        "Of losses, in nats, the lower one is better.",
    ),
)
