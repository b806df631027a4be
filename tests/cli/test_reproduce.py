"""`spacedkd reproduce`, as it is typed."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spacedkd import read_spec
from spacedkd.cli import main
from spacedkd.paper.reproduce import Plan, Reproduction

ONLY = ["--scale", "smoke", "--only", "l1", "--seeds", "2", "--jobs", "1"]


def test_without_a_name_all_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--store", str(tmp_path)])
    said = capsys.readouterr().out
    for name in ("online", "critical-period", "corruptions", "theory"):
        assert name in said
    assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    main(["reproduce", "loss", *ONLY, "--store", str(store)])
    return store


def test_one_row_of_a_table(made: Path) -> None:
    place = made / "smoke" / "loss"
    found = json.loads((place / "results.json").read_text())
    assert {(cell["row"], cell["column"]) for cell in found["cells"]} == {("L1", "w/o"), ("L1", "w/ 1.5")}
    assert [cell["paper"] for cell in found["cells"]] == [69.54, 69.30]
    assert all(len(cell["values"]) == 2 for cell in found["cells"])
    assert (found["cost"]["runs"], found["missing"]) == (4, 0)
    with (place / "table.csv").open(newline="") as file:
        assert len([*csv.DictReader(file)]) == 2
    assert "\\toprule" in (place / "table.tex").read_text()
    assert "69.54" in (place / "table.md").read_text()
    assert found["verdict"]["sentence"] in (place / "index.html").read_text()
    assert "loss/index.html" in (made / "smoke" / "index.html").read_text()


def test_the_tables_of_what_is_finished_alone(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "loss", *ONLY, "--first-seed", "1", "--store", str(made), "--max-hours", "0"])
    assert json.loads((made / "smoke" / "loss" / "results.json").read_text())["missing"] == 2  # of seeds 1 and 2
    assert "Page:" in capsys.readouterr().out


def test_a_run_that_fails_is_listed_and_the_tables_are_made(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoints are damaged, so that it cannot go on."""
    store = shutil.copytree(made, tmp_path / "store")
    run = next(path for path in sorted(store.glob("runs/*/seed1")) if read_spec(path).teacher_path is None)
    (run / "result.json").unlink()
    for file in (run / "checkpoint").iterdir():
        file.write_bytes(b"nothing")
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "loss", *ONLY, "--store", str(store)])
    assert end.value.code == 3
    place = store / "smoke/loss"
    ((row, seed),) = [(one["row"], one["seed"]) for one in json.loads((place / "results.json").read_text())["failed"]]
    assert (row, seed) == ("L1", 1)
    streams = capsys.readouterr()
    assert "--restart" in streams.err, "what to do"
    for text in (streams.out, (place / "table.md").read_text(), (place / "index.html").read_text()):
        assert "failed" in text.lower()


def test_numbers_alone_cannot_be_measured(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Reproduction, "runs_without_networks", lambda self: [made])
    main(["reproduce", "loss", *ONLY, "--store", str(made), "--max-hours", "0"])
    assert f"Of 1 run in {made} the numbers alone were kept" in " ".join(capsys.readouterr().out.split())


def test_the_index_of_numbers_names_the_tables_that_are_there(made: Path, tmp_path: Path) -> None:
    main(["reproduce", "interval", "--scale", "smoke", "--store", str(made), "--max-hours", "0"])
    main(["reproduce", "loss", *ONLY, "--store", str(made), "--max-hours", "0", "--numbers", str(tmp_path / "kept")])
    assert "interval/table.md" in (made / "smoke" / "index.md").read_text()
    index = (tmp_path / "kept" / "smoke" / "index.md").read_text()
    assert "loss/table.md" in index
    assert "interval/table.md" not in index


def test_a_table_whose_runs_are_elsewhere_is_left_as_it_is(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "smoke", tmp_path / "smoke")
    before = (tmp_path / "smoke" / "loss" / "results.json").read_bytes()
    main(["reproduce", "loss", *ONLY, "--store", str(tmp_path), "--max-hours", "0"])
    assert "the table that is there is left as it is" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "smoke" / "loss" / "results.json").read_bytes() == before


def test_the_list_counts_runs_of_all_rows_and_seeds_and_of_this_recipe_alone(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["reproduce", "--store", str(made)])
    assert "finished: smoke 4 of 20" in capsys.readouterr().out, "five losses, two arms, two seeds"
    main(["reproduce", "--store", str(made), "--recipe", "official"])
    assert "finished" not in capsys.readouterr().out


def test_theory_is_kept_among_the_numbers_and_is_not_measured_in_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "theory", "--scale", "smoke", "--store", str(tmp_path / "store"), "--numbers"]
    main([*words, str(tmp_path / "none"), "--max-hours", "0"])
    assert not (tmp_path / "none" / "smoke" / "theory").exists()
    main([*words, str(tmp_path / "kept"), "--only", "resnet18*"])
    text = (tmp_path / "kept" / "smoke" / "theory" / "table.md").read_text()
    assert "seed" not in text.partition("Made on")[2], "it has one of its own, on its page"
    assert "theory/table.md" in (tmp_path / "kept" / "smoke" / "index.md").read_text()


