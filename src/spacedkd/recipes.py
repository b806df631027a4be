"""Training recipes by name: what the paper says, done correctly, and what its released code does, quirk by quirk.

A recipe is a spec; an official recipe is the paper's settings with a list of quirks applied, each of which can be left
out alone. `docs/recipes.md` explains every one.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

from spacedkd.duration import Duration
from spacedkd.errors import UserError, unknown
from spacedkd.schedule import Online, ReleasedSelfKD, Schedule, Spaced
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


def _set(**settings: Any) -> Callable[[RunSpec], RunSpec]:
    return lambda spec: replace(spec, **settings)


def _method(**options: Any) -> Callable[[RunSpec], RunSpec]:
    return lambda spec: replace(spec, method=MethodSpec(spec.method.name, {**spec.method.options, **options}))


def _where_spaced(schedule: Callable[[Spaced], Schedule]) -> Callable[[RunSpec], RunSpec]:
    """Another schedule in place of a spaced one; online KD stays as it is."""

    def apply(spec: RunSpec) -> RunSpec:
        if not isinstance(spec.schedule, Spaced) or spec.schedule == Online():
            return spec
        return replace(spec, schedule=schedule(spec.schedule))

    return apply


def _online_pre(spec: RunSpec) -> RunSpec:
    """Only online KD teaches with the outputs of before the update."""
    return replace(spec, follower_first=True) if spec.schedule == Online() else spec


def _live_teacher(spec: RunSpec) -> RunSpec:
    return _method(variant="live")(spec) if spec.method.options.get("variant") == "snapshot" else spec


def _plain_where_unspaced(spec: RunSpec, own: RunSpec) -> RunSpec:
    """Self KD that is not spaced is its plain variant, one joint update for each batch, and no schedule at all.

    So both online in place of the recipe's `own` interval and plain in place of its `own` variant ask for it.
    """
    if own.method.name != "self-kd" or spec.method.name != own.method.name:
        return spec
    variant, usual = (one.method.options.get("variant") for one in (spec, own))
    asked = variant == "plain" or (variant == usual and spec.schedule == Online())
    if asked and spec.schedule in (own.schedule, Online()):
        plain = replace(spec.method, options={**spec.method.options, "variant": "plain"})
        return replace(spec, method=plain, schedule=None)
    return spec


_OVER_CLASSES: dict[str, Any] = {"logit_loss": "kl-over-classes", "temperature": 1.0, "temperature_squared": True}
QUIRKS = {
    "prob_kl": Quirk("the KL gets probabilities where log-probabilities belong", _method(logit_loss="probability-kl")),
    "numel_kl": Quirk(
        "the KL is divided by classes too, with T^2 and T = 1, weight 0.5, and no feature term",
        _method(**_OVER_CLASSES, label_weight=0.5, logit_weight=0.5, feature_weight=0.0),
    ),
    "teacher_train_mode": Quirk(
        "the frozen teacher stays in train mode: its BatchNorm statistics move and its drop-path acts",
        _set(frozen_mode="train"),
    ),
    "online_pre": Quirk("online KD teaches with the teacher's outputs of before its update", _online_pre),
    "no_flush": Quirk(
        "a last block shorter than the interval is never taught",
        _where_spaced(lambda spaced: replace(spaced, tail="drop")),
    ),
    "negative_counter": Quirk(
        "the counter starts at minus one epoch: a first block of another length, triggers the teacher sees, not learns",
        _where_spaced(lambda spaced: ReleasedSelfKD(spaced.interval, looks=True)),
    ),
    "live_teacher": Quirk(
        "the replay trains the deepest classifier again, as in the paper's Algorithm 4", _live_teacher
    ),
    "exits_run_along": Quirk(
        "the exits run in the teacher's turns too: their BatchNorm statistics follow, their weights do not",
        _method(exits_run_along=True),
    ),
    "skip_head3_feature": Quirk(
        "the feature term leaves out the deepest exit", _method(skip_deepest_exit_features=True)
    ),
    "self_augmentation": Quirk(
        "AutoAugment and Cutout, which the baseline does not get",
        lambda spec: replace(spec, data=replace(spec.data, augmentation="self-cifar")),
    ),
    "joint_adamw_zero_grads": Quirk(
        "one AdamW over both networks: the frozen one gets zero gradients and still moves",
        lambda spec: replace(spec, optimizer=replace(spec.optimizer, moves_frozen=True)),
    ),
    "resampled_replay": Quirk("the student replays other batches than the teacher saw", _set(redraw_replay=True)),
    "other_init": Quirk("teacher and student start from different weights", _set(same_init=False)),
}

_SGD = OptimizerSpec("sgd", lr=0.01, momentum=0.9, weight_decay=5e-4)
_ADAMW = OptimizerSpec("adamw", lr=5e-4, weight_decay=0.05)
_VIT_RATE = RateSpec("cosine", floor=0.01, warmup=Duration(20, "ep"), restart_after_warmup=False, per_epoch=True)
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
}
_OFFICIAL = {
    "cnn": "prob_kl teacher_train_mode online_pre no_flush other_init",
    "self": "live_teacher exits_run_along negative_counter skip_head3_feature self_augmentation",
    "vit": "numel_kl teacher_train_mode online_pre joint_adamw_zero_grads resampled_replay other_init",
}
for _name, _quirks in _OFFICIAL.items():
    _about = f"paper-{_name} as its released code does it"
    RECIPES[f"official-{_name}"] = Recipe(_about, RECIPES[f"paper-{_name}"].spec, tuple(_quirks.split()))


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
    spec = _plain_where_unspaced(change(chosen.spec), chosen.spec)
    for quirk in chosen.quirks:
        if quirk in without:
            continue
        before, spec = spec.method, QUIRKS[quirk].apply(spec)
        if spec.method != before and before.name != (method := chosen.spec.method.name):
            raise UserError(
                f"Quirk {quirk} is about method {method}, not {before.name}: leave it out, --without {quirk}"
            )
    return spec
