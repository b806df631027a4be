"""What flags change in a spec.

Flags and --set name places such as optimizer.lr. All changes of one run are gathered first and made together, because a
spec checks its fields together: a multistep rate needs its milestones.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spacedkd.cli.flags import PLACES, Given
from spacedkd.cli.meanings import make_schedule, with_networks
from spacedkd.cli.typed import assignments
from spacedkd.data_spec import named_source
from spacedkd.duration import Duration
from spacedkd.errors import UserError, same_name
from spacedkd.optimizer_spec import SHAPES
from spacedkd.own_code import is_own
from spacedkd.places import value_at, with_changes
from spacedkd.recipes import is_online, recipe
from spacedkd.schedule import Online, by_name
from spacedkd.spec import AugmentSpec, MethodSpec, OptimizerSpec, RateSpec, RunSpec, read_spec
from spacedkd.spec_words import describe

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
        if spec.schedule is None and (is_own(interval) or not is_online(by_name(interval))):
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
    from spacedkd.data.sources import fill_in

    augment = replace(fill_in(spec.data).augment or AugmentSpec(), **given)
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
