"""Pages about the names of `import spacedkd`, from their docstrings: a page for each part of the package."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent / "src" / "spacedkd"
_NAME = re.compile(r"from \.([\w.]*) import (\w+) as")
TITLES = {
    "training": "Training",
    "experiments": "Comparing and evaluating",
    "spec": "Specs",
    "schedule": "Schedules",
    "learning_rate": "Learning rates",
    "data": "Data",
    "models": "Networks",
    "methods": "Methods",
    "errors": "Errors",
}
_BESIDE = {
    "run": "training",
    "stopping": "training",
    "evaluation": "experiments",
    "recipes": "spec",
    "duration": "schedule",
}
"""parts that are shown on the page of another; one that is named nowhere here has a page called after it"""
SCHEDULES = ("Blocks", "Growing", "Window", "Schedule", "Turn", "in_steps")
"""names of `spacedkd.schedule` that the package does not have itself"""
_ABOUT = {
    "methods": "What each method is, with its paper, formula and options: [Methods](../methods/README.md). "
    "Here are the classes, for `train(method=...)` and for loops of your own.",
    "schedule": "The map of how schedules, streams and roles belong together: [architecture](../architecture.md).",
    "data": "What `DataSpec` takes: [Data](../data.md).",
}


def public_names() -> dict[str, list[str]]:
    """Every name of `import spacedkd`, and of its packages, with the module it is from, by page.

    >>> public_names()["learning_rate"]
    ['spacedkd.learning_rate']
    >>> "spacedkd.methods.kd.KD" in public_names()["methods"]
    True
    """
    found: dict[str, list[str]] = {page: [] for page in TITLES}
    found["schedule"] = [f"spacedkd.schedule.{name}" for name in SCHEDULES]
    packages = {*_stubs()} - {""}
    for package, stub in _stubs().items():
        for module, name in _NAME.findall(stub):
            if not module and name in (*packages, "schedule"):
                continue  # its own names are listed
            part = (package or module).partition(".")[0] or name
            page = found.setdefault(_BESIDE.get(part, part), [])
            qualified = ".".join(filter(None, ["spacedkd", package, module, name]))
            if qualified not in page:
                page.append(qualified)
    return found


def _stubs() -> dict[str, str]:
    """The stubs with public names: that of the package itself, under an empty name, and those of its packages."""
    stubs = {stub.parent.name: stub.read_text(encoding="utf-8") for stub in sorted(_PACKAGE.glob("*/__init__.pyi"))}
    return {"": (_PACKAGE / "__init__.pyi").read_text(encoding="utf-8"), **stubs}


def pages() -> dict[str, str]:
    """The pages, by their places on the site."""
    names = public_names()
    titles = {page: TITLES.get(page, page.replace("_", " ").capitalize()) for page in names}
    short = {page: ", ".join(f"`{name.rpartition('.')[2]}`" for name in names[page]) for page in names}
    rows = [f"| [{title}]({page}.md) | {short[page]} |" for page, title in titles.items()]
    index = [
        "# Python",
        "",
        "Everything of `import spacedkd` and of its packages (`spacedkd.methods.KD`); a name imports torch, if it "
        "needs it, only when it is first used.",
        "",
    ]
    found = {"api/index.md": "\n".join([*index, "| | |", "|---|---|", *rows]) + "\n"}
    for page, title in titles.items():
        parts = [f"# {title}", _ABOUT.get(page, ""), *(f"::: {name}" for name in names[page])]
        found[f"api/{page}.md"] = "\n\n".join(filter(None, parts)) + "\n"
    return found
