"""Branches: a network with several copies of its last stage and classifier, on one trunk.

Branch 1 is the network itself, which is what gets saved. A joint head makes one prediction of all branches' ones:

Gate     logits sum_i g_i z_i, with g = softmax(ReLU(BatchNorm(V h))) of the pooled trunk output h (ONE)
Fusion   a classifier on the branches' features, one behind the other (PCL)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spacedkd.errors import UserError
from spacedkd.models.fork import Branch, entering, find_fork
from spacedkd.models.heads import Prediction, final, looking
from spacedkd.models.input_size import at_own_size


class Sizes(NamedTuple):
    """What a joint head is made for."""

    branches: int
    shared: int
    features: int
    classes: int


class Gate(nn.Module):
    """Weighs the branches for each image by what the trunk says of it."""

    name = "gated"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.linear = nn.Linear(sizes.shared, sizes.branches)
        self.norm = nn.BatchNorm1d(sizes.branches)

    def forward(self, shared: Tensor, branches: Sequence[Prediction]) -> Prediction:
        if self.training and len(shared) == 1:
            raise UserError(
                "The gate over the branches needs two images or more in a batch, and the last one of an epoch has one: "
                "use another --batch-size, or --set data.drop_last=true."
            )
        weights = self.norm(self.linear(shared)).relu().softmax(1)[:, :, None]
        logits = torch.stack([branch.logits for branch in branches], 1)
        features = torch.stack([branch.features for branch in branches], 1)
        return Prediction((weights * logits).sum(1), (weights * features).sum(1))


class Fusion(nn.Module):
    """Classifies all branches' features together. Features to compare others with are their mean."""

    name = "fused"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.classifier = nn.Linear(sizes.branches * sizes.features, sizes.classes)

    def forward(self, shared: Tensor, branches: Sequence[Prediction]) -> Prediction:
        features = [branch.features for branch in branches]
        return Prediction(self.classifier(torch.cat(features, 1)), torch.stack(features).mean(0))


class Branches(nn.Module):
    """A network that divides: its own answer, those of `others` in place of its last stage, and the joint head's.

    Of the `others`, networks of the same architecture, all but the last stage and the head is dropped.
    """

    def __init__(
        self, network: nn.Module, others: Sequence[nn.Module], image: Tensor, join: type[Gate | Fusion]
    ) -> None:
        super().__init__()
        self.network = network
        image = at_own_size(network, image)
        self._fork = find_fork(network, image)
        self.branches = nn.ModuleList(Branch(_unlike(network, other), self._fork) for other in others)
        with looking(self):
            shared, (first, *_) = self._divided([image])
        sizes = Sizes(1 + len(others), shared.shape[1], first.features.shape[1], first.logits.shape[1])
        self.joint = join(sizes)
        self.head_names = ("final", *(f"branch{k}" for k in range(2, sizes.branches + 1)), join.name)

    def forward(self, *views: Tensor, joined: bool = True) -> tuple[Prediction, ...]:
        """One view of the images [B, C, H, W] for all branches, or one for each of them.

        Not `joined`, the branches alone answer, and the joint head is not touched.
        """
        shared, branches = self._divided([at_own_size(self.network, view) for view in views])
        return (*branches, self.joint(shared, branches)) if joined else branches

    def _divided(self, views: Sequence[Tensor]) -> tuple[Tensor, tuple[Prediction, ...]]:
        """The first view's trunk output, pooled to [B, C], and what each branch says."""
        count = len(views[0])
        images = views[0] if len(views) == 1 else torch.cat([*views])
        with entering(self.network, self._fork.tail[0], lambda shared: shared[:count]) as seen:
            first = final(self.network, self.network.forward_features(images))  # type: ignore[operator]
        parts = torch.split(seen[0], count)
        rest = parts[1:] if len(views) > 1 else parts * len(self.branches)
        others = (branch(part) for branch, part in zip(self.branches, rest, strict=True))
        return self._fork.pooled(self.network, parts[0]), (first, *others)


def _unlike(network: nn.Module, other: nn.Module) -> nn.Module:
    """The other network; with a new classifier if it has this one's weights: branches that start equal stay equal."""
    pairs = zip(network.parameters(), other.parameters(), strict=True)
    if all(torch.equal(mine, theirs) for mine, theirs in pairs):
        classifier = other.get_classifier()  # type: ignore[operator]
        for part in [classifier] if isinstance(classifier, nn.Module) else classifier:
            for layer in part.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    layer.reset_parameters()
    return other
