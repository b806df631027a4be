"""Memories of methods: modules with buffers that no optimizer updates, saved in checkpoints with the other models.

In a turn a method reads its memory before it writes, and a replay never writes. Every process holds the whole memory:
rows are gathered from all processes before they are written. Rows are float32 in any precision.
"""

import torch
from torch import Tensor, nn

from spacedkd.methods.base import Ingredients, Progress
from spacedkd.runtime.errors import UserError


class Bank(nn.Module):
    """A row for every training image, by the image's index in the dataset.

    >>> bank = Bank(images=4, width=2)
    >>> bank.write(torch.tensor([3]), torch.tensor([[0.25, 0.75]]), Progress(0, 1, 1))
    >>> bank.read(torch.tensor([3])), bank.visits.tolist()
    (tensor([[0.2500, 0.7500]]), [0, 0, 0, 1])
    """

    rows: Tensor  # [N, width]
    visits: Tensor  # [N]

    def __init__(self, images: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(images, width))
        self.register_buffer("visits", torch.zeros(images, dtype=torch.int64))

    def read(self, indices: Tensor) -> Tensor:
        """Return copies of the rows of these images, [B, width]; zeros where nothing was written."""
        return self.rows[indices]

    def count_visits(self, indices: Tensor) -> Tensor:
        """Return how often the row of each image was written, [B]."""
        return self.visits[indices]

    @torch.no_grad()
    def write(self, indices: Tensor, rows: Tensor, progress: Progress) -> None:
        """Overwrite the rows of these images, with those of all processes, detached from their graph."""
        gathered = progress.gather(indices)
        self.rows[gathered] = progress.gather(rows.detach()).to(self.rows.dtype)
        self.visits[gathered] += 1


def make_bank(ingredients: Ingredients, method: str) -> Bank:
    """Return an empty bank for the training data; refuse mixup and cutmix, whose images have no single index."""
    if ingredients.mixed:
        raise UserError(
            f"Method {method} remembers its predictions image by image, and mixup and cutmix make images of two: "
            "leave out --mixup and --cutmix."
        )
    if not (ingredients.images and ingredients.classes):
        raise UserError(f"Method {method} keeps a bank: Ingredients must say how many images and classes there are.")
    return Bank(ingredients.images, ingredients.classes)


def check_indices(indices: Tensor | None, method: str) -> None:
    """Refuse a batch without the dataset indices of its images."""
    if indices is None or indices.dtype != torch.int64 or indices.ndim != 1:
        raise UserError(
            f"Method {method} remembers images by their index in the dataset, and this batch has none: "
            "give Batch(images, labels, indices) with indices [B] of whole numbers (int64)."
        )


class LastBatch(nn.Module):
    """The logits of one batch, by the images they belong to, and its step.

    >>> memory = LastBatch(batch_size=3, classes=2)
    >>> memory.write(torch.tensor([7, 5]), torch.tensor([[7.0, 0.0], [5.0, 0.0]]), Progress(4, 10, 10))
    >>> memory.holds(4), memory.holds(3)
    (True, False)
    >>> memory.read(torch.tensor([5, 7]))
    tensor([[5., 0.],
            [7., 0.]])
    """

    logits: Tensor  # [B, C]
    indices: Tensor  # [B], -1 in rows without an image
    step: Tensor

    def __init__(self, batch_size: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(batch_size, classes))
        self.register_buffer("indices", torch.full((batch_size,), -1))
        self.register_buffer("step", torch.tensor(-1))

    def holds(self, step: int) -> bool:
        """Return whether the batch is the one of this step."""
        return step >= 0 and int(self.step) == step

    def read(self, indices: Tensor) -> Tensor:
        """Return the logits of these images, [b, C]; all of them must be in the batch."""
        in_order, order = self.indices.sort()
        return self.logits[order[torch.searchsorted(in_order, indices)]]

    @torch.no_grad()
    def write(self, indices: Tensor, logits: Tensor, progress: Progress) -> None:
        """Replace the batch by this one, of all processes, detached from its graph."""
        gathered = progress.gather(indices)
        self.indices.fill_(-1)
        self.indices[: len(gathered)] = gathered
        self.logits[: len(gathered)] = progress.gather(logits.detach()).to(self.logits.dtype)
        self.step.fill_(progress.step)
