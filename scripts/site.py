"""What the site has besides docs/: README, results, examples, command line and the API, as pages (a hook of mkdocs)."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts import api_pages, command_line_page

ROOT = Path(__file__).parent.parent
FROM_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""files beside docs/ that are pages"""
AS_THEY_ARE = ("CITATION.cff",)
"""files that a reader can download"""
_LINK = re.compile(r"(\]\()([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A part of the navigation that is called `folder/` lists the pages of that folder."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, text in made_pages().items():
        files.append(File.generated(config, uri, content=text))
    figures = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "studies").rglob("*.svg"))]
    for name in (*AS_THEY_ARE, *figures):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead where they lead in the repository."""
    uri = page.file.src_uri
    from_root = {uri: name for name, uri in FROM_ROOT.items()} | {uri: uri for uri in result_pages()}
    return with_links(markdown, from_root.get(uri, f"docs/{uri}"), uri)


def made_pages() -> dict[str, str]:
    """Every page that is no file of docs/, by its place on the site."""
    pages = {uri: (ROOT / name).read_text(encoding="utf-8") for name, uri in FROM_ROOT.items()}
    pages |= result_pages() | example_pages() | notebook_pages() | api_pages.pages()
    return pages | {"command-line.md": command_line_page.page()}


def result_pages() -> dict[str, str]:
    """The Markdown files of results/ and studies/, where they are in the repository; runs/ holds numbers alone."""
    paths = sorted(path for folder in ("results", "studies") for path in (ROOT / folder).rglob("*.md"))
    uris = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {uri: path.read_text(encoding="utf-8") for uri, path in uris.items() if not uri.startswith("results/runs/")}


def example_pages() -> dict[str, str]:
    """The source of each example, and a list of them."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
    pages = {f"examples/{name}.md": f"# {name}.py\n\n```python\n{source}```\n" for name, source in sources.items()}
    lines = [f"| [{name}.py]({name}.md) | {_first_line(source)} |" for name, source in sources.items()]
    return {"examples/index.md": "\n".join(["# Examples\n", "| file | |", "|---|---|", *lines]) + "\n", **pages}


def notebook_pages() -> dict[str, str]:
    """Each notebook as a page: its text, and its code without outputs."""
    pages = {}
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        parts = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts.append(f"The notebook: [{path.name}]({path.name})")
        pages[f"notebooks/{path.stem}.md"] = "\n\n".join(parts) + "\n"
    return pages


def _first_line(source: str) -> str:
    """What a file says of itself first."""
    return source.partition('"""')[2].partition("\n")[0].removesuffix('"""')


def with_links(markdown: str, source: str, uri: str) -> str:
    """Links of a file of the repository as links of a page of the site.

    >>> with_links("[loop](../examples/own_loop.py), [data](data.md#by-name)", "docs/own.md", "own.md")
    '[loop](examples/own_loop.md), [data](data.md#by-name)'
    >>> with_links("[data](docs/data.md)", "README.md", "index.md")
    '[data](data.md)'
    """

    def moved(link: re.Match[str]) -> str:
        if ":" in link[2]:  # an address
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        return link[1] + os.path.relpath(place_on_site(target), posixpath.dirname(uri) or ".")

    return _LINK.sub(moved, markdown)


def place_on_site(name: str) -> str:
    """Where a file of the repository is on the site; mkdocs complains of places that are not there.

    >>> place_on_site("docs/methods/kd.md"), place_on_site("examples"), place_on_site("README.md")
    ('methods/kd.md', 'examples/index.md', 'index.md')
    """
    if name == "examples":
        return "examples/index.md"
    if name.startswith("examples/"):
        return name.removesuffix(".py") + ".md"
    return FROM_ROOT.get(name, name.removeprefix("docs/"))


def _expanded(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_expanded(one) for one in nav]
    if isinstance(nav, Mapping):
        return {title: _expanded(one) for title, one in nav.items()}
    return [*_listed(nav.removesuffix("/"))] if nav.endswith("/") else nav


def _listed(folder: str) -> Iterator[str | dict[str, str]]:
    """The pages of a folder, the one about all of them first.

    Of the results these are the page about them and the list of each scale, by its name; tables are linked from there.
    """
    if folder == "results":
        yield "results/README.md"
        yield from ({uri.split("/")[1]: uri} for uri in result_pages() if uri.endswith("/index.md"))
        return
    here = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / folder).glob("*.md")}
    names = here | {uri for uri in made_pages() if uri.startswith(f"{folder}/")}
    yield from sorted(names, key=lambda name: (not name.endswith(("/README.md", "/index.md")), name))
