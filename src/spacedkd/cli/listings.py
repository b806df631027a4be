"""The command `list`: a function for each list, whose docstring describes the list."""

import fnmatch
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table

from spacedkd.cli import status
from spacedkd.cli.console import console, say
from spacedkd.cli.flags import flag, option_text
from spacedkd.config.recipes import QUIRKS, RECIPES, settings_of
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.schedule import SCHEDULES


def _table(*heads: str, rows: Iterable[Iterable[str]]) -> Table:
    table = Table(*heads, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    return table


def data(pattern: str) -> Table:
    """datasets, and how to name your own"""
    from spacedkd.data.sources import READERS

    return _table("--data", "what it is", rows=[(reader.name, reader.about) for reader in READERS])


def augmentations(pattern: str) -> Table:
    """augmentations of training images"""
    from spacedkd.data.transforms import AUGMENTATIONS, DATA_DEPENDENT

    rows = [*((name, entry.about) for name, entry in AUGMENTATIONS.items()), *DATA_DEPENDENT.items()]
    return _table("--augment", "what is done to training images", rows=rows)


def networks(pattern: str) -> Columns:
    """networks; --pattern 'vit*' for those that match"""
    from spacedkd.models.factory import network_names

    names = network_names(pattern)
    if not names:
        raise UserError(f"No network matches {pattern!r}. Use wildcards: spacedkd list networks --pattern '*resnet*'")
    return Columns(names, padding=(0, 3))


def methods(pattern: str) -> RenderableType:
    """distillation methods; --pattern ctkd for the page of one"""
    from rich.markdown import Markdown

    from spacedkd.methods.pages import citation, page
    from spacedkd.methods.registry import METHODS

    if pattern:
        names = fnmatch.filter(METHODS, pattern)
        if not names:
            raise unknown("method", pattern, METHODS)
        return Markdown("\n\n".join(page(name) for name in names))
    rows = [(name, citation(of.paper), of.card.kind, of.weights, of.source) for name, of in METHODS.items()]
    table = _table("--method", "paper", "who teaches", "weights by default", "defined by", rows=rows)
    for column in table.columns:
        column.overflow = "fold"
    table.caption = "Formula and options of one: spacedkd list methods --pattern ctkd"
    return table


def schedules(pattern: str) -> Table:
    """schedules: who learns when"""
    rows: dict[str, str] = {}
    for name, schedule in SCHEDULES.items():
        first_line = (schedule.__doc__ or "").partition("\n")[0]
        rows |= getattr(schedule, "examples", None) or {f"--interval {name}": first_line}
    own = "a dataclass of yours with a method turns; its options by --set schedule.NAME=VALUE"
    return _table("flags", "who learns when", rows=[*rows.items(), ("--interval own:Name", own)])


def instruments(pattern: str) -> Table:
    """what `spacedkd evaluate` measures"""
    from spacedkd.evaluation.document import INSTRUMENTS

    rows = [
        (option_text(instrument.flag) if instrument.flag else "always", instrument.name, instrument.about)
        for instrument in INSTRUMENTS
    ]
    return _table("spacedkd evaluate", "in evaluation.json", "what it measures", rows=rows)


def recipes(pattern: str) -> Table:
    """whole training recipes, with the quirks of released code; --pattern paper-cnn for all settings of one"""
    if pattern:
        names = fnmatch.filter(RECIPES, pattern)
        if not names:
            raise unknown("recipe", pattern, RECIPES)
        settings = [(name, *row) for name in names for row in settings_of(name)]
        plain = ((text.replace("`", "") for text in row[len(names) == 1 :]) for row in settings)
        heads = ("--recipe", "setting", "value", "where it comes from")[len(names) == 1 :]
        table = _table(*heads, rows=plain)
        for column in table.columns:
            column.overflow = "fold"
        return table
    rows = [
        (
            name,
            entry.about,
            "\n".join(f"{quirk} ({', '.join(modes)}): {QUIRKS[quirk].about}" for quirk, modes in entry.quirks.items()),
        )
        for name, entry in RECIPES.items()
    ]
    table = _table("--recipe", "what it is", "quirks: --without QUIRK", rows=rows)
    table.caption = "Settings of one, and where each comes from: spacedkd list recipes --pattern paper-cnn"
    return table


def runs(pattern: str, folder: Path = status.RUNS) -> Iterable[str]:
    """runs in `runs`, or in the folder that is named after this word, and their accuracies"""
    width = console.width if console.is_terminal else sys.maxsize  # a pipe has room for everything
    return status.listed(folder, pattern, width)


_EVERY: tuple[Callable[[str], RenderableType | Iterable[str]], ...] = (
    *(data, augmentations, networks, methods, schedules, instruments, recipes),
    runs,
)
LISTINGS = {make.__name__: make for make in _EVERY}


def listings() -> Table:
    """Return the table of everything that can be listed."""
    return _table(
        "spacedkd list ...", "what it shows", rows=[(name, make.__doc__ or "") for name, make in LISTINGS.items()]
    )


def list_(
    what: Annotated[tyro.conf.Positional[str], flag("one of these", "what can be listed", "|".join(LISTINGS))] = "",
    folder: Annotated[
        tyro.conf.Positional[Path | None], flag("the folder that contains the runs", "runs", "FOLDER")
    ] = None,
    pattern: Annotated[
        str, flag("only names like this, with wildcards; of a method or a recipe all details", "all", "NAME")
    ] = "",
) -> None:
    """List runs, datasets, networks, methods, recipes and more.

    Example: spacedkd list networks --pattern 'resnet*'
    """
    if what and what not in LISTINGS:
        raise unknown("list", what, LISTINGS)
    if folder is not None and what != "runs":
        raise UserError(f"Only runs lie in a folder: spacedkd list runs {folder}, or spacedkd list {what} alone.")
    if what == "runs":
        say(*runs(pattern, folder or status.RUNS))
    else:
        console.print(LISTINGS[what](pattern) if what else listings())
