"""What there is to choose from."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.columns import Columns
from rich.table import Table

from spacedkd.data.sources import SOURCES
from spacedkd.errors import UserError
from spacedkd.methods import METHODS
from spacedkd.models.build import available


def data(pattern: str) -> Table:
    table = Table("--data", "what it is", box=box.SIMPLE_HEAD)
    for name, source in SOURCES.items():
        table.add_row(name, source.about)
    table.add_row(
        "FILE.npz", "your own arrays: x_train, x_test as uint8 [N, H, W] or [N, H, W, C]; y_train, y_test from 0"
    )
    return table


def networks(pattern: str) -> Columns:
    names = available(pattern)
    if not names:
        raise UserError(f"No network matches {pattern!r}. Use wildcards: spacedkd list networks --pattern '*resnet*'")
    return Columns(names, padding=(0, 3))


def methods(pattern: str) -> Table:
    table = Table("--method", "what it is", "options: --set method.NAME=VALUE", box=box.SIMPLE_HEAD)
    for name, entry in METHODS.items():
        options = "\n".join(f"{key}={value}" for key, value in vars(entry.make()).items())
        table.add_row(name, entry.about, options)
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


TABLES: dict[str, Callable[[str], Table | Columns]] = {
    "data": data,
    "networks": networks,
    "methods": methods,
    "schedules": schedules,
}
