"""Branches: a network with several copies of its last stage and classifier, on one trunk.

It forks before its last stage, or before the last quarter of a transformer's blocks. A hook records the input of that
stage, so that the trunk is computed once for all branches. A fork is accepted only if the stage and the modules after
it, run on their own, give the network's own logits.

Branch 1 is the network itself, and the one that is saved. A joint head makes one prediction of those of all branches:

Gate     logits sum_i g_i z_i, with g = softmax(ReLU(BatchNorm(V h))) of the pooled trunk output h (ONE)
Fusion   a classifier on the branches' concatenated features (PCL)
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
    """The point where a network divides; modules are known by name, so that it holds for copies of the network."""

    tail: tuple[str, ...]
    """names of the last stage and of the modules after it, up to the network's head"""
    channels: int
    """number of channels of the tail's input: distinguishes [B, C, H, W] from [B, H, W, C]"""

    def run_tail(self, network: nn.Module, shared: Any) -> Any:
        """Return the input of the network's head from the trunk's output."""
        for name in self.tail:
            shared = network.get_submodule(name)(shared)
        return shared

    def pool(self, network: nn.Module, shared: Tensor) -> Tensor:
        """Return the trunk's output as vectors [B, C]: the mean over positions, or the class token if that is read."""
        if shared.ndim == 2:
            return shared
        if shared.ndim == 4:
            return shared.mean((2, 3) if shared.shape[1] == self.channels else (1, 2))
        return shared[:, 0] if getattr(network, "global_pool", None) == "token" else shared.mean(1)


class Branch(nn.Module):
    """A network without its trunk: everything before the fork is removed from it."""

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
        """Return the branch's prediction from the trunk's output."""
        return classify(self.network, self._fork.run_tail(self.network, shared))


def find_fork(network: nn.Module, image: Inputs) -> Fork:
    """Return the fork of a network, tried on an example image; refuse a network that cannot be divided.

    The tail is grown module by module until, run on its own, it gives the network's features and logits. Inputs are
    cloned, because some tails change theirs in place, and such a fork is refused: branches would disturb each other.
    """
    copy = _perturbed_copy(network)
    with eval_mode(copy):
        try:
            before, channels = _end_of_trunk(copy)
            names = [*_modules_after(copy, before)]
            with record_calls([copy.get_submodule(names[0])], lambda shared: shared.clone()) as calls:
                last, own = copy.forward_features(image), copy(image)  # type: ignore[operator]
            for end in range(1, len(names) + 1):
                fork = Fork(tuple(names[:end]), channels)
                shared = calls[0].input.clone()
                if not _equal(fork.run_tail(copy, shared), last):
                    continue
                branch = Branch(deepcopy(copy), fork)(shared)
                if _equal(branch.logits, own) and _equal(shared, calls[0].input):
                    return fork
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            pass  # this network cannot be divided in this way
    raise UserError(
        f"{type(network).__name__} does not show where its last stage begins, so it cannot be divided into branches. "
        "Use --method kd, or another network."
    )


def _perturbed_copy(network: nn.Module) -> nn.Module:
    """Return a copy in which no layer is the identity, as a new BatchNorm is in eval mode: none may be overlooked."""
    copy, generator = deepcopy(network), torch.Generator().manual_seed(0)
    for value in (*copy.parameters(), *copy.buffers()):
        if value.squeeze().ndim == 1 and value.is_floating_point():
            value.data += torch.rand(value.shape, generator=generator)
    return copy


def _equal(output: Any, expected: Tensor) -> bool:
    return isinstance(output, Tensor) and torch.equal(output, expected)


