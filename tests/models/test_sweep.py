"""Networks of many lineages each take a KD step and a self-KD step on small images.

Sizes are cut down by options where a family has no small member; what is built is the family's own code.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import NetworkSpec, UserError
from spacedkd.data import Batch
from spacedkd.data.inputs import DataInfo
from spacedkd.methods import KD, Ingredients, Progress, SelfKD
from spacedkd.models import Classifier, EarlyExits
from spacedkd.models.factory import build_network
from spacedkd.models.preprocessing import preprocess

NOW = Progress(0, 1, 1)
CLASSES = 5


class Family(NamedTuple):
    name: str
    options: dict[str, Any]
    exits: tuple[str, ...] | None
    """heads behind stages or blocks, deepest first; None if the family cannot do self KD"""
    size: int = 32


def stages(count: int) -> tuple[str, ...]:
    return tuple(f"stage{number}" for number in range(count, 0, -1))


def blocks(count: int) -> tuple[str, ...]:
    return tuple(f"block{number}" for number in range(count, 0, -1))


FOUR = stages(3)
SMALL_SWIN = {"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
FAMILIES = [
    # convolutional networks
    Family("resnet18", {}, FOUR),
    Family("resnet18_small", {"width": 4}, FOUR),
    Family("resnext26ts", {}, FOUR),
    Family("legacy_seresnet18", {}, FOUR),
    Family("resnetv2_18", {}, FOUR),
    Family("res2next50", {"layers": [1, 1, 1, 1]}, FOUR),
    Family("resnest14d", {}, FOUR),
    Family("skresnet18", {}, FOUR),
    Family("densenet121", {"block_config": [1, 2, 2, 1], "growth_rate": 8}, FOUR),
    Family("vgg11", {"mlp_ratio": 0.01}, FOUR, 64),
    Family("mobilenetv2_035", {}, FOUR),
    Family("mobilenetv3_small_050", {}, FOUR),
    Family("efficientnet_lite0", {}, FOUR),
    Family("mnasnet_050", {}, FOUR),
    Family("ghostnet_050", {}, FOUR),
    Family("rexnet_100", {}, FOUR),
    Family("regnetx_002", {}, FOUR),
    Family("repvgg_a0", {}, FOUR),
    Family("dla46_c", {}, FOUR),
    Family("cs3darknet_focus_s", {}, FOUR),
    Family("ese_vovnet19b_slim_dw", {}, FOUR),
    Family("hgnetv2_b0", {}, FOUR),
    Family("test_nfnet", {}, FOUR),
    Family("convnext_zepto_rms", {}, FOUR),
    Family("inception_next_atto", {}, FOUR),
    Family("starnet_s050", {}, FOUR),
    Family("inception_v3", {"input_size": 75}, stages(3)),
    Family("convmixer_768_32", {}, blocks(31)),
    # transformers of one width
    Family("vit_tiny_patch16_224", {"patch_size": 8, "embed_dim": 24, "depth": 12}, blocks(11)),
    Family("deit_tiny_distilled_patch16_224", {"embed_dim": 24, "depth": 3}, blocks(2)),
    Family("beit_base_patch16_224", {"embed_dim": 24, "depth": 3, "num_heads": 2}, blocks(2)),
    Family("eva02_tiny_patch14_224", {"patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}, blocks(2)),
    Family("convit_tiny", {"embed_dim": 8, "depth": 3, "local_up_to_layer": 2}, blocks(2)),
    Family("cait_xxs24_224", {"embed_dim": 24, "depth": 3}, blocks(2)),
    Family("xcit_nano_12_p8_224", {"embed_dim": 32, "depth": 3}, blocks(2)),
    Family("tnt_s_legacy_patch16_224", {"embed_dim": 24, "depth": 3, "num_heads_outer": 2}, blocks(2)),
    # perceptrons and the like
    Family("mixer_s32_224", {}, blocks(7)),
    Family("gmlp_ti16_224", {}, blocks(29)),
    Family("resmlp_12_224", {}, blocks(11)),
    # transformers in stages, and mixtures
    Family("pit_ti_224", {"depth": [1, 2, 1]}, blocks(3)),
    Family("swin_tiny_patch4_window7_224", SMALL_SWIN, FOUR),
    Family("swinv2_tiny_window8_256", SMALL_SWIN, FOUR, 64),
    Family("twins_svt_small", {"depths": [1, 1, 1, 1], "embed_dims": [16, 16, 32, 32]}, FOUR),
    Family("pvt_v2_b0", {"depths": [1, 1, 1, 1]}, FOUR),
    Family("poolformer_s12", {"layers": [1, 1, 1, 1]}, FOUR),
    Family("edgenext_xx_small", {}, FOUR),
    Family("mobilevit_xxs", {}, FOUR),
    Family("coatnet_pico_rw_224", {}, FOUR),
    Family("efficientformerv2_s0", {}, FOUR),
    Family("efficientvit_b0", {}, FOUR),
    Family("efficientvit_m0", {}, stages(2), 64),
    Family("levit_128s", {}, stages(2), 64),
    Family("efficientvim_m1", {}, stages(2), 64),
    Family("fastvit_t8", {"layers": [1, 1, 1, 1]}, FOUR),
    Family("volo_d1_224", {}, stages(3)),
    # no common way into them
    Family("coat_lite_tiny", {"serial_depths": [1, 1, 1, 1]}, None),
    Family("crossvit_9_240", {"input_size": 240, "depth": [[1, 1, 0]]}, None),
    Family("dpn48b", {"k_sec": [1, 1, 1, 1]}, None),
    Family("hrnet_w18_small", {}, None),
    Family("selecsls42", {}, None),
    Family("visformer_tiny", {"embed_dim": 64, "depth": [1, 1, 1]}, None),
]


def indices(with_exits: bool | None = None) -> list[Any]:
    """Families by their place, with a name; tests of one are one worker's, so that it is built once."""
    return [
        pytest.param(index, id=family.name, marks=pytest.mark.xdist_group(f"sweep {family.name}"))
        for index, family in enumerate(FAMILIES)
        if with_exits is None or with_exits == (family.exits is not None)
    ]


