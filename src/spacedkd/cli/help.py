"""Help that fits a screen: what there is, and the flags that people need first; --help-all shows every flag."""

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
"""of the flags of a run those that people need first, and where they stand"""
_OF_RUNS = ("train", "compare")
"""verbs that take the flags of a run"""
_LATER = ("restart", "extend", "equal_cost", "sharing", "ray")
"""of the flags of a verb itself those that can wait"""


def helped(words: Sequence[str], verbs: Verbs) -> Sequence[str]:
    """The words as tyro is to read them; where short help is asked for, it is shown, and the command ends."""
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
    """Where help is asked for, what is printed meanwhile is broken between words, as wide as the terminal."""
    if not any(word in (*SHORT, *LONG) for word in words):
        yield
        return
    printed = _Kept(sys.stdout)
    try:
        with redirect_stdout(printed):
            yield
    finally:
        console.print(Text.from_ansi(printed.getvalue()), end="")


class _Kept(StringIO):
    """Kept text that is to look as it would have on another stream: its colours, and the lines of its boxes."""

    def __init__(self, other: TextIO) -> None:
        super().__init__()
        self._other = other

    def isatty(self) -> bool:
        return self._other.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._other.encoding


def about(verb: Callable[..., None]) -> str:
    """What a verb does, in one line."""
    return inspect.getdoc(verb).splitlines()[0]  # type: ignore[union-attr]


def _show_verbs(verbs: Verbs) -> None:
    """One line for each."""

    def named(verb: Callable[..., None]) -> Callable[[], None]:
        def stub() -> None: ...

        stub.__doc__ = about(verb)
        return stub

    _shown(
        "Example: spacedkd train --data digits --width 16. Flags: spacedkd VERB --help",
        lambda: tyro.extras.subcommand_cli_from_dict(
            {name: named(verb) for name, verb in verbs.items()},
            args=["--help"],
            prog="spacedkd",
            description=DESCRIPTION,
        ),
    )


def _show_first(name: str, verb: Callable[..., None]) -> None:
    """What a verb does, an example, its own flags and the first of those that describe a run."""
    hints = get_type_hints(verb, include_extras=True)
    own: list[Any] = [
        (one.name, hints[one.name], one.default)
        for one in inspect.signature(verb).parameters.values()
        if one.default is not inspect.Parameter.empty and one.name not in _LATER
    ]
    groups = [(group, flag_class(_fields(group))) for group in FIRST if group]
    flags = flag_class([*own, *_fields(""), *((group, kind, kind()) for group, kind in groups)])
    without_prefixes: Any = tyro.conf.OmitArgPrefixes
    _shown(
        f"Every flag: spacedkd {name} --help-all",
        lambda: tyro.cli(
            without_prefixes[flags],
            args=["--help"],
            prog=f"spacedkd {name}",
            description=inspect.getdoc(verb),
        ),
    )


def _fields(group: str) -> list[tuple[str, Any, Any]]:
    every = {one.name: one for flags in GROUPS.values() for one in flags}
    return [every[name].field() for name in FIRST[group]]


def _shown(last: str, show: Callable[[], Any]) -> None:
    """Help, which ends the command, and a last line on where there is more."""
    try:
        show()
    except SystemExit:
        say(last)
        raise
