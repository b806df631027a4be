"""The flags that describe a run: one for each field of the specs, whose help is the text below the field.

Only flags that are no single field are written by hand (`--interval`, `--width`, `--set`, ...). A flag that is not
given leaves the spec as it is, so the same flags change the default run, a spec.json, or the base of a comparison.
A setting that is true or false has two flags, `--flip` and `--no-flip`; `--flip true` and `--flip false` mean the
same. Help shows it as `--[no-]flip`. What is off unless it is typed, such as `--plan`, has one flag (`SWITCHES`).
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

from spacedkd.config.optimizer import OptimizerSpec, RateSpec
from spacedkd.config.serialization import TRUTH, default_value, field_docs
from spacedkd.config.spec import AugmentSpec, DataSpec, EngineSpec, MethodSpec, NetworkSpec, RunSpec
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.user_code import trust
from spacedkd.schedule import Duration

# --- Texts: numbers, truth values, assignments, and names of user code

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
"""fields of a spec that do"""

READ: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: lambda text: TRUTH[text.lower()]}
"""types that are typed as text, and how the text is read"""


def read(kind: Any, value: Any) -> Any:
    """Return the number or truth value that a text means; any other text is returned as it is."""
    try:
        return READ[kind](value) if kind in READ else value
    except (ValueError, KeyError):
        return value


def assignments(texts: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of --set KEY=VALUE; a value is JSON, or else the text itself."""
    for assignment in texts:
        path, sign, text = assignment.partition("=")
        if not sign:
            raise UserError(f"--set wants KEY=VALUE, for instance method.temperature=4; got {assignment!r}.")
        try:
            yield path.strip(), json.loads(text)
        except (ValueError, RecursionError):
            yield path.strip(), text


def names_of_code(flag: str, value: Any) -> Iterator[str]:
    """Yield the texts among a flag's values that may be names of user code.

    >>> [*names_of_code("network", "own:make"), *names_of_code("weights", "own:make")]
    ['own:make']
    >>> [*names_of_code("set", ['schedule={"kind": "own:Twice"}', "network.weights=os:system"])]
    ['own:Twice']
    """
    if flag == "set":
        for path, text in assignments(value):
            yield from _texts(path.rpartition(".")[2], text, _KEYS)
    else:
        yield from _texts(flag, value, NAMES_CODE)


