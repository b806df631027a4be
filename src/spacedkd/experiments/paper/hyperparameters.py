"""Spacing helps at all learning rates, and at batch sizes above 64.

ResNet-18 on CIFAR-100, online and self KD, unspaced and spaced, with one setting changed at a time.

    spacedkd reproduce hyperparameters --scale cpu
"""

from collections.abc import Iterator
from dataclasses import replace

from spacedkd.experiments.paper.self_ import self_kd, spaced_self_kd
from spacedkd.experiments.reproduction.arms import online, spaced
from spacedkd.experiments.reproduction.scales import Scale
from spacedkd.experiments.reproduction.table import Cell, Table
from spacedkd.spec import RunSpec

RATES = (0.001, 0.005, 0.01, 0.05, 0.1)
BATCH_SIZES = (32, 64, 128, 256, 512)
ARMS = {
    "online KD": online,
    "online KD w/ ours": spaced,
    "self KD": self_kd,
    "self KD w/ ours": spaced_self_kd,
}


def with_lr(run: RunSpec, lr: float) -> RunSpec:
    return replace(run, optimizer=replace(run.optimizer, lr=lr))


def cells(scale: Scale) -> Iterator[Cell]:
    usual = scale.run("resnet18").batch_size
    settings = {f"lr {lr:g}": (lambda run, lr=lr: with_lr(run, lr)) for lr in RATES}
    for size in BATCH_SIZES:
        whole = max(2, size * usual // 128)  # of a smaller scale the same part of its own
        settings[f"batch {size}"] = lambda run, whole=whole: replace(run, batch_size=whole)
    for row, arm in ARMS.items():
        make = scale.self_run if row.startswith("self") else scale.run
        for column, setting in settings.items():
            spec = make("resnet18", "cifar100", lambda run, arm=arm, setting=setting: arm(setting(run)))
            against = (row.removesuffix(" w/ ours"), column) if row.endswith("w/ ours") else None
            yield Cell(row, column, spec, against=against, judged=column not in ("batch 32", "batch 64"))


TABLE = Table(
    "Learning rate and batch size",
    "Fig. hyperparameter",
    10,
    cells,
    notes=(
        "The paper shows a figure without numbers, so no cell has one of its own; rates and sizes are chosen around its "
        "0.01 and 128.",
    ),
)
