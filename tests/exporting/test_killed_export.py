"""An export that is killed at any operation on a file leaves nothing, or all of it, under the folder's name."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from spacedkd import UserError, export
from spacedkd.cli import main
from spacedkd.runtime.files import HOST, write_new_folder
from tests.cli.test_bad_input import refused
from tests.faults.injected import points
from tests.faults.killing import SECONDS, Point
from tests.forked import context, start


def exported(run: Path, root: Path, log: Path | None = None, point: Point | None = None) -> int:
    """Export a run to `root`/out in a copy of this process, which is killed at a point; return its exit code."""
    root.mkdir(exist_ok=True)
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        name, at = point or (None, 1)
        points.install(root=str(root), log=log and str(log), name=name, at=at)
        export(run, root / "out")
        os._exit(0)
    finally:
        os._exit(1)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _kill_at_all_points(run: Path, place: Path) -> None:
    """Of operations that occur several times under one name, the last is tried, which comes after all others."""
    assert exported(run, place / "whole", place / "log") == 0
    whole = contents(place / "whole/out")
    assert {*whole} == {"README.md", "config.json", "model.safetensors", "spec.json"}
    counts = Counter((place / "log").read_text().splitlines())
    assert counts["rename out"] == 1
    assert {f"fsync out.unfinished/{name}" for name in whole} <= {*counts}, "all is on the disk before the rename"
    for number, (name, times) in enumerate(counts.items()):
        root = place / str(number)
        assert exported(run, root, point=Point(name, times)) == -signal.SIGKILL, name
        if not (root / "out").exists():
            assert exported(run, root) == 0, name
        assert contents(root / "out") == whole, name
        assert [path.name for path in root.iterdir()] == ["out"], "what the kill left beside it is gone"


def test_a_kill_at_any_operation_leaves_nothing_or_all_of_it(trained: Path, tmp_path: Path) -> None:
    """In a process without threads, which can be copied for each kill."""
    start()
    process = context().Process(target=_kill_at_all_points, args=(trained / "run", tmp_path))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 0


def test_an_export_goes_into_an_empty_folder_and_behind_a_link(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    export(trained / "run", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty/model.safetensors").exists()
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o750


def test_a_folder_that_is_filled_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """As is what others are writing beside it, or have named like it."""
    alive = tmp_path / f"out.{HOST}_{os.getpid()}_00ff.unfinished"
    others = tmp_path / f"outer.{HOST}_999999999_00ff.unfinished"
    dead = tmp_path / f"out.{HOST}_999999999_00ff.unfinished"
    for folder in (alive, others, dead):
        folder.mkdir()

    def write() -> None:
        with write_new_folder(tmp_path / "out") as unfinished:
            (unfinished / "file").write_text("ours")
            (tmp_path / "out").mkdir()
            (tmp_path / "out/file").write_text("theirs")

    with pytest.raises(UserError, match="out cannot be written"):
        write()
    assert (tmp_path / "out/file").read_text() == "theirs"
    assert sorted(tmp_path.iterdir()) == sorted([alive, others, tmp_path / "out"])


def test_an_upload_that_was_interrupted_has_a_way_on(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(trained / "run"), "--to", str(tmp_path / "out")]
    main(words)
    capsys.readouterr()
    assert "hf upload" not in refused(words, capsys)
    assert f"hf upload me/small {tmp_path}/out" in refused([*words, "--push", "me/small"], capsys)
