"""What a model card speaks of, and what its data is called."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from spacedkd.data import hub
from spacedkd.own_code import is_own
from spacedkd.run import Run
from spacedkd.spec import OURS, RunSpec

ON_THE_HUB = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny-imagenet": "zh-plus/tiny-imagenet",
    "imagenet-100": "ILSVRC/imagenet-1k",
    "imagenet-1k": "ILSVRC/imagenet-1k",
}
"""data sets known by name, as the hub knows them"""


@dataclass(frozen=True)
class Subject:
    """Everything a card speaks of."""

    run: Run
    known: Mapping[str, Any]
    """config.json"""
    role: str
    """whose weights these are: the student's role, or "average" """
    best: Mapping[str, Any] | None = None
    """what is known of the student's best epoch, where these weights are of it and not of the last"""
    training_images: int | None = None
    parameters: int | None = None
    license: str | None = None
    repository: str | None = None
    """OWNER/NAME on the hub, where it is known already"""
    onnx: float | None = None
    """the largest difference of the ONNX file to torch, if there is one"""

    @property
    def spec(self) -> RunSpec:
        return self.run.spec

    @property
    def is_timm(self) -> bool:
        return "architecture" in self.known

    @property
    def is_ours(self) -> bool:
        """Whether timm knows the network only after `import spacedkd.models`."""
        return OURS.fullmatch(self.known.get("architecture", "")) is not None

    @property
    def name(self) -> str:
        network = PurePath(self.spec.network.name.rpartition(":")[2]).name
        return (self.repository or f"{network}-{data_name(self.spec)}").rpartition("/")[2]

    @property
    def accuracy(self) -> float:
        """Of these weights: the deepest head on the test images."""
        return float(self.scores["last"] if self.best is None else self.best["accuracy"]["test"])

    @property
    def epoch(self) -> str:
        """Which these weights are of."""
        last, best = f"the last epoch ({self.spec.epochs:g})", self.best
        return last if best is None else f"epoch {best['epoch']:g}, the best on images held out of training"

    @property
    def scores(self) -> Mapping[str, Any]:
        """Of the deepest head on the test images: last, best and best_epoch."""
        scores: Mapping[str, Any] = self.run.accuracy[self.role]["test"]["final"]
        return scores


def data_name(spec: RunSpec) -> str:
    """The data set; one that lies on somebody's disk goes by its own name, not by its place."""
    if "data" in spec.objects:
        return "own-data"
    source = spec.data.source
    if is_own(source):
        return source.partition(":")[2]
    return source if dataset_on_hub(source) is not None else PurePath(source).name or source


def dataset_on_hub(source: str) -> str | None:
    """The hub's name of a data set, or None; a folder that is here is not on the hub."""
    if source in ON_THE_HUB:
        return ON_THE_HUB[source]
    owner = source.partition("/")[0]
    if "/" not in source or owner in hub.FOLDERS or Path(source).exists() or not hub.NAME.fullmatch(source):
        return None
    return source.partition(":")[0]
