"""Branches: a network with several copies of its last stage and classifier, on one trunk.

It divides before its last stage, or before the last quarter of a transformer's blocks. What enters that stage is
watched, so that a trunk is computed once for all branches. A place is accepted only if the stage and the modules after
it, run on their own, give the network's own answer.

Branch 1 is the network itself, which is what gets saved. A joint head makes one prediction of all branches' ones:

Gate     logits sum_i g_i z_i, with g = softmax(ReLU(BatchNorm(V h))) of the pooled trunk output h (ONE)
Fusion   a classifier on the branches' features, one behind the other (PCL)
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs
from spacedkd.models.classifier import Prediction, classify, eval_mode, record_calls
from spacedkd.models.preprocessing import preprocess
from spacedkd.runtime.errors import UserError


@dataclass(frozen=True)
class Fork:
    """Knows a network's modules by name only, so copies stay apart."""

    tail: tuple[str, ...]
    """the last stage, and what follows it up to the network's head"""
    channels: int
    """of what enters the tail: tells [B, C, H, W] from [B, H, W, C]"""

    def run_tail(self, network: nn.Module, shared: Any) -> Any:
        """From what enters the tail to what the network's head takes."""
        for name in self.tail:
            shared = network.get_submodule(name)(shared)
        return shared

    def pooled(self, network: nn.Module, shared: Tensor) -> Tensor:
        """One vector [B, C] for each image: the mean over places, or the class token if the network reads that."""
        if shared.ndim == 4:
            return shared.mean((2, 3) if shared.shape[1] == self.channels else (1, 2))
        return shared[:, 0] if getattr(network, "global_pool", None) == "token" else shared.mean(1)


class Branch(nn.Module):
    """A network that has lost its trunk: everything before the fork is taken out of it."""

    def __init__(self, network: nn.Module, fork: Fork) -> None:
        super().__init__()
        self.network = network
        self._fork = fork
        holder = network
        for name in fork.tail[0].split("."):
            for parameter in [own for own, _ in holder.named_parameters(recurse=False)]:
                holder.register_parameter(parameter, None)
            children = [child for child, _ in holder.named_children()]
            for child in children[: children.index(name)]:
                holder.add_module(child, nn.Identity())
            holder = holder.get_submodule(name)

    def forward(self, shared: Tensor) -> Prediction:
        return classify(self.network, self._fork.run_tail(self.network, shared))


def find_fork(network: nn.Module, image: Inputs) -> Fork:
    """The fork of a network, tried on an example image."""
    stirred = _perturbed_copy(network)
    with eval_mode(stirred):
        try:
            before, channels = _end_of_trunk(stirred)
            names = [*_modules_after(stirred, before)]
            with record_calls([stirred.get_submodule(names[0])], lambda shared: shared.clone()) as seen:
                last, own = stirred.forward_features(image), stirred(image)  # type: ignore[operator]
            for end in range(1, len(names) + 1):
                fork = Fork(tuple(names[:end]), channels)
                shared = seen[0].entered.clone()
                if not _equal(fork.run_tail(stirred, shared), last):
                    continue
                alone = Branch(deepcopy(stirred), fork)(shared)
                if _equal(alone.logits, own) and _equal(shared, seen[0].entered):
                    return fork
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            pass  # this network cannot be divided in this way
    raise UserError(
        f"{type(network).__name__} does not show where its last stage begins, so it cannot be divided into branches. "
        "Use --method kd, or another network."
    )


def _perturbed_copy(network: nn.Module) -> nn.Module:
    """A copy in which no layer happens to do nothing, as a new BatchNorm does in evaluation mode."""
    stirred, chance = deepcopy(network), torch.Generator().manual_seed(0)
    for value in (*stirred.parameters(), *stirred.buffers()):
        if value.squeeze().ndim == 1 and value.is_floating_point():
            value.data += torch.rand(value.shape, generator=chance)
    return stirred


def _equal(found: Any, expected: Tensor) -> bool:
    return isinstance(found, Tensor) and torch.equal(found, expected)


def _end_of_trunk(network: nn.Module) -> tuple[str, int]:
    """The last module before the fork, and the channels it gives out."""
    stages = [info for info in network.feature_info if info["module"]]  # type: ignore[union-attr]
    repeats = len({(info["num_chs"], info["reduction"]) for info in stages}) == 1
    place = -1 - max(len(stages) // 4, 1) if repeats else -2
    return stages[place]["module"], stages[place]["num_chs"]


def _modules_after(network: nn.Module, name: str) -> Iterator[str]:
    """The modules after one, in the order in which they were made: those beside it, then those beside its holder."""
    while name:
        holder, _, own = name.rpartition(".")
        beside = [child for child, _ in network.get_submodule(holder).named_children()]
        yield from (f"{holder}.{child}" if holder else child for child in beside[beside.index(own) + 1 :])
        name = holder


class JointSizes(NamedTuple):
    """What a joint head is made for."""

    branches: int
    shared: int
    features: int
    classes: int


class Gate(nn.Module):
    """Weighs the branches for each image by what the trunk says of it."""

    name = "gated"

    def __init__(self, sizes: JointSizes) -> None:
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

    def __init__(self, sizes: JointSizes) -> None:
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
        self, network: nn.Module, others: Sequence[nn.Module], image: Inputs, join: type[Gate | Fusion]
    ) -> None:
        super().__init__()
        self.network = network
        image = preprocess(network, image)
        self._fork = find_fork(network, image)
        self.branches = nn.ModuleList(Branch(_with_other_classifier(network, other), self._fork) for other in others)
        with eval_mode(self):
            shared, (first, *_) = self._divided([cast(Tensor, image)])  # only networks that look at images have a fork
        sizes = JointSizes(1 + len(others), shared.shape[1], first.features.shape[1], first.logits.shape[1])
        self.joint = join(sizes)
        self.head_names = ("final", *(f"branch{k}" for k in range(2, sizes.branches + 1)), join.name)

    def forward(self, *views: Tensor, joined: bool = True) -> tuple[Prediction, ...]:
        """One view of the images [B, C, H, W] for all branches, or one for each of them.

        Not `joined`, the branches alone answer, and the joint head is not touched.
        """
        shared, branches = self._divided([preprocess(self.network, view) for view in views])
        return (*branches, self.joint(shared, branches)) if joined else branches

    def _divided(self, views: Sequence[Tensor]) -> tuple[Tensor, tuple[Prediction, ...]]:
        """The first view's trunk output, pooled to [B, C], and what each branch says."""
        count = len(views[0])
        images = views[0] if len(views) == 1 else torch.cat([*views])
        tail = self.network.get_submodule(self._fork.tail[0])
        with record_calls([tail], lambda shared: shared[:count]) as seen:
            first = classify(self.network, self.network.forward_features(images))  # type: ignore[operator]
        parts = torch.split(seen[0].entered, count)
        rest = parts[1:] if len(views) > 1 else parts * len(self.branches)
        others = (branch(part) for branch, part in zip(self.branches, rest, strict=True))
        return self._fork.pooled(self.network, parts[0]), (first, *others)


def _with_other_classifier(network: nn.Module, other: nn.Module) -> nn.Module:
    """The other network; with a new classifier if it has this one's weights: branches that start equal stay equal."""
    pairs = zip(network.parameters(), other.parameters(), strict=True)
    if all(torch.equal(mine, theirs) for mine, theirs in pairs):
        classifier = other.get_classifier()  # type: ignore[operator]
        for part in [classifier] if isinstance(classifier, nn.Module) else classifier:
            for layer in part.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    layer.reset_parameters()
    return other
