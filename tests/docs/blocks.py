"""The code in README and docs, as a reader finds it.

A comment before a block says what a reader cannot see:

    <!-- set up: PYTHON -->         what its names stand for; run before the block
    <!-- shortened by: FLAGS -->    added to `train` and `compare` where the block is run
    <!-- slow: REASON -->           it is run by `make docs-test` alone
    <!-- not run: REASON -->        it is only parsed

Python blocks are run with every test, in the order of the page and with its names; one that begins with `# name.py` is
a file of that name, too. Blocks of commands (no language, `sh`, or lines that begin with `spacedkd` in an indented
block) are parsed, and run by `make docs-test`. Anything else that is printed there is marked as `text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
SHELL = ("", "sh")
KINDS = (*SHELL, "python", "bash", "text", "json", "yaml")
_FENCE = re.compile(r"( *)```(\w*)")
_COMMENT = re.compile(r"<!--\s*([\w ]+):\s*(.*?)\s*-->", re.DOTALL)
_INDENTED = re.compile(r" {4,}(?:spacedkd|torchrun) ")


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: Path
    line: int
    """the first of the code"""
    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> list[str]:
        """Its lines, those that end with a backslash joined to the next, without comments.

        >>> Block(Path(), 1, "", "spacedkd train \\\\\\n    --out a  # b\\n# c\\nmake test\\n").commands
        ['spacedkd train     --out a', 'make test']
        """
        lines = self.text.replace("\\\n", "").splitlines()
        return [said for line in lines if (said := re.sub(r"(^|\s)#\s.*", "", line).strip())]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page from top to bottom."""
    lines = page.read_text(encoding="utf-8").splitlines()
    above, number = 0, 0
    while number < len(lines):
        fence = _FENCE.fullmatch(lines[number])
        if fence is None and not _INDENTED.match(lines[number]):
            number += 1
            continue
        first = number + 1 if fence else number
        end = _end_of_fence(lines, first) if fence else _end_of_indented(lines, first)
        text = "".join(f"{line.strip() if not fence else line.removeprefix(fence[1])}\n" for line in lines[first:end])
        yield Block(page, first + 1, fence[2] if fence else "sh", text, _notes("\n".join(lines[above:number])))
        above = number = end + 1


def _notes(text: str) -> dict[str, str]:
    """What the comments directly before a block say."""
    found = re.search(r"(?:<!--(?:(?!-->).)*-->\s*)*\Z", text, re.DOTALL)
    return dict(_COMMENT.findall(found[0])) if found else {}


def _end_of_fence(lines: list[str], first: int) -> int:
    return next(number for number in range(first, len(lines)) if lines[number].strip() == "```")


def _end_of_indented(lines: list[str], first: int) -> int:
    return next((n for n in range(first, len(lines)) if not lines[n].startswith("    ")), len(lines))
