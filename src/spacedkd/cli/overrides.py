"""What flags change in a spec.

Flags and --set name places such as optimizer.lr. All changes of one run are gathered first and made together, because a
spec checks its fields together: a multistep rate needs its milestones.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from spacedkd.cli.flags import PLACES, Given, assignments
from spacedkd.config.overrides import value_at, with_changes
from spacedkd.config.recipes import is_online, recipe
from spacedkd.config.serialization import coerce, to_json
from spacedkd.config.spec import (
    SHAPES,
    AugmentSpec,
    MethodSpec,
    NetworkSpec,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    describe,
    named_source,
    read_spec,
)
from spacedkd.runtime.errors import UserError, same_name
from spacedkd.runtime.files import resolve_links
from spacedkd.runtime.user_code import is_user_code
from spacedkd.schedule import SCHEDULES, Ahead, Duration, Online, Schedule, Window, as_schedule, by_name

# What the flags stand for that have other words than the spec.

PUBLISHED = "timm"
_FROM_DATA = ("num_classes", "in_chans")


def with_networks(spec: RunSpec, given: Given) -> RunSpec:
    """The spec with the networks these flags name."""
    width = coerce(int, given["width"], "width") if "width" in given else None
    if given.get("network", spec.network.name) != spec.network.name:
        spec = replace(spec, network=NetworkSpec(given["network"]))
    if width is not None and (spec.network.is_ours or not NetworkSpec(given.get("teacher", "")).is_ours):
        if not spec.network.is_ours and not is_user_code(spec.network.name):
            raise UserError(
                f"--width is for our small-image ResNets such as resnet18_small, and {spec.network.name} is none of "
                "them (the names of timm's networks say how wide they are): leave it out, or choose another --network."
            )
        spec = replace(spec, network=_with_option(spec.network, "width", width))
    if "teacher" in given:
        spec = replace(spec, teacher=_named(given["teacher"], width))
    if "teacher_weights" in given:
        spec = _with_trained_teacher(spec, given["teacher_weights"], given.get("trust_code", False))
    if "assistant" in given:
        if spec.method.name != "takd":
            raise UserError("--assistant names a network between teacher and student: use it with --method takd.")
        assistants = [to_json(_named(name, width)) for name in given["assistant"]]
        spec = replace(spec, method=_with_option(spec.method, "assistants", assistants))
    return spec


def _named(name: str, width: int | None) -> NetworkSpec:
    named = NetworkSpec(name)
    return _with_option(named, "width", width) if width is not None and named.is_ours else named


def _with_option(spec: Any, name: str, value: Any) -> Any:
    return replace(spec, options={**spec.options, name: value})


def _with_trained_teacher(spec: RunSpec, place: str, trust_code: bool) -> RunSpec:
    """The trained teacher; a method whose teacher would learn is told that it does not."""
    if place != PUBLISHED:
        network = spec.teacher or _trained_network(Path(place), spec, trust_code)
        teacher = replace(network, weights=str(resolve_links(Path(place))))
    elif spec.teacher is None:
        raise UserError("--teacher-weights timm takes the published weights of a network: name it with --teacher.")
    else:
        teacher = _with_option(spec.teacher, "pretrained", True)
    return replace(spec, teacher=teacher, method=_taught_by_it(spec.method))


def _taught_by_it(method: MethodSpec) -> MethodSpec:
    if ":" in method.name:
        return method  # a method of one's own knows what to do with its teacher
    from spacedkd.methods import METHODS
    from spacedkd.methods.one_network import SelfTrainedTeacher

    made = METHODS[method.name]
    if issubclass(made, SelfTrainedTeacher) or "teacher_learns" not in {field.name for field in fields(made)}:
        raise UserError(f"--teacher-weights: method {method.name} has no teacher that could be trained already.")
    return replace(method, options={"teacher_learns": False, **method.options})


def _trained_network(place: Path, spec: RunSpec, trust_code: bool) -> NetworkSpec:
    """A run knows its network, and so does a student's folder; a file's weights are taken for the student's own."""
    if (place / "spec.json").exists():
        return replace(read_spec(place, trust_code).network, weights=None)
    if (place / "config.json").exists():
        from spacedkd.models.student_config import read_config

        known = read_config(place / "config.json", trust_code)
        given = {key: value for key, value in known.get("model_args", {}).items() if key not in _FROM_DATA}
        return NetworkSpec(known.get("architecture"), given)  # type: ignore[arg-type]
    return spec.network


