"""Training recipes by name: what the paper says, done correctly, and what its released code does, quirk by quirk.

A recipe is a spec; an official recipe is the paper's settings with a list of quirks, each of which can be left out
alone. A quirk, a way in which the code differs from the paper, is a few settings of a run, and belongs to the modes in
which the code has it: its online KD is not its spaced KD by one step. `docs/recipes.md` explains every one.

python -m spacedkd.config.recipes docs/recipes.md      # write the table of settings, as `make docs` does
"""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from spacedkd.config.optimizer import OptimizerSpec
from spacedkd.config.serialization import value_at, with_changes
from spacedkd.config.spec import NetworkSpec, RunSpec
from spacedkd.runtime.errors import UserError, same_name, unknown
from spacedkd.schedule import Duration, ReleasedSelfKD, Schedule, Spaced, describe_schedule, interval_of

# Quirks

Changes = Mapping[str, Any]
"""values of a spec by path: {"optimizer.lr": 0.1}"""


class Quirk(NamedTuple):
    """One way in which the released code differs from the paper."""

    about: str
    settings: Callable[[RunSpec], Changes]
    """the settings it gives to a run with this spec; none where it does not matter"""


def _sets(settings: Changes) -> Callable[[RunSpec], Changes]:
    return lambda spec: settings


def _network_option(option: str, value: str, of: Callable[[NetworkSpec], bool]) -> Callable[[RunSpec], Changes]:
    """Return a function that sets an option of the student's and the teacher's network, each where `of` says so."""

    def settings(spec: RunSpec) -> Changes:
        networks = {"network": spec.network, "teacher": spec.teacher}
        return {f"{role}.{option}": value for role, made in networks.items() if made is not None and of(made)}

    return settings


def _is_small_resnet(network: NetworkSpec) -> bool:
    return network.is_ours and network.name.startswith("resnet") and not network.pretrained


def _drops_path_as_pit(network: NetworkSpec) -> bool:
    return network.name.startswith("pit_") and bool(network.options.get("drop_path_rate"))


def _distillation_token(spec: RunSpec) -> Changes:
    """Give a DeiT student its token; timm has it by an option, or by the name of the network."""
    name, options = spec.network.name, spec.network.options
    if not name.startswith("deit_") or spec.network.pretrained or options.get("distilled") is False:
        return {}
    named = {} if "_distilled_" in name else {"network.distilled": True}
    return {"method.distillation_token": True, **named}


def _second_pass(spec: RunSpec) -> Changes:
    drops = spec.network.name.startswith(("pit_", "pvt_")) and spec.network.options.get("drop_path_rate")
    return {"method.second_pass": True} if drops else {}


def without_token(network: NetworkSpec) -> NetworkSpec:
    """Return the same DeiT without a distillation token, as its teacher has none.

    >>> without_token(NetworkSpec("deit_tiny_distilled_patch16_224", {"depth": 6}))
    NetworkSpec(name='deit_tiny_patch16_224', options={'depth': 6}, weights=None)
    """
    options = {option: value for option, value in network.options.items() if option != "distilled"}
    return replace(network, name=network.name.replace("_distilled_", "_"), options=options)


def _no_flush(spec: RunSpec) -> Changes:
    return {} if value_at(spec, "schedule.tail") is None else {"schedule.tail": "drop"}


def _rounded_up(spec: RunSpec) -> Changes:
    if not isinstance(spec.schedule, Spaced):
        return {}
    interval = Duration.parse(spec.schedule.interval)
    return {} if interval.unit == "st" else {"schedule.interval": replace(interval, up=True)}


def _negative_counter(spec: RunSpec) -> Changes:
    interval = interval_of(spec.schedule)
    if interval is not None:
        return {"schedule": ReleasedSelfKD(interval, looks=True)}
    return {"schedule": spec.schedule} if isinstance(spec.schedule, ReleasedSelfKD) else {}


def _live_teacher(spec: RunSpec) -> Changes:
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


