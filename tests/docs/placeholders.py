"""What names in the docs stand for that a reader brings along: data, networks, runs of an earlier day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from spacedkd import MethodSpec, RunSpec, Spaced, train
from spacedkd.cli import main
from spacedkd.methods import KD
from tests.conftest import TINY
from tests.data import on_disk

spec = replace(TINY, epochs=1)
own_spec = RunSpec(epochs=1, batch_size=8, precision="32-true", engine=TINY.engine)
"""one that leaves network and data to whoever gives them"""


class MyNetwork(nn.Module):
    """A network for the items of `train_set`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.body(x)).relu())
        return found


make_network = make_teacher = MyNetwork
MyMethod = KD
collate = default_collate


def _items(count: int) -> Dataset[tuple[Tensor, ...]]:
    draw = torch.Generator().manual_seed(count)
    return TensorDataset(torch.randn(count, 6, generator=draw), torch.arange(count) % 3)


train_set, test_set = _items(24), _items(12)
my_dataset = train_set


def make_optimizer(parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.1)


def run(place: str, **changes: Any) -> None:
    """A run of an earlier day; one that is there already stays."""
    if not Path(place).exists():
        train(replace(TINY, schedule=Spaced("1ep"), **changes), place)


def demo(place: str = "runs/demo") -> None:
    """A comparison of an earlier day."""
    if Path(place).exists():
        return
    arms = {"no KD": ("none", None), "online KD": ("kd", None), "spaced KD": ("kd", Spaced("1ep"))}
    for label, (method, schedule) in arms.items():
        for seed in (0, 1):
            one = replace(TINY, epochs=1, method=MethodSpec(method), schedule=schedule, seed=seed, label=label)
            train(one, Path(place, label.replace(" ", "-"), f"seed{seed}"))
    main(["report", place, "--against", "no KD"])


def photos(place: str = "photos") -> None:
    """Two classes of small photographs, to train and to test on."""
    on_disk.class_folders(Path(place), count=20, sizes=(64,))


def cifar100(place: str = "DATA/cifar100") -> None:
    """Parquet files as the hub has them of CIFAR-100, with few images of every class."""
    names = [f"class {number:02}" for number in range(100)]
    for part, count in (("train", 400), ("test", 200)):
        labels = [number % 100 for number in range(count)]
        _table(Path(place) / f"{part}-00000-of-00001.parquet", labels, names)


def _table(path: Path, labels: Sequence[int], names: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": on_disk.png(on_disk.picture(n, 32)), "path": None} for n in range(len(labels))]
    pq.write_table(pa.table({"img": images, "fine_label": labels, "coarse_label": [n // 5 for n in labels]}), path)


def tiny_imagenet(place: str = "DATA/tiny-imagenet-sample") -> None:
    """A few classes in the official layout."""
    on_disk.tiny_imagenet(Path(place), count=16)


def own_module(name: str = "own.py") -> None:
    """A file of one's own with everything that can be named on the command line."""
    names = "MyMethod, make_network, make_optimizer, test_set, train_set"
    Path(name).write_text(
        f"from tests.docs.placeholders import {names}\n\n\n"
        "def datasets():\n    return train_set, test_set\n\n\ndef lr(step):\n    return 0.1 * 0.99**step\n"
    )
