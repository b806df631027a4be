"""The flags that describe a run: one for each field of the specs, with what is written below the field as its help.

Hand-written is only what has other words than the spec (`--interval`, `--width`, `--set`, ...). A flag that is not
given leaves the spec as it is, so the same flags vary the default run, a spec.json, or the base of a comparison.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from spacedkd.config.serialization import TRUTH, default_value, field_docs
from spacedkd.config.spec import (
    AugmentSpec,
    DataSpec,
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    OptimizerSpec,
    RateSpec,
    RunSpec,
)
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.user_code import trust
from spacedkd.schedule import Duration

# What was typed: numbers, assignments, and the names of code among the flags.

NAMES_CODE = (
    "network",
    "teacher",
    "assistant",
    "data",
    "collate",
    "optimizer",
    "rate",
    "method",
    "interval",
    "record",
)
"""flags that take package.module:name"""
_KEYS = (*NAMES_CODE, "assistants", "schedule", "name", "source", "shape", "kind")
"""the places of a spec that do"""

READ: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: lambda text: TRUTH[text.lower()]}
"""what is typed as text, and how it becomes what it is meant to be"""


def read(kind: Any, value: Any) -> Any:
    """A number from its text; what is none stays text."""
    try:
        return READ[kind](value) if kind in READ else value
    except (ValueError, KeyError):
        return value


def assignments(written: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Places and values of --set KEY=VALUE; a value is JSON, or else the text itself."""
    for one in written:
        place, sign, text = one.partition("=")
        if not sign:
            raise UserError(f"--set wants KEY=VALUE, for instance method.temperature=4; got {one!r}.")
        try:
            yield place.strip(), json.loads(text)
        except (ValueError, RecursionError):
            yield place.strip(), text


def names_of_code(flag: str, value: Any) -> Iterator[str]:
    """The texts among a flag's values that may be names of code.

    >>> [*names_of_code("network", "own:make"), *names_of_code("weights", "own:make")]
    ['own:make']
    >>> [*names_of_code("set", ['schedule={"kind": "own:Twice"}', "network.weights=os:system"])]
    ['own:Twice']
    """
    if flag == "set":
        for place, text in assignments(value):
            yield from _texts(place.rpartition(".")[2], text, _KEYS)
    else:
        yield from _texts(flag, value, NAMES_CODE)


