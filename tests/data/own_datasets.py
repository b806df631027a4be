"""Datasets as users write them: everything they draw comes from the global generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from spacedkd.data import Batch
from spacedkd.data.inputs import tensors
from tests.data.on_disk import picture

COUNT, CLASSES = 30, 5


def jitter(*last: Any) -> Callable[[Any], Tensor]:
    steps = [v2.RandomCrop(12, padding=2), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    return v2.Compose([*steps, *last, v2.ToDtype(torch.float32, scale=True)])  # type: ignore[no-any-return]


def numpy_jitter(image: Any) -> Tensor:
    """In the way of albumentations: arrays in, numbers from numpy and random."""
    array = np.asarray(image).astype(np.float32)
    if random.random() < 0.5:
        array = array[:, ::-1]
    return torch.from_numpy(array * np.random.uniform(0.5, 1.5) + np.random.normal(size=array.shape).astype(np.float32))


class Pictures(Dataset[tuple[Any, int]]):
    """Image and label; tensors, or PIL images that a transform makes tensors of."""

    def __init__(self, transform: Callable[[Any], Any] | None, as_tensor: bool = True, count: int = COUNT) -> None:
        self.transform, self.as_tensor, self.count = transform, as_tensor, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Any, int]:
        image: Any = picture(row)
        image = v2.functional.pil_to_tensor(image) if self.as_tensor else image
        return (image if self.transform is None else self.transform(image)), row % CLASSES


class Sentences(Dataset[tuple[Tensor, int]]):
    """Token sequences of different lengths, some of whose words are dropped at random."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        words = torch.arange(1, 4 + row % 7) * 10 + row
        return words.where(torch.rand(len(words)) > 0.3, 1), row % CLASSES


def padded(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, lengths and labels."""
    words = [tokens for tokens, _ in items]
    tokens = torch.nn.utils.rnn.pad_sequence(words, batch_first=True)
    return tokens, torch.tensor([len(one) for one in words]), torch.tensor([label for _, label in items])


class Named(Dataset[dict[str, Any]]):
    """Items with names."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"tokens": torch.randint(100, (6,)) + row, "mask": np.random.rand(6) < 0.8, "labels": row % CLASSES}


KINDS: dict[str, tuple[Dataset[Any], Any]] = {
    "v2 on tensors": (Pictures(jitter()), None),
    "v2 on PIL images": (Pictures(jitter(v2.ToImage()), as_tensor=False), None),
    "numpy and random": (Pictures(numpy_jitter, as_tensor=False), None),
    "sentences": (Sentences(), padded),
    "named": (Named(), None),
}


def bits(batch: Batch) -> tuple[bytes, ...]:
    parts = [*tensors(batch.inputs), batch.labels, batch.indices]
    return tuple(part.contiguous().numpy().tobytes() for part in parts)


def rows_of(batch: Batch) -> list[list[Any]]:
    """Each item alone, without the zeros that sentences are padded with."""
    parts = [*tensors(batch.inputs), batch.labels, batch.indices]
    return [[[x for x in part[row].flatten().tolist() if x] for part in parts] for row in range(len(batch.labels))]
