"""Specs from flags: the default run, a spec file or a recipe, changed by the flags that were typed.

Flags and --set name paths such as optimizer.lr. All changes of one run are gathered first and made together, because a
spec checks its fields together: a multistep rate needs its milestones.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from spacedkd.cli.flags import METHOD_OPTIONS, PATHS, Given, assignments, option_text
from spacedkd.config.optimizer import SHAPES, OptimizerSpec, RateSpec
from spacedkd.config.recipes import is_online, recipe
from spacedkd.config.serialization import coerce, default_value, to_json, value_at, with_changes
from spacedkd.config.spec import AugmentSpec, MethodSpec, NetworkSpec, RunSpec, describe, read_spec, resolve_source
from spacedkd.runtime.errors import UserError, same_name
from spacedkd.runtime.files import resolve_links
from spacedkd.runtime.user_code import is_user_code
from spacedkd.schedule import (
    SCHEDULES,
    Ahead,
    Blocks,
    Duration,
    Growing,
    Online,
    Schedule,
    Spaced,
    Window,
    as_schedule,
    by_name,
    check_name,
)

# --- Networks

PUBLISHED = "timm"
_FROM_DATA = ("num_classes", "in_chans")


def with_networks(spec: RunSpec, given: Given) -> RunSpec:
    """Return the spec with the networks that these flags name."""
    width = coerce(int, given["width"], "width") if "width" in given else None
    if given.get("network", spec.network.name) != spec.network.name:
        spec = replace(spec, network=NetworkSpec(given["network"]))
    if width is not None and (spec.network.is_ours or not NetworkSpec(given.get("teacher", "")).is_ours):
        if not spec.network.is_ours and not is_user_code(spec.network.name):
            raise UserError(
                f"--width is for our own networks such as resnet18_small, and {spec.network.name} is none of "
                "them (the names of timm's networks say how wide they are): leave it out, or choose another --network."
            )
        spec = replace(spec, network=_with_option(spec.network, "width", width))
    if given.get("pretrained"):
        spec = replace(spec, network=_with_published_weights(spec.network))
    if "teacher" in given:
        spec = replace(spec, teacher=_network(given["teacher"], width))
    if "teacher_weights" in given:
        spec = _with_trained_teacher(spec, given["teacher_weights"], given.get("trust_code", False))
    if "assistant" in given:
        if spec.method.name != "takd":
            raise UserError("--assistant names a network between teacher and student: use it with --method takd.")
        assistants = [to_json(_network(name, width)) for name in given["assistant"]]
        spec = replace(spec, method=_with_option(spec.method, "assistants", assistants))
    return spec


def _network(name: str, width: int | None) -> NetworkSpec:
    network = NetworkSpec(name)
    return _with_option(network, "width", width) if width is not None and network.is_ours else network


def _with_published_weights(network: NetworkSpec) -> NetworkSpec:
    """Return a network that starts from timm's weights; refuse one that has none."""
    if is_user_code(network.name) or network.is_ours:
        raise UserError(
            f"--pretrained is for timm's networks, and {network.name} is none of them: choose another --network, for "
            "instance resnet18, or give --weights a file."
        )
    if network.weights is not None:
        raise UserError("--pretrained and --weights are two starts: give one of them.")
    return replace(network, options={**network.options, "pretrained": True})


def _with_option(spec: Any, name: str, value: Any) -> Any:
    return replace(spec, options={**spec.options, name: value})


def _with_trained_teacher(spec: RunSpec, weights: str, trust_code: bool) -> RunSpec:
    """Return the spec with a trained teacher, and with its method's teacher frozen."""
    if weights != PUBLISHED:
        network = spec.teacher or _trained_network(Path(weights), spec, trust_code)
        teacher = replace(network, weights=str(resolve_links(Path(weights))))
    elif spec.teacher is None:
        raise UserError("--teacher-weights timm takes the published weights of a network: name it with --teacher.")
    else:
        teacher = _with_option(spec.teacher, "pretrained", True)
    return replace(spec, teacher=teacher, method=_with_frozen_teacher(spec.method))


