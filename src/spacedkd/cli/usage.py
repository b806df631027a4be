"""Help that fits a screen, and errors of usage in one line.

Help shows the commands, and the flags that people need first; --help-all shows every flag.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from typing import Any, TextIO, get_args, get_type_hints

import tyro
from rich.text import Text

from spacedkd.cli.console import console, say
from spacedkd.cli.flags import GROUPS, SWITCHES, first_name, flag_class
from spacedkd.runtime.errors import UserError, did_you_mean, format_value, unknown

DESCRIPTION = "Train image classifiers with a teacher that learns ahead of them (Spaced KD)."
Verbs = Mapping[str, Callable[..., None]]
SHORT, LONG = ("-h", "--help"), ("-H", "--help-all")
FIRST = {
    "": ("spec", "recipe", "set"),
    "data": ("data",),
    "network": ("network", "width", "teacher"),
    "method": ("method", "temperature", "alpha", "interval"),
    "training": ("epochs", "batch_size", "seed"),
    "optimizer": ("optimizer", "lr", "rate"),
    "machine": ("accelerator", "devices"),
}
"""the flags of a run that people need first, by group"""
_OF_RUNS = ("train", "compare")
"""commands that take the flags of a run"""
_LATER = ("restart", "extend", "equal_cost", "sharing", "ray")
"""flags of the commands themselves that only --help-all shows"""


def helped(words: Sequence[str], verbs: Verbs) -> Sequence[str]:
    """Return the words for tyro to read; print short help, which ends the command, where the words ask for it."""
    if any(word in LONG for word in words):
        return [*(word for word in words if word not in LONG), "--help"]
    if not words or not any(word in SHORT for word in words):
        return words
    if words[0] in SHORT:
        _show_verbs(verbs)
    elif words[0] in _OF_RUNS:
        _show_first(words[0], verbs[words[0]])
    return words


@contextmanager
def wrapped(words: Sequence[str]) -> Iterator[None]:
    """Wrap help, printed within this context, between words at the width of the terminal."""
    if not any(word in (*SHORT, *LONG) for word in words):
        yield
        return
    printed = _Buffer(sys.stdout)
    try:
        with redirect_stdout(printed):
            yield
    finally:
        # The same width, so that the frame around it stays straight.
        text = _PAIR.sub(lambda pair: f"--[no-]{pair[1]}".ljust(len(pair[0])), printed.getvalue())
        console.print(Text.from_ansi(text), end="")


_PAIR = re.compile(r"--([a-z-]+), --no-\1(?![\w-])")
"""the two flags of a setting that is true or false, as tyro shows them"""


class _Buffer(StringIO):
    """A buffer for text that is to look as it would on another stream: its colours, and the lines of its boxes."""

    def __init__(self, other: TextIO) -> None:
        super().__init__()
        self._other = other

    def isatty(self) -> bool:
        return self._other.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._other.encoding


def about(verb: Callable[..., None]) -> str:
    """Return the first line of a command's help."""
    return inspect.getdoc(verb).splitlines()[0]  # type: ignore[union-attr]


def _show_verbs(verbs: Verbs) -> None:
    """Print one line for each command."""

    def stub_of(verb: Callable[..., None]) -> Callable[[], None]:
        def stub() -> None: ...

        stub.__doc__ = about(verb)
        return stub

    _show_help(
        "Examples: spacedkd train --width 16, spacedkd train --help, spacedkd --version",
        lambda: tyro.extras.subcommand_cli_from_dict(
            {name: stub_of(verb) for name, verb in verbs.items()},
            args=["--help"],
            prog="spacedkd",
            description=DESCRIPTION,
        ),
    )


def _show_first(name: str, verb: Callable[..., None]) -> None:
    """Print what a command does, an example, its own flags, and the first flags of a run."""
    hints = get_type_hints(verb, include_extras=True)
    own: list[Any] = [
        (parameter.name, hints[parameter.name], parameter.default)
        for parameter in inspect.signature(verb).parameters.values()
        if parameter.default is not inspect.Parameter.empty and parameter.name not in _LATER
    ]
    groups = [(group, flag_class(_fields(group))) for group in FIRST if group]
    flags = flag_class([*own, *_fields(""), *((group, kind, kind()) for group, kind in groups)])
    without_prefixes: Any = tyro.conf.OmitArgPrefixes
    _show_help(
        f"Every flag: spacedkd {name} --help-all",
        lambda: tyro.cli(
            without_prefixes[flags],
            args=["--help"],
            prog=f"spacedkd {name}",
            description=inspect.getdoc(verb),
            config=SWITCHES,
        ),
    )


def _fields(group: str) -> list[tuple[str, Any, Any]]:
    every = {made.name: made for flags in GROUPS.values() for made in flags}
    return [every[name].field() for name in FIRST[group]]


