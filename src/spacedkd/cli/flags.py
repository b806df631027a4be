"""The flags that describe a run, and the spec they stand for.

A flag that is not given leaves the spec as it is, so the same flags vary the default run, a spec.json, or the base
of a comparison.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from spacedkd.cli.assignments import assign, put, value
from spacedkd.cli.data_flags import DATA_PLACES, put_changes
from spacedkd.cli.flag import flag as flag
from spacedkd.cli.network_flags import NetworkFlags, put_networks
from spacedkd.cli.schedule_flags import make_schedule
from spacedkd.errors import UserError
from spacedkd.json_form import from_json, to_json
from spacedkd.methods import METHODS, build_method
from spacedkd.recipes import recipe
from spacedkd.schedule import Online
from spacedkd.spec import RunSpec, read_spec

DEFAULT = RunSpec()


@dataclass(frozen=True)
class RunFlags(NetworkFlags):
    spec: Annotated[
        Path | None, flag("start from this spec.json (or run folder); other flags change it", metavar="FILE")
    ] = None
    recipe: Annotated[
        str | None, flag("a training recipe that fills everything in (see: spacedkd list recipes)", metavar="NAME")
    ] = None
    without: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flag("leave out this quirk of an official recipe (may be repeated)", metavar="QUIRK"),
    ] = ()
    method: Annotated[str | None, flag("what is learned (see: spacedkd list methods)", DEFAULT.method.name, "NAME")] = (
        None
    )
    interval: Annotated[
        str | None,
        flag("how far the teacher leads: online, offline, or a length such as 1.5ep or 586st", "online", "LENGTH"),
    ] = None
    ahead: Annotated[
        str | None, flag("keep the teacher this far ahead but moving, instead of spacing", metavar="LENGTH")
    ] = None
    window: Annotated[
        str | None,
        flag("space only from..to (20ep..40ep) or from+length (20ep+10ep), online elsewhere", metavar="RANGE"),
    ] = None
    tail: Annotated[
        str | None, flag("a last block shorter than the interval: teach it or drop it", "teach", "teach|drop")
    ] = None
    epochs: Annotated[float | None, flag("passes over the training images", DEFAULT.epochs, "COUNT")] = None
    batch_size: Annotated[int | None, flag("images in a batch, over all devices", DEFAULT.batch_size, "COUNT")] = None
    optimizer: Annotated[str | None, flag("how weights are updated", DEFAULT.optimizer.name, "sgd|adamw")] = None
    lr: Annotated[float | None, flag("learning rate", DEFAULT.optimizer.lr, "RATE")] = None
    weight_decay: Annotated[
        float | None, flag("pulls weights towards zero", DEFAULT.optimizer.weight_decay, "FACTOR")
    ] = None
    rate: Annotated[str | None, flag("how the learning rate goes", DEFAULT.rate.shape, "constant|cosine|multistep")] = (
        None
    )
    milestones: Annotated[
        tuple[str, ...] | None, flag("when a multistep rate falls to a tenth: 60ep 120ep", metavar="LENGTH ...")
    ] = None
    warmup: Annotated[str | None, flag("let the learning rate rise first", "0ep", "LENGTH")] = None
    clip: Annotated[float | None, flag("shorten longer gradients to this norm", "never", "NORM")] = None
    label_smoothing: Annotated[float | None, flag("part of a label spread over all classes", 0, "PART")] = None
    ema: Annotated[float | None, flag("also keep a moving average of the student", "none", "DECAY")] = None
    seed: Annotated[
        int | None, flag("decides data order, augmentation and initial weights", DEFAULT.seed, "NUMBER")
    ] = None
    precision: Annotated[
        str | None,
        flag(
            "32-true, bf16-mixed, bf16-true or 64-true; auto takes bf16 where the hardware is fast at it",
            "auto",
            "NAME",
        ),
    ] = None
    accelerator: Annotated[str | None, flag("cpu, cuda, mps or auto", "auto", "NAME")] = None
    devices: Annotated[int | None, flag("GPUs (or CPU processes) to share each batch", 1, "COUNT")] = None
    workers: Annotated[
        int | None, flag("processes that prepare batches ahead; any number gives the same bits", 0, "COUNT")
    ] = None
    threads: Annotated[int | None, flag("CPU threads", "all cores", "COUNT")] = None
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flag(
            "anything else in the spec: method.temperature=4, optimizer.momentum=0.95, ... (may be repeated)",
            metavar="KEY=VALUE",
        ),
    ] = ()


# Where each plain flag goes in the spec's JSON.
_PLACES = {
    **DATA_PLACES,
    "method": "method.name",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "optimizer": "optimizer.name",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "rate": "rate.shape",
    "milestones": "rate.milestones",
    "warmup": "rate.warmup",
    "clip": "optimizer.clip",
    "label_smoothing": "label_smoothing",
    "ema": "ema",
    "seed": "seed",
    "precision": "precision",
    "accelerator": "engine.accelerator",
    "devices": "engine.devices",
    "workers": "engine.workers",
    "threads": "engine.threads",
}


def parse(words: Sequence[str]) -> RunFlags:
    """Flags from words, for the arms of a comparison."""
    return tyro.cli(RunFlags, args=words, prog="arm")


def to_spec(flags: RunFlags) -> RunSpec:
    """The default run, or the spec or recipe the flags name, changed by the flags."""
    if flags.spec is not None and flags.recipe is not None:
        raise UserError("--spec and --recipe both fill everything in: give one of them.")
    if flags.recipe is not None:
        return recipe(flags.recipe, flags.without, change=lambda spec: changed(spec, flags))
    if flags.without:
        raise UserError("--without leaves a quirk out of a --recipe: name the recipe too.")
    return changed(read_spec(flags.spec) if flags.spec is not None else DEFAULT, flags)


def changed(base: RunSpec, flags: RunFlags) -> RunSpec:
    """The base with every flag that is given."""
    plain = to_json(base)
    if flags.method is not None and flags.method != base.method.name:
        plain["method"]["options"] = {}  # one method's options mean nothing to another
    for name, place in _PLACES.items():
        if getattr(flags, name) is not None:
            put(plain, place, getattr(flags, name))
    put_networks(plain, flags)
    put_changes(plain["data"], flags)
    assign(plain, flags.set)
    return _scheduled(from_json(RunSpec, plain), flags)


def _scheduled(spec: RunSpec, flags: RunFlags) -> RunSpec:
    """The spec with the schedule its flags ask for, and a method that can follow it."""
    asked = (flags.interval, flags.ahead, flags.window, flags.tail)
    given = asked != (None, None, None, None)
    if given:
        spec = replace(spec, schedule=make_schedule(spec.schedule or Online(), *asked))
    return spec


def _can_be_spaced(spec: RunSpec) -> bool:
    return len(build_method(spec.method).roles) > 1


def _explicit(flags: RunFlags) -> Mapping[str, Any]:
    """Method options that were set by hand and so win over what spacing would choose."""
    pairs = (assignment.partition("=") for assignment in flags.set)
    return {place.removeprefix("method."): value(text) for place, _, text in pairs if place.startswith("method.")}


def parse_arm(text: str, base: RunFlags) -> tuple[str, RunSpec]:
    """An arm of a comparison from 'NAME: FLAGS', the flags it adds to the base's.

    >>> name, spec = parse_arm("spaced: --method kd --interval 1.5ep", RunFlags(epochs=30))
    >>> name, spec.epochs, spec.schedule.interval
    ('spaced', 30.0, Duration(amount=1.5, unit='ep'))
    """
    name, colon, typed = text.partition(":")
    if not colon or not name.strip():
        raise UserError(f"--arm wants 'NAME: FLAGS', for instance --arm 'spaced: --interval 1.5ep'; got {text!r}.")
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise UserError(f"--arm {text!r} cannot be read: {error}.") from None
    own = parse(words)
    if own.seed is not None:
        raise UserError(f"Arm {name.strip()!r} cannot have a seed of its own: all arms get the same seeds (--seeds).")
    return name.strip(), to_spec(_joined(base, own))


def _joined(base: RunFlags, own: RunFlags) -> RunFlags:
    """Both together; where both say something, the second wins."""
    given = {f.name: getattr(own, f.name) for f in fields(own) if getattr(own, f.name) not in (None, ())}
    repeated = {"set": base.set + own.set, "without": base.without + own.without}  # assistants are not: a chain is one
    return replace(base, **{**given, **repeated})
