"""Training recipes by name: what the paper says, done correctly, and what its released code does, quirk by quirk.

A recipe is a spec; an official recipe is the paper's settings with a list of quirks, each of which can be left out
alone. A quirk belongs to the modes in which the released code has it: its online KD is not its spaced KD by one step.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spacedkd.duration import Duration
from spacedkd.errors import UserError, unknown
from spacedkd.places import value_at, with_changes
from spacedkd.quirks import QUIRKS, without_token
from spacedkd.schedule import Schedule, Spaced
from spacedkd.spec import DataSpec, MethodSpec, NetworkSpec, OptimizerSpec, RateSpec, RunSpec
from spacedkd.spec_words import describe_schedule


class Recipe(NamedTuple):
    """A spec to start from, and the quirks on top of it."""

    about: str
    spec: RunSpec
    quirks: Mapping[str, Sequence[str]] = {}
    """each with the modes it belongs to: online, spaced, offline, or alone, which is training without a teacher"""


TRANSFORMERS = ("deit", "pit", "vit", "swin")
"""how timm's names of those begin that a recipe's drop-path is for"""
_SGD = OptimizerSpec("sgd", lr=0.01, momentum=0.9, weight_decay=5e-4)
_ADAMW = OptimizerSpec("adamw", lr=5e-4, weight_decay=0.05)
_VIT_RATE = RateSpec("cosine", floor=0.01, warmup=Duration(20, "ep"), restart_after_warmup=False, per_epoch=True)
_CNN = RunSpec(
    data=DataSpec("cifar100", augmentation="paper"),
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
_TAUGHT = "online spaced offline"
_OFFICIAL = {
    "cnn": {
        _TAUGHT: "prob_kl other_init",
        "online": "online_pre",
        "spaced": "teacher_train_mode no_flush",
        f"{_TAUGHT} alone": "torch_init full_precision",
    },
    "self": {
        _TAUGHT: "live_teacher skip_head3_feature self_augmentation",
        "spaced offline": "exits_run_along negative_counter",
        f"{_TAUGHT} alone": "full_precision",
    },
    "vit": {
        _TAUGHT: "numel_kl other_init distillation_token",
        "online": "online_pre",
        "spaced offline": "teacher_train_mode",
        "spaced": "joint_adamw_zero_grads resampled_replay teachers_rate rounded_up no_flush",
        f"{_TAUGHT} alone": "zero_head pit_drop_path full_precision",
    },
}
for _name, _by_modes in _OFFICIAL.items():
    _quirks = {quirk: modes.split() for modes, quirks in _by_modes.items() for quirk in quirks.split()}
    _about = f"paper-{_name} as its released code does it"
    RECIPES[f"official-{_name}"] = Recipe(_about, RECIPES[f"paper-{_name}"].spec, _quirks)


def is_online(schedule: Schedule | None) -> bool:
    """Whether teacher and student take turns at every step, which is also what a run has that asks for nothing.

    >>> is_online(Spaced("1st", tail="drop")), is_online(Spaced("2st"))
    (True, False)
    """
    spaced = isinstance(schedule, Spaced) and Duration.parse(schedule.interval)
    return schedule is None or spaced == Duration(1, "st")


def mode_of(spec: RunSpec) -> str:
    """Which mode of the released code a run has: each has rules of its own.

    >>> [mode_of(replace(_CNN, schedule=interval)) for interval in ("offline", "80ep", "1.5ep", "online")]
    ['offline', 'offline', 'spaced', 'online']
    """
    if spec.method.name == "none":
        return "alone"
    if value_at(spec, "method.teacher_learns") is False:  # it is trained already
        return "offline"
    if is_online(spec.schedule):
        return "online"
    if not isinstance(spec.schedule, Spaced):
        return "spaced"
    interval = Duration.parse(spec.schedule.interval)
    whole = {"%": 100, "ep": spec.epochs, "st": math.inf}[interval.unit]  # how many steps there are is not known yet
    return "offline" if interval.amount >= whole else "spaced"


def _plain_where_unspaced(spec: RunSpec, own: RunSpec, asked_for: Collection[str]) -> RunSpec:
    """Self KD that is not spaced is its plain variant, one joint update for each batch, and no schedule at all.

    So both online, or nothing, in place of the recipe's `own` interval and plain in place of its `own` variant ask for
    it.
    """
    if own.method.name != "self-kd" or spec.method.name != own.method.name:
        return spec
    variant, usual = (one.method.options.get("variant") for one in (spec, own))
    left_open = variant == usual and "method.variant" not in asked_for
    unspaced = is_online(spec.schedule)
    asked = variant == "plain" or (left_open and unspaced)
    if asked and (unspaced or spec.schedule == own.schedule):
        plain = replace(spec.method, options={**spec.method.options, "variant": "plain"})
        return replace(spec, method=plain, schedule=None)
    return spec


def _with_drop_path(spec: RunSpec, own: RunSpec) -> RunSpec:
    """Drop-path as in the recipe's `own` transformer in others as well, whoever is one; what was asked for stays."""
    if "drop_path_rate" not in own.network.options:
        return spec
    usual = {"drop_path_rate": own.network.options["drop_path_rate"]}

    def dropping(network: NetworkSpec) -> NetworkSpec:
        drops = network.name.startswith(TRANSFORMERS) and network.weights is None
        return replace(network, options={**usual, **network.options}) if drops else network

    teacher = None if spec.teacher is None else dropping(spec.teacher)
    return replace(spec, network=dropping(spec.network), teacher=teacher)


