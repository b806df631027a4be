"""A network of user code that fails while it learns, as long as a file says how."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

VARIABLE = "FRAGILE"
"""names the file; the network is whole where there is none"""


class Own(Exception):
    """An exception that cannot be handed to another process as it is."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"of user code, {one} and {other}")


class Sound(nn.Module):
    """One linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(images[:, :1].flatten(1))
        return logits


class Fragile(Sound):
    """Learns a few batches, then raises or dies."""

    def __init__(self, file: str = "") -> None:
        """`file` is named here where the process of a run has another environment."""
        super().__init__()
        self.file, self.seen = file or os.environ[VARIABLE], 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and Path(self.file).exists():
            self.seen += 1
            if self.seen > 4:
                how = Path(self.file).read_text()
                if how == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise {"memory": torch.OutOfMemoryError("CUDA out of memory."), "own": Own(1, 2)}.get(
                    how, RuntimeError(f"{how} and\nmore")
                )
        return super().forward(images)
