"""The site shows everything there is, and its links lead somewhere, there and in the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import api_pages, command_line_page, site

import spacedkd
from spacedkd.cli import COMMANDS
from spacedkd.cli.flags import GROUPS
from spacedkd.config.recipes import QUIRKS
from tests.docs.blocks import PAGES, ROOT
from tests.reporting import browser

SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PROGRAM = browser.found()
in_a_browser = pytest.mark.skipif(PROGRAM is None, reason=browser.MISSING)


def uris(nav: Any) -> Iterator[str]:
    """The pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    for one in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from uris(one)


def test_every_page_is_in_the_navigation_once() -> None:
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {
        *site.FROM_ROOT.values(),
        *site.result_pages(),
        *site.example_pages(),
        *site.notebook_pages(),
        *api_pages.pages(),
        "command-line.md",
    }
    shown = [*uris(SETTINGS["nav"])]
    folders = tuple(uri for uri in shown if uri.endswith("/"))
    assert {uri for uri in written | made if not uri.startswith(folders)} == {*shown} - {*folders}
    assert len({*shown}) == len(shown)
    assert all(any(uri.startswith(folder) for uri in written | made) for folder in folders)


def test_every_public_name_is_on_a_page() -> None:
    names = [name.rpartition(".")[2] for page in api_pages.public_names().values() for name in page]
    packages = {name: module for name in dir(spacedkd) if hasattr(module := getattr(spacedkd, name), "__path__")}
    public = {name for module in (spacedkd, *packages.values()) for name in dir(module)}
    assert {*names} == (public - {*packages, "schedule"}) | {*api_pages.SCHEDULES}
    assert len({*names}) == len(names)
    assert all(hasattr(spacedkd.schedule, name) for name in api_pages.SCHEDULES)


def test_every_flag_is_on_the_page_about_the_command_line() -> None:
    page = command_line_page.page()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [*COMMANDS]
    shown = {
        flag
        for line in page.splitlines()
        if line.startswith("| `--")
        for flag in re.findall(r"--[\w-]+", line.replace("[no-]", ""))
    }
    flags = {f"--{one.name.replace('_', '-')}" for group in GROUPS.values() for one in group}
    assert flags | {"--out", "--arm", "--corruptions", "--against", "--orders", "--max-hours", "--pattern"} <= shown
    assert re.search(r"\| `--interval LENGTH` \| how far the teacher leads: .*1\.5ep.* \| online \|", page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_in_the_repository(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    for place, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)\s]*))?\)", text):
        target = page.parent / place if place else page
        assert target.exists(), f"{page.name}: {place}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {place}#{anchor}"


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_quirk_is_explained() -> None:
    for page in ("paper-against-code.md", "recipes.md"):
        text = (ROOT / "docs" / page).read_text()
        assert [name for name in QUIRKS if f"`{name}`" not in text] == []


def test_nobody_is_told_to_install_from_an_index_what_is_on_none() -> None:
    """Messages name an extra of what is installed (`errors.install_command`), pages the section Install of README.

    `pip install 'spacedkd[ray]'` keeps the spacedkd that is installed, and adds libraries from the index.
    """
    places = [
        ROOT / "README.md",
        *(path for name in ("src", "docs", "examples") for path in (ROOT / name).rglob("*.*")),
    ]
    texts = {path: path.read_text() for path in places if path.suffix in (".py", ".md", ".pyi", ".toml", ".js")}
    assert len(texts) > 100
    by_name = re.compile(r"pip3? install [^\n`]*?['\" ]spacedkd(?![-\w\[])")
    assert {str(path) for path, text in texts.items() if by_name.search(text)} == set()


def test_the_pages_of_the_results_are_on_the_site() -> None:
    """README links to them: they were missing there, so that no site could be built."""
    written = {path.relative_to(ROOT).as_posix() for path in (ROOT / "results").glob("*/*/table.md")}
    shown = site.result_pages()
    assert {"results/README.md", *written} <= shown.keys()
    for uri, text in shown.items():
        for target in re.findall(r"\]\(([^)#\s:]+)", text):
            assert (ROOT / uri).parent.joinpath(target).exists(), f"{uri}: {target}"


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert not {"extra_javascript", "repo_url"} & {*SETTINGS}
    assert "offline" in SETTINGS["plugins"]  # which would add a script of another place, were there none of ours
    assert SETTINGS["extra"]["polyfills"] == ["iframe-worker.js"]
    assert (ROOT / "docs" / "iframe-worker.js").exists()


@in_a_browser
def test_a_worker_answers_on_a_page_that_is_opened_from_a_file(tmp_path: Path) -> None:
    """In the order of its messages, though they were sent before its script was read."""
    shutil.copy(ROOT / "docs" / "iframe-worker.js", tmp_path)
    (tmp_path / "square.js").write_text("addEventListener('message', ({data}) => postMessage(data * data))")
    page = """<script src=iframe-worker.js></script><body><script>
        answers = []; worker = new Worker("square.js");
        worker.addEventListener("message", ({data}) => answers.push(data));
        worker.postMessage(3); worker.postMessage(4)</script>"""
    (tmp_path / "page.html").write_text(page)
    assert PROGRAM is not None
    with browser.Browser(PROGRAM, tmp_path / "home", 800, 600) as opened:
        opened.open(tmp_path / "page.html")
        assert soon(lambda: opened.run("answers.length") == 2)
        assert opened.run("answers") == [9, 16]
        assert opened.complaints == []


def soon(holds: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


SEARCH = """
document.querySelector("#__search").click();
const field = document.querySelector("input[name=query]");
field.focus(); field.value = "temperature"; field.dispatchEvent(new Event("keyup", {bubbles: true}));
"""


@pytest.mark.skipif(not os.environ.get("SPACEDKD_DOCS"), reason="make docs-test builds the site")
def test_the_site_is_built_without_a_warning_and_its_search_works_from_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    pages = [page.read_text() for page in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > 50
    assert not {
        place for page in pages for place in re.findall(r'(?:src=|rel="stylesheet" href=)"(https?://[^"]+)', page)
    }
    if PROGRAM is None:
        pytest.skip(browser.MISSING)
    with browser.Browser(PROGRAM, tmp_path / "home", 1280, 800) as opened:
        opened.open(tmp_path / "site" / "recipes.html")
        opened.run(SEARCH)
        found = "[...document.querySelectorAll('.md-search-result__item > a')].map((link) => link.pathname)"
        assert soon(lambda: bool(opened.run(found)))
        assert any(place.endswith("/methods/ctkd.html") for place in opened.run(found))
        assert opened.complaints == []
