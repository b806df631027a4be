"""Markdown pages about the methods, made from each method's own file: its docstrings, its options, its card, and

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
from spacedkd.methods.registry import METHODS


def options(method: type[Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield name, default and description of a method's options, its own first, then those it inherits."""
    descriptions = {name: text for base in reversed(method.__mro__) for name, text in field_docs(base).items()}
    defaults = {field.name: to_json(default_value(field)) for field in fields(method)}
    for name in dict.fromkeys(name for base in method.__mro__ for name in inspect.get_annotations(base)):
        if name in defaults:
            yield name, defaults[name], descriptions.get(name, "")


def citation(paper: str) -> str:
    """Return a paper's authors and venue, without its title.

    >>> citation("Zhao et al., Decoupled Knowledge Distillation, CVPR 2022")
    'Zhao et al., CVPR 2022'
    """
    parts = paper.split(", ")
    return f"{parts[0]}, {parts[-1]}" if len(parts) > 2 else paper


def summary(method: type[Any]) -> str:
    """Return the first line of a method's docstring.

    >>> summary(METHODS["kd"])
    'A teacher network teaches a student network by its logits and pooled features.'
    """
    return inspect.cleandoc(method.__doc__ or "").partition("\n")[0]


def page(name: str) -> str:
    """Return the page of one method, in Markdown."""
    method = METHODS[name]
    facts = {
        "paper": method.paper or "none",
        "who teaches": method.card.kind,
        "weights by default": method.weights,
        "defined by": method.source or "itself",
        "spaced": _spacing_fact(name, method),
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    table = "\n".join(f"| `{option}` | `{default}` | {does} |" for option, default, does in options(method))
    definition = (inspect.getmodule(method).__doc__ or "").strip()
    parts = [f"# {name}", summary(method), f"| | |\n|---|---|\n{rows}", definition]
    if table:
        head = "| name | default | what it does |\n|---|---|---|"
        parts += ["## Options", "`--set method.NAME=VALUE`", f"{head}\n{table}"]
    return "\n\n".join(parts) + "\n"


def _spacing_fact(name: str, method: type[Any]) -> str:
    """Return the flags that space a method, and the options they imply."""
    if len(method().roles) > 1:
        return f"`--method {name} --interval 1.5ep`"
    if not method.card.when_spaced:
        return "not possible: there is no teacher"
    chosen = ", ".join(f"{key} {value}" for key, value in method.card.when_spaced.items())
    return f"`--method {name} --interval 1.5ep`, which chooses {chosen}"


def index() -> str:
    """Return a table of all methods, in Markdown."""
    lines = [
        "# Methods\n",
        "Made by `make docs` from the methods' own files. Any of them is spaced by one flag: "
        "`spacedkd train --method ctkd --interval 1.5ep`.\n",
        "| `--method` | what it is | who teaches | paper | weights by default | defined by |",
        "|---|---|---|---|---|---|",
    ]
    for name, method in METHODS.items():
        text = summary(method).rstrip(".")
        text = text if text[1].isupper() else text[0].lower() + text[1:]  # KD stays KD
        facts = text, method.card.kind, citation(method.paper), method.weights, method.source
        lines.append(f"| [{name}]({name}.md) | {' | '.join(facts)} |")
    return "\n".join(lines) + "\n"


def write_pages(folder: Path) -> None:
    """Write the page of every method, and the table as README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in METHODS:
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    (folder / "README.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
