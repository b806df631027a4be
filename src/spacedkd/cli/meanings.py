"""What the flags stand for that have other words than the spec.

Networks are named by --network, --width, --teacher, --teacher-weights and --assistant, the schedule by --interval,
--ahead, --window and --tail.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from spacedkd.cli.flags import Given
from spacedkd.errors import UserError
from spacedkd.files import resolved
from spacedkd.json_form import fitting, to_json
from spacedkd.own_code import is_own
from spacedkd.schedule import Ahead, Online, Schedule, Spaced, Window, by_name
from spacedkd.spec import MethodSpec, NetworkSpec, RunSpec, read_spec

PUBLISHED = "timm"
_FROM_DATA = ("num_classes", "in_chans")


def with_networks(spec: RunSpec, given: Given) -> RunSpec:
    """The spec with the networks these flags name."""
    width = fitting(int, given["width"], "width") if "width" in given else None
    if given.get("network", spec.network.name) != spec.network.name:
        spec = replace(spec, network=NetworkSpec(given["network"]))
    if width is not None and (spec.network.is_ours or not NetworkSpec(given.get("teacher", "")).is_ours):
        if not spec.network.is_ours and not is_own(spec.network.name):
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
        teacher = replace(network, weights=str(resolved(Path(place))))
    elif spec.teacher is None:
        raise UserError("--teacher-weights timm takes the published weights of a network: name it with --teacher.")
    else:
        teacher = _with_option(spec.teacher, "pretrained", True)
    return replace(spec, teacher=teacher, method=_taught_by_it(spec.method))


def _taught_by_it(method: MethodSpec) -> MethodSpec:
    if ":" in method.name:
        return method  # a method of one's own knows what to do with its teacher
    from spacedkd.methods import METHODS
    from spacedkd.methods.one_network import Taught

    made = METHODS[method.name]
    if issubclass(made, Taught) or "teacher_learns" not in {field.name for field in fields(made)}:
        raise UserError(f"--teacher-weights: method {method.name} has no teacher that could be trained already.")
    return replace(method, options={"teacher_learns": False, **method.options})


def _trained_network(place: Path, spec: RunSpec, trust_code: bool) -> NetworkSpec:
    """A run knows its network, and so does a student's folder; a file's weights are taken for the student's own."""
    if (place / "spec.json").exists():
        return replace(read_spec(place, trust_code).network, weights=None)
    if (place / "config.json").exists():
        from spacedkd.models.description import described

        known = described(place / "config.json", trust_code)
        given = {key: value for key, value in known.get("model_args", {}).items() if key not in _FROM_DATA}
        return NetworkSpec(known.get("architecture"), given)  # type: ignore[arg-type]
    return spec.network


def make_schedule(
    base: Schedule | None, interval: str | None, ahead: str | None, window: str | None, tail: str | None
) -> Schedule | dict[str, Any]:
    """The base changed by whatever is given; a window keeps the interval it is about, and the other way round.

    A schedule of the user's is given back as JSON, because --set may still give it options that it cannot be without.
    """
    if interval is not None and is_own(interval) and ahead is None:
        return _own(base, interval, window, tail)
    if ahead is not None:
        if (interval, window, tail) != (None, None, None):
            raise UserError("--ahead is a schedule of its own: leave out --interval, --window and --tail.")
        return Ahead(ahead)
    nothing = base is None and interval is None
    if nothing and window is None:
        raise UserError("--tail needs an --interval to belong to, for instance --interval 1.5ep.")
    inside = _inside((base.inside if isinstance(base, Window) else base) or Online(), interval, tail)
    if window is not None:
        if nothing or inside == Online():
            raise UserError(f"--window {window} needs an --interval to space by, for instance --interval 1.5ep.")
        return _windowed(inside, window)
    return replace(base, inside=inside) if isinstance(base, Window) else inside


def _own(base: Schedule | None, name: str, window: str | None, tail: str | None) -> dict[str, Any]:
    if tail is not None:
        raise UserError(f"--tail is of our own intervals, and {name} decides by itself: leave it out.")
    if window is not None:
        around = to_json(_windowed(Online(), window))
    elif isinstance(base, Window):
        around = to_json(base)
    else:
        return {"kind": name}
    return {**around, "inside": {"kind": name}}


def _inside(base: Schedule, interval: str | None, tail: str | None) -> Schedule:
    if interval is not None:
        try:
            base = by_name(interval)
        except UserError as error:
            raise UserError(
                f"--interval {interval}: {error} Also possible: --interval online, --interval offline."
            ) from None
    if tail is None:
        return base
    if not isinstance(base, Spaced):
        raise UserError("--tail needs an --interval to belong to.")
    return Spaced(base.interval, tail)  # type: ignore[arg-type]


def _windowed(inside: Schedule, window: str) -> Window:
    for sign, end in (("..", "stop"), ("+", "length")):
        start, found, length = window.partition(sign)
        if found:
            return Window(inside, Online(), start, **{end: length})
    raise UserError(f"--window wants from..to (20ep..40ep) or from+length (20ep+10ep), got {window!r}.")
