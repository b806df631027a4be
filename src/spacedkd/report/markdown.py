"""Markdown: escaping, code, and tables."""

import re
from collections.abc import Collection, Iterable, Sequence


def escaped(text: str) -> str:
    r"""Text that Markdown shows as it is, in a table too.

    >>> print(escaped("a|b *c* & &copy;"))
    a\|b \*c\* & \&copy;
    """
    return re.sub(r"([\\`*_<>|\[\]#~]|&(?=#?\w+;))", r"\\\1", " ".join(text.split()))


def fenced(text: str, language: str = "") -> str:
    """As code, whatever it holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def code(text: str) -> str:
    """Return text as code within a sentence, whatever it holds.

    >>> print(code("name"), code("a `b`"))
    `name` `` a `b` ``
    """
    text, ticks = " ".join(text.split()), max(map(len, re.findall("`+", text)), default=0)
    return f"{'`' * (ticks + 1)} {text} {'`' * (ticks + 1)}" if ticks else f"`{text}`"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[int] = (0,)) -> str:
    """A table; columns of numbers are flush right, those at the places of `words` not.

    Cells are Markdown already, heads are not.
    """
    sides = ["---" if place in words else "---:" for place in range(len(heads))]
    lines = [map(escaped, heads), sides, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
