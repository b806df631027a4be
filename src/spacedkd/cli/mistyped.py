"""What is wrong with the words of a command, in one line with the way out; tyro itself draws a box of many lines."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from typing import Any, get_args

import tyro

from spacedkd.cli.help import Verbs
from spacedkd.errors import UserError, did_you_mean, shown, unknown

try:
    _errors: Any = import_module("tyro._errors")  # its own, which another version of it may have changed
except ImportError:
    _errors = None

PROGRAM = "spacedkd"
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
            raise _unrecognized(event.tokens[0], verb, verbs[verb])
        case _errors.MissingArgs():
            names = " and ".join(_name(one.arg) for one in event.missing_arguments)
            raise UserError(f"{verb} needs {names}. See {PROGRAM} {verb} --help")
        case _errors.BadValue():
            raise UserError(f"{_name(event.argument)} needs a value. See {PROGRAM} {verb} --help-all")
        case _errors.InstantiationFailure(argument=argument) if argument is not None:
            raise _not_read(_name(argument), argument.field.type_stripped, event.message.splitlines()[0])


def _unrecognized(word: str, name: str, verb: Callable[..., None]) -> UserError:
    flag, way_out = word.partition("=")[0], f"Every flag: {PROGRAM} {name} --help-all"
    if not flag.startswith("-"):
        return UserError(f"{name} does not expect the word {shown(word)}. {way_out}")
    return UserError(f"{name} has no flag {shown(flag)}.{did_you_mean(flag, flags_of(verb), likeness=0.75)} {way_out}")


def _not_read(name: str, kind: Any, message: str) -> UserError:
    """Of a value that is of another kind; what was typed stands in quotes at the end of tyro's message."""
    wanted = next((words for one, words in _KINDS.items() if one in (kind, *get_args(kind))), None)
    typed = re.search(r"('.*')\W*$", message)
    if wanted is None or typed is None:
        return UserError(f"{name}: {message}")
    return UserError(f"{name} must be {wanted}, got {typed[1]}.")


def flags_of(verb: Callable[..., None]) -> list[str]:
    """The flags that the help of a verb shows, with their other names."""
    printed = StringIO()
    with suppress(SystemExit), redirect_stdout(printed):
        tyro.cli(verb, args=["--help"])
    heads = re.findall(r"^[^\w-]*(--?\w.*?)(?:  |$)", printed.getvalue(), re.MULTILINE)
    return [name for head in heads for name in re.findall(r"(?<!\S)--\w[\w-]*", head)]


def _name(argument: Any) -> str:
    """As it is typed: a flag, or the word that stands for what is named without one."""
    return str(argument.lowered.metavar if argument.is_positional() else argument.lowered.name_or_flags[0])
