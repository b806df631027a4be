"""What there is to choose from."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import NamedTuple

from rich import box
from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table

from spacedkd.errors import UserError, unknown
from spacedkd.recipes import QUIRKS, RECIPES


class Listing(NamedTuple):
    about: str
    table: Callable[[str], RenderableType]


def data(pattern: str) -> Table:
    from spacedkd.data.sources import PLACES, SOURCES

    table = Table("--data", "what it is", box=box.SIMPLE_HEAD)
    for name, source in {**SOURCES, **PLACES}.items():
        table.add_row(name, source.about)
    return table


def augmentations(pattern: str) -> Table:
    from spacedkd.data.augmentations import AUGMENTATIONS

    table = Table("--augment", "what is done to training images", box=box.SIMPLE_HEAD)
    for name, entry in AUGMENTATIONS.items():
        table.add_row(name, entry.about)
    return table


def networks(pattern: str) -> Columns:
    from spacedkd.models.build import available

    names = available(pattern)
    if not names:
        raise UserError(f"No network matches {pattern!r}. Use wildcards: spacedkd list networks --pattern '*resnet*'")
    return Columns(names, padding=(0, 3))


def methods(pattern: str) -> RenderableType:
    from rich.markdown import Markdown

    from spacedkd.methods import METHODS
    from spacedkd.methods.pages import cited, page

    if pattern:
        found = fnmatch.filter(METHODS, pattern)
        if not found:
            raise unknown("method", pattern, METHODS)
        return Markdown("\n\n".join(page(name) for name in found))
    table = Table("--method", "paper", "who teaches", "weights by default", "defined by", box=box.SIMPLE_HEAD)
    for name, method in METHODS.items():
        card = method.card
        table.add_row(name, cited(card.paper), card.kind, card.weights, card.source)
    for column in table.columns:
        column.overflow = "fold"
    table.caption = "Formula and options of one: spacedkd list methods --pattern ctkd"
    return table


def recipes(pattern: str) -> Table:
    table = Table("--recipe", "what it is", "quirks: --without QUIRK", box=box.SIMPLE_HEAD)
    for name, entry in RECIPES.items():
        table.add_row(name, entry.about, "\n".join(f"{quirk}: {QUIRKS[quirk].about}" for quirk in entry.quirks))
    return table


def schedules(pattern: str) -> Table:
    table = Table("flags", "who learns when", box=box.SIMPLE_HEAD)
    table.add_row("--interval online", "teacher and student take turns at every step")
    table.add_row("--interval 1.5ep", "spaced: the teacher learns 1.5 epochs alone, then the student replays them")
    table.add_row("--interval 586st", "the same in steps")
    table.add_row("--interval offline", "the teacher learns the whole run, then the student does")
    table.add_row("--ahead 1.5ep", "the teacher stays this far ahead but keeps moving (control)")
    table.add_row("--interval 1.5ep --window 20ep..40ep", "spaced only then, online before and after (critical period)")
    table.add_row("--interval 1.5ep --tail drop", "a last block shorter than the interval is not taught")
    return table


LISTINGS = {
    "data": Listing("data sets, and places of your own to take images from", data),
    "augmentations": Listing("how training images can be varied", augmentations),
    "networks": Listing("networks; --pattern 'vit*' for those that match", networks),
    "methods": Listing("distillation methods; --pattern ctkd for all about one", methods),
    "schedules": Listing("who learns when", schedules),
    "recipes": Listing("whole training recipes, with the quirks of released code", recipes),
}


def listings() -> Table:
    """What can be listed."""
    table = Table("spacedkd list ...", "what it shows", box=box.SIMPLE_HEAD)
    for name, entry in LISTINGS.items():
        table.add_row(name, entry.about)
    return table
