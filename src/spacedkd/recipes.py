"""Training recipes by name: what the paper says, done correctly, and what its released code does, quirk by quirk.

A recipe is a spec; an official recipe is the paper's settings with a list of quirks applied, each of which can be left
out alone. `docs/recipes.md` explains every one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

from spacedkd.duration import Duration
from spacedkd.errors import UserError, unknown
from spacedkd.schedule import Online, ReleasedSelfKD, Spaced
from spacedkd.spec import DataSpec, MethodSpec, NetworkSpec, OptimizerSpec, RateSpec, RunSpec


class Quirk(NamedTuple):
    """One way in which the released code differs from the paper."""

    about: str
    apply: Callable[[RunSpec], RunSpec]


class Recipe(NamedTuple):
    """A spec to start from, and the quirks on top of it."""

    about: str
    spec: RunSpec
    quirks: tuple[str, ...] = ()


def _method(**options: Any) -> Callable[[RunSpec], RunSpec]:
    def apply(spec: RunSpec) -> RunSpec:
        return replace(spec, method=MethodSpec(spec.method.name, {**spec.method.options, **options}))

    return apply


def _online_pre(spec: RunSpec) -> RunSpec:
    """Only online KD teaches with the outputs of before the update."""
    return replace(spec, follower_first=True) if spec.schedule == Online() else spec


def _no_flush(spec: RunSpec) -> RunSpec:
    if not isinstance(spec.schedule, Spaced) or spec.schedule == Online():
        return spec
    return replace(spec, schedule=replace(spec.schedule, tail="drop"))


def _negative_counter(spec: RunSpec) -> RunSpec:
    if not isinstance(spec.schedule, Spaced) or spec.schedule == Online():
        return spec
    return replace(spec, schedule=ReleasedSelfKD(spec.schedule.interval))


def _live_teacher(spec: RunSpec) -> RunSpec:
    return _method(variant="live")(spec) if spec.method.options.get("variant") == "snapshot" else spec


def _self_augmentation(spec: RunSpec) -> RunSpec:
    return replace(spec, data=replace(spec.data, augmentation="self-cifar"))


QUIRKS = {
    "prob_kl": Quirk("the KL gets probabilities where log-probabilities belong", _method(logit_loss="probability-kl")),
    "numel_kl": Quirk(
        "the KL is divided by classes too, with T^2 and T = 1, weight 0.5, and no feature term",
        _method(
            logit_loss="kl-over-classes",
            temperature=1.0,
            temperature_squared=True,
            label_weight=0.5,
            logit_weight=0.5,
            feature_weight=0.0,
        ),
    ),
    "teacher_train_mode": Quirk(
        "the frozen teacher stays in train mode: its BatchNorm statistics move and its drop-path acts",
        lambda spec: replace(spec, frozen_mode="train"),
    ),
    "online_pre": Quirk("online KD teaches with the teacher's outputs of before its update", _online_pre),
    "no_flush": Quirk("a last block shorter than the interval is never taught", _no_flush),
    "negative_counter": Quirk(
        "the counter starts at minus one epoch: a first block of another length, triggers the teacher never learns",
        _negative_counter,
    ),
    "live_teacher": Quirk("the replay trains the deepest classifier again", _live_teacher),
    "skip_head3_feature": Quirk(
        "the feature term leaves out the deepest exit", _method(skip_deepest_exit_features=True)
    ),
    "self_augmentation": Quirk("AutoAugment and Cutout, which the baseline does not get", _self_augmentation),
    "joint_adamw_zero_grads": Quirk(
        "one AdamW over both networks: the frozen one gets zero gradients and still moves",
        lambda spec: replace(spec, optimizer=replace(spec.optimizer, moves_frozen=True)),
    ),
    "resampled_replay": Quirk(
        "the student replays other batches than the teacher saw", lambda spec: replace(spec, redraw_replay=True)
    ),
    "other_init": Quirk(
        "teacher and student start from different weights", lambda spec: replace(spec, same_init=False)
    ),
}

_SGD = OptimizerSpec("sgd", lr=0.01, momentum=0.9, weight_decay=5e-4)
_ADAMW = OptimizerSpec("adamw", lr=5e-4, weight_decay=0.05)
_VIT_RATE = RateSpec(
    "cosine",
    floor=0.01,
    warmup=Duration(20, "ep"),
    warmup_start=0.001,
    restart_after_warmup=False,
    per_epoch=True,
)
_CNN = RunSpec(
    data=DataSpec("cifar100", augmentation="cifar"),
    network=NetworkSpec("resnet18_small"),
    method=MethodSpec("kd"),
    schedule=Spaced("1.5ep"),
    epochs=80,
    batch_size=128,
    optimizer=_SGD,
)
_SELF = replace(_CNN, method=MethodSpec("self-kd", {"variant": "snapshot"}), schedule=Spaced("4ep"))
_VIT = replace(
    _CNN,
    data=DataSpec("cifar100", augmentation="vit", drop_last=True),
    network=NetworkSpec("deit_tiny_patch16_224", {"drop_path_rate": 0.1}),
    epochs=300,
    optimizer=_ADAMW,
    rate=_VIT_RATE,
)

RECIPES = {
    "paper-cnn": Recipe("two ResNets, 80 epochs of SGD, interval 1.5 epochs, as the paper says", _CNN),
    "paper-self": Recipe("self KD on a ResNet with a teacher that stands still, interval 4 epochs", _SELF),
    "paper-vit": Recipe("two DeiT-Tiny, 300 epochs of AdamW, interval 1.5 epochs, as the paper says", _VIT),
    "official-cnn": Recipe(
        "paper-cnn as its released code does it",
        _CNN,
        ("prob_kl", "teacher_train_mode", "online_pre", "no_flush", "other_init"),
    ),
    "official-self": Recipe(
        "paper-self as its released code does it",
        _SELF,
        ("live_teacher", "negative_counter", "skip_head3_feature", "self_augmentation"),
    ),
    "official-vit": Recipe(
        "paper-vit as its released code does it",
        _VIT,
        ("numel_kl", "teacher_train_mode", "online_pre", "joint_adamw_zero_grads", "resampled_replay", "other_init"),
    ),
}


def recipe(
    name: str, without: Collection[str] = (), change: Callable[[RunSpec], RunSpec] = lambda spec: spec
) -> RunSpec:
    """The spec of a recipe: its settings, then your change of them, then all of its quirks but the ones left out.

    Quirks come last because some depend on the schedule: only online KD teaches with outputs of before the update.

    >>> recipe("official-cnn", without=["prob_kl"]).frozen_mode
    'train'
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    chosen = RECIPES[name]
    for quirk in without:
        if quirk not in chosen.quirks:
            raise unknown(f"quirk of {name}", quirk, chosen.quirks or ["it has none"])
    spec = change(chosen.spec)
    for quirk in chosen.quirks:
        if quirk not in without:
            spec = _with_quirk(spec, quirk, chosen.spec.method.name)
    return spec


def _with_quirk(spec: RunSpec, quirk: str, method: str) -> RunSpec:
    quirky = QUIRKS[quirk].apply(spec)
    if quirky.method != spec.method and spec.method.name != method:
        raise UserError(
            f"Quirk {quirk} is about method {method}, not {spec.method.name}: leave it out, --without {quirk}"
        )
    return quirky