def _with_frozen_teacher(method: MethodSpec) -> MethodSpec:
    if ":" in method.name:
        return method  # a user's method decides itself what becomes of its teacher
    from spacedkd.methods.one_network import SelfTrainedTeacher
    from spacedkd.methods.registry import METHODS

    kind = METHODS[method.name]
    if issubclass(kind, SelfTrainedTeacher) or "teacher_learns" not in {entry.name for entry in fields(kind)}:
        raise UserError(f"--teacher-weights: method {method.name} has no teacher that could be trained already.")
    return replace(method, options={"teacher_learns": False, **method.options})


def _trained_network(path: Path, spec: RunSpec, trust_code: bool) -> NetworkSpec:
    """Return the network of a run or of a student's folder; weights in a file are taken for the student's network."""
    if (path / "spec.json").exists():
        return replace(read_spec(path, trust_code).network, weights=None)
    if (path / "config.json").exists():
        from spacedkd.models.pretrained import read_config

        config = read_config(path / "config.json", trust_code)
        options = {key: value for key, value in config.get("model_args", {}).items() if key not in _FROM_DATA}
        return NetworkSpec(config.get("architecture"), options)  # type: ignore[arg-type]
    return spec.network


# --- Weights and temperature of the method


def _method_options(given: Given) -> dict[str, Any]:
    """Return the options of the method that flags set; --alpha sets two, whose sum is 1 as it is written.

    >>> _method_options({"alpha": 0.9, "temperature": 4.0})
    {'temperature': 4.0, 'logit_weight': 0.9, 'label_weight': 0.1}
    """
    options = {name: given[name] for name in METHOD_OPTIONS if name in given}
    if "alpha" in given:
        for flag in ("label_weight", "logit_weight"):
            if flag in given:
                raise UserError(
                    f"--alpha sets the weights of labels and logits, and {option_text(flag)} one of them: leave "
                    "either out."
                )
        alpha = coerce(float, given["alpha"], "--alpha")
        if not 0 <= alpha <= 1:
            raise UserError(
                f"--alpha must be from 0 to 1, because the labels have the rest of the loss; got {alpha:g}. For "
                "other weights: --logit-weight and --label-weight."
            )
        options |= {"logit_weight": alpha, "label_weight": float(1 - Decimal(repr(alpha)))}  # 0.1 for 0.9
    for path, _ in assignments(given.get("set", ())):
        names = path.split(".")
        if names[0] == "method" and (names[-1] in options or names[-1] in ("method", "options")) and options:
            flags = " and ".join(option_text(name) for name in METHOD_FLAGS if name in given)
            raise UserError(f"{flags} and --set {path} set the same option of the method: leave either out.")
    return options


def _check_method_options(method: MethodSpec, given: Given) -> None:
    """Refuse a flag that sets an option which the method does not have, or does not use."""
    typed = [name for name in METHOD_FLAGS if name in given]
    if not typed or is_user_code(method.name):  # whose options are checked when it is made
        return
    from spacedkd.methods.registry import METHODS

    defaults = {entry.name: default_value(entry) for entry in fields(METHODS[method.name])}
    options = {**defaults, **method.options}
    for name in typed:
        needed = ("label_weight", "logit_weight") if name == "alpha" else (name,)
        if lacking := [option for option in needed if option not in defaults]:
            raise UserError(
                f"Method {method.name} has no {' and no '.join(lacking)}, which {option_text(name)} sets."
                f"{_has(defaults)}"
            )
    if "temperature" in given and options.get("curriculum"):
        raise UserError(
            f"Method {method.name} learns its temperature, so --temperature does not matter: leave it out, or add "
            "--set method.curriculum=0."
        )
    if "alpha" not in given:
        return
    if "alpha" in defaults:
        raise UserError(
            f"Method {method.name} has an alpha of its own: --set method.alpha={given['alpha']:g}. The weights of a "
            "student that it teaches are --label-weight and --logit-weight."
        )
    total = defaults["label_weight"] + defaults["logit_weight"]
    if not math.isclose(total, 1):
        raise UserError(
            f"--alpha is for losses of the form (1 - alpha) CE + alpha KL, and the weights of method {method.name} "
            f"({defaults['label_weight']:g} and {defaults['logit_weight']:g}) have the sum {total:g}: use "
            "--label-weight and --logit-weight."
        )


