"""A model frozen while it is measured: it learns nothing, and afterwards its weights and modes are those of before."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""starts another pass over the same images and labels, in the same order"""

Logits = Callable[[Tensor], Tensor]
"""images to the logits of the measured head, [B, C]"""

Loss = Callable[[Tensor, Tensor], Tensor]
"""logits and labels to the mean loss of a batch; labels are classes or rows that sum to one"""


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every module into eval mode: BatchNorm uses its running statistics and keeps them, dropout is off.

    Every module gets its own mode back, also when some were frozen before.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def restored_weights(model: nn.Module) -> Iterator[None]:
    """Restore parameters and buffers to the same bits afterwards, whatever happens inside: errors and Ctrl-C included.

    A second Ctrl-C while they are restored waits until that is done.
    """
    saved = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        pressed: list[int] = []
        with route_interrupts(lambda number, _: pressed.append(number)), torch.no_grad():
            for tensor, before in saved:
                tensor.copy_(before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def route_interrupts(handler: Any) -> Iterator[None]:
    """Let this signal handler get Ctrl-C while this lasts."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main thread only
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
