"""Code in README and docs does what it says: Python is run, commands are parsed, and run by `make docs-test`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from spacedkd import NetworkSpec
from tests.docs import placeholders
from tests.docs.blocks import KINDS, PAGES, ROOT, SHELL, Block, blocks
from tests.docs.commands import STARTERS, check

ALL = bool(os.environ.get("SPACEDKD_DOCS"))
"""whether commands are run, too"""
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
OURS = ("spacedkd", "python examples/", *STARTERS)
LONG = tuple(f"spacedkd {verb}" for verb in ("train", "compare", "theory"))
LESS = {"docs/methods": "--width 4 --epochs 36 --train-limit 16 --batch-size 8 --set evaluate_every=100%"}
"""how blocks of generated pages are shortened; whatever they train has a folder of its own"""
with_python = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
with_commands = [page for page in PAGES if any(block.language in SHELL for block in blocks(page))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_there_are_blocks_of_every_kind() -> None:
    """What follows would pass if nothing were found."""
    found = [block for page in PAGES for block in blocks(page)]
    assert {block.language for block in found} <= {*KINDS}
    assert sum(block.language == "python" for block in found) >= 12
    assert sum(command.startswith("spacedkd ") for block in found for command in block.commands) >= 60


@pytest.mark.parametrize("page", with_commands, ids=name)
def test_commands_are_understood(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        write_file(block)  # a schedule of one's own is imported to be understood
        for command in block.commands if block.language in SHELL else ours_in(block):
            try:
                check(command)
            except (AssertionError, SystemExit) as error:
                pytest.fail(f"{block}: {command}\n{error}")


def ours_in(block: Block) -> Iterator[str]:
    """The commands of ours in a script."""
    if block.language == "bash":
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        yield from (command for command in block.commands if command.startswith("spacedkd "))


@pytest.mark.parametrize("page", PAGES if ALL else with_python, ids=name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom in an empty folder, as somebody would who reads the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("examples").symlink_to(ROOT / "examples")
    module = ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.__file__ = str(tmp_path / f"{module.__name__}.py")
    source = [""] * len(page.read_text().splitlines())  # what a function is asked for its source from, line by line
    for block in blocks(page):
        if not is_run(block):
            continue
        exec(compile(block.notes.get("set up", ""), f"set-up of {block}", "exec"), module.__dict__)
        if block.language == "python":
            source[block.line - 1 : block.line - 1 + block.text.count("\n")] = block.text.splitlines()
            Path(module.__file__).write_text("\n".join(source))
            run_python(block, module)
        else:
            run_commands(block)


def is_run(block: Block) -> bool:
    if "not run" in block.notes or block.language not in ("python", *SHELL):
        return False
    return ALL or (block.language == "python" and "slow" not in block.notes)


def run_python(block: Block, module: ModuleType) -> None:
    write_file(block)
    code = compile("\n" * (block.line - 1) + block.text, str(module.__file__), "exec")
    exec(code, module.__dict__)


def write_file(block: Block) -> None:
    """Write the file that a block of Python is."""
    first, _, _ = block.text.partition("\n")
    if block.language == "python" and first.startswith("# ") and first.endswith(".py"):
        Path(first[2:]).write_text(block.text)


def run_commands(block: Block) -> None:
    less = block.notes.get("shortened by", LESS.get(name(block.page.parent), ""))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    if name(block.page.parent) in LESS and "runs/teacher" in block.text:
        placeholders.run("runs/teacher", network=NetworkSpec("resnet18_small", {"width": 4}))
    for number, command in enumerate(block.commands):
        if command.startswith(OURS):
            line = f"{command} {less}" if command.startswith(LONG) else command
            line += f" --out runs/{number}" if name(block.page.parent) in LESS and "train" in command else ""
            done = subprocess.run(line, shell=True, env=settings, capture_output=True, text=True)
            assert done.returncode == 0, f"{block}: {line}\n{done.stderr}"
