"""The site shows everything there is, and its links lead somewhere, there and in the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import api_pages, command_line_page, site

import spacedkd
from spacedkd.cli import VERBS
from spacedkd.cli.flags import GROUPS
from spacedkd.quirks import QUIRKS
from tests.docs.blocks import PAGES, ROOT

SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def uris(nav: Any) -> Iterator[str]:
    """The pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    for one in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from uris(one)


def test_every_page_is_in_the_navigation_once() -> None:
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {*site.FROM_ROOT.values(), *site.example_pages(), *api_pages.pages(), "command-line.md"}
    shown = [*uris(SETTINGS["nav"])]
    folders = tuple(uri for uri in shown if uri.endswith("/"))
    assert {uri for uri in written | made if not uri.startswith(folders)} == {*shown} - {*folders}
    assert len({*shown}) == len(shown)
    assert all(any(uri.startswith(folder) for uri in written | made) for folder in folders)


def test_every_public_name_is_on_a_page() -> None:
    names = [name.rpartition(".")[2] for page in api_pages.public_names().values() for name in page]
    assert sorted(names) == sorted(dir(spacedkd))


def test_every_flag_is_on_the_page_about_the_command_line() -> None:
    page = command_line_page.page()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [*VERBS]
    shown = {flag for line in page.splitlines() if line.startswith("| `--") for flag in re.findall(r"--[\w-]+", line)}
    flags = {f"--{one.name.replace('_', '-')}" for group in GROUPS.values() for one in group}
    assert flags | {"--out", "--arm", "--corruptions", "--against", "--orders", "--max-hours", "--pattern"} <= shown
    assert (
        "| `--interval LENGTH` | how far the teacher leads: online, offline, or a length: 1.5ep, 586st | online |"
        in page
    )


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


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert not {"extra_javascript", "repo_url"} & {*SETTINGS}


@pytest.mark.skipif(not os.environ.get("SPACEDKD_DOCS"), reason="make docs-test builds the site")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    assert len(pages) > 50
    assert not {
        place for page in pages for place in re.findall(r'(?:src=|rel="stylesheet" href=)"(https?://[^"]+)', page)
    }
