"""Quirks: ways in which the paper's released code differs from the paper, by name.

Each quirk is a few settings of a run, and belongs to the recipes and modes that name it; `docs/recipes.md` explains
every one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from spacedkd.config.serialization import value_at
from spacedkd.config.spec import NetworkSpec, RunSpec
from spacedkd.schedule import Duration, ReleasedSelfKD, Spaced, interval_of

Settings = Mapping[str, Any]
"""values of a spec by path: {"optimizer.lr": 0.1}"""


class Quirk(NamedTuple):
    """One way in which the released code differs from the paper."""

    about: str
    settings: Callable[[RunSpec], Settings]
    """the settings it gives to a run with this spec; none where it does not matter"""


def _sets(settings: Settings) -> Callable[[RunSpec], Settings]:
    return lambda spec: settings


def _network_option(option: str, value: str, of: Callable[[NetworkSpec], bool]) -> Callable[[RunSpec], Settings]:
    """Return a function that sets an option of the student's and the teacher's network, each where `of` says so."""

    def settings(spec: RunSpec) -> Settings:
        networks = {"network": spec.network, "teacher": spec.teacher}
        return {f"{role}.{option}": value for role, made in networks.items() if made is not None and of(made)}

    return settings


def _is_small_resnet(network: NetworkSpec) -> bool:
    return network.is_ours and network.name.startswith("resnet") and not network.pretrained


def _drops_path_as_pit(network: NetworkSpec) -> bool:
    return network.name.startswith("pit_") and bool(network.options.get("drop_path_rate"))


def _distillation_token(spec: RunSpec) -> Settings:
    """Give a DeiT student its token; timm has it by an option, or by the name of the network."""
    name, options = spec.network.name, spec.network.options
    if not name.startswith("deit_") or spec.network.pretrained or options.get("distilled") is False:
        return {}
    named = {} if "_distilled_" in name else {"network.distilled": True}
    return {"method.distillation_token": True, **named}


def _second_pass(spec: RunSpec) -> Settings:
    drops = spec.network.name.startswith(("pit_", "pvt_")) and spec.network.options.get("drop_path_rate")
    return {"method.second_pass": True} if drops else {}


def without_token(network: NetworkSpec) -> NetworkSpec:
    """Return the same DeiT without a distillation token, as its teacher has none.

    >>> without_token(NetworkSpec("deit_tiny_distilled_patch16_224", {"depth": 6}))
    NetworkSpec(name='deit_tiny_patch16_224', options={'depth': 6}, weights=None)
    """
    options = {option: value for option, value in network.options.items() if option != "distilled"}
    return replace(network, name=network.name.replace("_distilled_", "_"), options=options)


def _no_flush(spec: RunSpec) -> Settings:
    return {} if value_at(spec, "schedule.tail") is None else {"schedule.tail": "drop"}


def _rounded_up(spec: RunSpec) -> Settings:
    if not isinstance(spec.schedule, Spaced):
        return {}
    interval = Duration.parse(spec.schedule.interval)
    return {} if interval.unit == "st" else {"schedule.interval": replace(interval, up=True)}


def _negative_counter(spec: RunSpec) -> Settings:
    interval = interval_of(spec.schedule)
    if interval is not None:
        return {"schedule": ReleasedSelfKD(interval, looks=True)}
    return {"schedule": spec.schedule} if isinstance(spec.schedule, ReleasedSelfKD) else {}


def _live_teacher(spec: RunSpec) -> Settings:
    return {"method.variant": "live"} if value_at(spec, "method.variant") in ("snapshot", "live") else {}


QUIRKS = {
    "prob_kl": Quirk(
        "the KL gets probabilities where log-probabilities belong", _sets({"method.logit_loss": "probability-kl"})
    ),
    "numel_kl": Quirk(
        "the KL is divided by classes too, with T^2 and T = 1, weight 0.5, and no feature term",
        _sets(
            {
                "method.logit_loss": "kl-over-classes",
                "method.temperature": 1.0,
                "method.temperature_squared": True,
                "method.label_weight": 0.5,
                "method.logit_weight": 0.5,
                "method.feature_weight": 0.0,
            }
        ),
    ),
    "teacher_train_mode": Quirk(
        "the frozen teacher stays in train mode: its BatchNorm statistics move and its drop-path acts",
        _sets({"frozen_mode": "train"}),
    ),
    "online_pre": Quirk(
        "online KD teaches with the forward pass the teacher learns from, so with its outputs of before its update",
        _sets({"follower_first": True, "frozen_mode": "shared"}),
    ),
    "no_flush": Quirk(
        "a last block shorter than the interval is never taught, as in the paper's Algorithms 2 and 4 as printed",
        _no_flush,
    ),
    "rounded_up": Quirk("a part of a step makes the interval a whole step longer", _rounded_up),
    "negative_counter": Quirk(
        "the counter starts at minus one epoch: a first block of another length, triggers the teacher sees, not learns",
        _negative_counter,
    ),
    "live_teacher": Quirk(
        "the replay trains the deepest classifier again, as in the paper's Algorithm 4", _live_teacher
    ),
    "exits_run_along": Quirk(
        "the exits run in the teacher's turns too: their BatchNorm statistics follow, their weights do not",
        _sets({"method.exits_run_along": True}),
    ),
    "skip_head3_feature": Quirk(
        "the feature term leaves out the deepest exit", _sets({"method.skip_deepest_exit_features": True})
    ),
    "self_augmentation": Quirk(
        "AutoAugment and Cutout on CIFAR, which the baseline does not get", _sets({"data.augmentation": "paper-self"})
    ),
    "joint_adamw_zero_grads": Quirk(
        "one AdamW over both networks: the frozen one gets zero gradients and still moves",
        _sets({"optimizer.moves_frozen": True}),
    ),
    "resampled_replay": Quirk("the student replays other batches than the teacher saw", _sets({"redraw_replay": True})),
    "teachers_rate": Quirk(
        "a replay has the learning rate of the epoch the teacher has reached, not of the epoch it replays",
        _sets({"follower_rate": "leader"}),
    ),
    "other_init": Quirk("teacher and student start from different weights", _sets({"same_init": False})),
    "torch_init": Quirk(
        "ResNets start from PyTorch's default weights",
        _network_option("init", "torch", _is_small_resnet),
    ),
    "zero_head": Quirk(
        "a DeiT's classifier starts from zero, its class token from a truncated normal (0.02)",
        _network_option(
            "init", "zero-head", lambda network: network.name.startswith("deit") and not network.pretrained
        ),
    ),
    "distillation_token": Quirk(
        "a DeiT student has a second token and head, which alone learn from the teacher; both heads' mean is evaluated",
        _distillation_token,
    ),
    "second_pass": Quirk(
        "a PiT student's logits for the teacher come from a second forward pass, with other drop-path masks",
        _second_pass,
    ),
    "pit_drop_path": Quirk(
        "block i of a PiT's N blocks drops with drop_path_rate * i / N, timm's with drop_path_rate * i / (N - 1)",
        _network_option("drop_path_rule", "i/N", _drops_path_as_pit),
    ),
    "full_precision": Quirk("everything is computed in float32", _sets({"precision": "32-true"})),
}