# Recipes


class Recipe(NamedTuple):
    """A spec to start from, and the quirks on top of it."""

    about: str
    spec: RunSpec
    quirks: Mapping[str, Sequence[str]] = {}
    """each with the modes it belongs to: online, spaced, offline, or alone, which is training without a teacher"""


TRANSFORMERS = ("deit", "pit", "vit", "swin")
"""how timm's names of those begin that a recipe's drop-path is for"""


class Setting(NamedTuple):
    """A value of a recipe, by its path in a spec, and where it comes from."""

    path: str
    value: Any
    source: str
    """a section of the paper, its released code, or ours"""
    implied: bool = False
    """whether the method or the network has this value anyway, so that the spec does not name it"""


_SETUPS = "paper, section 5.1"
_CODE = "released code; not in the paper"
_LEARNED_FROM = (
    Setting("method.label_weight", 0.7, "paper, section 3.1: 1 minus the weight of the KL", implied=True),
    Setting("method.logit_weight", 0.3, _SETUPS, implied=True),
    Setting("method.temperature", 3.0, _SETUPS, implied=True),
    Setting("method.temperature_squared", False, "released code of the ResNets; the paper does not say", implied=True),
    Setting("method.feature_weight", 0.03, _SETUPS, implied=True),
    Setting(
        "method.feature_loss",
        "norm",
        'released code: the root of the summed squares; the paper\'s table of losses calls it "MSE (Sum)"',
        implied=True,
    ),
)
_TWO_NETWORKS = (
    Setting("teacher", None, f"{_SETUPS}: the student's architecture"),
    Setting(
        "same_init",
        True,
        "spaced KD: paper, section 4.1; online KD: ours, the paper speaks of different seeds (section 3.1)",
    ),
    Setting("method.name", "kd", "paper, section 3.1"),
    Setting("method.logit_loss", "kl", _SETUPS, implied=True),
    Setting("schedule", Spaced("1.5ep"), "paper, section 5.3"),
    Setting("follower_first", False, "paper, Algorithm 1; the released code has the opposite (quirk `online_pre`)"),
)
_ANY_SPACED = (
    Setting(
        "schedule.tail",
        "teach",
        "ours, after the text of section 4.1; Algorithms 2 and 4 as printed, and the released code, leave the last, "
        "incomplete block untaught: `--tail drop`",
    ),
    Setting("frozen_mode", "eval", "ours; the paper freezes weights (section 4.1) and says nothing of BatchNorm"),
    Setting("precision", "auto", "ours; the released code computes in float32 (quirk `full_precision`)"),
)
_RESNET = (
    Setting("data.source", "cifar100", _SETUPS),
    Setting(
        "data.augmentation",
        "paper",
        "released code, on CIFAR crop, mirror and rotation by up to 15 degrees; not in the paper",
    ),
    Setting("data.drop_last", False, _CODE),
    Setting("network.name", "resnet18_small", f"{_SETUPS}; its stem for small images: released code"),
    Setting("epochs", 80.0, _SETUPS),
    Setting("batch_size", 128, _SETUPS),
    Setting("optimizer.name", "sgd", _SETUPS),
    Setting("optimizer.lr", 0.01, _SETUPS),
    Setting("optimizer.momentum", 0.9, _SETUPS),
    Setting("optimizer.weight_decay", 5e-4, _CODE),
    Setting("rate.shape", "constant", _SETUPS),
)
_TRANSFORMER = (
    Setting("data.source", "cifar100", _SETUPS),
    Setting("data.augmentation", "vit", "released code, RandAugment and erasing at 224 pixels; not in the paper"),
    Setting("data.drop_last", True, _CODE),
    Setting("network.name", "deit_tiny_patch16_224", _SETUPS),
    Setting("network.drop_path_rate", 0.1, _CODE),
    Setting("epochs", 300.0, _SETUPS),
    Setting("batch_size", 128, _SETUPS),
    Setting("optimizer.name", "adamw", _SETUPS),
    Setting("optimizer.lr", 5e-4, _SETUPS),
    Setting("optimizer.weight_decay", 0.05, _CODE),
    Setting("rate.shape", "cosine", _SETUPS),
    Setting("rate.floor", 0.01, f"{_SETUPS}: from 5e-4 to 5e-6"),
    Setting("rate.warmup", Duration(20, "ep"), _SETUPS),
    Setting("rate.warmup_start", 0.001, _CODE),
    Setting("rate.restart_after_warmup", False, _CODE),
    Setting("rate.per_epoch", True, _CODE),
)
SETTINGS: Mapping[str, Sequence[Setting]] = {
    "paper-cnn": (
        *_RESNET,
        Setting(
            "network.init", "kaiming", "released code of self KD; its two networks: quirk `torch_init`", implied=True
        ),
        *_TWO_NETWORKS,
        *_LEARNED_FROM,
        *_ANY_SPACED,
    ),
    "paper-self": (
        *_RESNET,
        Setting("network.init", "kaiming", "released code of self KD; not in the paper", implied=True),
        Setting("method.name", "self-kd", "paper, section 3.1"),
        Setting(
            "method.variant", "snapshot", "paper, section 4.1: the teacher is frozen; Algorithm 4: quirk `live_teacher`"
        ),
        Setting(
            "method.logit_loss",
            "soft-cross-entropy",
            "released code; the paper's KL (section 5.1) has the same gradient",
            implied=True,
        ),
        Setting("schedule", Spaced("4ep"), "paper, section 5.2, its table of self KD"),
        *_LEARNED_FROM,
        *_ANY_SPACED,
    ),
    "paper-vit": (*_TRANSFORMER, *_TWO_NETWORKS, *_LEARNED_FROM, *_ANY_SPACED),
}
"""what each recipe after the paper sets, from top to bottom; an official recipe is the same with its quirks"""