def _has(options: Iterable[str]) -> str:
    """Return a sentence on the options that a method has, as they are typed."""
    names = [option_text(name) if name in METHOD_OPTIONS else f"--set method.{name}=VALUE" for name in options]
    return f" It has {', '.join(names)}." if names else " It has no options."


def make_schedule(base: Schedule | None, given: Given) -> Schedule | dict[str, Any]:
    """Return the base schedule changed by flags; --interval keeps a window of the base, --window its interval.

    A schedule that goes by its name is returned as JSON, because --set may still give it options that it needs.
    """
    for name, make in _OF_THEIR_OWN.items():
        if name in given:
            if others := [f"--{other}" for other in SCHEDULE_FLAGS if other in given and other != name]:
                raise UserError(f"--{name} is a schedule of its own: leave out {' and '.join(others)}.")
            return make(given[name])
    interval, window = given.get("interval"), given.get("window")
    if interval is not None and (is_user_code(interval) or interval in SCHEDULES):
        return _named_schedule(base, interval, given)
    nothing = base is None and interval is None
    if nothing and window is None:
        flag = "--speed" if "speed" in given else "--tail"
        raise UserError(f"{flag} needs an --interval to belong to, for instance --interval 1.5ep.")
    inside = _spaced(getattr(base, "inside", base) or Online(), given)
    if window is not None:
        if nothing or inside == Online():
            raise UserError(f"--window {window} needs an --interval to space by, for instance --interval 1.5ep.")
        return _windowed(inside, window)
    around: Any = base
    return replace(around, inside=inside) if _is_window(base) else inside


def _is_window(schedule: Schedule | None) -> bool:
    """Return whether a schedule has another one inside, which --interval and --tail are about."""
    return hasattr(schedule, "inside")


def _named_schedule(base: Schedule | None, name: str, given: Given) -> dict[str, Any]:
    """Return the JSON of a schedule that goes by its name, within the base's window or that of --window."""
    for flag in _OF_SPACED:
        if flag in given:
            raise UserError(f"--{flag} belongs to an interval such as 1.5ep, and {name} is none: leave it out.")
    if "window" in given:
        around = to_json(_windowed(Online(), given["window"]))
    elif _is_window(base):
        around = to_json(base)
    else:
        return {"kind": name}
    return {**around, "inside": {"kind": name}}


def _spaced(base: Schedule, given: Given) -> Schedule:
    """Return the base, or the schedule of --interval in its place, with the tail and the speed of the flags."""
    if "interval" in given:
        check_name(given["interval"])
        try:
            base = by_name(given["interval"])
        except UserError as error:
            raise UserError(
                f"--interval {given['interval']}: {error} Also possible: online, offline, a schedule of `spacedkd list "
                "schedules`, or your own as package.module:Name."
            ) from None
    elif "speed" in given and base == Online():  # the schedule of a run that was given none
        raise UserError("--speed needs an --interval to belong to, for instance --interval 1.5ep.")
    changes = {flag: given[flag] for flag in _OF_SPACED if flag in given}
    for flag in changes:
        if not isinstance(base, Spaced):
            raise UserError(f"--{flag} needs an --interval to belong to.")
    return replace(base, **changes) if changes else base  # type: ignore[type-var]


def _windowed(inside: Schedule, window: str) -> Window:
    for sign, end in (("..", "stop"), ("+", "length")):
        start, separator, length = window.partition(sign)
        if separator:
            return Window(inside, Online(), start, **{end: length})
    raise UserError(f"--window wants from..to (20ep..40ep) or from+length (20ep+10ep), got {window!r}.")


# --- The whole spec

