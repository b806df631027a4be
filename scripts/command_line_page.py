"""The page about the command line: the help of every verb, read off what the command itself prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from spacedkd.cli import COMMANDS

_TITLE = re.compile(r"╭─ (.*?) ─*╮")
_ENTRY = re.compile(r"(\S.*?)(?: {2,}(.*))?")
_DEFAULT = re.compile(r"(.*?)\s*\(default: (.*)\)\s*")


class Flag(NamedTuple):
    """A line of the help."""

    names: str
    about: str
    default: str


def page() -> str:
    """All of it in Markdown."""
    about = (
        "Read off the command's own help, `spacedkd VERB --help-all`. `spacedkd --version` says which version it is, "
        "[Runs](runs.md#stopping-and-resuming-a-run) what its exit codes mean."
    )
    lines, seen = ["# Command line", "", about, ""], dict[str, str]()
    for verb in COMMANDS:
        lines += _section(verb, seen)
    return "\n".join(lines)


def help_of(verb: str) -> str:
    """Return the command's help, as printed in a terminal that is wide enough for all names."""
    command = [sys.executable, "-m", "spacedkd", verb, "--help-all"]
    settings = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", env=settings).stdout


def _section(verb: str, seen: dict[str, str]) -> Iterator[str]:
    """A verb with its groups of flags; those of a verb before it are not shown again."""
    head, *boxes = re.split(r"(?=^╭)", help_of(verb), flags=re.MULTILINE)
    _, _, about = head.partition("\n\n")
    yield from (f"## {verb}", "", *_prose(about))
    for box in boxes:
        title, said, flags = read_box(box)
        yield from (f"### {verb}: {title}", "", said, "")
        if box in seen:
            yield from (f"As those of [{seen[box]}](#{seen[box]}-{title.replace(' ', '-')}).", "")
            continue
        seen[box] = verb
        yield from ("| flag | | default |", "|---|---|---|")
        yield from (f"| `{one.names}` | {one.about} | {one.default} |" for one in flags)
        yield ""


def _prose(about: str) -> Iterator[str]:
    """What a verb says of itself; its examples are commands."""
    for paragraph in about.strip().split("\n\n"):
        words = " ".join(paragraph.split())
        example = words.removeprefix("Example: ")
        lines = textwrap.wrap(example, 100, break_on_hyphens=False)
        yield from (words, "") if example == words else ("```sh", " \\\n    ".join(lines), "```", "")


def read_box(box: str) -> tuple[str, str, list[Flag]]:
    """The title of a group of flags, what is said of it, and the flags.

    >>> read_box("╭─ data options ───╮\\n│ Which images.     │\\n│ ─────────────── │\\n│ --crop PIXELS  pad by │\\n"
    ...          "│                this (default: 4)  │\\n╰──────╯")
    ('data options', 'Which images.', [Flag(names='--crop PIXELS', about='pad by this', default='4')])
    """
    first, *lines = box.rstrip().splitlines()
    title = _TITLE.fullmatch(first)
    if title is None:
        raise ValueError(f"The help has another form: {first!r}")
    inside = [line[2:-2].rstrip() for line in lines[:-1]]
    rule = next((number for number, line in enumerate(inside) if line and not line.strip("─")), -1)
    return title[1], " ".join(inside[: max(rule, 0)]), [*_flags(inside[rule + 1 :])]


def _flags(lines: list[str]) -> Iterator[Flag]:
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(" "):
            entries[-1][1].append(line.strip())
        elif entry := _ENTRY.fullmatch(line):
            entries.append((entry[1], [entry[2] or ""]))
    for names, said in entries:
        about = " ".join(filter(None, said))
        split = _DEFAULT.fullmatch(about)
        if names != "-h, --help":
            yield Flag(names, *(split.groups() if split else (about, "")))
