"""Help that fits a screen: the commands, and the flags that people need first; --help-all shows every flag."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any, TextIO, get_type_hints

import tyro
from rich.text import Text

from spacedkd.cli.console import console, say
from spacedkd.cli.flags import GROUPS, flag_class

DESCRIPTION = "Train image classifiers with a teacher that learns ahead of them (Spaced KD)."
Verbs = Mapping[str, Callable[..., None]]
SHORT, LONG = ("-h", "--help"), ("-H", "--help-all")
FIRST = {
    "": ("spec", "recipe"),
    "data": ("data",),
    "network": ("network", "width", "teacher"),
    "method": ("method", "interval"),
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
        console.print(Text.from_ansi(printed.getvalue()), end="")


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
        "Example: spacedkd train --data digits --width 16. Flags: spacedkd VERB --help",
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