def _show_help(last: str, show: Callable[[], Any]) -> None:
    """Print help, which ends the command, and a last line on where there is more."""
    try:
        show()
    except SystemExit:
        say(last)
        raise


# Errors in the words of a command: one line with the way out, where tyro draws a box of many lines

try:
    _errors: Any = import_module("tyro._errors")  # its own, which another version of it may have changed
except ImportError:
    _errors = None

PROGRAM = "spacedkd"
_CALLED_HERE = {
    "--accumulate 2": "accumulate-grad-batches grad-accum grad-accumulation gradient-accumulation-steps",
    "--accelerator cpu": "cpu no-cuda",
    "--accelerator cuda": "cuda device use-cuda",
    "--ahead 1ep": "lead constant-ahead",
    "--augment NAME": "aug augmentation data-aug transform transforms",
    "--batch-size 128": "b batch batchsize bs train-batch-size per-device-train-batch-size",
    "--clip 1": "clip-grad clip-norm grad-clip grad-norm gradient-clip-val gradient-clipping max-grad-norm",
    "--data NAME, or --data FOLDER": "dataset datasets dataset-name ds data-name data-path train-dir",
    "--devices 2": "gpu gpus num-gpus n-gpu ngpu ngpus num-devices world-size nproc-per-node",
    "--ema 0.999": "ema-decay model-ema model-ema-decay",
    "--epochs 80": "n-epochs num-epochs max-epochs epoch-num",
    "--epochs, which may be a fraction: --epochs 0.5": "iterations iters max-iters max-steps num-steps steps",
    "--evaluate-every 1ep": "eval-every eval-freq eval-interval val-every val-freq",
    "--holdout 0.1, or --test-split NAME": "val val-set val-split valid-split validation validation-split",
    "--image-size 32": "img-size image-resolution input-size resolution size",
    "--interval 1.5ep": "gap space spaced spacing space-interval spaced-interval teacher-interval",
    "--label-smoothing 0.1": "smoothing ls",
    "--log tensorboard": "logger loggers mlflow report-to tensorboard wandb",
    "--log-every 25st": "log-freq log-interval print-freq",
    "--lr 0.01": "base-lr init-lr initial-lr learning-rate lr-init",
    "--method NAME": "algorithm algo distill distillation distill-method distill-type kd kd-method loss",
    "--network NAME": "arch architecture backbone model model-name model-s net network-name student student-arch "
    "student-model student-network",
    "--nodes 2": "nnodes num-nodes",
    "--optimizer NAME": "opt optim optimiser optimizer-name",
    "--out FOLDER": "dir exp exp-name experiment experiment-name log-dir logdir name out-dir output output-dir "
    "run-name save save-dir save-path",
    "--precision bf16-mixed": "amp bf16 half mixed-precision",
    "--precision 16-mixed": "fp16 float16 grad-scaler loss-scale",
    "--rate cosine": "lr-decay lr-policy lr-scheduler lr-scheduler-type sched scheduler",
    "--interval 1.5ep for who learns when, --rate cosine for the learning rate": "schedule",
    "--recipe NAME": "preset",
    "--resume RUN": "continue resume-from resume-from-checkpoint",
    "--root FOLDER, or --data FOLDER": "data-dir data-folder data-root",
    "--save-every 1ep": "checkpoint-every save-freq save-interval save-steps",
    "--seed 0": "manual-seed random-seed",
    "--alpha 0.9, which is --logit-weight 0.9 (of the teacher's logits) and --label-weight 0.1 (of the labels)": (
        "beta gamma kd-alpha kd-weight lambda distill-weight distillation-alpha loss-weight ce-weight cls-weight"
    ),
    "--set method.feature_weight=0.03": "feature-weight feat-weight hint-weight",
    "--temperature 4": "distillation-temperature kd-t kd-temperature t tau temp",
    "--set network.drop_path_rate=0.1": "drop-path drop-path-rate stochastic-depth",
    "--set network.drop_rate=0.1": "drop drop-rate dropout",
    "--pretrained (timm's weights), --weights FILE, or --teacher-weights timm": "pretrain use-pretrained",
    "--spec FILE": "cfg config config-file config-path conf params settings yaml",
    "--teacher NAME": "model-t teacher-arch teacher-model teacher-name teacher-net teacher-network",
    "--teacher-weights RUN, or a file": "path-t pretrained-teacher teacher-checkpoint teacher-ckpt teacher-pretrained",
    "--warmup 5ep": "warmup-epochs warmup-steps warm-up",
    "--weight-decay 0.0005": "decay l2 wd",
    "--weights FILE, or --resume RUN to continue a run": "checkpoint ckpt init-checkpoint init-from load load-from",
    "--workers 4": "data-workers dataloader-workers j loader-workers num-workers nw threads-data",
    "Leave it out: it follows from the data.": "classes n-classes nb-classes num-classes number-of-classes",
    "spacedkd evaluate RUN": "eval evaluate test test-only eval-only",
}
"""flags of this program, each with the names that other programs have for it"""
_HINTS = {word: flag for flag, words in _CALLED_HERE.items() for word in words.split()}
_OF_THE_COMPARISON = (
    "--out --seeds --arm --methods --against --jobs --ray --plan --dry-run --equal-cost --sharing --no-sharing".split()
)
_OF_ONE_RUN = ("--resume", "--restart", "--extend")
"""flags of the verbs that take the flags of a run, which are no flags of a run themselves"""
_KINDS = {
    tuple[int, ...]: "whole numbers",
    tuple[float, ...]: "numbers",
    int: "a whole number",
    float: "a number",
}