def make_schedule(
    base: Schedule | None, interval: str | None, ahead: str | None, window: str | None, tail: str | None
) -> Schedule | dict[str, Any]:
    """The base changed by whatever is given; a window keeps the interval it is about, and the other way round.

    A schedule of the user's is given back as JSON, because --set may still give it options that it cannot be without.
    """
    if interval is not None and ahead is None and (is_user_code(interval) or interval in SCHEDULES):
        return _named_schedule(base, interval, window, tail)
    if ahead is not None:
        if (interval, window, tail) != (None, None, None):
            raise UserError("--ahead is a schedule of its own: leave out --interval, --window and --tail.")
        return Ahead(ahead)
    nothing = base is None and interval is None
    if nothing and window is None:
        raise UserError("--tail needs an --interval to belong to, for instance --interval 1.5ep.")
    inside = _spaced(getattr(base, "inside", base) or Online(), interval, tail)
    if window is not None:
        if nothing or inside == Online():
            raise UserError(f"--window {window} needs an --interval to space by, for instance --interval 1.5ep.")
        return _windowed(inside, window)
    around: Any = base
    return replace(around, inside=inside) if _is_window(base) else inside


def _is_window(schedule: Schedule | None) -> bool:
    """Return whether a schedule has another one inside, which --interval and --tail are about."""
    return hasattr(schedule, "inside")


def _named_schedule(base: Schedule | None, name: str, window: str | None, tail: str | None) -> dict[str, Any]:
    """Return the JSON of a schedule that goes by its name, within the base's window or that of --window."""
    if tail is not None:
        raise UserError(f"--tail belongs to an interval such as 1.5ep, and {name} is none: leave it out.")
    if window is not None:
        around = to_json(_windowed(Online(), window))
    elif _is_window(base):
        around = to_json(base)
    else:
        return {"kind": name}
    return {**around, "inside": {"kind": name}}


def _spaced(base: Schedule, interval: str | None, tail: str | None) -> Schedule:
    """Return the base, or the schedule of --interval in its place, with its tail as --tail says."""
    if interval is not None:
        try:
            base = by_name(interval)
        except UserError as error:
            raise UserError(
                f"--interval {interval}: {error} Also possible: --interval online, --interval offline."
            ) from None
    if tail is None:
        return base
    if not hasattr(base, "tail"):
        raise UserError("--tail needs an --interval to belong to.")
    return replace(base, tail=tail)  # type: ignore[type-var]


def _windowed(inside: Schedule, window: str) -> Window:
    for sign, end in (("..", "stop"), ("+", "length")):
        start, separator, length = window.partition(sign)
        if separator:
            return Window(inside, Online(), start, **{end: length})
    raise UserError(f"--window wants from..to (20ep..40ep) or from+length (20ep+10ep), got {window!r}.")


# What flags change in a spec.

SCHEDULE_FLAGS = ("interval", "ahead", "window", "tail")
_OF_A_SHAPE = ("floor", "milestones", "factor", "restart_after_warmup")
_OF_AN_OPTIMIZER = ("momentum", "nesterov", "options")
_VARIED = ("crop", "flip", "rotate")


def to_spec(given: Given) -> RunSpec:
    """The default run, or the spec or recipe the flags name, changed by the flags.

    >>> to_spec({"interval": "1.5ep", "lr": 0.1}).optimizer.lr
    0.1
    """
    if "spec" in given and "recipe" in given:
        raise UserError("--spec and --recipe both fill everything in: give one of them.")
    without = given.get("without", ())
    if "recipe" in given:
        spec = recipe(given["recipe"], without, lambda spec: changed(spec, given), typed_places(given))
        interval = given.get("interval", "online")
        if spec.schedule is None and (is_user_code(interval) or not is_online(as_schedule(interval, "--interval"))):
            raise UserError(
                f"Nobody leads in plain {spec.method.name}, so --interval spaces nothing: leave out either."
            )
        return spec
    if without:
        raise UserError("--without leaves a quirk out of a --recipe: name the recipe too.")
    base = read_spec(given["spec"], given.get("trust_code", False)) if "spec" in given else RunSpec()
    return changed(base, given)