def _end_of_trunk(network: nn.Module) -> tuple[str, int]:
    """Return the name of the last module before the fork, and the channels of its output."""
    stages = [info for info in network.feature_info if info["module"]]  # type: ignore[union-attr]
    repeats = len({(info["num_chs"], info["reduction"]) for info in stages}) == 1
    end = stages[-1 - max(len(stages) // 4, 1) if repeats else -2]
    return end["module"], end["num_chs"]


def _modules_after(network: nn.Module, name: str) -> Iterator[str]:
    """Yield the names of the modules after one, in their order: its later siblings, then those of its parent."""
    while name:
        parent, _, own = name.rpartition(".")
        siblings = [child for child, _ in network.get_submodule(parent).named_children()]
        yield from (f"{parent}.{child}" if parent else child for child in siblings[siblings.index(own) + 1 :])
        name = parent


class JointSizes(NamedTuple):
    """The sizes a joint head is built for: the number of branches, and widths of trunk, features and logits."""

    branches: int
    shared: int
    features: int
    classes: int


class Gate(nn.Module):
    """A joint head that weights the branches of each image by a gate on the trunk's output."""

    name = "gated"

    def __init__(self, sizes: JointSizes) -> None:
        super().__init__()
        self.linear = nn.Linear(sizes.shared, sizes.branches)
        self.norm = nn.BatchNorm1d(sizes.branches)

    def forward(self, shared: Tensor, branches: Sequence[Prediction]) -> Prediction:
        """Return the weighted sum of the branches' predictions."""
        if self.training and len(shared) == 1:
            raise UserError(
                "The gate over the branches needs two images or more in a batch, and the epoch's last batch has one: "
                "use another --batch-size, or --set data.drop_last=true."
            )
        weights = self.norm(self.linear(shared)).relu().softmax(1)[:, :, None]
        logits = torch.stack([branch.logits for branch in branches], 1)
        features = torch.stack([branch.features for branch in branches], 1)
        return Prediction((weights * logits).sum(1), (weights * features).sum(1))


class Fusion(nn.Module):
    """A joint head that classifies all branches' features together; its own features are their mean."""

    name = "fused"

    def __init__(self, sizes: JointSizes) -> None:
        super().__init__()
        self.classifier = nn.Linear(sizes.branches * sizes.features, sizes.classes)

    def forward(self, shared: Tensor, branches: Sequence[Prediction]) -> Prediction:
        """Return the prediction of the joint classifier."""
        features = [branch.features for branch in branches]
        return Prediction(self.classifier(torch.cat(features, 1)), torch.stack(features).mean(0))


class Branches(nn.Module):
    """A network that divides into branches: its own head, those of `others` on its trunk, and a joint head.

    network    the timm network, branch 1
    others     networks of the same architecture; only their last stage and head are used
    image      an example batch
    join       the class of the joint head
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
            shared, (first, *_) = self._predict_branches([cast(Tensor, image)])  # only networks of images have a fork
        sizes = JointSizes(1 + len(others), shared.shape[1], first.features.shape[1], first.logits.shape[1])
        self.joint = join(sizes)
        self.head_names = ("final", *(f"branch{k}" for k in range(2, sizes.branches + 1)), join.name)

    def forward(self, *views: Tensor, joined: bool = True) -> tuple[Prediction, ...]:
        """Return a prediction of each branch, and of the joint head last.

        views     the images [B, C, H, W] for all branches, or one view of them for each branch
        joined    False leaves out the joint head, which is not run then
        """
        shared, branches = self._predict_branches([preprocess(self.network, view) for view in views])
        return (*branches, self.joint(shared, branches)) if joined else branches

    def _predict_branches(self, views: Sequence[Tensor]) -> tuple[Tensor, tuple[Prediction, ...]]:
        """Return the trunk's output for the first view, pooled to [B, C], and the predictions of all branches.

        The trunk runs once on all views together; branch 1 takes the first view alone.
        """
        count = len(views[0])
        images = views[0] if len(views) == 1 else torch.cat([*views])
        tail = self.network.get_submodule(self._fork.tail[0])
        with record_calls([tail], lambda shared: shared[:count]) as calls:
            first = classify(self.network, self.network.forward_features(images))  # type: ignore[operator]
        shared = torch.split(calls[0].input, count)
        of_others = shared[1:] if len(views) > 1 else shared * len(self.branches)
        others = (branch(trunk) for branch, trunk in zip(self.branches, of_others, strict=True))
        return self._fork.pool(self.network, shared[0]), (first, *others)


def _with_other_classifier(network: nn.Module, other: nn.Module) -> nn.Module:
    """Return the other network, with a new classifier if it has this one's weights: equal branches would stay equal."""
    pairs = zip(network.parameters(), other.parameters(), strict=True)
    if all(torch.equal(mine, theirs) for mine, theirs in pairs):
        classifier = other.get_classifier()  # type: ignore[operator]
        for head in [classifier] if isinstance(classifier, nn.Module) else classifier:
            for layer in head.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    layer.reset_parameters()
    return other