def test_no_answer_is_no(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def end_of_input(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end_of_input)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(Reproduction, "plan", lambda self, jobs: Plan(1, 0, None))
    monkeypatch.setattr(Reproduction, "check_data", lambda self: None)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "loss", "--only", "l1", "--scale", "paper", "--store", str(tmp_path)])
    assert (end.value.code, capsys.readouterr().err.strip()) == (2, "spacedkd: Nothing was trained.")


def test_what_it_will_take(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "loss", *ONLY, "--store", str(made), "--plan"])
    assert "4 of 4 runs" in capsys.readouterr().out


@pytest.mark.parametrize("other", [{"verdict": {"sentence": "x"}}, {}, [], "x"])
def test_a_table_of_another_form_is_left_out_of_the_index(
    other: object, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made / "smoke" / "ahead").mkdir(exist_ok=True)
    (made / "smoke" / "ahead" / "results.json").write_text(json.dumps(other))
    main(["reproduce", "loss", *ONLY, "--store", str(made), "--max-hours", "0"])
    assert "results.json cannot be read, and is left out" in " ".join(capsys.readouterr().out.split())
    index = (made / "smoke" / "index.md").read_text()
    assert "loss/table.md" in index
    assert "ahead/table.md" not in index


@pytest.mark.parametrize("change", [{"versions": {"torch": "2.12.0"}}, {"precision": "64-true"}])
def test_numbers_of_other_versions_or_precision_are_not_mixed(
    change: dict[str, object], made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is refused before anything is done, and is as it was."""
    written = json.loads((made / "store.json").read_text())
    versions = {**written["versions"], **change.get("versions", {})}  # type: ignore[dict-item]
    before = json.dumps({**written, **change, "versions": versions})
    (tmp_path / "store.json").write_text(before)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "loss", *ONLY, "--store", str(made), "--max-hours", "0", "--numbers", str(tmp_path)])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert len(error.strip().splitlines()) == 1
    assert "--numbers" in error
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
    assert (tmp_path / "store.json").read_text() == before


def cut_the_journal(run: Path) -> None:
    lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    (run / "journal.jsonl").write_text("".join(lines[: len(lines) // 2]))


def another_spec(run: Path) -> None:
    (run / "spec.json").write_text("{}")


def another_run(run: Path) -> None:
    other = next(path for path in run.parent.parent.iterdir() if path != run.parent)
    shutil.rmtree(run)
    shutil.copytree(other / run.name, run)


def another_seed(run: Path) -> None:
    shutil.rmtree(run)
    shutil.copytree(run.parent / "seed1", run)


@pytest.mark.parametrize("damage", [cut_the_journal, another_spec, another_run, another_seed])
def test_a_run_that_is_not_what_its_place_says_is_refused(
    damage: Callable[[Path], None], made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    run = next(tmp_path.glob("runs/*/seed0"))
    damage(run)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "loss", *ONLY, "--store", str(tmp_path), "--max-hours", "0"])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert len(error.strip().splitlines()) == 1
    assert str(run) in error
    assert ("--resume" if damage is cut_the_journal else "trained again") in error


@pytest.mark.parametrize(
    "name",
    [
        *("smoke", "smoke/index.html", "smoke/index.md", "smoke/loss", "smoke/loss/index.html"),
        *("smoke/loss/results.json", "smoke/loss/table.tex", "store.json", ".lock"),
    ],
)
def test_links_in_a_store_are_not_followed(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    store, target = shutil.copytree(made, tmp_path / "store"), tmp_path / "target"
    if not (store / name).exists():
        target.write_text("mine")
    else:
        shutil.move(store / name, target)
    (store / name).symlink_to(target)
    files = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "loss", *ONLY, "--store", str(store), "--max-hours", "0"])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert len(error.strip().splitlines()) == 1
    assert f"{store / name} is a symbolic link" in error
    assert {path: path.read_bytes() for path in files} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "interval"),
        (["loss", "--scale", "huge"], "smoke"),
        (["loss", "--only", "vgg*"], "Smooth L1"),
        (["loss", "--recipe", "mine"], "official"),
        (["loss", "--seeds", "0"], "--seeds must be at least 1"),
        (["loss", "--max-hours", "-1"], "--max-hours"),
        (["loss", "--scale", "cpu", "--root", "nowhere"], "nowhere"),
        (["interval", "--scale", "cpu", "--root", "nowhere"], "tiny-imagenet"),
        (["interval", "--scale", "cpu", "--root", "nowhere", "--plan"], "tiny-imagenet"),
        (["loss", "--numbers", "store"], "another folder than --store"),
        (["loss", "--numbers", "/dev/null/numbers", "--scale", "smoke"], "give --numbers another name"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *words, "--store", str(tmp_path / "store")])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "store" / "runs").exists()
