"""The subject of an evaluation: trained networks that predict, and their data; nothing of training.

While a network is measured it is frozen: it learns nothing, and afterwards its weights and modes are those of before.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from spacedkd.data.dataset import Items
from spacedkd.data.images import Encoded, Images, Signals
from spacedkd.data.run_data import RunData, evenly_by_class
from spacedkd.data.stream import Batch, evaluation_batches
from spacedkd.evaluation.instrument import Advance, Progress, silent
from spacedkd.evaluation.scores import Predict
from spacedkd.runtime.errors import UserError

Part = Images | Encoded | Items
"""the training, holdout or test part of a dataset"""
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""starts another pass over the same images and labels, in the same order"""
Logits = Callable[[Tensor], Tensor]
"""images to the logits of the measured head, [B, C]"""
Loss = Callable[[Tensor, Tensor], Tensor]
"""logits and labels to the mean loss of a batch; labels are classes or rows that sum to one"""


class TrainedNetworks(Protocol):
    """The networks of a run, or a single one, in eval mode on their device; `training.trained_models` loads them."""

    @property
    def models(self) -> Mapping[str, nn.Module]: ...

    @property
    def student(self) -> str:
        """The name of the model that instruments measure."""

    @property
    def data(self) -> RunData: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def channels_last(self) -> bool: ...

    @property
    def origin(self) -> dict[str, Any]:
        """The weights that are measured, their run or file, and the data."""

    def head_names(self, model: str | None = None) -> Sequence[str]: ...

    def predict(self, model: str | None = None) -> Predict:
        """Return the function from inputs to the predictions of all heads, in the precision of the training."""

    def deepest(self) -> nn.Module:
        """Return the student without its early exits, sharing its weights."""

    def predict_deepest(self) -> Predict:
        """Return the function from inputs to a list of one `Prediction`, that of the deepest head.

        `networks.predict_deepest()(batch.inputs)[0].logits` are the logits, [B, C]. Gradients pass through to the
        inputs.
        """

    def student_in_float32(self) -> nn.Module:
        """Return a copy of the student in float32, from images to the logits of its deepest head."""

    def to_device(self, batch: Batch) -> Batch:
        """Return a batch on the device, in the memory layout of the networks."""


@dataclass(frozen=True)
class Subject:
    """Trained networks, their data in batches, and where progress is shown."""

    networks: TrainedNetworks
    batch_size: int = 256
    workers: int = 0
    progress: Progress = silent

    def batches(self, part: Part, advance: Advance = lambda _: None) -> Iterator[Batch]:
        """Yield every item of a part of the data once, in order; `advance` is called with the size of each batch."""
        for batch in evaluation_batches(part, self.batch_size, self.workers):
            yield self.networks.to_device(batch)
            advance(len(batch.labels))

    def test_pixels(self, limit: int | None, what: str) -> Images | Encoded:
        """Return at most `limit` test images; data that has no pixels is refused, naming `what` wants to change them.

        The images are taken evenly from all classes.
        """
        return require_pixels(self._some(self.networks.data.test, "limit", limit), what)

    def training_batches(self, limit: int | None, usual: int) -> Batches:
        """Return passes over at most `limit` training images as they are, without augmentation.

        Left open, there are `usual` ones, and at least one of each class. Inputs that are no single tensor are refused.
        """
        if not isinstance(self.networks.data.info.sample, Tensor):
            raise UserError(
                "Flatness and curvature are measured where a network's input is one tensor: leave them out."
            )
        count = max(usual, len(self.networks.data.info.classes)) if limit is None else limit
        part = self._some(self.networks.data.train, "train_images", count)
        return lambda: ((cast(Tensor, batch.inputs), batch.labels) for batch in self.batches(part))

    def _some(self, part: Part, setting: str, limit: int | None) -> Part:
        """Return at most `limit` items, evenly from all classes; of a user's dataset, evenly from beginning to end."""
        if limit is None or limit >= len(part):
            return part
        classes = len(self.networks.data.info.classes)
        if limit < classes:
            raise UserError(f"{setting} must be at least {classes}, one image of each class; got {limit}.")
        if isinstance(part, Items):
            return part.subset(torch.arange(limit) * len(part) // limit)
        return part.subset(evenly_by_class(part.labels, limit, classes))


def require_pixels(part: Part, what: str) -> Images | Encoded:
    """Return images whose pixels can be changed; signals and the items of a user's dataset are refused."""
    if isinstance(part, Items | Signals):
        has = "signals" if isinstance(part, Signals) else "a user's dataset"
        raise UserError(f"{what} change the pixels of images, and this run has {has}: leave them out.")
    return part


# A model frozen while it is measured


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
