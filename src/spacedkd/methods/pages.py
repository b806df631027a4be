"""A page about each method, from what the method's own file says: its docstrings, its options, its card, and

    paper      authors, title, venue and year
    weights    of the losses by default
    source     where the definition is from: the authors' code, the paper, a re-implementation or a reconstruction

python -m spacedkd.methods.pages docs/methods      # what `make docs` does
"""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from spacedkd.config.serialization import default_value, field_docs, to_json
from spacedkd.methods import METHODS


def options(method: type[Any]) -> Iterator[tuple[str, Any, str]]:
    """The options of a method, its own first, then those it shares with others: name, default, what it does."""
    said = {name: text for kind in reversed(method.__mro__) for name, text in field_docs(kind).items()}
    values = {one.name: to_json(default_value(one)) for one in fields(method)}
    for name in dict.fromkeys(name for kind in method.__mro__ for name in inspect.get_annotations(kind)):
        if name in values:
            yield name, values[name], said.get(name, "")


def cited(paper: str) -> str:
    """A paper's authors and venue, without its title.

    >>> cited("Zhao et al., Decoupled Knowledge Distillation, CVPR 2022")
    'Zhao et al., CVPR 2022'
    """
    parts = paper.split(", ")
    return f"{parts[0]}, {parts[-1]}" if len(parts) > 2 else paper


def about(method: type[Any]) -> str:
    """What a method is: the first sentence of its docstring.

    >>> about(METHODS["kd"])
    'A teacher network teaches a student network by its logits and pooled features.'
    """
    return inspect.cleandoc(method.__doc__ or "").partition("\n")[0]


def page(name: str) -> str:
    """Everything about one method, in Markdown."""
    method = METHODS[name]
    facts = {
        "paper": method.paper or "none",
        "who teaches": method.card.kind,
        "weights by default": method.weights,
        "defined by": method.source or "itself",
        "spaced": _how_spaced(name, method),
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    table = "\n".join(f"| `{option}` | `{default}` | {does} |" for option, default, does in options(method))
    written = (inspect.getmodule(method).__doc__ or "").strip()
    parts = [f"# {name}", about(method), f"| | |\n|---|---|\n{rows}", written]
    if table:
        head = "| name | default | what it does |\n|---|---|---|"
        parts += ["## Options", "`--set method.NAME=VALUE`", f"{head}\n{table}"]
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
    lines = [
        "# Methods\n",
        "Made by `make docs` from the methods' own files. Any of them is spaced by one flag: "
        "`spacedkd train --method ctkd --interval 1.5ep`.\n",
        "| `--method` | what it is | who teaches | paper | weights by default | defined by |",
        "|---|---|---|---|---|---|",
    ]
    for name, method in METHODS.items():
        said = about(method).rstrip(".")
        said = said if said[1].isupper() else said[0].lower() + said[1:]  # KD stays KD
        facts = said, method.card.kind, cited(method.paper), method.weights, method.source
        lines.append(f"| [{name}]({name}.md) | {' | '.join(facts)} |")
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """All pages, and the table of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in METHODS:
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    (folder / "README.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
