"""Parquet files, datasets saved to disk, and names on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from spacedkd import DataSpec, UserError
from spacedkd.data import parquet as tables
from spacedkd.data.sources import load
from tests.data.on_disk import class_folders, hub_table, parquet, picture, png

HUB_LABELS = datasets.Features({"image": datasets.Image(), "kind": datasets.ClassLabel(names=["ant", "bee"])})


def pixels_of(*numbers: int) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.array(picture(n))).permute(2, 0, 1) for n in numbers])


def hub_form(first: int = 0, kinds: tuple[int, ...] = (0, 1, 0, 1)) -> datasets.Dataset:
    images = [picture(first + number) for number in range(len(kinds))]
    return datasets.Dataset.from_dict({"image": images, "kind": list(kinds)}, features=HUB_LABELS)


def test_columns_and_parts_are_found(tmp_path: Path) -> None:
    data = load(DataSpec(str(parquet(tmp_path))))
    assert torch.equal(data.train.pixels, pixels_of(*range(8)))
    assert torch.equal(data.test.pixels, pixels_of(*range(100, 108)))
    assert data.train.labels.tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    "names",
    [
        ("train.parquet", "validation.parquet"),
        ("data/train-0.parquet", "data/test-0.parquet"),
        ("default/train/0.parquet", "default/test/0.parquet"),
        ("my_train_file.parquet", "my_val_file.parquet"),
    ],
)
def test_file_and_folder_names_say_which_part_it_is(tmp_path: Path, names: tuple[str, str]) -> None:
    for name, first in zip(names, (0, 50), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(hub_table(range(first, first + 4), {"label": [0, 1, 0, 1]}), tmp_path / name)
    assert torch.equal(load(DataSpec(str(tmp_path))).test.pixels, pixels_of(*range(50, 54)))


@pytest.mark.parametrize("form", ["view", "one length", "view in a struct"])
def test_bytes_of_every_form_are_images(tmp_path: Path, form: str) -> None:
    cells = [png(picture(number)) for number in range(4)]
    most = max(map(len, cells))
    column = {
        "view": lambda: pa.array(cells, pa.binary_view()),
        "one length": lambda: pa.array([cell.ljust(most, b"\0") for cell in cells], pa.binary(most)),
        "view in a struct": lambda: pa.StructArray.from_arrays([pa.array(cells, pa.binary_view())], ["bytes"]),
    }[form]()
    for part in ("train", "test"):
        pq.write_table(pa.table({"scan": column, "label": [0, 1, 0, 1]}), tmp_path / f"{part}.parquet")
    data = load(DataSpec(str(tmp_path)))
    assert torch.equal(data.train.pixels, pixels_of(*range(4)))


def test_keys_of_one_length_are_not_taken_for_images(tmp_path: Path) -> None:
    table = hub_table(range(4), {"label": [0, 1, 0, 1], "key": pa.array([b"1234"] * 4, pa.binary(4))})
    table = table.rename_columns(["scan", "label", "key"])
    for part in ("train", "test"):
        pq.write_table(table, tmp_path / f"{part}.parquet")
    assert torch.equal(load(DataSpec(str(tmp_path))).train.pixels, pixels_of(*range(4)))


def test_a_part_in_several_files_keeps_their_order(tmp_path: Path) -> None:
    for number in range(3):
        table = hub_table(range(4 * number, 4 * number + 4), {"label": [0, 1, 0, 1]})
        pq.write_table(table, tmp_path / f"train-0000{number}-of-00003.parquet")
    data = load(DataSpec(str(tmp_path), test_part=0.5))
    assert len(data.train.labels) == 6


def test_two_label_columns_are_asked_about(tmp_path: Path) -> None:
    place = str(parquet(tmp_path, {"fine_label": list(range(8)), "coarse_label": [0, 1] * 4}))
    with pytest.raises(UserError, match="could be the label .fine_label, coarse_label.*data.label_column"):
        load(DataSpec(place))
    assert load(DataSpec(place, label_column="fine_label")).train.labels.tolist() == list(range(8))
    with pytest.raises(UserError, match="Unknown column .* 'fine_labels'. Did you mean 'fine_label'"):
        load(DataSpec(place, label_column="fine_labels"))


def test_a_column_called_label_is_the_label(tmp_path: Path) -> None:
    data = load(DataSpec(str(parquet(tmp_path, {"id": list(range(8)), "label": [0, 1] * 4}))))
    assert data.train.labels.tolist() == [0, 1] * 4


def test_other_columns_are_explained(tmp_path: Path) -> None:
    place = str(parquet(tmp_path / "two", {"label": [0, 1] * 4, "mask": [b"x"] * 8}))
    assert len(load(DataSpec(place)).train.labels) == 8  # `image` is what images are called
    pq.write_table(pa.table({"label": [0, 1], "text": ["a", "b"]}), tmp_path / "words.parquet")
    with pytest.raises(UserError, match="no column that could be the image .it has label, text.*data.image_column"):
        load(DataSpec(str(tmp_path / "words.parquet")))
    with pytest.raises(UserError, match="no column that could be the label"):
        load(DataSpec(str(parquet(tmp_path / "none", {"score": [0.5] * 8}))))


def test_text_and_gaps_become_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = load(DataSpec(str(parquet(tmp_path / "text", {"label": ["emu", "cat"] * 4}))))
    assert words.train.classes == ("cat", "emu")
    assert words.train.labels.tolist() == [1, 0] * 4
    numbers = load(DataSpec(str(parquet(tmp_path / "gaps", {"label": [7, 3, 7, 9] * 2}))))
    assert numbers.train.labels.tolist() == [1, 0, 1, 2] * 2
    assert numbers.class_labels == (3, 7, 9)
    assert "Labels 3 to 9 are numbered 0 to 2" in capsys.readouterr().err


def test_plain_bytes_are_images_too(tmp_path: Path) -> None:
    table = pa.table({"picture": [png(picture(n)) for n in range(4)], "label": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "mine.parquet")
    data = load(DataSpec(str(tmp_path / "mine.parquet"), test_part=0.5))
    assert torch.equal(torch.cat([data.train.pixels, data.test.pixels]).flatten(1).sum(1).sort().values,
                       pixels_of(0, 1, 2, 3).flatten(1).sum(1).sort().values)  # fmt: skip


def test_bad_tables_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no parquet file"):
        load(DataSpec(str(tmp_path / "none.parquet")))
    (tmp_path / "text.parquet").write_text("not a table")
    with pytest.raises(UserError, match="cannot be read as parquet"):
        load(DataSpec(str(tmp_path / "text.parquet")))
    with pytest.raises(UserError, match="2 rows without a label"):
        load(DataSpec(str(parquet(tmp_path / "null", {"label": [0, 1, None, 1, 0, None, 0, 1]}))))
    with pytest.raises(UserError, match="has no labels: all of them are -1"):
        load(DataSpec(str(parquet(tmp_path / "hidden", {"label": [-1] * 8}))))
    strange = parquet(tmp_path / "strange")
    pq.write_table(hub_table(range(4), {"label": [0, 1, 2, 1]}), strange / "test-00000-of-00001.parquet")
    with pytest.raises(UserError, match="label 2, and no training image has it"):
        load(DataSpec(str(strange)))
    pq.write_table(hub_table(range(4), {"target": [0, 1, 2, 1]}), strange / "test-00000-of-00001.parquet")
    with pytest.raises(UserError, match="the split test has no column label|cannot be read"):
        load(DataSpec(str(strange)))


def test_class_names_that_repeat_are_explained(tmp_path: Path) -> None:
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a", "a"]}}
    described = {"huggingface": json.dumps({"info": {"features": features}})}
    table = hub_table(range(4), {"label": [0, 1, 0, 1]}).replace_schema_metadata(described)
    pq.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(UserError, match="own description of its columns .* label names are duplicated"):
        load(DataSpec(str(tmp_path / "twice.parquet"), test_part=0.5))


def test_large_tables_are_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = DataSpec(str(parquet(tmp_path / "data")))
    in_memory = load(place)
    monkeypatch.setattr(tables, "MEMORY_LIMIT", 0)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    mapped = load(place)
    assert torch.equal(mapped.train.pixels, in_memory.train.pixels)
    assert any((tmp_path / "hf").rglob("*.arrow"))


def test_a_data_set_saved_to_disk(tmp_path: Path) -> None:
    parts = datasets.DatasetDict({"train": hub_form(0), "test": hub_form(20)})
    parts.save_to_disk(tmp_path / "two")
    data = load(DataSpec(str(tmp_path / "two")))
    assert data.train.classes == ("ant", "bee")
    assert torch.equal(data.train.pixels, pixels_of(0, 1, 2, 3))
    assert torch.equal(data.test.pixels, pixels_of(20, 21, 22, 23))
    hub_form().save_to_disk(tmp_path / "one")
    assert len(load(DataSpec(str(tmp_path / "one"), test_part=0.5)).test.labels) == 2


def test_the_hubs_own_parquet_names_its_classes(tmp_path: Path) -> None:
    hub_form(0).to_parquet(tmp_path / "train.parquet")
    hub_form(20).to_parquet(tmp_path / "test.parquet")
    assert load(DataSpec(str(tmp_path))).train.classes == ("ant", "bee")


def test_declared_classes_without_images_are_left_out_and_said(tmp_path: Path) -> None:
    features = datasets.Features({**HUB_LABELS, "kind": datasets.ClassLabel(names=["ant", "bee", "cow", "dog"])})
    some = datasets.Dataset.from_dict(
        {"image": [picture(n) for n in range(4)], "kind": [1, 3, 1, 3]}, features=features
    )
    some.save_to_disk(tmp_path)
    data = load(DataSpec(str(tmp_path), test_part=0.5))
    assert data.train.classes == ("bee", "dog")
    assert data.notes == ("2 of 4 declared classes have no training images and are left out.",)


def test_a_hub_name_is_loaded_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def from_hub(name: str, configuration: str | None) -> datasets.DatasetDict:
        asked.append((name, configuration))
        return datasets.load_dataset(
            "imagefolder", data_dir=str(class_folders(tmp_path / "files")), cache_dir=str(tmp_path / "hf")
        )

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, load=datasets.load_dataset, **kw: (
        load(*args, **kw) if kw else from_hub(*args)))  # fmt: skip
    data = load(DataSpec("owner/pictures:small"))
    assert asked == [("owner/pictures", "small")]
    assert data.train.classes == ("cat", "dog")
    assert torch.equal(data.train.pixels, pixels_of(*range(8)))  # its cells hold paths, not bytes


def test_a_hub_name_that_does_not_load_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any) -> None:
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub\nand more lines")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UserError) as error:
        load(DataSpec("owner/name"))
    assert str(error.value).startswith("There is no folder or file owner/name here, and as a name on the Hugging Face")
    assert "\n" not in str(error.value)
