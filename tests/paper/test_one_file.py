"""A table of the paper is one file: it is then in the catalogue, the plan, the report and the index."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import spacedkd.paper.tables as package
from spacedkd.cli import main
from spacedkd.paper.reproduce import Reproduction

FILE = '''"""A longer interval is no worse than a short one.

One row, two arms.
"""

from collections.abc import Iterator

from spacedkd.paper.table import online, spaced
from spacedkd.paper.scales import Scale
from spacedkd.paper.table import Cell, Table


def cells(scale: Scale) -> Iterator[Cell]:
    yield Cell("first row", "online", scale.run("resnet18", arm=online), 71.05)
    yield Cell("first row", "spaced", scale.run("resnet18", arm=spaced), 72.43, against=("first row", "online"))


TABLE = Table("A table of my own", "Tab. mine", 99, cells)
'''


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of tables with one file more, in another folder."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "my_own_table.py").write_text(FILE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    package.tables.cache_clear()
    yield
    package.tables.cache_clear()


@pytest.mark.usefixtures("added")
def test_a_table_is_added_by_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    main(["reproduce", "--store", str(store)])
    listing = capsys.readouterr().out
    assert "my-own-table" in listing
    assert "A longer interval is no worse than a short one." in listing

    reproduction = Reproduction.open(["my-own-table"], scale="smoke", seeds=1, store=store)
    assert reproduction.count_runs(jobs=1) == (0, 2)

    main(["reproduce", "my-own-table", "--scale", "smoke", "--max-hours", "0", "--store", str(store)])
    folder = store / "smoke" / "my-own-table"
    assert [cell["paper"] for cell in json.loads((folder / "results.json").read_text())["cells"]] == [71.05, 72.43]
    for name in ("index.html", "table.md", "table.tex", "table.csv"):
        assert "first row" in (folder / name).read_text()
    for name in ("index.html", "index.md"):
        assert "A table of my own" in (store / "smoke" / name).read_text()
