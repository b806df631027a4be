"""Folders of class folders, ImageNet's and Tiny-ImageNet's, as they lie on disks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spacedkd import DataSpec, UserError
from spacedkd.data.images import Encoded, Images
from spacedkd.data.sources import load, resolve_data
from tests.data.on_disk import class_folders, picture, tiny_imagenet, write


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_a_folder_of_small_pictures_lives_in_memory(tmp_path: Path) -> None:
    data = load(DataSpec(str(class_folders(tmp_path))))
    assert data.train.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4
    assert isinstance(data.train, Images)
    assert all(torch.equal(data.train.pixels[n], as_tensor(picture(n))) for n in range(8))
    assert all(torch.equal(data.test.pixels[n], as_tensor(picture(8 + n))) for n in range(8))


def test_what_suits_it_is_seen_from_its_images(tmp_path: Path) -> None:
    small = resolve_data(DataSpec(str(class_folders(tmp_path / "small", sizes=(16,)))))
    assert (small.augmentation, small.image_size, small.augment.crop, small.augment.flip) == ("small", 16, 2, True)
    photographs = resolve_data(DataSpec(str(class_folders(tmp_path / "large", sizes=(120, 100)))))
    assert (photographs.augmentation, photographs.image_size, photographs.augment) == ("imagenet", 224, None)
    assert resolve_data(photographs) == photographs


def test_photographs_of_differing_sizes_stay_encoded(tmp_path: Path) -> None:
    data = load(DataSpec(str(class_folders(tmp_path, sizes=(120, 100))), image_size=32))
    assert isinstance(data.train, Encoded)
    assert data.train.shape == (3, 32, 32)
    assert data.train.inputs(torch.arange(3)).shape == (3, 3, 32, 32)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_the_part_to_test_on_may_have_any_usual_name(tmp_path: Path, name: str) -> None:
    assert len(load(DataSpec(str(class_folders(tmp_path, ("train", name))))).test.labels) == 8


def test_two_parts_to_test_on_are_asked_about(tmp_path: Path) -> None:
    place = str(class_folders(tmp_path, ("train", "val", "test")))
    with pytest.raises(UserError, match="more than one split to test on .test, val.*data.test_split"):
        load(DataSpec(place))
    assert torch.equal(load(DataSpec(place, test_split="val")).test.pixels[0], as_tensor(picture(8)))
    with pytest.raises(UserError, match="'vall'. Did you mean 'val'"):
        load(DataSpec(place, test_split="vall"))


def test_parts_may_have_names_of_their_own(tmp_path: Path) -> None:
    place = str(class_folders(tmp_path, ("seen", "unseen")))
    assert len(load(DataSpec(place, train_split="seen", test_split="unseen")).train.labels) == 8


def test_a_folder_without_parts_is_split_on_request(tmp_path: Path) -> None:
    place = str(class_folders(tmp_path, ("all",), count=10) / "all")
    with pytest.raises(UserError, match="has no split to test on.*data.test_part=0.2"):
        load(DataSpec(place))
    one, again = (load(DataSpec(place, test_part=0.2)) for _ in range(2))
    assert one.test.labels.bincount().tolist() == [2, 2]
    assert one.train.labels.bincount().tolist() == [8, 8]
    assert torch.equal(one.test.pixels, again.test.pixels)
    seen = torch.cat([one.train.pixels, one.test.pixels]).flatten(1)
    assert len(seen.unique(dim=0)) == 20
    with pytest.raises(UserError, match="Class cat has 10 images, and a test_part of "):
        load(DataSpec(place, test_part=0.01))
    with pytest.raises(UserError, match="between 0 and 1"):
        load(DataSpec(place, test_part=20))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split called train .it has val."):
        load(DataSpec(str(class_folders(tmp_path / "no-train", ("val",)))))
    with pytest.raises(UserError, match="has no split to test on"):
        load(DataSpec(str(class_folders(tmp_path / "no-val", ("train",)))))
    with pytest.raises(UserError, match="leave out data.test_part"):
        load(DataSpec(str(class_folders(tmp_path / "both")), test_part=0.5))


def test_parts_with_different_classes_are_refused(tmp_path: Path) -> None:
    class_folders(tmp_path, ("train",), ("cat", "dog"))
    class_folders(tmp_path, ("val",), ("cat", "dogs"))
    with pytest.raises(UserError, match="different classes .*: dog in train but not in val"):
        load(DataSpec(str(tmp_path)))


def test_a_class_without_images_is_refused(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    for part in ("train", "val"):
        (place / part / "emu").mkdir()
    with pytest.raises(UserError, match="Class emu has no images: .*train/emu holds none"):
        load(DataSpec(str(place)))


def test_a_folder_without_class_folders_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path, ("train",))
    write(tmp_path / "val" / "1.png", picture(1))
    with pytest.raises(UserError, match="val has no class folders"):
        load(DataSpec(str(tmp_path)))


def test_a_class_list_chooses_classes_and_their_order(tmp_path: Path) -> None:
    place = class_folders(tmp_path, classes=("a", "b", "c"))
    (tmp_path / "list.txt").write_text("c\n\na\n")
    data = load(DataSpec(str(place), class_list=str(tmp_path / "list.txt")))
    assert data.train.classes == ("c", "a")
    assert torch.equal(data.train.pixels[0], as_tensor(picture(8)))
    for text, message in (("c\nz\n", "no folder z"), ("c\nc\n", "names c twice"), ("\n", "is empty")):
        (tmp_path / "list.txt").write_text(text)
        with pytest.raises(UserError, match=message):
            load(DataSpec(str(place), class_list=str(tmp_path / "list.txt")))
    with pytest.raises(UserError, match="There is no class list"):
        load(DataSpec(str(place), class_list=str(tmp_path / "none.txt")))


@pytest.mark.parametrize("folder", ["tiny-imagenet-200", "tiny-imagenet", ""])
def test_tiny_imagenet_is_numbered_by_wnids_txt(tmp_path: Path, folder: str) -> None:
    tiny_imagenet(tmp_path / "root" / folder)
    data = load(DataSpec("tiny-imagenet", root=str(tmp_path / "root")))
    assert data.train.classes == ("n02", "n01", "n03")
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.labels.tolist() == [2, 1, 0]
    assert data.train.shape == (3, 64, 64)
    by_place = load(DataSpec(str(tmp_path / "root" / folder)))
    assert torch.equal(by_place.train.pixels, data.train.pixels)


def test_tiny_imagenet_may_have_val_sorted_into_folders(tmp_path: Path) -> None:
    place = tiny_imagenet(tmp_path / "tiny")
    (place / "val" / "val_annotations.txt").unlink()
    for wnid in ("n01", "n02", "n03"):
        (place / "train" / wnid / f"{wnid}_boxes.txt").unlink()
        write(place / "val" / wnid / "0.JPEG", picture(1, 64))
    data = load(DataSpec("tiny-imagenet", root=str(place)))
    assert data.test.labels.tolist() == [0, 1, 2]


def test_broken_tiny_imagenets_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tiny-imagenet is not in .*wnids.txt.*data.root"):
        load(DataSpec("tiny-imagenet", root=str(tmp_path)))
    place = tiny_imagenet(tmp_path / "tiny")
    (place / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(UserError, match="val_1.JPEG cannot be read: No such file"):
        load(DataSpec(str(place)))
    (place / "wnids.txt").write_text("n01\nn02\n")
    with pytest.raises(UserError, match="class n03, which is not in"):
        load(DataSpec(str(place)))
    (place / "wnids.txt").write_text("n01\nn02\nn03\nn04\n")
    with pytest.raises(UserError, match="Class n04 has no images"):
        load(DataSpec(str(place)))


def test_imagenet_and_its_hundred_classes(tmp_path: Path) -> None:
    wnids = ("n01440764", "n01443537", "n01484850")
    class_folders(tmp_path / "imagenet", classes=wnids, sizes=(110, 130), ending="JPEG")
    whole = load(DataSpec("imagenet-1k", root=str(tmp_path)))
    assert whole.train.classes == wnids
    assert whole.train.shape == (3, 224, 224)
    with pytest.raises(UserError, match="imagenet-100 needs .*data.class_list=FILE.*one wnid on each"):
        load(DataSpec("imagenet-100", root=str(tmp_path)))
    (tmp_path / "list").write_text("n01484850\nn01440764\n")
    some = load(DataSpec("imagenet-100", root=str(tmp_path), class_list=str(tmp_path / "list")))
    assert some.train.classes == ("n01484850", "n01440764")
    assert len(some.train.labels) == len(some.test.labels) == 8
    with pytest.raises(UserError, match="imagenet-1k is not in .*train/WNID and val/WNID folders"):
        load(DataSpec("imagenet-1k", root=str(tmp_path / "list")))


def test_the_numbering_can_be_written_down(tmp_path: Path) -> None:
    described = load(DataSpec(str(class_folders(tmp_path)), holdout=0.25)).describe()
    assert described["classes"][1] == {"number": 1, "name": "dog", "label": 1}
    assert described["items"] == {"train": 6, "test": 8, "holdout": 2}
    json.dumps(described)
