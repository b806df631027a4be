"""What flags change in a spec.

Flags and --set name places such as optimizer.lr. All changes of one run are gathered first and made together, because a
spec checks its fields together: a multistep rate needs its milestones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from spacedkd.cli.flags import PLACES, Given
from spacedkd.cli.meanings import make_schedule, with_networks
from spacedkd.cli.typed import assignments
from spacedkd.duration import Duration
from spacedkd.errors import UserError, unknown
from spacedkd.recipes import recipe
from spacedkd.schedule import Online
from spacedkd.spec import AugmentSpec, MethodSpec, OptimizerSpec, RateSpec, RunSpec, read_spec

T = TypeVar("T")
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
        return recipe(given["recipe"], without, change=lambda spec: changed(spec, given))
    if without:
        raise UserError("--without leaves a quirk out of a --recipe: name the recipe too.")
    base = read_spec(given["spec"], given.get("trust_code", False)) if "spec" in given else RunSpec()
    return changed(base, given)


def changed(base: RunSpec, given: Given) -> RunSpec:
    """The base with every flag that is given."""
    spec = with_networks(_without_what_belonged_to_others(base, given), given)
    changes = [*_rate_left_behind(base.rate, given)]
    changes += [(place, given[name]) for name, place in PLACES.items() if name in given and name not in _VARIED]
    if any(name in given for name in SCHEDULE_FLAGS):
        changes.append(("schedule", make_schedule(base.schedule, *(given.get(name) for name in SCHEDULE_FLAGS))))
    spec = with_changes(spec, [*changes, *assignments(given.get("set", ()))])
    return _varied(spec, {name: given[name] for name in _VARIED if name in given})


def _without_what_belonged_to_others(base: RunSpec, given: Given) -> RunSpec:
    """One method's options mean nothing to another, and so it is with optimizers, augmentations and plain training."""
    spec = base
    if given.get("method", base.method.name) != base.method.name:
        spec = replace(spec, method=MethodSpec(given["method"]))
        if given["method"] == "none" or base.schedule == Online():  # online is what a run has that asked for nothing
            spec = replace(spec, schedule=None)
    elif base.schedule is None and any(name in given for name in SCHEDULE_FLAGS):
        spec = replace(spec, method=_open_to_spacing(base.method))
    if given.get("optimizer", base.optimizer.name) != base.optimizer.name:
        usual = OptimizerSpec(given["optimizer"])
        back = {name: getattr(usual, name) for name in _OF_AN_OPTIMIZER}
        spec = replace(spec, optimizer=replace(base.optimizer, name=given["optimizer"], **back))
    if "augment" in given:
        spec = replace(spec, data=replace(spec.data, augment=None))
    return spec


def _open_to_spacing(method: MethodSpec) -> MethodSpec:
    """A method without the options that spacing implies, so that the core chooses them."""
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


def with_changes(spec: T, changes: Iterable[tuple[str, Any]]) -> T:
    """A spec with what lies at these places changed; where one place is named twice the last wins.

    >>> with_changes(RunSpec(), [("optimizer.lr", 0.5), ("method.temperature", 4)]).method.options
    {'temperature': 4}
    """
    made: T = _changed(spec, [(place.split("."), place, value) for place, value in changes], "spec")
    return made


def _changed(base: Any, changes: Iterable[tuple[list[str], str, Any]], what: str) -> Any:
    """A spec, or a mapping in one, with what lies at these paths changed, all of it at once."""
    mapping = isinstance(base, Mapping)
    names = [] if mapping else [one.name for one in fields(base)]
    new: dict[str, Any] = {}
    inside: dict[str, list[tuple[list[str], str, Any]]] = {}
    for path, place, value in changes:
        # A network, a method or an optimizer has options of its own: method.temperature is method.options.temperature.
        name, *rest = ["options", *path] if "options" in names and path[0] not in names else path
        if rest:
            inside.setdefault(name, []).append((rest, place, value))
        elif names and name not in names:
            raise unknown(f"key in {what}", name, names)
        else:
            new[name] = value
            inside.pop(name, None)
    for name, deeper in inside.items():
        found = new[name] if name in new else base.get(name) if mapping else getattr(base, name, None)
        if not isinstance(found, Mapping) and not is_dataclass(found):
            raise UserError(f"There is no {deeper[0][1]!r} in this spec. {_WAY_OUT.get(name, _SEE)}")
        new[name] = _changed(found, deeper, f"{what}.{name}")
    return {**base, **new} if mapping else replace(base, **new)


_SEE = "See the spec.json of any run for the names."
_WAY_OUT = {
    "teacher": "Give --teacher NAME too.",
    "schedule": "Give --interval 1.5ep or another schedule too.",
    "augment": "Use --crop, --flip or --rotate.",
}


def folder_name(spec: RunSpec) -> str:
    """The folder of a run that was given none.

    >>> folder_name(RunSpec(data="photos/cats.parquet", schedule={"kind": "spaced", "interval": "1.5ep"}))
    'cats-resnet18_small-kd-spaced-1.5ep-seed0'
    """
    from spacedkd.experiments.comparison import describe

    data = Path(spec.data.source)
    words = (data.stem if data.suffix in (".parquet", ".npz") else data.name, spec.network.name, describe(spec))
    safe = (re.sub(r"[^\w.]+", "-", word).strip("-.")[:60] for word in words)
    return "-".join([*filter(None, safe), f"seed{spec.seed}"])
