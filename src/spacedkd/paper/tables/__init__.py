"""The paper's tables and figures, one file each: the claim, the arms, and the paper's own numbers.

To add a table, add a file: its docstring's first line is the claim, and it has a `TABLE`. The file's name, with hyphens
for underscores, is the name of the table in `spacedkd reproduce`, in reports and in the index.
"""

import pkgutil
from functools import cache
from importlib import import_module

from spacedkd.paper.table import NamedTable


@cache
def tables() -> dict[str, NamedTable]:
    """Return all tables by name, in the order that they declare."""
    modules = {info.name: import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
    named = [
        NamedTable(name.strip("_").replace("_", "-"), (module.__doc__ or "").strip().splitlines()[0], module.TABLE)
        for name, module in modules.items()
    ]
    return {table.name: table for table in sorted(named, key=lambda table: table.table.order)}
