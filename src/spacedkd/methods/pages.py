"""A page about each method, from what the method's own file says: its card, its docstring, its options.

python -m spacedkd.methods.pages docs/methods      # what `make docs` does
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spacedkd.json_form import sentences, to_json
from spacedkd.methods import METHODS


class Option(NamedTuple):
    """One field of a method."""

    name: str
    default: Any
    about: str


def options(method: type[Any]) -> Iterator[Option]:
    """The options of a method, its own first, then those it shares with others."""
    said = {name: text for kind in reversed(method.__mro__) for name, text in sentences(kind).items()}
    values = to_json(method())
    for name in dict.fromkeys(name for kind in method.__mro__ for name in inspect.get_annotations(kind)):
        if name in values:
            yield Option(name, values[name], said.get(name, ""))


def cited(paper: str) -> str:
    """A paper's authors and venue, without its title.

    >>> cited("Zhao et al., Decoupled Knowledge Distillation, CVPR 2022")
    'Zhao et al., CVPR 2022'
    """
    parts = paper.split(", ")
    return f"{parts[0]}, {parts[-1]}" if len(parts) > 2 else paper


def page(name: str) -> str:
    """Everything about one method, in Markdown."""
    method = METHODS[name]
    card = method.card
    facts = {
        "paper": card.paper or "none",
        "who teaches": card.kind,
        "weights by default": card.weights,
        "defined by": card.source or "itself",
        "spaced": _how_spaced(name, method),
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    table = "\n".join(f"| `{o.name}` | `{o.default}` | {o.about} |" for o in options(method))
    parts = [
        f"# {name}",
        f"{card.about[0].upper()}{card.about[1:]}.",
        f"| | |\n|---|---|\n{rows}",
        (inspect.getmodule(method).__doc__ or "").strip(),
    ]
    if table:
        parts.append(
            f"## Options\n\n`--set method.NAME=VALUE`\n\n| name | default | what it does |\n|---|---|---|\n{table}"
        )
    return "\n\n".join(parts) + "\n"


def _how_spaced(name: str, method: type[Any]) -> str:
    if len(method().roles) > 1:
        return f"`--method {name} --interval 1.5ep`"
    if not method.card.when_spaced:
        return "there is nobody who leads"
    chosen = ", ".join(f"{key} {value}" for key, value in method.card.when_spaced.items())
    return f"`--method {name} --interval 1.5ep`, which chooses {chosen}"


def index() -> str:
    """All methods in one table, in Markdown."""
    head = (
        "| `--method` | what it is | who teaches | paper | weights by default | defined by |\n|---|---|---|---|---|---|"
    )
    rows = [
        f"| [{name}]({name}.md) | {card.about} | {card.kind} | {cited(card.paper)} | {card.weights} | {card.source} |"
        for name, card in ((name, method.card) for name, method in METHODS.items())
    ]
    opening = (
        "# Methods\n\nMade by `make docs` from the methods' own files. Any of them is spaced by one flag: "
        "`spacedkd train --method ctkd --interval 1.5ep`.\n\n"
    )
    return opening + "\n".join([head, *rows]) + "\n"


def write(folder: Path) -> None:
    """All pages, and the table of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in METHODS:
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    (folder / "README.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
