"""The paper's tables and figures, one file each: what it claims, its arms, and the paper's own numbers.

A file has a docstring whose first line is the claim, and a `TABLE`. Adding a table is adding a file.
"""

import pkgutil
from functools import cache
from importlib import import_module

from spacedkd.experiments.reproduction.table import Table


@cache
def tables() -> dict[str, Table]:
    """All tables by name, in the order of the paper."""
    modules = {info.name: import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
    found = {name.removesuffix("_").replace("_", "-"): module.TABLE for name, module in modules.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].place))


@cache
def claim(name: str) -> str:
    """What the paper says, in one sentence: the first line of the table's file."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return (module.__doc__ or "").strip().splitlines()[0]
