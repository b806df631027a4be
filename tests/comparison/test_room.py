"""Fewer runs go at once where memory is short."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from spacedkd import RunSpec
from spacedkd.comparison import scheduler
from spacedkd.comparison.compare import compare
from spacedkd.runtime import processes


def test_fewer_runs_go_at_once_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    free = tmp_path / "meminfo"
    free.write_text("MemTotal:  9000000 kB\nMemAvailable:    5000000 kB\nHugePages_Total:       0\n")
    numbers = processes.numbers_of
    monkeypatch.setattr(
        processes, "numbers_of", lambda file, *names: numbers(file.replace("/proc", str(tmp_path)), *names)
    )
    assert scheduler.limit_by_memory(4, 600 * 10**6) == 4
    assert capsys.readouterr().err == ""
    assert scheduler.limit_by_memory(4, 10**9) == 2
    assert "Only 2 of 4 runs at once: each takes about 2.0 GB, and 5.1 GB of memory are free" in capsys.readouterr().err
    assert scheduler.limit_by_memory(4, 10**10) == 1
    free.unlink()
    assert scheduler.limit_by_memory(4, 10**10) == 4


def test_what_is_mapped_does_not_count_as_held(tmp_path: Path) -> None:
    np.save(tmp_path / "large.npy", np.ones(64 << 20, np.uint8))
    before = scheduler.private_memory()
    mapped = torch.from_numpy(np.load(tmp_path / "large.npy", mmap_mode="c"))
    assert int(mapped.sum()) == 64 << 20
    assert scheduler.private_memory() - before < 16 << 20
    own = mmap.mmap(-1, 64 << 20)  # fresh from the system, whatever this process has let go before
    own.write(b"1" * (64 << 20))
    assert scheduler.private_memory() - before > 60 << 20


@pytest.mark.parametrize(("asked", "workers"), [(None, 1), (2, 2)])
def test_a_comparison_looks_at_the_memory_unless_told_how_many(
    tiny: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None, workers: int
) -> None:
    seen: list[int] = []

    class Stop(Exception):
        pass

    def pool(count: int, *args: object) -> None:
        seen.append(count)
        raise Stop

    monkeypatch.setattr(scheduler, "free_memory", lambda: 10**9)
    monkeypatch.setattr(scheduler, "private_memory", lambda: 10**9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(scheduler, "local_pool", pool)
    with pytest.raises(Stop):
        compare({"one": tiny}, tmp_path, seeds=2, jobs=asked)
    assert seen == [workers]
