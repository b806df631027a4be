"""Two checkpoints, each with a checksum: damage anywhere is noticed, and a run goes on from the older one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from spacedkd import Spaced, UserError, read_spec, train
from spacedkd.cli import main
from spacedkd.runs import checkpoint, tensor_file
from spacedkd.runtime.errors import Damaged
from tests.conftest import TINY, assert_same_bits
from tests.training.stopping import assert_same_run, train_until

LATEST, PREVIOUS = "checkpoint/latest.safetensors", "checkpoint/previous.safetensors"


SPEC = replace(TINY, schedule=Spaced("1.5ep"), ema=0.9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generations") / "whole"
    train(SPEC, folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped after turn 18 of 30, with checkpoints of turns 15 and 11."""
    folder = tmp_path_factory.mktemp("generations") / "stopped"
    train_until(SPEC, folder, 18)
    return folder


def header_length(file: Path) -> int:
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


def flip(place: Callable[[Path], int]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[place(file)] ^= 4
        file.write_bytes(content)

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "the first tensor": flip(header_length),
    "the last tensor": flip(lambda file: file.stat().st_size - 2),
    "the length of the header": flip(lambda file: 1),
    "the name of a tensor": flip(lambda file: file.read_bytes().index(b"model/student") + 7),
    "the position": flip(lambda file: file.read_bytes().index(b"turns") + 9),
    "the optimizer's settings": flip(lambda file: file.read_bytes().index(b"momentum") + 12),
    "the checksum": flip(lambda file: file.read_bytes().index(b"checksum") + 14),
    "the checksum's name": flip(lambda file: file.read_bytes().index(b"checksum")),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "empty": lambda file: file.write_bytes(b""),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_anywhere_is_noticed(tmp_path: Path, stopped: Path, damage: str) -> None:
    shutil.copytree(stopped / "checkpoint", tmp_path / "checkpoint")
    DAMAGES[damage](tmp_path / LATEST)
    found = checkpoint.newest(tmp_path / LATEST)
    assert (found.path, found.position.turns) == (tmp_path / PREVIOUS, 11)


@pytest.mark.parametrize("damage", ["the first tensor", "the position", "gone"])
def test_a_run_goes_on_from_the_older_checkpoint_to_the_same_bits(
    tmp_path: Path, stopped: Path, whole: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    DAMAGES[damage](run / LATEST)
    train(SPEC, run, if_exists="resume")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the checkpoint before it, which is of turn 11" in said
    assert_same_run(run, whole)


def test_a_damaged_checkpoint_never_takes_the_place_of_the_last_good_one(tmp_path: Path, stopped: Path) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    DAMAGES["the first tensor"](run / LATEST)
    good = (run / PREVIOUS).read_bytes()
    train_until(SPEC, run, 12, resume=True)
    assert (run / LATEST).read_bytes() == good
    assert not (run / PREVIOUS).exists()


def test_with_both_gone_a_run_can_begin_again_where_it_is(
    tmp_path: Path, stopped: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    before = (run / "journal.jsonl").read_bytes()
    for file in (LATEST, PREVIOUS):
        DAMAGES["the last tensor"](run / file)
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--resume", str(run)])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "latest.safetensors is damaged: its checksum is another." in said
    assert f"spacedkd train --resume {run} --restart" in said
    assert (run / "journal.jsonl").read_bytes() == before, "nothing is touched"
    main(["train", "--resume", str(run), "--restart"])
    assert_same_run(run, whole)
    assert (run / "journal-before-1.jsonl").read_bytes() == before


def test_a_journal_that_lost_lines_is_no_end_either(
    tmp_path: Path, stopped: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    lines = (run / "journal.jsonl").read_bytes()
    with safe_open(run / LATEST, framework="pt") as file:
        needed = json.loads(file.metadata()["position"])["journal_bytes"]
    (run / "journal.jsonl").write_bytes(lines[: needed - 1])
    train(SPEC, run, if_exists="resume")
    assert "journal.jsonl is shorter than its checkpoint says" in capsys.readouterr().err
    assert_same_run(run, whole)
    (run / "result.json").unlink()
    (run / "journal.jsonl").write_text("")
    with pytest.raises(UserError, match="shorter than its checkpoint says.* --restart"):
        train(SPEC, run, if_exists="resume")


def test_checkpoints_of_before_have_no_checksum_and_go_on(tmp_path: Path, stopped: Path, whole: Path) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    (run / PREVIOUS).unlink()
    with safe_open(run / LATEST, framework="pt") as file:
        words = {name: word for name, word in file.metadata().items() if name != "checksum"}
    save_file(load_file(run / LATEST), run / LATEST, words)
    train(SPEC, run, if_exists="resume")
    assert_same_run(run, whole)


def test_a_checkpoint_that_lacks_a_tensor_is_damaged(tmp_path: Path, stopped: Path, whole: Path) -> None:
    """Also one whose checksum would be right."""
    run = shutil.copytree(stopped, tmp_path / "run")
    words, tensors = tensor_file.read(run / LATEST, ("fingerprint", "position", "optimizers"))
    del tensors["model/average/network.fc.bias"]
    tensor_file.write(run / LATEST, tensors, {name: word for name, word in words.items() if name != "checksum"})
    train(SPEC, run, if_exists="resume")
    assert_same_run(run, whole)


def test_a_flipped_bit_in_any_byte_of_a_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    tensors = {"w": torch.randn(3, 5), "n": torch.tensor(7), "half": torch.ones(3).bfloat16(), "none": torch.zeros(0)}
    tensor_file.write(file, tensors, {"role": "teacher", "version": "4"})
    words, found = tensor_file.read(file, ("role", "version"))
    assert_same_bits(found, tensors)
    assert_same_bits(load_file(file), tensors)  # as safetensors itself reads it
    assert words["version"] == "4"
    content = file.read_bytes()
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        with pytest.raises(Damaged):
            tensor_file.read(file, ("role", "version"))


@pytest.fixture
def finished(tmp_path: Path, whole: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "finished")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main(words)
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize("lost", ["student", "average", LATEST, "student/model.safetensors"])
def test_what_a_finished_run_has_lost_is_made_again(finished: Path, whole: Path, lost: str) -> None:
    if (finished / lost).is_dir():
        shutil.rmtree(finished / lost)
    else:
        DAMAGES["cut off"](finished / lost)
    main(["train", "--resume", str(finished)])
    assert_same_run(finished, whole)
    average = "average/model.safetensors"
    assert (finished / average).read_bytes() == (whole / average).read_bytes()


def test_hints_do_not_lead_in_a_circle(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(finished)
    DAMAGES["the last tensor"](finished / LATEST)
    assert f" spacedkd train --resume {run}\n" in refused(["evaluate", run], capsys)
    shutil.rmtree(finished / "checkpoint")
    assert f"spacedkd train --resume {run} --restart" in refused(["evaluate", run], capsys)
    main(["train", "--resume", run])  # is finished: there is nothing to do
    shutil.rmtree(finished / "student")
    taught = ["train", "--data", "digits", "--width", "4", "--teacher-weights", run, "--out", f"{run}-2"]
    assert f"Make it again with: spacedkd train --resume {run}\n" in refused(taught, capsys)
    assert f"spacedkd train --resume {run} --restart" in refused(["train", "--resume", run], capsys)
    assert "--resume RUN" in refused(["train", "--restart"], capsys)


def test_a_resumed_run_keeps_the_threads_it_began_with(tmp_path: Path, stopped: Path, whole: Path) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    threads: set[int] = set()
    torch.set_num_threads(2)
    try:
        open_ = replace(SPEC, engine=replace(SPEC.engine, threads=None))
        found = train(open_, run, if_exists="resume", callback=lambda event: threads.add(torch.get_num_threads()))
        assert torch.get_num_threads() == 2, "the caller's number is put back"
    finally:
        torch.set_num_threads(1)
    assert threads == {1}
    assert found.environment == json.loads((whole / "result.json").read_text())["environment"]
    assert read_spec(run).engine.threads == 1
