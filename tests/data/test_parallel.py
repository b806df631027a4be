"""Several processes that read the same images: those that share the work, and those that come later."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from spacedkd import DataSpec, UserError
from spacedkd.data import pixel_cache
from spacedkd.data.images import ImageColumn
from spacedkd.data.sources import load
from spacedkd.runtime.processes import map_in_processes
from tests.data.on_disk import class_folders, picture


def _work(places: range) -> dict[int, str]:
    return {place: f"{os.getpid()}" for place in places if place % 100 == 3}


@pytest.mark.parametrize("count", [1, 64, 1000])
def test_processes_do_everything_once(count: int) -> None:
    found = map_in_processes(_work, count, "", 3)
    assert sorted(found) == [*range(3, count, 100)]
    assert str(os.getpid()) not in found.values()


def test_an_exception_in_a_process_is_raised_here() -> None:
    def differ(places: range) -> dict[int, str]:
        if 200 in places:
            raise pixel_cache.MixedSizesError
        return {}

    with pytest.raises(pixel_cache.MixedSizesError):
        map_in_processes(differ, 1000, "", 2)
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_one_line() -> None:
    def die(places: range) -> dict[int, str]:
        os._exit(9) if 200 in places else None
        return {}

    with pytest.raises(UserError, match="A process that read images was killed"):
        map_in_processes(die, 1000, "", 2)


def _load_and_tell(place: str, end: Any) -> None:
    counts: list[int] = []
    whole = pixel_cache._decode_all

    def slow(stored: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(stored))
        time.sleep(0.3)
        return whole(stored, *args, **options)

    pixel_cache._decode_all = slow  # type: ignore[assignment]
    end.send((len(load(DataSpec(place)).train), counts))


@pytest.mark.usefixtures("pixels")
def test_of_two_that_begin_at_once_one_decodes(tmp_path: Path) -> None:
    place = str(class_folders(tmp_path / "data"))
    fork = multiprocessing.get_context("fork")
    ends, processes = [], []
    for _ in range(3):
        ours, theirs = fork.Pipe(duplex=False)
        processes.append(fork.Process(target=_load_and_tell, args=(place, theirs)))
        processes[-1].start()
        ends.append(ours)
    said = [end.recv() for end in ends]
    for process in processes:
        process.join()
    assert [count for count, _ in said] == [8, 8, 8]
    assert sum(len(counts) for _, counts in said) == 2  # training and test images, by whoever came first


def test_waiting_is_said(tmp_path: Path, pixels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = DataSpec(str(class_folders(tmp_path / "data")))
    load(spec)
    files = [*pixels.glob("*.npy")]
    held = threading.Event()

    def hold() -> None:
        with FileLock(files[0].with_suffix(".lock")):
            held.set()
            time.sleep(0.5)

    files[0].unlink()
    threading.Thread(target=hold).start()
    held.wait()
    assert len(load(spec).train) == 8
    assert "Another process is reading these images: waiting for it." in capsys.readouterr().err


def _read_slowly(place: str) -> None:
    read = ImageColumn.read

    def slow(stored: ImageColumn, place: int) -> bytes:
        time.sleep(0.2)
        return read(stored, place)

    ImageColumn.read = slow  # type: ignore[assignment, method-assign]
    load(DataSpec(place, augmentation="small", image_size=12))


def test_a_kill_while_decoding_leaves_nothing_in_the_way(tmp_path: Path, pixels: Path, reads: list[int]) -> None:
    place = str(class_folders(tmp_path / "data"))
    process = multiprocessing.get_context("fork").Process(target=_read_slowly, args=(place,))
    process.start()
    while not [*pixels.glob("*.unfinished")]:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not [*pixels.glob("*.json")]
    data = load(DataSpec(place, augmentation="small", image_size=12))
    assert reads == [8, 8]
    assert torch.equal(data.train.pixels[7], torch.from_numpy(np.array(picture(7))).permute(2, 0, 1))
    assert not [*pixels.glob("*.unfinished")]
