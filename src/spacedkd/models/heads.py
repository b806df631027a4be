"""What reads a network: its own classifier, and an adapter that carries its features to a teacher's.

Every model of a run is called with images and answers with one `Prediction` for each of its heads, the deepest
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from timm.layers import ClassifierHead
from torch import Tensor, nn

from spacedkd.errors import UserError
from spacedkd.models.input_size import at_own_size


class Prediction(NamedTuple):
    """What one head says of B images."""

    logits: Tensor  # [B, C]
    features: Tensor  # [B, D] pooled, before the classifier
    heat: Tensor | None = None  # [1] how soft it wants to be compared, where that is learned


class Classifier(nn.Module):
    """A timm network with its own head, and an adapter on its features if they are to meet a teacher's."""

    head_names: tuple[str, ...] = ("final",)

    def __init__(self, network: nn.Module, adapter: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network
        self.adapter = adapter

    def forward(self, images: Tensor, adapted: bool = True) -> tuple[Prediction, ...]:
        """Features come through the adapter, towards the teacher's; not `adapted` they are the network's own."""
        images = at_own_size(self.network, images)
        prediction = final(self.network, self.network.forward_features(images))  # type: ignore[operator]
        if self.adapter is None or not adapted:
            return (prediction,)
        return (prediction._replace(features=self.adapter(prediction.features)),)


def final(network: nn.Module, maps: Tensor) -> Prediction:
    """What a network's own head says of its last maps; the features are what enters its classifier.

    They are watched on their way in: networks with two classifiers, or with layers between pooling and classifier,
    have no common way to be asked for them.
    """
    with _entering(_classifiers(network)) as seen:
        logits = network.forward_head(maps)  # type: ignore[operator]
    if not seen:
        raise UserError(f"{type(network).__name__} does not show the features before its classifier: no KD with it.")
    features = [tensor.flatten(1) for tensor in seen]
    same_width = len({f.shape[1] for f in features}) == 1
    return Prediction(logits, torch.stack(features).mean(0) if same_width else torch.cat(features, 1))


def _classifiers(network: nn.Module) -> Sequence[nn.Module]:
    found = network.get_classifier()  # type: ignore[operator]
    several = found if isinstance(found, tuple | list | nn.ModuleList) else [found]
    return [part.fc if isinstance(part, ClassifierHead) else part for part in several]


@contextmanager
def _entering(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """What enters the modules while this lasts. Hooks do not outlive it: copies of a network must not share them."""
    seen: list[Tensor] = []
    handles = [module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def looking(model: nn.Module) -> Iterator[None]:
    """For a look at what a model says while it is built: nothing is learned, and its mode is given back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def feature_width(network: nn.Module, image: Tensor) -> int:
    """How many numbers a network's pooled features have, seen on an example."""
    with looking(network):
        (prediction,) = Classifier(network)(image)
    return int(prediction.features.shape[1])


def adapter(student: int, teacher: int) -> nn.Module:
    """The paper code's adapter from student to teacher features: Linear, ReLU, Linear with the mean width between."""
    hidden = (student + teacher) // 2
    return nn.Sequential(nn.Linear(student, hidden), nn.ReLU(), nn.Linear(hidden, teacher))
