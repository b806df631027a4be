"""What `spacedkd reproduce` leaves behind: every table in all its forms, and one page over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacedkd.cli.progress import console, count_progress, say
from spacedkd.documents import read_json
from spacedkd.errors import Linked, UserError

if TYPE_CHECKING:
    from spacedkd.experiments.reproduction.reproduce import Reproduction

THEORY = "theory"
THEORY_SIZES = {"smoke": (2, 2, 60), "cpu": (16, 24, 1500), "paper": (16, 24, 1500)}
"""problems, orders and steps"""
INDEXED = {
    **dict.fromkeys(("name", "title", "claim", "reference"), str),
    **{"scale": {"name": str, "about": str}, "missing": int, "cost": dict, "cells": [{"estimate": ({"n": int},)}]},
    "verdict": {"sentence": str, "agrees": int, "disagrees": int, "smaller than the paper's": int, "cannot tell": int},
}
"""what the index of all tables needs of each"""


def write_tables(found: Reproduction) -> None:
    """The tables, as numbers and as pages, and what they say."""
    from spacedkd.cli import terminal
    from spacedkd.report import reproduced
    from spacedkd.training.folder import make_folder

    for name in found.cells:
        place = found.store.folder / found.scale.folder / name
        results = found.results(name)
        if not results["cost"]["runs"] and _has_numbers(place / "results.json"):
            say(f"None of the runs of {name} is in {found.store.folder}: the table that is there is left as it is.")
            continue
        make_folder(place, "--store")
        try:
            results["pictures"] = found.draw(name, place)
        except UserError as error:  # tables are made without the data, too
            results["pictures"] = []
            say(f"No picture of {name}: {error}")
        _write_all(place, results)
        console.print(*(terminal.shown(table) for table in reproduced.result_tables(results)))
        say(results["claim"], results["verdict"]["sentence"], f"Page: {place}/index.html")


def _write_all(place: Path, results: dict[str, Any]) -> None:
    """A table in all its forms."""
    from spacedkd.files import write_json, write_text
    from spacedkd.report import reproduced

    write_json(place / "results.json", results, place)
    texts = {"table.md": reproduced.markdown, "table.tex": reproduced.latex, "table.csv": reproduced.csv_text}
    for name, written in texts.items():
        write_text(place / name, written(results), place)
    reproduced.write_table_page(place / "index.html", results)


def write_theory(found: Reproduction) -> None:
    """The Lemma and the Theorem, measured by `spacedkd theory`."""
    from spacedkd.experiments.paper import tables
    from spacedkd.experiments.reproduction.results import results
    from spacedkd.files import write_json
    from spacedkd.theory import words
    from spacedkd.theory.measure import measure
    from spacedkd.theory.page import write_theory_page
    from spacedkd.theory.training import default_settings
    from spacedkd.training.folder import make_folder

    place = found.store.folder / found.scale.folder / THEORY
    make_folder(place, "--store")
    with count_progress() as callback:
        measured = measure(default_settings(*THEORY_SIZES[found.scale.name], seed=0), callback)
    write_json(place / "theory.json", measured, place)
    write_theory_page(place / "theory.html", measured, found.command)
    nothing = {"missing": 0, "cost": {}, "diverged": [], "pictures": [], "pages": ["theory.html"]}
    said = results(tables()[THEORY], [], lambda cell, metric: {}) | found.origin() | nothing
    unjudged = found.scale.unjudged
    said["verdict"]["sentence"] = f"Not judged: {unjudged}." if unjudged else words.headline(measured)
    said["notes"] = [f"{title}: {words.finding(measured, name)}" for name, title in words.STATEMENTS.items()]
    _write_all(place, said)
    say(words.headline(measured), f"Page: {place}/theory.html")


def write_index(folder: Path) -> None:
    """One page over all tables that were made at a scale, and the same as Markdown."""
    from spacedkd.report import reproduced

    reproduced.write_index_page(folder / "index.html", write_index_markdown(folder))
    say(f"All tables: {folder}/index.html")


def write_index_markdown(folder: Path) -> list[dict[str, Any]]:
    """One line for each table that was made at a scale; gives what they say."""
    from spacedkd.experiments.paper import tables
    from spacedkd.files import write_text
    from spacedkd.report import reproduced
    from spacedkd.training.folder import make_folder

    make_folder(folder, "--store")
    made = [found for name in tables() if (found := _made(folder / name / "results.json")) is not None]
    write_text(folder / "index.md", reproduced.index_markdown(made), folder)
    return made


def _has_numbers(path: Path) -> bool:
    return path.exists() and (found := _made(path)) is not None and bool(found.get("cost", {}).get("runs"))


def _made(path: Path) -> dict[str, Any] | None:
    """A table that was made before; one that cannot be read is left out."""
    from spacedkd.experiments.evaluation_form import check

    try:
        found: dict[str, Any] = read_json(path, within=path.parent)
        check(INDEXED, found, "it")
    except FileNotFoundError:
        return None
    except Linked:
        raise
    except (OSError, ValueError):
        say(f"{path} cannot be read, and is left out: make that table again.")
        return None
    return found