def images(size: int) -> Tensor:
    return torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0)) * 4 - 2


def data_info(size: int) -> DataInfo:
    return DataInfo(images(size)[:2], ("?",) * CLASSES)


def batch(size: int) -> Batch:
    return Batch(images(size), torch.arange(4), torch.arange(4))


@cache
def build_family(index: int) -> nn.Module:
    family = FAMILIES[index]
    return build_network(NetworkSpec(family.name, family.options), data_info(family.size), seed=0)


def make_ingredients(index: int) -> Ingredients:
    """A small ResNet as the teacher, the family as the student."""
    size = FAMILIES[index].size
    teacher = build_network(NetworkSpec("resnet18_small", {"width": 4}), data_info(size), seed=0)
    networks = {"teacher": teacher, "student": deepcopy(build_family(index))}
    return Ingredients(lambda role, **_: networks[role], batch(size).inputs[:2])


def check_step(model: nn.Module, losses: dict[str, Tensor]) -> None:
    """One step down the losses, which must be finite and reach every weight."""
    total = torch.stack([*losses.values()]).sum()
    assert torch.isfinite(total)
    total.backward()
    missed = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not missed, "distributed training would wait for these for ever"
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
    torch.optim.SGD(model.parameters(), lr=1e-3).step()


@pytest.mark.parametrize("index", indices())
def test_a_kd_step(index: int) -> None:
    method, items = KD(), batch(FAMILIES[index].size)
    models = method.models(make_ingredients(index))
    student = models["student"]
    assert isinstance(student, Classifier)
    ((logits, features, _),) = student.eval()(items.inputs)
    ((_, target, _),) = models["teacher"](items.inputs)
    assert logits.shape == (4, CLASSES)
    assert features.shape == target.shape == (4, 32)
    own = student.network
    with torch.no_grad():
        scaled = preprocess(own, items.inputs) if "input_size" in FAMILIES[index].options else items.inputs
        torch.testing.assert_close(logits, own(scaled))
    losses = method.losses("student", {**models, "student": student.train()}, items, NOW)
    assert [*losses] == ["label", "logit", "feature"]
    check_step(student, dict(losses))


@pytest.mark.parametrize("index", indices(with_exits=True))
def test_a_self_kd_step(index: int) -> None:
    method, items = SelfKD(), batch(FAMILIES[index].size)
    model = method.models(make_ingredients(index))["network"]
    assert isinstance(model, EarlyExits)
    assert model.head_names == ("final", *(FAMILIES[index].exits or ()))
    deepest, *exits = model.eval()(items.inputs)
    (alone,) = Classifier(model.network)(items.inputs)
    torch.testing.assert_close(deepest.logits, alone.logits)
    assert {head.features.shape for head in exits} == {alone.features.shape}
    assert len({head.logits.sum().item() for head in exits}) == len(exits), "two exits say the same"
    losses = method.losses("student", {"network": model.train()}, items, NOW)
    assert [*losses] == ["label", "exit label", "exit logit", "exit feature"]
    check_step(model, dict(losses))


@pytest.mark.parametrize("index", indices(with_exits=False))
def test_what_cannot_do_self_kd_says_so(index: int) -> None:
    with pytest.raises(UserError, match="cannot do self KD") as error:
        SelfKD().models(make_ingredients(index))
    assert type(build_family(index)).__name__ in str(error.value)
    assert "\n" not in str(error.value)


def test_the_sweep_is_wide() -> None:
    assert len({timm.model_entrypoint(family.name).__module__ for family in FAMILIES}) >= 50
