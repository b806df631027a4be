"""PCL: its formula written out, the moving average, and whole runs."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import UserError
from spacedkd.data import Batch
from spacedkd.data.stream import View
from spacedkd.methods import Ingredients, Progress
from spacedkd.methods.pcl import PCL
from spacedkd.models.classifier import Prediction
from spacedkd.models.pretrained import move_average
from tests.methods import by_hand
from tests.methods.fakes import shown, total
from tests.methods.vectors import FS, O1, O2, START, TE, P, S, U, Y, close, gradient
from tests.methods.whole_runs import NETWORKS, SPACED, check_whole_run, tiny, turns
from tests.training.stepping import ready

METHOD = "pcl"
MEANS = (O1, O2, TE)


class Says(nn.Module):
    """A model with one weight, that answers with given logits."""

    def __init__(self, *logits: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.heads = tuple(Prediction(z, FS) for z in logits)

    def forward(self, *views: Tensor, joined: bool = True) -> tuple[Prediction, ...]:
        return self.heads if joined else self.heads[:3]


def losses(method: PCL, role: str = "student", s: Tensor = S, joint: Tensor = P) -> dict[str, Tensor]:
    models = {"network": Says(s, TE, U, joint), "mean": Says(*MEANS, joint), "snapshot": Says(S, TE, U, joint)}
    return dict(method.losses(role, models, shown(), START))


def ce(z: Tensor) -> Tensor:
    return -z.log_softmax(1)[torch.arange(2), Y].mean()


def soft(target: Tensor, z: Tensor) -> Tensor:
    """9 KL(target -> z; T=3), written out."""
    p_t, p = (target / 3).softmax(1), (z / 3).softmax(1)
    return 9 * (p_t * (p_t / p).log()).sum(1).mean()


def expected(s: Tensor = S) -> dict[str, float]:
    branches = (s, TE, U)
    peers = sum(soft(MEANS[j], z) / 2 for i, z in enumerate(branches) for j in range(3) if i != j)
    return {
        "ensemble label": ce(P).item(),
        "label": sum(ce(z) for z in branches).item(),  # type: ignore[union-attr]
        "logit": sum(soft(P, z) for z in branches).item(),  # type: ignore[union-attr]
        "peer": peers.item(),  # type: ignore[union-attr]
    }


def test_the_formula() -> None:
    assert soft(TE, S).item() == close(0.3467275381)  # card 0
    result = {name: value.item() for name, value in losses(PCL()).items()}
    assert result == {name: close(value) for name, value in expected().items()}


def test_the_roles_of_a_spaced_run() -> None:
    labels = {"label", "ensemble label"}
    assert losses(PCL(variant="live"), "teacher").keys() == labels
    assert losses(PCL(variant="live"), "student").keys() == {*labels, "logit", "peer"}
    assert losses(PCL(variant="snapshot"), "student").keys() == {"label", "logit", "peer"}
    assert losses(PCL(variant="snapshot", replay_label=False), "student").keys() == {"logit", "peer"}


def test_the_gradient_of_a_branch() -> None:
    """(softmax(z) - y)/B + T (p - p_f)/B + T (p - mean of p_m)/B."""
    result = gradient(lambda s: total(losses(PCL(), s=s)), S)
    p, fused, *means = ((z / 3).softmax(1) for z in (S, P, *MEANS))
    label = (S.softmax(1) - torch.eye(3).double()[Y]) / 2
    by_hand = label + 3 * (p - fused) / 2 + 3 * (p - (means[1] + means[2]) / 2) / 2
    torch.testing.assert_close(result, by_hand, atol=1e-12, rtol=0)


def test_the_ensemble_learns_from_the_labels_alone() -> None:
    joint = P.clone().requires_grad_()
    total(losses(PCL(), joint=joint)).backward()
    torch.testing.assert_close(joint.grad, (P.softmax(1) - torch.eye(3).double()[Y]) / 2, atol=1e-12, rtol=0)


def test_the_average_is_a_true_one_of_all_updates_until_it_decays() -> None:
    """Of w_1, w_2, ...: what the network was before its first update is no part of it."""
    models = {"network": Says(S, TE, U, P), "mean": Says(*MEANS, P)}
    result = []
    for step, weight in enumerate((3.0, 5.0, -2.0, 9.0)):
        models["network"].weight.data.fill_(weight)
        PCL().losses("student", models, shown(), Progress(step, 5, 5000))
        result.append(models["mean"].weight.item())
    assert result == pytest.approx([0.0, 5.0, 1.5, 4.0])
    models["network"].weight.data.fill_(104.0)
    PCL().losses("student", models, shown(), Progress(4000, 5, 5000))
    assert models["mean"].weight.item() == pytest.approx(4.1)


def test_statistics_are_averaged_and_counts_copied() -> None:
    mean, network = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    network.running_mean.fill_(8.0)
    network.num_batches_tracked.fill_(7)
    move_average(mean, network, 0.25)
    assert mean.running_mean.tolist() == [2.0, 2.0]
    assert mean.num_batches_tracked == 7
    move_average(mean, network, 0.5, gather=torch.zeros_like)  # the first process's, say
    assert mean.running_mean.tolist() == [1.0, 1.0]
    assert mean.weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("variant", ["live", "snapshot"])
def test_the_average_stands_still_in_a_replay(variant: str) -> None:
    for role, step, now in turns(ready(tiny(METHOD, {"variant": variant}, schedule=SPACED))):
        assert "network/network.conv1.weight" in now
        followed = any(name.startswith("mean/") for name in now)
        assert followed == (role == "teacher" and step > 0)  # at step 0 it is the network itself


def test_the_first_average_is_the_network() -> None:
    models = ready(tiny(METHOD, {})).models
    network, mean = (models[name].state_dict() for name in ("network", "mean"))
    assert all(torch.equal(network[name], mean[name]) for name in network)


def test_views() -> None:
    assert [*PCL().views("student", 7)] == [View(7)]
    assert [*PCL(own_views=True).views("student", 7)] == [View(7, 0), View(7, 1), View(7, 2)]


def test_bad_options_are_explained() -> None:
    with pytest.raises(UserError, match="decay must be from 0 to 1"):
        PCL(decay=1.5)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("variant", ["plain", "live", "snapshot"])
def test_whole_runs(tmp_path: Path, network: str, variant: str) -> None:
    changes = {} if variant == "plain" else {"schedule": SPACED}
    check_whole_run(tmp_path, tiny(METHOD, {"variant": variant}, network, **changes))


def test_every_branch_sees_a_view_of_its_own() -> None:
    """Each says what a whole network with the branch's last stage says of that view; the averages are as they began."""

    def network(role: str, **_: object) -> nn.Module:
        torch.manual_seed(sum(role.encode()))
        return timm.create_model("resnet18_small", width=4, num_classes=3)

    method = PCL(own_views=True)
    built = method.models(Ingredients(network, torch.randn(2, 3, 16, 16)))
    models: dict[str, Any] = {name: model.double().eval() for name, model in built.items()}
    branched = models["network"]
    labels, chance = torch.tensor([0, 2, 1, 0]), torch.Generator().manual_seed(0)
    views = [torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=chance) for _ in range(3)]
    first, *others = (Batch(view, labels, torch.arange(4)) for view in views)
    result = method.losses("student", models, first._replace(others=tuple(others)), START)

    branch_logits, features = [], []
    for tail, view in zip((branched.network, *(b.network for b in branched.branches)), views, strict=True):
        whole = deepcopy(branched.network)
        whole.layer4, whole.fc = tail.layer4, tail.fc
        with torch.no_grad(), whole.layer4.register_forward_hook(lambda *seen: features.append(seen[2].mean((2, 3)))):
            branch_logits.append(whole(view))
    fused = (torch.cat(features, 1) @ branched.joint.classifier.weight.T + branched.joint.classifier.bias).detach()
    peers = [by_hand.kl(branch_logits[i], branch_logits[j], 3.0) for i in range(3) for j in range(3) if i != j]
    assert {name: value.item() for name, value in result.items()} == {
        "ensemble label": close(by_hand.label(fused, labels)),
        "label": close(sum(by_hand.label(logits, labels) for logits in branch_logits)),
        "logit": close(9 * sum(by_hand.kl(logits, fused, 3.0) for logits in branch_logits)),
        "peer": close(9 * sum(peers) / 2),
    }
