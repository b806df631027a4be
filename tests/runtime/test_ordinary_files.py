"""Files are opened only where they are ordinary, and links below a run's folder are not followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spacedkd.runtime.errors import Linked
from spacedkd.runtime.files import Folder, open_ordinary, read_ordinary


def test_a_file_of_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "x").write_bytes(b"abc")
    assert read_ordinary(tmp_path / "checkpoint" / "x", 3, within=tmp_path) == b"abc"


@pytest.mark.parametrize("name", ["link", "inner/file"])
def test_links_below_the_folder_are_not_followed(tmp_path: Path, name: str) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    (other / "file").write_bytes(b"secret")
    (run / "link").symlink_to(other / "file")
    (run / "inner").symlink_to(other)
    assert read_ordinary(run / name, 10) == b"secret"
    with pytest.raises(Linked, match="symbolic link"):
        read_ordinary(run / name, 10, within=run)
    with pytest.raises(Linked, match="symbolic link"):
        open_ordinary(run / name, os.O_WRONLY | os.O_CREAT, within=run)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert read_ordinary(tmp_path / "link" / "file", 10, within=tmp_path / "link") == b"abc"


def test_fifos_devices_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not an ordinary file"):
            read_ordinary(path, 10)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcd")
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_ordinary(tmp_path / "file", 3)


def test_a_pipe_in_place_of_a_folder_is_removed_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "logs" / "csv").mkdir(parents=True)
    os.mkfifo(tmp_path / "best")
    os.mkfifo(tmp_path / "logs" / "csv" / "metrics.csv")
    for name in ("best", "logs", "none"):
        Folder(tmp_path).remove_tree(tmp_path / name)
    assert [*tmp_path.iterdir()] == []