def _texts(key: str, value: Any, keys: Iterable[str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, one in value.items():
            yield from _texts(inner, one, keys)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(key, one, keys)
    elif isinstance(value, str) and key in keys:
        yield value


# The flags that describe a run: one for each field of the specs, with what is written below the field as its help.

Given = Mapping[str, Any]
"""the flags somebody typed, by name"""
NO_FLAG = ("label", "processes_before", "extends")
"""fields that --set alone changes; so it is with options, which are the network's or the method's own"""


def flag(about: str, default: Any = "", metavar: str | None = None, also: tuple[str, ...] = ()) -> Any:
    """A flag's line in the help, with what the run has when the flag is left out, and what it is called `also`."""
    hint = f"(default: {default})" if default != "" else ""
    return tyro.conf.arg(help=about, help_behavior_hint=hint, metavar=metavar, aliases=also or None)


class Flag(NamedTuple):
    """A flag of a run; `place` is what it sets in the spec, and empty for those that need thinking."""

    name: str
    kind: Any
    about: str
    default: Any = ""
    metavar: str | None = None
    place: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it is given or not, and takes no word."""
        return self.kind is bool and (not self.place or self.place.startswith("engine."))

    def field(self) -> tuple[str, Any, Any]:
        """This flag as a dataclass field; None, or an empty tuple, is what it has when it is not given.

        Numbers are taken as text, so that the spec says what is wrong with one, in its own words.
        """
        if self.is_switch:
            return self.name, Annotated[tyro.conf.FlagCreatePairsOff[bool], flag(self.about)], False
        hint = flag(self.about, self.default, self.metavar)
        if self.kind is tuple:
            return self.name, Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], hint], ()
        typed = str if self.kind in READ else self.kind
        return self.name, Annotated[typed | None, hint], field(default=None, metadata={"kind": self.kind})


# What the help says of a field where it is not what the field itself says.
_DEFAULTS = {
    "all": "data.train_limit data.class_limit data.class_list",
    "found where only one can be meant": "data.image_column data.label_column data.train_split data.test_split",
    "what suits the data": "data.augment.crop data.augment.flip data.augment.rotate",
    "random ones": "network.weights",
    "0.9 with sgd": "optimizer.momentum",
    "never": "optimizer.clip",
}
_ABOUTS = {
    "data.image_column": "the column of a table that holds the images",
    "data.label_column": "the column of a table that holds the labels",
    "optimizer.momentum": "of sgd, and of those optimizers of timm that have one",
}
_METAVARS = {
    "PIXELS": "data.augment.crop data.image_size",
    "PART": "data.holdout data.test_part label_smoothing rate.floor rate.warmup_start",
    "FILE": "data.class_list",
    "FOLDER": "data.root",
    "DATA": "data.source",
    "PLACE": "network.weights",
    "RUN": "teacher_path",
    "ROLE": "only",
    "NUMBER": "seed",
    "NAME ...": "log",
    "DEGREES": "data.augment.rotate",
}
_DEFAULT, _METAVAR = (
    {place: word for word, places in table.items() for place in places.split()} for table in (_DEFAULTS, _METAVARS)
)
_BY_KIND = {int: "COUNT", float: "NUMBER", str: "NAME", bool: "True|False", Duration: "LENGTH"}


def of_fields(kind: type[Any], where: str = "") -> Iterator[Flag]:
    """A flag for each plain field of a spec.

    The first field of a spec within the run's spec has its name: --optimizer is optimizer.name.

    >>> next(of_fields(OptimizerSpec, "optimizer")).name
    'optimizer'
    """
    said, hints = field_docs(kind), get_type_hints(kind)
    for number, one in enumerate(fields(kind)):
        place = f"{where}.{one.name}" if where else one.name
        shown = _kind(hints[one.name])
        if shown is None or place in NO_FLAG:
            continue
        first = number == 0 and kind in (DataSpec, NetworkSpec, MethodSpec, OptimizerSpec, RateSpec)
        name = where if first else {"augmentation": "augment"}.get(one.name, one.name)
        about, default = _said(said.get(one.name, ""), one, place)
        typed = str if shown is Duration else shown
        if get_origin(shown) is Literal:
            yield Flag(name, str, about, default, "|".join(get_args(shown)), place)
        elif get_origin(shown) is tuple:
            yield Flag(name, tuple[str, ...], about, default, _METAVAR.get(place, "LENGTH ..."), place)
        else:
            yield Flag(name, typed, about, default, _METAVAR.get(place, _BY_KIND[shown]), place)


def _kind(hint: Any) -> Any:
    """What a field's flag takes; None for what has no flag of its own."""
    if NoneType in get_args(hint):
        return _kind(next(option for option in get_args(hint) if option is not NoneType))
    return hint if get_origin(hint) in (Literal, tuple) or hint in _BY_KIND else None


def _said(sentence: str, one: Field[Any], place: str) -> tuple[str, str]:
    """A field's sentence and its default; 'X; None takes Y' is X with the default Y."""
    if split := re.fullmatch(r"(.*); None (?:takes|is|finds it) (.*)", sentence):
        return _ABOUTS.get(place, split[1]), _DEFAULT.get(place, split[2])
    value = default_value(one)
    default = "none" if value in (None, ()) else f"{value:g}" if isinstance(value, float) else str(value)
    return _ABOUTS.get(place, sentence), _DEFAULT.get(place, default)


_EVERYTHING = [
    Flag("spec", Path, "start from a spec in JSON, YAML or TOML, or a run folder; flags change it", metavar="FILE"),
    Flag("recipe", str, "a training recipe that fills everything in (see `spacedkd list recipes`)", metavar="NAME"),
    Flag("without", tuple, "leave out this quirk of an official recipe (may be repeated)", metavar="QUIRK"),
    Flag("set", tuple, "anything else in the spec: method.temperature=4, ... (may be repeated)", metavar="KEY=VALUE"),
    Flag(
        "trust_code", bool, "import what a file (--spec, --resume) names as package.module:name, not only what is typed"
    ),
]
_NETWORK = [
    *of_fields(NetworkSpec, "network"),
    Flag("width", int, "first-stage channels of our small-image ResNets, whoever has one", 64, "CHANNELS"),
    Flag("teacher", str, "the teacher's network", "the student's", "NAME"),
    Flag(
        "teacher_weights",
        str,
        "a teacher that is trained already and stays as it is: a run folder, a file of weights, or 'timm' for the "
        "published ones of --teacher",
        "it learns too",
        "PLACE",
    ),
    Flag(
        "assistant", tuple, "a network between teacher and student of takd; repeat for more, largest first", "", "NAME"
    ),
]
_RUN = {one.name: one for one in of_fields(RunSpec)}
_PLACED = {
    "network": ("same_init",),
    "method": ("label_smoothing",),
    "schedule": tuple("frozen_mode follower_first redraw_replay follower_rate only record teacher_path".split()),
    "machine": ("precision", "channels_last", "sync_batchnorm"),
}
"""fields of the run itself that belong to a group; all others are of the training"""
_SCHEDULE = [
    Flag(
        "interval",
        str,
        "how far the teacher leads: online, offline, a length (1.5ep, 586st), or a schedule of yours as "
        "package.module:Name",
        "online",
        "LENGTH",
    ),
    Flag("ahead", str, "keep the teacher this far ahead but moving, instead of spacing", metavar="LENGTH"),
    Flag("window", str, "space only from..to (20ep..40ep) or from+length (20ep+10ep), online elsewhere", "", "RANGE"),
    Flag("tail", str, "a last block shorter than the interval: teach it or drop it", "teach", "teach|drop"),
]
_TRAINING_ONLY = ("augment", "crop", "flip", "rotate", "mixup", "cutmix", "drop_last")
_DATA = {one.name: one for one in (*of_fields(DataSpec, "data"), *of_fields(AugmentSpec, "data.augment"))}
_IMAGES = [one for name, one in _DATA.items() if name not in _TRAINING_ONLY]
_OWN = {
    "": _EVERYTHING,
    "data": [*_IMAGES, *(_DATA[name] for name in _TRAINING_ONLY)],
    "network": _NETWORK,
    "method": [*of_fields(MethodSpec, "method")],
    "schedule": _SCHEDULE,
    "training": [one for name, one in _RUN.items() if not any(name in names for names in _PLACED.values())],
    "optimizer": [*of_fields(OptimizerSpec, "optimizer")],
    "rate": [*of_fields(RateSpec, "rate")],
    "machine": [*of_fields(EngineSpec, "engine")],
}
GROUPS = {group: [*flags, *(_RUN[name] for name in _PLACED.get(group, ()))] for group, flags in _OWN.items()}
_ABOUT = {
    "data": "Which images there are, and how they are varied in training.",
    "network": "Who learns and who teaches.",
    "method": "What is learned.",
    "schedule": "Who learns when. Lengths are epochs (1.5ep), steps (586st) or percent (50%).",
    "training": "How long, and with what care.",
    "optimizer": "How weights are updated.",
    "rate": "The learning rate as a function of the step.",
    "machine": "Where a run is computed, which does not change what it computes; and in which precision, which does.",
}
PLACES = {one.name: one.place for flags in GROUPS.values() for one in flags if one.place}
"""what each flag of a single field sets in the spec"""


def flag_class(flags: Iterable[tuple[str, Any, Any]], about: str = "") -> Any:
    """The dataclass of these flags that tyro reads; what it is about stands above them in the help."""
    return make_dataclass("flags", flags, frozen=True, namespace={"__doc__": about})


if TYPE_CHECKING:
    RunFlags = Any
    ImageFlags = Any
else:
    _classes = {name: flag_class((one.field() for one in GROUPS[name]), about) for name, about in _ABOUT.items()}
    _groups = [(name, group, group()) for name, group in _classes.items()]
    RunFlags = tyro.conf.OmitArgPrefixes[flag_class([*(one.field() for one in _EVERYTHING), *_groups])]
    ImageFlags = tyro.conf.OmitArgPrefixes[
        flag_class((one.field() for one in _IMAGES), "Which images --network is measured on.")
    ]


def given(flags: Any) -> dict[str, Any]:
    """What was typed, of all groups; names of code in it may be imported from now on."""
    found: dict[str, Any] = {}
    for one in fields(flags):
        value = getattr(flags, one.name)
        if is_dataclass(value):
            found |= given(value)
        elif value == () and one.default is None:
            raise UserError(f"--{one.name.replace('_', '-')} needs at least one value.")
        elif value not in (None, ()) and value is not False:
            found[one.name] = read(one.metadata.get("kind"), value)
            trust(names_of_code(one.name, value))
    return found


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Flags from words, as in the arms of a comparison.

    >>> parse(["--interval", "1.5ep", "--epochs", "30"])
    {'interval': '1.5ep', 'epochs': 30.0}
    """
    return given(tyro.cli(RunFlags, args=words, prog="spacedkd train"))
