"""A file is there whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spacedkd.files import cache_folder, write_json, write_whole


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with write_whole(path) as unfinished:
        unfinished.write_text("new")
        assert json.loads(path.read_text()) == {"old": 1}
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, [1])
    with pytest.raises(TypeError):
        write_json(path, object())
    with pytest.raises(UnicodeEncodeError), write_whole(path) as unfinished:
        unfinished.write_text("half \udc80")
    assert json.loads(path.read_text()) == [1]
    assert [*tmp_path.iterdir()] == [path]


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, [1])
    code = (
        "import os, sys; from pathlib import Path; from spacedkd.files import write_whole\n"
        "with write_whole(Path(sys.argv[1])) as unfinished:\n"
        "    unfinished.write_text('half'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert json.loads(path.read_text()) == [1]
    assert {other.suffix for other in tmp_path.iterdir()} == {".json", ".unfinished"}


def test_the_cache_is_where_the_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("checked", "x.json") == tmp_path / "spacedkd" / "checked" / "x.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "spacedkd"