def _texts(key: str, value: Any, keys: Iterable[str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _texts(inner, item, keys)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(key, item, keys)
    elif isinstance(value, str) and key in keys:
        yield value


# --- A flag for each field

Given = Mapping[str, Any]
"""the flags that were typed, by name"""
NO_FLAG = ("label", "processes_before", "extends")
"""fields without a flag, like the options of networks and methods: --set changes them"""


def flag(
    about: str, default: Any = "", metavar: str | None = None, also: tuple[str, ...] = (), name: str | None = None
) -> Any:
    """Return tyro's description of a flag: its help, its default in words, and the names it has as well."""
    hint = f"(default: {default})" if default != "" else ""
    return tyro.conf.arg(name=name, help=about, help_behavior_hint=hint, metavar=metavar, aliases=also or None)


def option_text(name: str) -> str:
    """Return a flag as it is typed and shown.

    >>> option_text("batch_size"), option_text("class-nll")
    ('--batch-size', '--class-nll')
    """
    return f"--{name.replace('_', '-')}"


class Flag(NamedTuple):
    """A flag of a run; `path` is the field of the spec that it sets, empty where it is no single field."""

    name: str
    kind: Any
    about: str
    default: Any = ""
    metavar: str | None = None
    path: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether the flag is on or off, and takes no value."""
        return self.kind is bool and not self.path

    @property
    def option(self) -> str:
        """The flag as it is typed: --batch-size."""
        return option_text(self.name)

    def field(self) -> tuple[str, Any, Any]:
        """Return this flag as a dataclass field; its default, where it is not given, is None, False or ().

        Numbers are taken as text, so that the spec refuses a bad one in its own words.
        """
        if self.is_switch:
            return self.name, Annotated[bool, flag(self.about)], False
        if self.kind is bool:  # `spelled_out` gives it its value
            # tyro shows other names first: --flip, --no-flip, of which `usage` makes --[no-]flip
            hint = flag(self.about, self.default, "", also=(self.option,), name=f"no-{self.option[2:]}")
        else:
            hint = flag(self.about, self.default, self.metavar)
        if self.kind is tuple:
            return self.name, Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], hint], ()
        kind = str if self.kind in READ else self.kind
        return self.name, Annotated[kind | None, hint], field(default=None, metadata={"kind": self.kind})


# Help that is not what the field itself says, by path.
_DEFAULTS = {
    "all": "data.train_limit data.class_limit data.class_list",
    "detected where only one can be meant": "data.image_column data.label_column data.train_split data.test_split",
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
    "PART": "data.holdout data.test_part data.label_noise label_smoothing rate.floor rate.warmup_start",
    "FILE": "data.class_list",
    "FOLDER": "data.root",
    "DATA": "data.source",
    "PLACE": "network.weights",
    "RUN": "teacher_path targets_path",
    "ROLE": "only",
    "NUMBER": "seed",
    "FORM": "targets_form",
    "NAME ...": "log",
    "AVERAGE ...": "record_average",
    "DEGREES": "data.augment.rotate",
}
_DEFAULT, _METAVAR = (
    {path: word for word, paths in table.items() for path in paths.split()} for table in (_DEFAULTS, _METAVARS)
)
_BY_KIND = {int: "COUNT", float: "NUMBER", str: "NAME", bool: "", Duration: "LENGTH"}


def of_fields(kind: type[Any], prefix: str = "") -> Iterator[Flag]:
    """Yield a flag for each plain field of a spec.

    The first field of a spec within the run's spec has its name: --optimizer is optimizer.name.

    >>> next(of_fields(OptimizerSpec, "optimizer")).name
    'optimizer'
    """
    docs, hints = field_docs(kind), get_type_hints(kind)
    for number, entry in enumerate(fields(kind)):
        path = f"{prefix}.{entry.name}" if prefix else entry.name
        value = _value_type(hints[entry.name])
        if value is None or path in NO_FLAG:
            continue
        first = number == 0 and kind in (DataSpec, NetworkSpec, MethodSpec, OptimizerSpec, RateSpec)
        name = prefix if first else {"augmentation": "augment"}.get(entry.name, entry.name)
        about, default = _help_of(docs.get(entry.name, ""), entry, path)
        if get_origin(value) is Literal:
            yield Flag(name, str, about, default, "|".join(get_args(value)), path)
        elif get_origin(value) is tuple:
            yield Flag(name, tuple[str, ...], about, default, _METAVAR.get(path, "LENGTH ..."), path)
        else:
            metavar = _METAVAR.get(path, _BY_KIND[value])
            yield Flag(name, str if value is Duration else value, about, default, metavar, path)


def _value_type(hint: Any) -> Any:
    """Return the type of a field's value on the command line; None for a field that has no flag."""
    if NoneType in get_args(hint):
        return _value_type(next(option for option in get_args(hint) if option is not NoneType))
    return hint if get_origin(hint) in (Literal, tuple) or hint in _BY_KIND else None


def _help_of(text: str, entry: Field[Any], path: str) -> tuple[str, str]:
    """Return the help and the default in words of a field; 'X; None takes Y' is X with the default Y."""
    if split := re.fullmatch(r"(.*); None(?:: | takes | is )(.*)", text):
        return _ABOUTS.get(path, split[1]), _DEFAULT.get(path, split[2])
    value = default_value(entry)
    if isinstance(value, bool):
        default = "yes" if value else "no"
    else:
        default = "none" if value in (None, ()) else f"{value:g}" if isinstance(value, float) else str(value)
    return _ABOUTS.get(path, text), _DEFAULT.get(path, default)


_EVERYTHING = [
    Flag("spec", Path, "start from a spec in JSON, YAML or TOML, or a run folder; flags change it", metavar="FILE"),
    Flag("recipe", str, "start from a training recipe (see `spacedkd list recipes`)", metavar="NAME"),
    Flag("without", tuple, "leave out this quirk of an official recipe (may be repeated)", metavar="QUIRK"),
    Flag("set", tuple, "any setting of the spec: network.drop_rate=0.1, ... (may be repeated)", metavar="KEY=VALUE"),
    Flag("trust_code", bool, "import user code that a file (--spec, --resume) names as package.module:name"),
]
_NETWORK = [
    *of_fields(NetworkSpec, "network"),
    Flag(
        "width",
        int,
        "channels of the first stage of our own networks, student and teacher",
        "64 of ResNets",
        "CHANNELS",
    ),
    Flag("pretrained", bool, "start from the published weights of --network, which timm downloads once"),
    Flag("teacher", str, "the teacher's network", "the student's", "NAME"),
    Flag(
        "teacher_weights",
        str,
        "a trained teacher that stays frozen: a run folder, a file of weights, or 'timm' for the published weights of "
        "--teacher",
        "it learns too",
        "PLACE",
    ),
    Flag("other_init", bool, "teacher and student start from different weights; the same as --no-same-init"),
    Flag(
        "assistant", tuple, "a network between teacher and student of takd; repeat for more, largest first", "", "NAME"
    ),
]
METHOD_OPTIONS = ("temperature", "label_weight", "logit_weight")
"""options of methods that have a flag of their name"""
_METHOD = [
    Flag(
        "temperature",
        float,
        "logits are divided by it before student and teacher are compared",
        "the method's",
        "NUMBER",
    ),
    Flag(
        "alpha",
        float,
        "weights of labels and teacher in the loss: (1 - alpha) CE + alpha KL",
        "the method's",
        "PART",
    ),
    Flag(
        "label_weight",
        float,
        "weight of the labels' cross-entropy (--alpha sets both weights)",
        "the method's",
        "NUMBER",
    ),
    Flag("logit_weight", float, "weight of the KL to the teacher's logits", "the method's", "NUMBER"),
]
_RUN = {run_flag.name: run_flag for run_flag in of_fields(RunSpec)}
_PLACED = {
    "network": ("same_init",),
    "method": ("label_smoothing",),
    "schedule": tuple(
        "frozen_mode follower_first redraw_replay follower_rate only".split()
        + "record record_average record_average_for teacher_path cache_targets targets_path targets_form".split()
    ),
    "machine": ("precision", "channels_last", "attention", "sync_batchnorm"),
}
"""fields of the run itself that belong to a group; all others are of the training"""
_SCHEDULE = [
    Flag(
        "interval",
        str,
        "how far the teacher leads: online, offline, a length (1.5ep, 586st), or a schedule by name (see `spacedkd "
        "list schedules`)",
        "online",
        "LENGTH",
    ),
    Flag("speed", float, "how many steps the teacher learns for each step of the student, or inf", 1, "NUMBER"),
    Flag(
        "blocks",
        tuple[str, ...],
        "blocks of these lengths instead of an interval; the last one repeats",
        metavar="LENGTH ...",
    ),
    Flag("growing", str, "blocks that double in length; the first one has this length", "", "LENGTH"),
    Flag("ahead", str, "no spacing: the teacher keeps this lead, and both learn in every step", metavar="LENGTH"),
    Flag("window", str, "space only from..to (20ep..40ep) or from+length (20ep+10ep), online elsewhere", "", "RANGE"),
    Flag("tail", str, "a last block shorter than the interval: teach it or drop it", "teach", "teach|drop"),
]
_TRAINING_ONLY = ("augment", "crop", "flip", "rotate", "mixup", "cutmix", "drop_last", "label_noise")
_DATA = {made.name: made for made in (*of_fields(DataSpec, "data"), *of_fields(AugmentSpec, "data.augment"))}
_IMAGES = [made for name, made in _DATA.items() if name not in _TRAINING_ONLY]
_OWN = {
    "": _EVERYTHING,
    "data": [*_IMAGES, *(_DATA[name] for name in _TRAINING_ONLY)],
    "network": _NETWORK,
    "method": [*of_fields(MethodSpec, "method"), *_METHOD],
    "schedule": _SCHEDULE,
    "training": [made for name, made in _RUN.items() if not any(name in names for names in _PLACED.values())],
    "optimizer": [*of_fields(OptimizerSpec, "optimizer")],
    "rate": [*of_fields(RateSpec, "rate")],
    "machine": [*of_fields(EngineSpec, "engine")],
}
GROUPS = {group: [*flags, *(_RUN[name] for name in _PLACED.get(group, ()))] for group, flags in _OWN.items()}
_ABOUT = {
    "data": "The dataset, and the augmentation of training images.",
    "network": "The networks of student and teacher.",
    "method": "The distillation method.",
    "schedule": "Who learns when. Lengths are epochs (1.5ep), steps (586st) or percent (50%).",
    "training": "The length of the run, evaluation and checkpoints.",
    "optimizer": "The optimizer.",
    "rate": "The learning rate as a function of the step.",
    "machine": "The machine, which does not change what is computed, and the precision, which does.",
}
PATHS = {made.name: made.path for flags in GROUPS.values() for made in flags if made.path}
"""the field of the spec that each flag of a single field sets"""
_BOOLEANS = {made.option for flags in GROUPS.values() for made in flags if made.kind is bool and made.path}


_OPPOSITES = {"--other-init": "--same-init"}
"""flags that are on where the field of another one is off"""
_SAME = {"--lr-schedule": "--rate", "--dry-run": "--plan"}
"""flags with a second name, which help does not show"""
SWITCHES = (tyro.conf.FlagCreatePairsOff,)
"""for tyro: a flag that is off unless it is typed has no opposite"""


def flag_class(flags: Iterable[tuple[str, Any, Any]], about: str = "") -> Any:
    """Return the dataclass of these flags that tyro reads; `about` is shown above them in the help."""
    return make_dataclass("flags", flags, frozen=True, namespace={"__doc__": about})


if TYPE_CHECKING:
    RunFlags = Any
    ImageFlags = Any
else:
    _classes = {name: flag_class((made.field() for made in GROUPS[name]), about) for name, about in _ABOUT.items()}
    _groups = [(name, group, group()) for name, group in _classes.items()]
    RunFlags = tyro.conf.OmitArgPrefixes[flag_class([*(made.field() for made in _EVERYTHING), *_groups])]
    ImageFlags = tyro.conf.OmitArgPrefixes[
        flag_class((made.field() for made in _IMAGES), "The images that --network is evaluated on.")
    ]


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the words of a command with a value behind every flag of a boolean field: --no-flip is --flip false.

    A flag that is the opposite of a field becomes that field's: --other-init is --same-init false. A flag's second
    name becomes its first: --lr-schedule is --rate.

    >>> spelled_out(["--flip", "--no-drop-last", "--same-init", "no", "--lr", "0.1"])
    ['--flip', 'true', '--drop-last', 'false', '--same-init', 'no', '--lr', '0.1']
    >>> spelled_out(["--other-init", "--no-other-init", "--other-init=no"])
    ['--same-init', 'false', '--same-init', 'true', '--same-init', 'true']
    >>> spelled_out(["--lr-schedule", "cosine", "--lr_schedule=own:rate"])
    ['--rate', 'cosine', '--rate=own:rate']
    """
    spelled: list[str] = []
    words = [*_without_opposites(map(first_name, words))]
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name = word.replace("_", "-")
        positive = name.replace("--no-", "--", 1)
        if name in _BOOLEANS and following.lower() not in TRUTH:
            spelled += [name, "true"]
        elif name.startswith("--no-") and positive in _BOOLEANS:
            spelled += [positive, "false"]
        else:
            spelled.append(word)
    return spelled


def first_name(word: str) -> str:
    """Return a word with the first name of its flag, if it is a flag that has two."""
    name, equals, value = word.partition("=")
    first = _SAME.get(name.replace("_", "-"))
    return word if first is None else f"{first}{equals}{value}"


def _without_opposites(words: Iterable[str]) -> Iterator[str]:
    """Yield the words with the field's own flag and its value in place of a flag that is its opposite."""
    rest = [*words]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        positive = name.replace("--no-", "--", 1)
        if positive not in _OPPOSITES or (equals and value.lower() not in TRUTH):
            yield word
            continue
        if not equals and rest and rest[0].lower() in TRUTH:
            value = rest.pop(0)
        on = TRUTH[value.lower()] if value else True
        yield from (_OPPOSITES[positive], "false" if on == (name == positive) else "true")


def given_flags(flags: Any) -> dict[str, Any]:
    """Return the flags of all groups that were typed; names of user code in them may be imported from now on."""
    typed: dict[str, Any] = {}
    for entry in fields(flags):
        value = getattr(flags, entry.name)
        if is_dataclass(value):
            typed |= given_flags(value)
        elif value == () and entry.default is None:
            raise UserError(f"{option_text(entry.name)} needs at least one value.")
        elif value not in (None, ()) and value is not False:
            typed[entry.name] = read(entry.metadata.get("kind"), value)
            trust(names_of_code(entry.name, value))
    return typed


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the flags in the words of a command, as in the arms of a comparison.

    >>> parse(["--interval", "1.5ep", "--epochs", "30"])
    {'interval': '1.5ep', 'epochs': 30.0}
    """
    return given_flags(tyro.cli(RunFlags, args=spelled_out(words), prog="spacedkd train", config=SWITCHES))