def in_one_line(words: Sequence[str], verbs: Verbs) -> AbstractContextManager[Any]:
    """While this lasts, words that cannot be read are a UserError; `words` are those of the whole command.

    Where tyro has changed, it draws its boxes.
    """

    def refuse(event: Any) -> None:
        with suppress(AttributeError):
            _refuse(event, words, verbs)

    hooked: Callable[..., AbstractContextManager[Any]] = getattr(_errors, "on_parse_error", nullcontext)
    return hooked(refuse)


def _refuse(event: Any, words: Sequence[str], verbs: Verbs) -> None:
    if not words:
        raise UserError(f"Name a command: {', '.join(verbs)}. See {PROGRAM} --help")
    verb = words[0]
    if verb not in verbs:
        raise unknown("command", verb, verbs)
    if event.prog != PROGRAM:
        verb = event.prog.removeprefix(f"{PROGRAM} ")  # of the flags of an arm, which are those of another
    match event:
        case _errors.UnrecognizedArgs():
            typed = (word for word in words if first_name(word) == event.tokens[0])
            raise _unrecognized(next(typed, event.tokens[0]), verb, verbs[verb], event.prog != PROGRAM)
        case _errors.MissingArgs():
            names = " and ".join(_name(missing.arg) for missing in event.missing_arguments)
            raise UserError(f"{verb} needs {names}. See {PROGRAM} {verb} --help")
        case _errors.BadValue():
            raise UserError(f"{_name(event.argument)} needs a value. See {PROGRAM} {verb} --help-all")
        case _errors.InstantiationFailure(argument=argument) if argument is not None:
            raise _not_read(_name(argument), argument.field.type_stripped, event.message.splitlines()[0])


def _unrecognized(word: str, name: str, verb: Callable[..., None], in_arm: bool) -> UserError:
    flag, way_out = word.partition("=")[0], f"Every flag: {PROGRAM} {name} --help-all"
    if not flag.startswith("-"):
        return UserError(f"{name} does not expect the word {format_value(word)}. {way_out}")
    hint = _HINTS.get(flag.lstrip("-").lower().replace("_", "-")) if name in _OF_RUNS else None
    if hint is not None:
        return UserError(
            f"{name} has no flag {format_value(flag)}. {hint if hint.endswith('.') else f'Use {hint}.'} {way_out}"
        )
    if in_arm and flag in _OF_THE_COMPARISON:
        return UserError(f"{flag} is no flag of an arm, but of the whole comparison: give it outside of --arm.")
    if in_arm and flag in _OF_ONE_RUN:
        return UserError(
            f"{flag} is no flag of an arm: give the same comparison again to continue what is not finished."
        )
    return UserError(
        f"{name} has no flag {format_value(flag)}.{did_you_mean(flag, flags_of(verb), likeness=0.75)} {way_out}"
    )


def _not_read(name: str, kind: Any, message: str) -> UserError:
    """Return the refusal of a value of the wrong type; tyro quotes what was typed at the end of its message."""
    wanted = next((words for plain, words in _KINDS.items() if plain in (kind, *get_args(kind))), None)
    typed = re.search(r"('.*')\W*$", message)
    if wanted is None or typed is None:
        return UserError(f"{name}: {message}")
    return UserError(f"{name} must be {wanted}, got {typed[1]}.")


def flags_of(verb: Callable[..., None]) -> list[str]:
    """Return the flags in the help of a command, with their other names."""
    printed = StringIO()
    with suppress(SystemExit), redirect_stdout(printed):
        tyro.cli(verb, args=["--help"], config=SWITCHES)
    heads = re.findall(r"^[^\w-]*(--?\w.*?)(?:  |$)", printed.getvalue(), re.MULTILINE)
    return [name for head in heads for name in re.findall(r"(?<!\S)--\w[\w-]*", head)]


def _name(argument: Any) -> str:
    """Return an argument as it is typed: a flag, or the placeholder of a positional argument."""
    return str(argument.lowered.metavar if argument.is_positional() else argument.lowered.name_or_flags[0])