def recipe(
    name: str,
    without: Collection[str] = (),
    change: Callable[[RunSpec], RunSpec] = lambda spec: spec,
    asked_for: Collection[str] = (),
) -> RunSpec:
    """The spec of a recipe: its settings, your change of them, and all quirks of that mode but those left out.

    A quirk sets nothing that your change sets: where the change gives another value than the recipe's, and at the
    places you name as `asked_for`. How an interval is counted is up to the quirks, whatever interval you choose.

    >>> recipe("official-cnn", without=["prob_kl"]).frozen_mode
    'train'
    >>> recipe("official-cnn", change=lambda spec: replace(spec, schedule="online")).frozen_mode
    'shared'
    """
    base = _chosen(name, without).spec
    asked = _with_drop_path(_plain_where_unspaced(change(base), base, asked_for), base)
    if asked.teacher is None and any(quirk == "distillation_token" for quirk, _, _ in _settings(name, without, asked)):
        asked = replace(asked, teacher=without_token(asked.network))  # the student's network is its own from here on

    def kept(place: str) -> bool:
        if any(f"{place}.".startswith(f"{one}.") or one.startswith(f"{place}.") for one in asked_for):
            return True
        if place == "data.augmentation" and asked.data.augment != base.data.augment:
            return True  # crop, mirror and rotation are the recipe's own augmentation's: a quirk's takes no changes
        return not place.startswith("schedule") and value_at(asked, place) != value_at(base, place)

    settings = _settings(name, without, asked)
    return with_changes(asked, [(place, value) for _, place, value in settings if not kept(place)])


def of_quirks(name: str, without: Collection[str], spec: RunSpec) -> dict[str, str]:
    """What became of a recipe's quirks in a spec made from it, in a few lines; those of other modes are no part of it.

    >>> of_quirks("official-cnn", (), replace(recipe("official-cnn"), precision="bf16-mixed"))["overridden"]
    'full_precision, by precision=bf16-mixed'
    """
    settings = [*_settings(name, without, spec)]
    on, lost = [], []
    for quirk in dict.fromkeys(quirk for quirk, _, _ in settings):
        own = [(place, value, value_at(spec, place)) for one, place, value in settings if one == quirk]
        others = [f"{place}={_in_words(found)}" for place, value, found in own if found != value]
        if others:
            lost.append(f"{quirk}{' in part' if len(others) < len(own) else ''}, by {' '.join(others)}")
        else:
            on.append(quirk)
    lines = {"quirks": ", ".join(on), "overridden": "; ".join(lost), "left out": ", ".join(without)}
    return {what: line for what, line in lines.items() if line}


def _in_words(value: Any) -> Any:
    return f"'{describe_schedule(value)}'" if isinstance(value, Schedule) else value


def _settings(name: str, without: Collection[str], spec: RunSpec) -> Iterator[tuple[str, str, Any]]:
    """Quirk, place and value of everything that is set by those that belong to the mode of a spec."""
    chosen, mode = _chosen(name, without), mode_of(spec)
    method = chosen.spec.method.name
    for quirk in (quirk for quirk, modes in chosen.quirks.items() if mode in modes and quirk not in without):
        for place, value in QUIRKS[quirk].settings(spec).items():
            if place.startswith("method.") and spec.method.name != method:
                raise UserError(
                    f"Quirk {quirk} is about method {method}, not {spec.method.name}: leave it out, --without {quirk}"
                )
            yield quirk, place, value


def _chosen(name: str, without: Collection[str]) -> Recipe:
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    chosen = RECIPES[name]
    for quirk in without:
        if quirk not in chosen.quirks:
            raise unknown(f"quirk of {name}", quirk, chosen.quirks or ["it has none"])
    return chosen
