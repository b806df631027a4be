"""The paper's tables and figures, one file each: what it claims, its arms, and the paper's own numbers.

A file has a docstring whose first line is the claim, and a `TABLE`. Adding a table is adding a file.
"""

import pkgutil
from functools import cache
from importlib import import_module

from spacedkd.paper.table import Named


@cache
def tables() -> dict[str, Named]:
    """All tables by name, in the order of their places; the first line of each file's docstring is its claim."""
    modules = [(info.name, import_module(f"{__name__}.{info.name}")) for info in pkgutil.iter_modules(__path__)]
    found = [
        Named(name.strip("_").replace("_", "-"), (module.__doc__ or "").strip().splitlines()[0], module.TABLE)
        for name, module in modules
    ]
    return {named.name: named for named in sorted(found, key=lambda named: named.table.place)}
