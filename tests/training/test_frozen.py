"""While one role learns, the others do not move by a bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spacedkd import NetworkSpec, OptimizerSpec, RunSpec, Spaced, UserError, learning
from spacedkd.models.freezing import set_mode
from spacedkd.training.roles import evaluate_model
from tests.training.stepping import moved, ready, state, turn_by_turn

ADAMW = OptimizerSpec("adamw", lr=1e-3, weight_decay=0.05)
WITH_DROPOUT = NetworkSpec("resnet18_small", {"width": 4, "drop_rate": 0.3, "drop_path_rate": 0.2})
Make = Callable[..., RunSpec]


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": ADAMW}, {"network": WITH_DROPOUT}], ids=["sgd", "adamw", "dropout"]
)
def test_only_the_role_whose_turn_it_is_moves(tiny_with: Make, changes: dict[str, Any]) -> None:
    setup = ready(tiny_with(schedule=Spaced("3st"), **changes))
    before, turns = state(setup), 0
    for moment in turn_by_turn(setup):
        after = state(setup)
        changed = moved(before, after)
        assert {key.partition("/")[0] for key in changed} == {moment.role}
        assert any("running_mean" in key for key in changed)
        assert any("/optimizer/" in key for key in changed)
        before, turns = after, turns + 1
    assert turns == 30


def test_evaluation_moves_nothing(tiny_with: Make) -> None:
    setup = ready(tiny_with())
    setup.activate("teacher")
    before = state(setup)
    for role in ("teacher", "student"):
        evaluate_model(setup, setup.models[role], setup.modules()[role])
    assert not moved(before, state(setup))
    assert setup.models["teacher"].training
    assert not setup.models["student"].training


def test_self_kd_leaves_its_exits_alone_while_the_teacher_learns(tiny_with: Make) -> None:
    setup = ready(tiny_with("self-kd", {"variant": "live"}, schedule=Spaced("3st"), optimizer=ADAMW))
    seen = {"teacher": set[str](), "student": set[str]()}
    before = state(setup)
    for moment in turn_by_turn(setup):
        after = state(setup)
        seen[moment.role] |= moved(before, after)
        before = after
    assert not any(name.startswith("network/exits") for name in seen["teacher"])
    assert "network/network.fc.weight" in seen["teacher"] & seen["student"]
    assert any(name.startswith("network/exits.stage1") for name in seen["student"])


def test_a_snapshot_stands_still_and_the_replay_does_not_train_the_deepest_classifier(tiny_with: Make) -> None:
    setup = ready(tiny_with("self-kd", {"variant": "snapshot"}, schedule=Spaced("3st")))
    role, before = "teacher", state(setup)
    begun = before
    for moment in turn_by_turn(setup):
        after = state(setup)
        if moment.role != role:
            role, begun = moment.role, before
        if role == "student":
            copy = {key: value for key, value in after.items() if key.startswith("snapshot/")}
            assert copy
            assert all(torch.equal(value, begun[key.replace("snapshot/", "network/")]) for key, value in copy.items())
            changed = moved(before, after)
            assert "network/network.fc.weight" not in changed
            assert "network/network.layer1.0.conv1.weight" in changed
        before = after


def with_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def test_in_a_loop_of_ones_own_only_the_role_learns() -> None:
    """Also what was in evaluation mode or without gradients before is so again afterwards."""
    models = {"mentor": with_batchnorm(), "pupil": with_batchnorm()}
    models["mentor"][1].eval()
    models["pupil"][0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in models["mentor"].state_dict().items()}
    with learning(models, "pupil") as pupil:
        assert pupil is models["pupil"]
        assert all(part.training for part in pupil.modules())
        assert not any(part.training for part in models["mentor"].modules())
        x = torch.randn(8, 3)
        models["mentor"](x).sum()
        loss = (pupil(x) - models["mentor"](x)).square().mean()
        loss.backward()
    assert all(weight.grad is None for weight in models["mentor"].parameters())
    assert pupil[0].weight.grad is None
    assert pupil[3].weight.grad is not None
    assert all(torch.equal(value, before[name]) for name, value in models["mentor"].state_dict().items())
    assert [part.training for part in models["mentor"].children()] == [True, False, True, True]
    assert [weight.requires_grad for weight in models["pupil"].parameters()] == [False, True, True, True, True, True]
    with pytest.raises(UserError, match="Unknown role 'student'"), learning(models, "student"):
        pass


def test_modes_are_put_back_after_an_error() -> None:
    models = {"mentor": with_batchnorm(), "pupil": with_batchnorm()}
    with pytest.raises(ZeroDivisionError), learning(models, "pupil"):
        raise ZeroDivisionError
    assert models["mentor"].training
    assert all(weight.requires_grad for weight in models["mentor"].parameters())


class KeepsStatistics(nn.Sequential):
    """Never lets its BatchNorm learn."""

    def train(self, mode: bool = True) -> KeepsStatistics:
        super().train(mode)
        self[1].train(False)
        return self


@pytest.mark.parametrize("make", [nn.Sequential, KeepsStatistics])
@pytest.mark.parametrize("training", [True, False])
def test_modes_are_set_as_torch_sets_them(make: type[nn.Sequential], training: bool) -> None:
    fast, slow = (nn.Sequential(make(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Dropout()) for _ in range(2))
    for model in (fast, slow):
        model.train(not training)
    set_mode(fast, training)
    slow.train(training)
    modes = [part.training for part in fast.modules()]
    assert modes == [part.training for part in slow.modules()]
    assert modes[0] is training