def typed_places(given: Given) -> set[str]:
    """The places of a spec that flags name.

    >>> sorted(typed_places({"augment": "none", "tail": "teach", "set": ["method.options.temperature=4"]}))
    ['data.augmentation', 'method.temperature', 'schedule.tail']
    """
    places = {place for name, place in PLACES.items() if name in given}
    places |= {place.replace(".options", "") for place, _ in assignments(given.get("set", ()))}
    return places | ({"schedule.tail"} if "tail" in given else set())


def changed(base: RunSpec, given: Given) -> RunSpec:
    """The base with every flag that is given."""
    given = _by_their_names(given)
    spec = with_networks(_without_what_belonged_to_others(base, given), given)
    changes = [*_rate_left_behind(base.rate, given)]
    changes += [(place, given[name]) for name, place in PLACES.items() if name in given and name not in _VARIED]
    if any(name in given for name in SCHEDULE_FLAGS):
        changes.append(("schedule", make_schedule(base.schedule, *(given.get(name) for name in SCHEDULE_FLAGS))))
    spec = with_changes(spec, [*changes, *assignments(given.get("set", ()))])
    if "teacher_weights" in given and not _says_a_schedule(given) and value_at(spec, "method.teacher_learns") is False:
        spec = replace(spec, schedule=None)  # whose interval is of a teacher that learns
    return _varied(spec, {name: given[name] for name in _VARIED if name in given})


def _by_their_names(given: Given) -> Given:
    """The flags with methods, data sets and the like as a spec writes them, whatever their case and hyphens."""
    known = {
        "method": lambda name: MethodSpec(name).name,
        "data": named_source,
        "rate": lambda name: same_name(name, SHAPES),
    }
    return {**given, **{name: read(given[name]) for name, read in known.items() if isinstance(given.get(name), str)}}


def _without_what_belonged_to_others(base: RunSpec, given: Given) -> RunSpec:
    """One method's options mean nothing to another, and so it is with optimizers, augmentations and plain training."""
    spec = base
    if given.get("method", base.method.name) != base.method.name:
        spec = replace(spec, method=MethodSpec(given["method"]))
        if given["method"] == "none" or base.schedule == Online():  # online is what a run has that asked for nothing
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
    typed = [place.partition(".")[0] for place, _ in assignments(given.get("set", ()))]
    return "schedule" in typed or any(name in given for name in SCHEDULE_FLAGS)


def _is_unspaced(given: Given) -> bool:
    return any(place == "schedule" and value is None for place, value in assignments(given.get("set", ())))


def _open_to_spacing(method: MethodSpec) -> MethodSpec:
    """A method without the options that spacing, or its absence, implies, so that the core chooses them."""
    if not method.options or ":" in method.name:
        return method
    from spacedkd.methods import METHODS

    implied = METHODS[method.name].card.when_spaced
    return replace(method, options={key: value for key, value in method.options.items() if key not in implied})


def _rate_left_behind(base: RateSpec, given: Given) -> Iterator[tuple[str, Any]]:
    """What belongs to another shape of the learning rate only, or to a warm-up that is taken away, as it usually is."""
    names: tuple[str, ...] = ()
    if given.get("rate", base.shape) != base.shape:
        names = _OF_A_SHAPE
    elif "warmup" in given and Duration.parse(given["warmup"]).amount == 0:
        names = ("warmup_start", "restart_after_warmup")
    for name in names:
        yield f"rate.{name}", getattr(RateSpec(), name)


def _varied(spec: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """Let --crop, --flip and --rotate change what the data or the named augmentation would have."""
    if not given:
        return spec
    AugmentSpec(**given)  # a bad number is refused before any data is looked for
    from spacedkd.data.sources import resolve_data

    augment = replace(resolve_data(spec.data).augment or AugmentSpec(), **given)
    return replace(spec, data=replace(spec.data, augment=augment))


def folder_name(spec: RunSpec) -> str:
    """The folder of a run that was given none.

    >>> folder_name(RunSpec(data="photos/cats.parquet", schedule={"kind": "spaced", "interval": "1.5ep"}))
    'cats-resnet18_small-kd-spaced-1.5ep-seed0'
    """
    data = Path(spec.data.source)
    words = (data.stem if data.suffix in (".parquet", ".npz") else data.name, spec.network.name, describe(spec))
    safe = (re.sub(r"[^\w.]+", "-", word).strip("-.")[:60] for word in words)
    return "-".join([*filter(None, safe), f"seed{spec.seed}"])