_OF_THEIR_OWN: dict[str, Callable[[Any], Schedule]] = {"ahead": Ahead, "blocks": Blocks, "growing": Growing}
"""flags that are a schedule by themselves"""
_OF_SPACED = ("tail", "speed")
"""flags that belong to --interval"""
SCHEDULE_FLAGS = ("interval", *_OF_THEIR_OWN, "window", *_OF_SPACED)
_OF_A_SHAPE = ("floor", "milestones", "factor", "restart_after_warmup")
_OF_AN_OPTIMIZER = ("momentum", "nesterov", "options")
_AUGMENT = ("crop", "flip", "rotate")
METHOD_FLAGS = ("alpha", *METHOD_OPTIONS)
"""flags that set options of the method"""


def to_spec(given: Given) -> RunSpec:
    """Return the default run, or the spec or recipe that the flags name, changed by the flags.

    >>> to_spec({"interval": "1.5ep", "lr": 0.1}).optimizer.lr
    0.1
    """
    if "spec" in given and "recipe" in given:
        raise UserError("--spec and --recipe both set everything: give one of them.")
    without = given.get("without", ())
    if "recipe" in given:
        spec = recipe(given["recipe"], without, lambda spec: apply_flags(spec, given), typed_paths(given))
        interval = given.get("interval", "online")
        if spec.schedule is None and (is_user_code(interval) or not is_online(as_schedule(interval, "--interval"))):
            raise UserError(
                f"Plain {spec.method.name} has no role that leads, so --interval spaces nothing: leave out either."
            )
        return spec
    if without:
        raise UserError("--without leaves a quirk out of a --recipe: name the recipe too.")
    base = read_spec(given["spec"], given.get("trust_code", False)) if "spec" in given else RunSpec()
    return apply_flags(base, given)


def check_other_init(specs: Iterable[RunSpec]) -> None:
    """Refuse --other-init where it matters in no run: there is no teacher, or the networks differ anyway."""
    reasons = [_idle_other_init(spec) for spec in specs]
    if reasons and all(reasons):
        raise UserError(f"--other-init (--no-same-init) does not matter here: {reasons[0]}. Leave it out.")


def _idle_other_init(spec: RunSpec) -> str:
    """Return why teacher and student of a run have different first weights anyway, or are one; "" otherwise."""
    from spacedkd.config.resolve import resolve_method

    method, _ = resolve_method(spec)
    if len({*method.frozen, *method.learners.values()}) == 1:
        return f"method {spec.method.name} with these options has no teacher in addition to the student's network"
    if spec.teacher is not None and len(method.roles) <= 2 and not spec.teacher.pretrained:
        teacher, student = spec.teacher.untrained(), spec.network.untrained()
        if teacher != student:
            other = teacher.name if teacher.name != student.name else f"{teacher.name} with other options"
            return f"the teacher's network, {other}, is not the student's, so their weights differ from the start"
    return ""


def typed_paths(given: Given) -> set[str]:
    """Return the paths of a spec that flags name.

    >>> sorted(typed_paths({"augment": "none", "tail": "teach", "set": ["method.options.temperature=4"]}))
    ['data.augmentation', 'method.temperature', 'schedule.tail']
    """
    paths = {path for name, path in PATHS.items() if name in given}
    paths |= {path.replace(".options", "") for path, _ in assignments(given.get("set", ()))}
    paths |= {f"method.{name}" for name in _method_options(given)}
    return paths | {f"schedule.{flag}" for flag in _OF_SPACED if flag in given}


def apply_flags(base: RunSpec, given: Given) -> RunSpec:
    """Return the base with every flag that is given."""
    given = _with_exact_names(given)
    spec = with_networks(_without_stale_options(base, given), given)
    changes = [*_stale_rate_options(base.rate, given)]
    changes += [(path, given[name]) for name, path in PATHS.items() if name in given and name not in _AUGMENT]
    if any(name in given for name in SCHEDULE_FLAGS):
        changes.append(("schedule", make_schedule(base.schedule, given)))
    changes += [(f"method.{name}", value) for name, value in _method_options(given).items()]
    spec = with_changes(spec, [*changes, *assignments(given.get("set", ()))])
    _check_method_options(spec.method, given)
    if "teacher_weights" in given and not _says_a_schedule(given) and value_at(spec, "method.teacher_learns") is False:
        spec = replace(spec, schedule=None)  # whose interval is of a teacher that learns
    return _with_augmentation(spec, {name: given[name] for name in _AUGMENT if name in given})


