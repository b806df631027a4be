"""A model held still while it is measured: it learns nothing, and afterwards it is what it was."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Advance = Callable[[int], None]
"""told how much more of the work is done"""

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""starts another pass over the same images and labels, in the same order"""

Logits = Callable[[Tensor], Tensor]
"""images to what the measured head says of them, [B, C]"""

Loss = Callable[[Tensor, Tensor], Tensor]
"""logits and labels to the mean loss of a batch; labels are classes or rows that sum to one"""


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode for every part: BatchNorm uses its running statistics and leaves them alone, dropout is off.

    Every part gets its own mode back, also when some were frozen before.
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def weights_come_back(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers are the same bits afterwards, whatever happens inside: errors and Ctrl-C included.

    A second Ctrl-C while they come back waits until they are back.
    """
    kept = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        pressed: list[int] = []
        with interruptions_go_to(lambda number, _: pressed.append(number)), torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def interruptions_go_to(handler: Any) -> Iterator[None]:
    """Ctrl-C is heard by this signal handler for a while."""
    if threading.current_thread() is not threading.main_thread():  # only the main one hears it at all
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
