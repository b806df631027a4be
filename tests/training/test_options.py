"""Options of training, each against what it is said to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from lightning_fabric import Fabric
from timm.optim import param_groups_weight_decay
from torch import nn
from torch.nn import functional as F

from spacedkd import DataSpec, EngineSpec, NetworkSpec, Online, OptimizerSpec, RunSpec, Spaced, train
from spacedkd.averages import Exponential
from spacedkd.config.resolve import resolve
from spacedkd.config.serialization import to_json
from spacedkd.data.stream import Batch
from spacedkd.models.pretrained import move_average
from spacedkd.schedule import Turn
from spacedkd.training.learner import Learner, MicroBatch, make_optimizer
from tests.conftest import assert_same_bits, of_model, tensors
from tests.training.stepping import ready
from tests.training.stopping import train_in_parts

Make = Callable[..., RunSpec]


def test_smoothed_labels_give_the_smoothed_cross_entropy(tiny_with: Make) -> None:
    smoothed = ready(tiny_with("none", label_smoothing=0.2)).stream.batch(0)
    batch = ready(tiny_with("none")).stream.batch(0)
    logits = torch.randn(len(batch.labels), 10)
    expected = F.cross_entropy(logits, batch.labels, label_smoothing=0.2)
    torch.testing.assert_close(F.cross_entropy(logits, smoothed.labels), expected)


def test_gradients_are_clipped() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    start = model.weight.detach().clone()
    plain = OptimizerSpec(lr=1.0, momentum=0, weight_decay=0, clip=0.5)
    learner = Learner(Fabric(accelerator="cpu"), model, plain)
    batch = Batch(torch.ones(2, 3), torch.zeros(2), torch.arange(2))
    whole = [MicroBatch(Turn("student", 0), batch)]
    learner.update(whole, lambda micro: {"big": 100 * learner.model(micro.batch.inputs).sum()}, lr=1.0)
    assert (model.weight - start).norm().item() == pytest.approx(0.5, rel=1e-5)


def test_drift_shrinks_what_should_stand_still() -> None:
    """PAPER_VS_CODE.md, point 8: 585 AdamW steps with zero gradients shrink decayed weights by 1.45 percent."""
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    learner = Learner(Fabric(accelerator="cpu"), model, OptimizerSpec("adamw", lr=5e-4, weight_decay=0.05))
    for _ in range(585):
        learner.zero_gradient_step(5e-4)
    torch.testing.assert_close(model.weight.detach(), before * (1 - 0.0145), rtol=2e-4, atol=0)


def test_a_frozen_network_moves_only_if_asked(tmp_path: Path, tiny_with: Make) -> None:
    spec = tiny_with(optimizer=OptimizerSpec("adamw", lr=1e-3, weight_decay=0.05), schedule=Spaced("5st"))
    moving = tiny_with(
        optimizer=OptimizerSpec("adamw", lr=1e-3, weight_decay=0.05, moves_frozen=True), schedule=Spaced("5st")
    )
    train(spec, tmp_path / "still")
    train(moving, tmp_path / "moving")
    step = "optimizer/teacher/state/0/step"
    assert tensors(tmp_path / "still")[step] == 15
    assert tensors(tmp_path / "moving")[step] == 30


def test_a_frozen_teacher_in_train_mode_updates_its_statistics(tmp_path: Path, tiny_with: Make) -> None:
    seen = "model/teacher/network.bn1.num_batches_tracked"
    for mode, batches in (("eval", 15), ("train", 30)):
        train(tiny_with(frozen_mode=mode, schedule=Spaced("5st")), tmp_path / mode)
        assert tensors(tmp_path / mode)[seen] == batches


def test_the_follower_may_go_first(tiny_with: Make) -> None:
    plan = resolve(tiny_with(follower_first=True, schedule=Online()))
    assert [f"{turn.role[0]}{turn.step}" for turn in plan.timeline.after(0)][:4] == ["s0", "t0", "s1", "t1"]


def test_a_redrawn_replay_shows_the_student_other_batches(tmp_path: Path, tiny_with: Make) -> None:
    spec = tiny_with(redraw_replay=True, schedule=Spaced("5st"))
    setup = ready(spec)
    seen: dict[str, list[list[int]]] = {"teacher": [], "student": []}
    for turn in setup.run.timeline.after(0):
        (view,) = setup.run.views(turn)
        seen[turn.role].append(setup.stream.batch(*view).indices.tolist())
    assert seen["teacher"] != seen["student"]
    for epoch in range(3):
        whole = sorted(i for batch in seen["student"][epoch * 5 : epoch * 5 + 5] for i in batch)
        assert whole == list(range(40))
    train(spec, tmp_path / "redrawn")
    train(tiny_with(schedule=Spaced("5st")), tmp_path / "same")
    assert_same_bits(of_model(tmp_path / "redrawn", "teacher"), of_model(tmp_path / "same", "teacher"))


def test_the_average_follows_its_formula() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = deepcopy(module)
    expected, statistics = module[0].weight.detach().clone(), module[1].running_mean.clone()
    for step in range(5):
        with torch.no_grad():
            module[0].weight.add_(1.0)
            module[1].running_mean.add_(1.0)
            module[1].num_batches_tracked.add_(1)
        move_average(average, module, Exponential(0.5).share(step, total=5))
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * module[0].weight.detach()
        statistics = decay * statistics + (1 - decay) * module[1].running_mean
    torch.testing.assert_close(average[0].weight.detach(), expected)
    torch.testing.assert_close(average[1].running_mean, statistics)
    assert average[1].num_batches_tracked == 5, "whole numbers are copied"


@pytest.mark.parametrize(
    ("network", "spared", "decayed"),
    [
        ("vit_tiny_patch16_224", {"cls_token", "pos_embed", "norm.weight", "head.bias"}, {"head.weight"}),
        ("mixer_s32_224", {"blocks.0.norm1.weight"}, {"blocks.0.mlp_tokens.fc1.weight"}),
        ("swin_tiny_patch4_window7_224", {"layers.0.blocks.0.attn.relative_position_bias_table"}, {"head.fc.weight"}),
        ("crossvit_9_240", {"cls_token_0", "pos_embed_1"}, {"head.0.weight"}),
        ("coat_lite_tiny", {"cls_token3"}, {"head.weight"}),
        ("levit_128s", {"stages.0.blocks.0.attn.attention_biases"}, {"head.linear.weight"}),
    ],
)
def test_adamw_spares_biases_norms_tokens_and_positions(network: str, spared: set[str], decayed: set[str]) -> None:
    model = timm.create_model(network)
    groups = make_optimizer(model, OptimizerSpec("adamw", lr=1e-3, weight_decay=0.05)).param_groups
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    by_name = {name: decay[id(parameter)] for name, parameter in model.named_parameters()}
    assert {by_name[name] for name in spared} == {0.0}
    assert {by_name[name] for name in decayed} == {0.05}


NAMING = [
    "crossvit_9_240",
    "coat_tiny",
    "levit_128s",
    "tnt_s_patch16_224",
    "twins_pcpvt_small",
]


@pytest.mark.parametrize("network", NAMING)
def test_what_timm_spares_is_spared(network: str) -> None:
    """Also where the network is a part of a model, under other names."""
    with torch.device("meta"):
        model = timm.create_model(network)
    wrapped = nn.ModuleDict({"network": model})
    left = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())[0]["params"]
    _, spared = make_optimizer(wrapped, OptimizerSpec("adamw", lr=1e-3, weight_decay=0.05)).param_groups
    assert {id(one) for one in left} <= {id(one) for one in spared["params"]}


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_64_true_computes_losses_in_float64(tiny_with: Make, smoothing: float) -> None:
    setup = ready(tiny_with("kd", {"feature_weight": 0}, precision="64-true", label_smoothing=smoothing))
    setup.activate("student")
    batch, models = setup.stream.batch(0), setup.modules()
    found = setup.run.method.losses(
        "student", setup.models, batch, setup.run.progress(Turn("student", 0), lambda rows: rows)
    )
    networks = {role: deepcopy(models[role].network).double() for role in ("teacher", "student")}
    networks["teacher"].eval()
    with torch.no_grad():
        teacher, student = (networks[role](batch.inputs.double()) for role in ("teacher", "student"))
    labels = batch.labels if smoothing == 0 else batch.labels.double()
    p, q = (teacher / 3).softmax(1), (student / 3).softmax(1)
    expected = {"label": 0.7 * F.cross_entropy(student, labels), "logit": 0.3 * (p * (p / q).log()).sum(1).mean()}
    for name, loss in found.items():
        assert loss.dtype == torch.float64
        assert loss.item() == pytest.approx(expected[name].item(), rel=1e-13, abs=1e-13)
    assert found.keys() == expected.keys()


def test_an_average_is_measured_saved_and_resumed(tmp_path: Path, tiny_with: Make) -> None:
    spec = tiny_with(ema=0.9, schedule=Spaced("1.5ep"))
    result = train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 10)
    assert_same_bits(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    assert result.accuracies.keys() == {"teacher", "student", "average"}
    assert (tmp_path / "whole" / "average" / "model.safetensors").exists()
    plain = tmp_path / "plain"
    train(tiny_with(schedule=Spaced("1.5ep")), plain)
    assert_same_bits(of_model(tmp_path / "whole", "student"), of_model(plain, "student"))


def test_a_layout_that_would_crash_is_not_used(tmp_path: Path, tiny_with: Make) -> None:
    """With two threads, a batch of three and eight channels, channels_last writes past its buffers in torch 2.13."""
    images = np.zeros((35, 32, 32), np.uint8)
    labels = np.arange(35) % 2
    np.savez(tmp_path / "odd.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    network = NetworkSpec("resnet18_small", {"width": 8})
    spec = tiny_with("none", network=network, data=DataSpec(str(tmp_path / "odd.npz")), batch_size=32, epochs=2)
    spec = replace(spec, engine=EngineSpec(threads=2))
    code = "import pathlib, sys; from spacedkd import *; train(read_spec(pathlib.Path(sys.argv[1])), sys.argv[2])"
    (tmp_path / "spec.json").write_text(json.dumps(to_json(spec)))
    where = [str(tmp_path / "spec.json"), str(tmp_path / "run")]
    subprocess.run([sys.executable, "-c", code, *where], check=True)
