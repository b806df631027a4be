"""Corruptions: the library's own bits, the same for any process, kept on disk, never half of a file."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import imagecorruptions
import numpy as np
import pytest
import torch
from torch import Tensor

from spacedkd.config.spec import DataSpec
from spacedkd.data.images import Images
from spacedkd.data.sources import load
from spacedkd.data.stream import evaluation_batches
from spacedkd.evaluation import corrupted_images as corrupted
from spacedkd.evaluation.corrupted_images import CorruptedImages, corrupt, enlargement, seeded
from spacedkd.evaluation.corruptions import CORRUPTIONS as NAMES
from spacedkd.evaluation.corruptions import FAMILIES, PAPER, measure_corruptions
from spacedkd.models.classifier import Prediction
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.seeds import seed_for


def picture(size: int = 32, channels: int = 3) -> np.ndarray:
    """Smooth shades with a bright square: something that blur, noise and compression all change."""
    ramp = np.linspace(20, 200, size)
    image = np.stack([np.add.outer(ramp, ramp[::-1]) / 2 + 9 * c for c in range(channels)])
    image[:, size // 4 : size // 2, size // 4 : size // 2] = 240
    return image.astype(np.uint8)


def images(count: int = 4, size: int = 32, channels: int = 3) -> Images:
    pixels = torch.from_numpy(np.stack([np.roll(picture(size, channels), k, 2) for k in range(count)]))
    return Images(pixels, torch.arange(count) % 2, ("a", "b"), (0.5,) * channels, (0.25,) * channels)


def test_the_nineteen_of_the_library() -> None:
    assert len(NAMES) == 19
    assert set(NAMES) == set(imagecorruptions.get_corruption_names("all"))
    assert set(PAPER) <= set(NAMES)
    assert sorted(sum(FAMILIES.values(), ())) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_that_is_large_enough_gets_what_the_library_makes_of_it(name: str) -> None:
    image = picture()
    seed = seed_for(0, "corruption", name, 3, 5) % 2**32
    own = {"seed": seed} if name in ("impulse_noise", "glass_blur") else {}
    with seeded(seed):
        expected = imagecorruptions.corrupt(image.transpose(1, 2, 0), corruption_name=name, severity=3, **own)
    found = corrupt(image, name, 3, 5)
    assert np.array_equal(found, expected.transpose(2, 0, 1))
    assert not np.array_equal(found, image)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_again_whatever_was_drawn_before(name: str) -> None:
    first = corrupt(picture(), name, 5, 0)
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    assert np.array_equal(corrupt(picture(), name, 5, 0), first)
    assert np.array_equal(np.random.get_state()[1], before), "the global generator is as it was"


@pytest.mark.parametrize("name", [name for name in NAMES if "noise" in name or name in ("frost", "snow", "fog")])
def test_every_image_has_a_draw_of_its_own(name: str) -> None:
    assert not np.array_equal(corrupt(picture(), name, 3, 0), corrupt(picture(), name, 3, 1))


@pytest.mark.parametrize("size", [8, 20, 28, 40])
@pytest.mark.parametrize("channels", [1, 3])
def test_small_and_gray_images_keep_their_form(size: int, channels: int) -> None:
    for name in NAMES:
        found = corrupt(picture(size, channels), name, 5, 0)
        assert (found.shape, found.dtype) == ((channels, size, size), np.uint8), name


def test_enlarging_keeps_noise_at_its_strength_and_changes_nothing_by_itself() -> None:
    flat = np.full((3, 8, 8), 128, np.uint8)
    spread = np.concatenate([corrupt(flat, "gaussian_noise", 1, k).ravel() for k in range(40)]).astype(float).std()
    assert spread == pytest.approx(0.08 * 255, rel=0.05)  # the library's deviation at severity 1
    by_hand = corrupt(picture(8).repeat(4, 1).repeat(4, 2), "fog", 3, 0)[:, 2::4, 2::4]
    assert np.array_equal(corrupt(picture(8), "fog", 3, 0), by_hand)
    assert enlargement(8, 100) == 4


def test_a_spatter_without_a_drop_leaves_the_image() -> None:
    image = picture()
    untouched = [np.array_equal(corrupt(image, "spatter", 1, k), image) for k in range(150)]
    assert 0 < sum(untouched) < 30
    assert all(corrupt(image, "spatter", 1, k).any() for k in range(150)), "never black"


def test_kept_on_disk_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    store = CorruptedImages(images(), tmp_path)
    store.make(["contrast", "fog"], [1, 5], advance=seen.append)
    assert sum(seen) == 4 * 4
    made = [
        f"{name}-{severity}.{kind}" for name in ("contrast", "fog") for severity in (1, 5) for kind in ("json", "npy")
    ]
    assert sorted(path.name for path in store.folder.iterdir()) == made
    monkeypatch.setattr(corrupted, "_corrupt_rows", None)  # would fail if asked again
    again = CorruptedImages(images(), tmp_path)
    again.make(["contrast", "fog"], [1, 5])
    (batch,) = again.batches("fog", 5, 10)
    expected = np.stack([corrupt(image, "fog", 5, k) for k, image in enumerate(images().pixels.numpy())])
    assert torch.equal(batch.inputs, images().normalise(torch.from_numpy(expected)))
    assert torch.equal(batch.labels, images().labels)


def altered(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 9)


def unrecorded(file: Path) -> None:
    file.with_suffix(".json").write_text("")


@pytest.mark.parametrize("harm", [altered, cut_off, unrecorded])
def test_what_is_damaged_is_made_anew(
    tmp_path: Path, harm: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    store = CorruptedImages(images(), tmp_path)
    store.make(["contrast"], [1, 5])
    file = store.path("contrast", 5)
    whole = file.read_bytes()
    (store.folder / "fog-1.npy.unfinished").write_bytes(b"left by a kill")
    harm(file)
    again = CorruptedImages(images(), tmp_path)
    assert again.missing(["contrast"], [1, 5]) == [("contrast", 5)]
    assert capsys.readouterr().err == f"{file} is damaged: it is made again.\n"
    again.make(["contrast"], [1, 5])
    assert file.read_bytes() == whole
    assert not [*store.folder.glob("*.unfinished")]


def test_other_bits_are_another_data_set(tmp_path: Path) -> None:
    one, other = images(), images()
    other.pixels[2, 1, 5, 5] += 1
    assert CorruptedImages(one, tmp_path).folder != CorruptedImages(other, tmp_path).folder
    assert CorruptedImages(one, tmp_path).folder == CorruptedImages(images(), tmp_path).folder


class Deadly(Images):
    """Images that end every process but the first one."""

    def resized(self, rows: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None:
            os._exit(9)
        return super().resized(rows)


def test_a_process_that_is_killed_is_one_clear_line(tmp_path: Path) -> None:
    kept = CorruptedImages(Deadly(**vars(images())), tmp_path)
    with pytest.raises(UserError, match="A process that corrupted images was killed"):
        kept.make(["contrast"], [3], processes=2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_processes_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrupted, "CHUNK", 3)
    names = ["glass_blur", "snow"]
    alone, together = (CorruptedImages(images(8), tmp_path / name) for name in ("alone", "together"))
    alone.make(names, [3], processes=1)
    together.make(names, [3], processes=2)
    for name in names:
        assert alone.path(name, 3).read_bytes() == together.path(name, 3).read_bytes()


def test_what_is_stopped_leaves_no_file(tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    store = CorruptedImages(images(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.make(["fog"], [1], advance=stop)
    assert list(store.folder.iterdir()) == []


def test_batches_are_read_through_a_memory_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CorruptedImages(images(), tmp_path)
    store.make(["contrast"], [1])
    modes: list[str | None] = []
    load_array = np.load

    def watched(path: Path, mmap_mode: str | None = None) -> np.ndarray:
        modes.append(mmap_mode)
        return load_array(path, mmap_mode)

    monkeypatch.setattr(np, "load", watched)
    assert [len(batch.labels) for batch in store.batches("contrast", 1, 3)] == [3, 1]
    assert modes == ["c"]


def test_accuracy_of_every_corruption_and_their_mean(tmp_path: Path) -> None:
    digits = load(DataSpec("digits")).test.subset(torch.arange(20))
    store = CorruptedImages(digits, tmp_path)
    names, severities = ["contrast", "pixelate"], [1, 5]
    store.make(names, severities)

    def always_seven(shown: torch.Tensor) -> Sequence[Prediction]:
        return [Prediction(torch.eye(10)[7].expand(len(shown), 10), shown)]

    found = measure_corruptions(
        always_seven,
        ["final"],
        evaluation_batches(digits, 8),
        lambda name, severity: store.batches(name, severity, 8),
        names=names,
        severities=severities,
        images=20,
        enlarged=4,
    )
    share = float((digits.labels == 7).double().mean())
    assert [(one.name, one.severity, one.accuracy["final"]) for one in found.found] == [
        (name, severity, share) for name in names for severity in severities
    ]
    assert found.mean == found.clean == {"final": share}


@pytest.mark.parametrize(
    ("names", "severities", "message"),
    [
        (["fog"], [6], "severity must be from 1 to 5, got 6"),
        (["fog"], [0], "severity must be from 1 to 5, got 0"),
        (["frog"], [1], "Did you mean 'fog'"),
        ([], [1], "nothing to corrupt with"),
        (["fog"], [], "nothing to corrupt with"),
    ],
)
def test_what_is_no_corruption(names: list[str], severities: list[int], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        CorruptedImages(images(), tmp_path).make(names, severities)
    assert list(tmp_path.iterdir()) == []


def test_images_with_other_channels_and_disks_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="these have 2 channels"):
        CorruptedImages(images(channels=2), tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(UserError, match="need 0.0 GB in .* use cache=FOLDER"):
        CorruptedImages(images(), tmp_path).make(["fog"], [1])