def _spec_of(settings: Sequence[Setting]) -> RunSpec:
    """Return the spec that has these settings; what is implied is left out of it, and so out of its fingerprint."""
    (optimizer,) = (setting.value for setting in settings if setting.path == "optimizer.name")
    base = RunSpec(optimizer=OptimizerSpec(optimizer))  # a momentum belongs to sgd alone
    return with_changes(base, [(setting.path, setting.value) for setting in settings if not setting.implied])


def format_setting(value: Any) -> str:
    """Return a setting's value as a table has it.

    >>> [format_setting(value) for value in (5e-4, True, None, Spaced("1.5ep"), Duration(20, "ep"))]
    ['0.0005', 'true', 'left open', 'spaced 1.5ep', '20ep']
    """
    if value is None:
        return "left open"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Schedule):
        return describe_schedule(value) or ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(name: str) -> list[tuple[str, str, str]]:
    """Return path, value and source of every setting of a recipe; of an official one also those of its quirks."""
    settings = SETTINGS[name.replace("official", "paper")]
    rows = [(setting.path, format_setting(setting.value), setting.source) for setting in settings]
    for quirk, modes in RECIPES[name].quirks.items():
        source = f"released code: {quirk} ({', '.join(modes)})"
        values = QUIRKS[quirk].settings(RECIPES[name].spec)
        rows += [(path, format_setting(value), source) for path, value in values.items()]
    return _sort_by_path(rows)


