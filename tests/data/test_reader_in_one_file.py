"""A new dataset reader is one object and one entry in the list: loading, the list, messages and docs follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spacedkd import DataSpec, UserError
from spacedkd.cli import main
from spacedkd.data import sources
from spacedkd.data.reader import RawDataset, RawSplit, Reader
from spacedkd.data.sources import READERS, Library, load, resolve_data

# All there is to a reader: this is what its file would hold.


def read_stripes(spec: DataSpec) -> RawDataset:
    """Read a text file of labels, 0 or 1, as gray 8x8 images, black or white; every other one is for testing."""
    labels = np.array([int(line) for line in Path(spec.source).read_text().split()])
    images = np.broadcast_to((labels * 255).astype(np.uint8)[:, None, None, None], (len(labels), 8, 8, 1))
    train, test = (RawSplit(name, images[first::2], labels[first::2]) for first, name in enumerate(("train", "test")))
    return RawDataset(spec.source, train, test, class_names=("black", "white"))


STRIPES = Reader(
    name="FILE.stripes",
    about="a label a line, drawn as a plain image",
    docs="a label a line",
    read=read_stripes,
    suffix=".stripes",
    options=("label_column",),
    augmentation="none",
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sources, "READERS", (*READERS, STRIPES))
    path = tmp_path / "some.stripes"
    path.write_text("0 0 1 1 0 0 1 1 0 0 1 1")
    return str(path)


def test_it_is_loaded(file: str) -> None:
    data = load(DataSpec(file, label_column="any"))
    assert data.info.classes == ("black", "white")
    assert data.train.labels.tolist() == [0, 1] * 3
    assert data.train.resized(data.train.labels[:2]).unique().tolist() == [0, 255]
    assert resolve_data(DataSpec(file)).augmentation == "none"
    assert Library().read(DataSpec(file)).location == file


def test_it_is_listed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "data"])
    lines = capsys.readouterr().out.splitlines()
    assert any(STRIPES.name in line and STRIPES.about in line for line in lines)


def test_it_is_in_the_messages(file: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^image_column does not matter for .*some.stripes, it is for "):
        load(DataSpec(file, image_column="any"))
    with pytest.raises(UserError, match=r"^label_column does not matter for digits, it is for .*FILE\.stripes"):
        load(DataSpec("digits", label_column="any"))
    with pytest.raises(UserError, match=r"Unknown dataset .no-such.*FILE\.stripes"):
        load(DataSpec("no-such"))
    (tmp_path / "notes.txt").write_text("no dataset")
    with pytest.raises(UserError, match=r"notes.txt .*\.parquet or \.csv or \.npz or \.stripes"):
        load(DataSpec(str(tmp_path / "notes.txt")))


def test_without_its_entry_it_is_unknown(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "READERS", READERS)
    with pytest.raises(UserError, match="some.stripes"):
        load(DataSpec(file))


def test_the_page_on_data_has_a_row_for_every_reader() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for reader in READERS:
        assert f"| `{reader.name}` | {reader.docs} |\n" in page


def test_names_are_told_apart_and_options_exist() -> None:
    assert len({reader.name for reader in READERS}) == len(READERS)
    for option in sources.reader_options():
        assert hasattr(DataSpec(), option)