def _with_exact_names(given: Given) -> Given:
    """Return the flags with methods, datasets and rates as a spec writes them, whatever their case and hyphens."""
    readers = {
        "method": lambda name: MethodSpec(name).name,
        "data": resolve_source,
        "rate": lambda name: same_name(name, SHAPES),
    }
    return {**given, **{name: read(given[name]) for name, read in readers.items() if isinstance(given.get(name), str)}}


def _without_stale_options(base: RunSpec, given: Given) -> RunSpec:
    """Return the base without the options of a method, an optimizer or an augmentation that a flag replaces."""
    spec = base
    if given.get("method", base.method.name) != base.method.name:
        spec = replace(spec, method=MethodSpec(given["method"]))
        if given["method"] == "none" or base.schedule == Online():  # the schedule of a run that was given none
            spec = replace(spec, schedule=None)
    elif (base.schedule is None and any(name in given for name in SCHEDULE_FLAGS)) or _is_unspaced(given):
        spec = replace(spec, method=_open_to_spacing(base.method))
    if given.get("optimizer", base.optimizer.name) != base.optimizer.name:
        usual = OptimizerSpec(given["optimizer"])
        back = {name: getattr(usual, name) for name in _OF_AN_OPTIMIZER}
        spec = replace(spec, optimizer=replace(base.optimizer, name=given["optimizer"], **back))
    if "augment" in given:
        spec = replace(spec, data=replace(spec.data, augment=None))
    return spec


def _says_a_schedule(given: Given) -> bool:
    typed = [path.partition(".")[0] for path, _ in assignments(given.get("set", ()))]
    return "schedule" in typed or any(name in given for name in SCHEDULE_FLAGS)


def _is_unspaced(given: Given) -> bool:
    return any(path == "schedule" and value is None for path, value in assignments(given.get("set", ())))


def _open_to_spacing(method: MethodSpec) -> MethodSpec:
    """Return a method without the options that spacing implies, so that `config.resolve` chooses them."""
    if not method.options or ":" in method.name:
        return method
    from spacedkd.methods.registry import METHODS

    implied = METHODS[method.name].card.when_spaced
    return replace(method, options={key: value for key, value in method.options.items() if key not in implied})


def _stale_rate_options(base: RateSpec, given: Given) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of options that belong to the old shape of the rate, or to a warm-up that is removed."""
    names: tuple[str, ...] = ()
    if given.get("rate", base.shape) != base.shape:
        names = _OF_A_SHAPE
    elif "warmup" in given and Duration.parse(given["warmup"]).amount == 0:
        names = ("warmup_start", "restart_after_warmup")
    for name in names:
        yield f"rate.{name}", getattr(RateSpec(), name)


def _with_augmentation(spec: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """Return the spec with --crop, --flip and --rotate in place of what the data or the augmentation would have."""
    if not given:
        return spec
    AugmentSpec(**given)  # a bad number is refused before any data is looked for
    from spacedkd.data.sources import resolve_data

    augment = replace(resolve_data(spec.data).augment or AugmentSpec(), **given)
    return replace(spec, data=replace(spec.data, augment=augment))


def folder_name(spec: RunSpec) -> str:
    """Return a name for the folder of a run that was given none.

    >>> folder_name(RunSpec(data="photos/cats.parquet", schedule={"kind": "spaced", "interval": "1.5ep"}))
    'cats-resnet18_small-kd-spaced-1.5ep-seed0'
    """
    data = Path(spec.data.source)
    words = (data.stem if data.suffix in (".parquet", ".npz") else data.name, spec.network.name, describe(spec))
    safe = (re.sub(r"[^\w.]+", "-", word).strip("-.")[:60] for word in words)
    return "-".join([*filter(None, safe), f"seed{spec.seed}"])
