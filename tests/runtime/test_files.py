"""A file is there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spacedkd import UserError
from spacedkd.runtime import files
from spacedkd.runtime.errors import CannotWrite
from spacedkd.runtime.files import HOST, Folder, cache_folder, write_json, write_whole


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
        "import os, sys; from pathlib import Path; from spacedkd.runtime.files import write_whole\n"
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


def test_any_number_of_writers_write_one_file(tmp_path: Path) -> None:
    """Each has a name of its own to write to, so that the file is always one of theirs."""
    path = tmp_path / "a.json"

    def write(number: int) -> None:
        for _ in range(30):
            write_json(path, [number] * 1000)
            assert len({*json.loads(path.read_text())}) == 1

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(write, range(8))]
    assert [*tmp_path.iterdir()] == [path]


def test_a_symlink_where_a_file_is_to_be_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "a.json").symlink_to(precious)
    write_json(tmp_path / "a.json", [1])
    assert not (tmp_path / "a.json").is_symlink()
    monkeypatch.setattr(files, "_unfinished_name", lambda path: path.with_name("guessed.unfinished"))
    (tmp_path / "guessed.unfinished").symlink_to(precious)
    with pytest.raises(CannotWrite, match="b.json cannot be written: File exists"):
        write_json(tmp_path / "b.json", [2])
    assert precious.read_text() == "mine"


def test_what_killed_writers_leave_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive = f"{HOST}_{gone.pid}_0a.unfinished", f"{HOST}_{os.getpid()}_0b.unfinished"
    elsewhere, long_ago = "elsewhere_1_0c.unfinished", "elsewhere_1_0d.unfinished"
    for name in (f"a.{dead}", f"a.{alive}", f"a.{elsewhere}", f"a.{long_ago}", "a.unfinished", ".tmpAbC123", "a.json"):
        (tmp_path / name).write_text("half")
    (tmp_path / f"student.{dead}").mkdir()
    os.utime(tmp_path / f"a.{long_ago}", (0, 0))
    files.remove_leftovers(tmp_path, tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {f"a.{alive}", f"a.{elsewhere}", "a.json"}


def test_files_and_their_names_are_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order a power cut asks for: the contents, the name, the folder that holds it."""
    done: list[str] = []

    def fsync(number: int) -> None:
        done.append(f"sync {'folder' if Path(f'/proc/self/fd/{number}').resolve() == tmp_path else 'file'}")

    replace_file, rename_file = Path.replace, os.rename

    def replace(one: Path, other: Path) -> Path:
        done.append("rename")
        return replace_file(one, other)

    def rename(one: str, other: str, **handles: int) -> None:
        done.append("rename")
        rename_file(one, other, **handles)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(os, "rename", rename)
    write_json(tmp_path / "a.json", [1])
    with Folder(tmp_path).write_whole(tmp_path / "a.json", before=tmp_path / "b.json") as file:
        file.write(b"new")
    assert done == ["sync file", "rename", "sync folder", "sync file", "rename", "rename", "sync folder"]
    assert json.loads((tmp_path / "b.json").read_text()) == [1]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the quota of this disk is used up"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "Input/output error."),
    ],
)
def test_what_the_system_refuses_is_one_line_that_names_the_file(tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(CannotWrite) as refused, write_whole(tmp_path / "a.json"):
        raise OSError(number, os.strerror(number))
    assert isinstance(refused.value, UserError)
    assert isinstance(refused.value, OSError)
    said = str(pickle.loads(pickle.dumps(refused.value)))
    assert said.startswith(f"{tmp_path / 'a.json'} cannot be written: ")
    assert words in said
    assert [*tmp_path.iterdir()] == []