def _sort_by_path(rows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return rows in the order of a spec's fields; rows of one path follow each other."""
    rows = [*rows]
    groups = [entry.name for entry in fields(RunSpec)]
    paths = [*dict.fromkeys(path for path, _, _ in rows)]
    return sorted(rows, key=lambda row: (groups.index(row[0].partition(".")[0]), paths.index(row[0])))


def settings_table() -> str:
    """Return all settings of the recipes after the paper, and where each comes from, as a table in Markdown."""
    recipes: dict[tuple[str, str, str], list[str]] = {}
    for name in SETTINGS:
        for row in settings_of(name):
            recipes.setdefault(row, []).append(name.removeprefix("paper-"))
    lines = ["| setting | value | `paper-` | where it comes from |", "|---|---|---|---|"]
    for row in _sort_by_path(recipes):
        path, value, source = row
        names = "all" if len(recipes[row]) == len(SETTINGS) else ", ".join(recipes[row])
        lines.append(f"| `{path}` | {value} | {names} | {source} |")
    return "\n".join(lines)


BEGIN, END = "<!-- settings, written by `make docs` -->\n", "<!-- end of settings -->"


def with_settings_table(page: str) -> str:
    """Return a page with the table of settings between its two marks, instead of the text there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"The page has no place for the table of settings: {BEGIN.strip()} ... {END.strip()}")
    return f"{before}{begin}{settings_table()}\n{end}{after}"


_CNN, _SELF, _VIT = (_spec_of(settings) for settings in SETTINGS.values())

RECIPES = {
    "paper-cnn": Recipe("two ResNets, 80 epochs of SGD, interval 1.5 epochs, as the paper says", _CNN),
    "paper-self": Recipe("self KD on a ResNet with a frozen teacher, interval 4 epochs", _SELF),
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
        _TAUGHT: "numel_kl other_init distillation_token second_pass",
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
    """Return whether teacher and student take turns at every step, which is also the default of a run.

    >>> is_online(Spaced("1st", tail="drop")), is_online(Spaced("2st"))
    (True, False)
    """
    return schedule is None or interval_of(schedule) == Duration(1, "st")


def mode_of(spec: RunSpec) -> str:
    """Return the mode of the released code that a run has: alone, online, spaced or offline.

    >>> [mode_of(replace(_CNN, schedule=interval)) for interval in ("offline", "80ep", "1.5ep", "online")]
    ['offline', 'offline', 'spaced', 'online']
    """
    if spec.method.name == "none":
        return "alone"
    if value_at(spec, "method.teacher_learns") is False:  # it is trained already
        return "offline"
    if is_online(spec.schedule):
        return "online"
    if value_at(spec, "schedule.speed") == math.inf:
        return "offline"
    interval = interval_of(spec.schedule)
    if interval is None:
        return "spaced"
    whole = {"%": 100, "ep": spec.epochs, "st": math.inf}[interval.unit]  # how many steps there are is not known yet
    return "offline" if interval.amount >= whole else "spaced"


def _plain_where_unspaced(spec: RunSpec, own: RunSpec, asked_for: Collection[str]) -> RunSpec:
    """Return self KD that is not spaced as its plain variant: one joint update for each batch, and no schedule at all.

    It is asked for by online, or no schedule, instead of the recipe's `own` interval, and by `plain` instead of its
    `own` variant.
    """
    if own.method.name != "self-kd" or spec.method.name != own.method.name:
        return spec
    variant, usual = (each.method.options.get("variant") for each in (spec, own))
    left_open = variant == usual and "method.variant" not in asked_for
    unspaced = is_online(spec.schedule)
    asked = variant == "plain" or (left_open and unspaced)
    if asked and (unspaced or spec.schedule == own.schedule):
        plain = replace(spec.method, options={**spec.method.options, "variant": "plain"})
        return replace(spec, method=plain, schedule=None)
    return spec


def _with_drop_path(spec: RunSpec, own: RunSpec) -> RunSpec:
    """Return the spec with the drop-path of the recipe's `own` transformer in any transformer; a rate given stays."""
    if "drop_path_rate" not in own.network.options:
        return spec
    usual = {"drop_path_rate": own.network.options["drop_path_rate"]}

    def with_rate(network: NetworkSpec) -> NetworkSpec:
        drops = network.name.startswith(TRANSFORMERS) and network.weights is None
        return replace(network, options={**usual, **network.options}) if drops else network

    teacher = None if spec.teacher is None else with_rate(spec.teacher)
    return replace(spec, network=with_rate(spec.network), teacher=teacher)


def recipe(
    name: str,
    without: Collection[str] = (),
    change: Callable[[RunSpec], RunSpec] = lambda spec: spec,
    asked_for: Collection[str] = (),
) -> RunSpec:
    """Return the spec of a recipe: its settings, your change of them, and all quirks of that mode but those left out.

    A quirk sets nothing that your change sets: where the change gives another value than the recipe's, and at the
    paths you name as `asked_for`. How an interval is counted is up to the quirks, whatever interval you choose.

    >>> recipe("official-cnn", without=["prob_kl"]).frozen_mode
    'train'
    >>> recipe("official-cnn", change=lambda spec: replace(spec, schedule="online")).frozen_mode
    'shared'
    """
    base = _find_recipe(name, without).spec
    asked = _with_drop_path(_plain_where_unspaced(change(base), base, asked_for), base)
    if asked.teacher is None and any(
        quirk == "distillation_token" for quirk, _, _ in _quirk_settings(name, without, asked)
    ):
        asked = replace(asked, teacher=without_token(asked.network))  # the student's network is its own from here on

    def is_set_by_user(path: str) -> bool:
        if any(f"{path}.".startswith(f"{given}.") or given.startswith(f"{path}.") for given in asked_for):
            return True
        if path == "data.augmentation" and asked.data.augment != base.data.augment:
            return True  # crop, mirror and rotation are the recipe's own augmentation's: a quirk's takes no changes
        return not path.startswith("schedule") and value_at(asked, path) != value_at(base, path)

    settings = _quirk_settings(name, without, asked)
    return with_changes(asked, [(path, value) for _, path, value in settings if not is_set_by_user(path)])


def quirks_of(name: str, without: Collection[str], spec: RunSpec) -> dict[str, str]:
    """Return which quirks of a recipe a spec made from it has, which are overridden, and which were left out.

    >>> quirks_of("official-cnn", (), replace(recipe("official-cnn"), precision="bf16-mixed"))["overridden"]
    'full_precision, by precision=bf16-mixed'
    """
    settings = [*_quirk_settings(name, without, spec)]
    on, lost = [], []
    for quirk in dict.fromkeys(quirk for quirk, _, _ in settings):
        own = [(path, value, value_at(spec, path)) for name, path, value in settings if name == quirk]
        others = [f"{path}={_format_value(actual)}" for path, value, actual in own if actual != value]
        if others:
            lost.append(f"{quirk}{' in part' if len(others) < len(own) else ''}, by {' '.join(others)}")
        else:
            on.append(quirk)
    lines = {"quirks": ", ".join(on), "overridden": "; ".join(lost), "left out": ", ".join(without)}
    return {what: line for what, line in lines.items() if line}


def _format_value(value: Any) -> Any:
    return f"'{describe_schedule(value)}'" if isinstance(value, Schedule) else value


def _quirk_settings(name: str, without: Collection[str], spec: RunSpec) -> Iterator[tuple[str, str, Any]]:
    """Yield quirk, path and value of each setting of the recipe's quirks that belong to the mode of a spec."""
    chosen, mode = _find_recipe(name, without), mode_of(spec)
    method = chosen.spec.method.name
    for quirk in (quirk for quirk, modes in chosen.quirks.items() if mode in modes and quirk not in without):
        for path, value in QUIRKS[quirk].settings(spec).items():
            if path.startswith("method.") and spec.method.name != method:
                raise UserError(
                    f"Quirk {quirk} is about method {method}, not {spec.method.name}: leave it out, --without {quirk}"
                )
            yield quirk, path, value


def _find_recipe(name: str, without: Collection[str]) -> Recipe:
    name = same_name(name, RECIPES)
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    chosen = RECIPES[name]
    for quirk in without:
        if quirk not in chosen.quirks:
            raise unknown(f"quirk of {name}", quirk, chosen.quirks or ["it has none"])
    return chosen


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_settings_table(page.read_text(encoding="utf-8")), encoding="utf-8")
