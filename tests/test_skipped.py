"""Whoever reads the end of a test run learns what was not tried, and why."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.reporting import browser

BASH = shutil.which("bash") or "/bin/bash"
TESTS = f"""
import pytest
pytest.importorskip("os")

@pytest.mark.skipif(True, reason={browser.MISSING!r})
@pytest.mark.parametrize("page", range(3))
def test_page(page): ...

def test_other():
    pytest.skip("no GPU\\nhere")

def test_runs(): ...
"""


def test_the_end_of_a_test_run_says_in_one_line_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.skipped import pytest_terminal_summary\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_library.py").write_text("import pytest\npytest.importorskip('no_such_library')\n")
    plugins = ["-p", "no:cacheprovider", "-p", "xdist", "--numprocesses=1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *plugins, str(tmp_path)]
    printed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    (line,) = (line for line in printed.splitlines() if line.startswith("skipped: "))
    assert line.startswith(f"skipped: 3 ({browser.MISSING}), ")
    assert "1 (no GPU here)" in line
    assert re.search(r"1 \(could not import 'no_such_library'", line)


@pytest.mark.parametrize(
    ("present", "user", "apt_get"),
    [("", 0, ["update", "install"]), ("google-chrome", 0, []), ("", 1000, [])],
)
def test_ci_installs_a_browser_where_it_may_and_never_fails_for_want_of_one(
    present: str, user: int, apt_get: list[str], tmp_path: Path
) -> None:
    programs = {"make": "exit 0", "apt-get": '[ "$1" = update ]', "id": f"echo {user}"}
    programs |= {present: "exit 1"} if present else {}
    for name, body in programs.items():
        (tmp_path / name).write_text(f'#!{BASH}\necho {name} "$1" >> {tmp_path}/called\n{body}\n')
        (tmp_path / name).chmod(0o755)
    for name in ("dirname", "timeout"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    ran = subprocess.run([BASH, ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    called = [line.split() for line in (tmp_path / "called").read_text().splitlines()]
    assert [words[1] for words in called if words[0] == "apt-get"] == apt_get
    assert [words[1] for words in called if words[0] == "make"] == ["test", "docs-site"]
    assert ("skipped" in ran.stdout) == bool(apt_get)


def test_ci_looks_for_the_browsers_that_tests_look_for() -> None:
    (names,) = re.findall(r"type -P (chromium [^)]*)\)", (ROOT / ".ci" / "run").read_text())
    assert tuple(names.split()) == browser.NAMES
