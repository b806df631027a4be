"""Damage of a run's journal, or of the weights of its students, is noticed by whoever reads them."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from spacedkd import Spaced, UserError, load_student, read_run, read_spec, train
from spacedkd.cli import main
from spacedkd.paper.store import copy_numbers
from spacedkd.runs import tensor_file
from spacedkd.training import Event
from tests.conftest import TINY
from tests.training.stopping import assert_same_run, train_until

SPEC = replace(TINY, schedule=Spaced("1ep"), ema=0.9, data=replace(TINY.data, holdout=0.25))
"""Twenty-four turns, saved after every fourth of the student's steps."""
WEIGHTS = {name: f"{name}/model.safetensors" for name in ("student", "average", "best")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digests") / "whole"
    train(SPEC, folder)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digests") / "other"
    train(replace(SPEC, seed=1), folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digests") / "stopped"
    train_until(SPEC, folder, 22)
    return folder


@pytest.fixture
def run(tmp_path: Path, whole: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def begun(tmp_path: Path, stopped: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "begun")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-6] ^= 1
    file.write_bytes(content)


def position(run: Path, generation: str) -> dict[str, int]:
    with safe_open(run / f"checkpoint/{generation}.safetensors", framework="pt") as file:
        found: dict[str, int] = json.loads(file.metadata()["position"])
        return found


def change_digit(journal: Path, after: int = 0) -> None:
    """Another accuracy in the first line that has one, behind so many bytes."""
    content = journal.read_bytes()
    place = content.index(b'"test": {"final": 0.', after) + len(b'"test": {"final": 0.')
    digit = b"1" if content[place : place + 1] != b"1" else b"2"
    journal.write_bytes(content[:place] + digit + content[place + 1 :])


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.count("\n") == 1, said
    return said


def test_the_result_has_the_digests_of_what_the_run_ended_with(whole: Path) -> None:
    files = {"journal": "journal.jsonl", **WEIGHTS}
    found = {name: hashlib.sha256((whole / file).read_bytes()).hexdigest() for name, file in files.items()}
    assert json.loads((whole / "result.json").read_text())["digests"] == found
    assert read_run(whole).digests == found


@pytest.mark.parametrize("which", ["student", "average"])
def test_a_flipped_bit_in_a_student_is_not_exported_and_is_mended(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    flip(run / WEIGHTS[which])
    load_file(run / WEIGHTS[which])  # safetensors sees nothing
    to = str(run.parent / "exported")
    words = ["export", str(run), "--to", to, *(["--average"] if which == "average" else [])]
    said = refused(words, capsys)
    assert f"{run / WEIGHTS[which]} was changed or damaged" in said
    assert said.endswith(f"spacedkd train --resume {run}\n")
    assert not Path(to).exists()
    for place in (run, run / which):
        with pytest.raises(UserError, match="was changed or damaged"):
            load_student(place, which="last" if which == "student" or place != run else which)
    main(["train", "--resume", str(run)])
    assert (run / WEIGHTS[which]).read_bytes() == (whole / WEIGHTS[which]).read_bytes()
    assert json.loads((run / "result.json").read_text()) == json.loads((whole / "result.json").read_text())
    main(words)


def test_a_damaged_student_teaches_nobody(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run / WEIGHTS["student"])
    words = ["train", "--data", "digits", "--width", "4", "--set", "network.layers=[1,1,1,1]", "--method", "hinton"]
    said = refused([*words, "--teacher-weights", str(run), "--out", f"{run}-2"], capsys)
    assert f"{run / WEIGHTS['student']} was changed or damaged" in said


@pytest.mark.parametrize("damage", ["cut", "a key twice"])
def test_weights_beside_a_damaged_result_are_not_taken_unchecked(run: Path, damage: str) -> None:
    text = (run / "result.json").read_text()
    (run / "result.json").write_text(text[:-20] if damage == "cut" else text.replace('"seed"', '"seed": 0, "seed"'))
    with pytest.raises(UserError, match=r"result\.json .* Delete it, then: spacedkd train --resume"):
        load_student(run / "student")


def test_without_a_checkpoint_nothing_can_mend_it_and_that_is_said(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checkpoint")
    main(["train", "--resume", str(run)])  # nothing is wrong
    flip(run / WEIGHTS["student"])
    assert f"spacedkd train --resume {run} --restart" in refused(["train", "--resume", str(run)], capsys)


@pytest.mark.parametrize("damage", ["flipped", "of another run"])
def test_the_best_student_is_the_run_s_own(
    run: Path, begun: Path, whole: Path, other: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    for folder in (run, begun):
        if damage == "flipped":
            flip(folder / WEIGHTS["best"])
        else:
            shutil.rmtree(folder / "best")
            shutil.copytree(other / "best", folder / "best")
    with pytest.raises(UserError, match="was changed or damaged") as error:
        load_student(run, which="best")
    assert f"spacedkd train --resume {run} --restart" in str(error.value)
    assert str(run / WEIGHTS["best"]) in refused(["export", str(run), "--best", "--to", f"{run}-2"], capsys)
    assert str(begun / WEIGHTS["best"]) in refused(["train", "--resume", str(begun)], capsys)
    shutil.rmtree(begun / "best")  # the way out
    found = train(SPEC, begun, if_exists="resume")
    assert "best" not in found.plan
    assert (begun / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


def test_a_best_student_put_into_a_run_that_has_none_is_refused(tmp_path: Path, other: Path) -> None:
    train(replace(TINY, epochs=1), tmp_path / "run")
    shutil.copytree(other / "best", tmp_path / "run" / "best")
    with pytest.raises(UserError, match="not the student with which this run ended"):
        load_student(tmp_path / "run", which="best")


def test_a_changed_journal_of_a_finished_run_is_in_no_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_digit(run / "journal.jsonl")
    said = refused(["report", str(run)], capsys)
    assert f"{run / 'journal.jsonl'} was changed or damaged" in said
    assert said.endswith(f"spacedkd train --resume {run}\n")
    with pytest.raises(UserError, match="was changed or damaged"):
        _ = read_run(run).accuracy_curves
    # No checkpoint knows another journal, so there is one way out.
    assert f"spacedkd train --resume {run} --restart" in refused(["train", "--resume", str(run)], capsys)


@pytest.mark.parametrize("where", ["the last lines", "behind the end"])
def test_the_end_of_a_finished_journal_is_mended(run: Path, whole: Path, where: str) -> None:
    if where == "the last lines":
        change_digit(run / "journal.jsonl", position(run, "previous")["journal_bytes"])
    else:
        with (run / "journal.jsonl").open("a") as file:
            file.write('{"event": "accuracy"}\n')
    with pytest.raises(UserError, match="was changed or damaged"):
        _ = read_run(run).journal
    train(SPEC, run, if_exists="resume")
    assert_same_run(run, whole)
    assert read_run(run).accuracy_curves


def test_a_changed_journal_is_noticed_before_a_run_trains_on(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_digit(begun / "journal.jsonl")
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
    said = refused(["train", "--resume", str(begun)], capsys)
    assert f"{begun / 'journal.jsonl'} was changed or damaged" in said
    assert f"spacedkd train --resume {begun} --restart" in said
    assert {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()} == before


def test_what_the_older_checkpoint_knows_of_the_journal_is_gone_on_from(
    begun: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = position(begun, "previous")
    change_digit(begun / "journal.jsonl", older["journal_bytes"])
    train(SPEC, begun, if_exists="resume")
    said = capsys.readouterr().err
    assert "journal.jsonl was changed or damaged" in said
    assert f"the checkpoint before it, which is of turn {older['turns']}" in said
    assert_same_run(begun, whole)


def test_a_journal_that_is_changed_while_the_run_is_trained_makes_no_result(tmp_path: Path) -> None:
    def callback(moment: Event) -> None:
        if moment.turn == 20:
            change_digit(tmp_path / "run" / "journal.jsonl")

    with pytest.raises(UserError, match="journal.jsonl was changed while the run was trained"):
        train(SPEC, tmp_path / "run", callback=callback)
    assert not (tmp_path / "run" / "result.json").exists()


def test_runs_of_before_have_no_digests_and_go_on(run: Path, begun: Path, whole: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    del result["digests"]
    (run / "result.json").write_text(json.dumps(result))
    flip(run / WEIGHTS["student"])
    assert read_run(run).accuracy_curves == read_run(whole).accuracy_curves
    load_student(run)
    for generation in ("latest", "previous"):
        file = begun / f"checkpoint/{generation}.safetensors"
        words, tensors = tensor_file.read(file, ("fingerprint", "position", "optimizers"))
        known = json.loads(words.pop("position"))
        for name in ("journal_digest", "best_digest"):
            del known[name]
        del words["checksum"]
        tensor_file.write(file, tensors, {**words, "position": json.dumps(known)})
    train(SPEC, begun, if_exists="resume")
    assert_same_run(begun, whole)


def test_a_longer_run_begins_with_the_journal_that_was_written(tmp_path: Path, whole: Path) -> None:
    longer = replace(SPEC, epochs=4)
    train_until(longer, tmp_path / "longer", 25, extend=whole)
    change_digit(tmp_path / "longer" / "begin" / "journal.jsonl")
    shutil.rmtree(tmp_path / "longer" / "checkpoint", ignore_errors=True)
    with pytest.raises(UserError, match="was changed or damaged"):
        train(read_spec(tmp_path / "longer"), tmp_path / "longer", if_exists="resume")


def test_numbers_alone_have_the_digest_of_their_own_journal(run: Path, tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text("{}")
    copy_numbers(tmp_path, [read_run(run)], [], tmp_path / "numbers")
    copied = tmp_path / "numbers" / "run"
    assert read_run(copied).accuracy_curves == read_run(run).accuracy_curves
    change_digit(copied / "journal.jsonl")
    with pytest.raises(UserError, match="was changed or damaged"):
        _ = read_run(copied).accuracy_curves
