"""Every mistake ends in one clear line, exit code 2, no traceback, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spacedkd.cli import main

BAD_FLAGS = {
    "--method kdd": "Did you mean 'kd' or 'dkd'? Available: none, kd, hinton, fitnet, lskd, ctkd, dkd, eskd, shake, "
    "takd, ban, dml, kdcl, tsb-like, pcl, one, self-kd, dlb, ps-kd.",
    "--method dml --set method.peers=1": "needs two networks or more; got peers=1",
    "--method ban --set method.generations=1": "needs two networks or more, got generations=1",
    "--method tsb": "Did you mean 'tsb-like'",
    "--method dml --interval 2st --set method.refresh_peers=false": "spacing would do nothing",
    "--method ps-kd --mixup 0.2": "leave out --mixup and --cutmix",
    "--method hinton --set method.teacher_learns=false": "--teacher-weights",
    "--method none --teacher-weights missing": "method none has no teacher that could be trained already",
    "--method hinton --teacher-weights missing": "There are no weights at",
    "--method hinton --teacher-weights timm": "name it with --teacher",
    "--method kd --assistant resnet18_small": "use it with --method takd",
    "--method eskd --set method.teacher_for=0ep": "the teacher would have nothing to teach",
    "--method eskd --set method.teacher_for=1%": "The time for which the teacher is to learn does not fit the run",
    "--recipe official-self --method pcl": "is about method self-kd, not pcl: leave it out, --without",
    "--data digit": "Did you mean 'digits'?",
    "--network resnt18": "Did you mean 'resnet18'",
    "--teacher resnt18": "Did you mean 'resnet18'",
    "--interval 0ep": "at least one step",
    "--interval 0": "write 1.5ep",
    "--interval -1ep": "must be a number from 0 up",
    "--interval nanep": "must be a number from 0 up",
    "--interval infep": "must be a number from 0 up",
    "--interval soon": "Give a length (1.5ep, 586st), online, offline, or one of",
    "--interval growin": "Did you mean 'growing'",
    "--interval window": "--interval 1.5ep --window 20ep..40ep",
    "--interval 1.5epp": "write 1.5ep",
    "--interval 99ep": "Interval: 99ep is longer than the run",
    "--warmup 99ep": "Warmup: 99ep is longer than the run",
    "--interval 0.001ep": "less than one step",
    "--ahead 99ep": "longer than the run",
    "--ahead 1ep --interval 1ep": "--ahead is a schedule of its own",
    "--window 1ep..2ep": "needs an --interval",
    "--interval 1ep --window 1ep": "--window wants from..to",
    "--interval 1ep --window 1ep..9ep": "longer than the run",
    "--interval 1ep --window 2ep..1ep": "start before it stops",
    "--interval 1ep --tail keep": "tail must be 'teach' or 'drop'",
    "--speed 2": "--speed needs an --interval",
    "--speed inf --window 1ep..2ep": "--speed needs an --interval",
    "--interval 1ep --speed 0.5": "speed must be a number from 1",
    "--interval 1ep --speed nan": "speed must be a number from 1",
    "--interval 1ep --speed fast": "speed must be a number from 1",
    "--interval offline --speed 2": "leave out --speed",
    "--interval 1ep --speed 2 --set follower_first=true": "leave out --speed or --follower-first",
    "--interval growing --speed 2": "--speed belongs to an interval",
    "--interval growing": "needs its first",
    "--blocks 1ep --speed 2": "--blocks is a schedule of its own: leave out --speed",
    "--blocks 1ep --interval 1ep": "--blocks is a schedule of its own: leave out --interval",
    "--blocks 1ep --growing 1ep": "--blocks is a schedule of its own: leave out --growing",
    "--blocks 1ep 0ep": "at least one step",
    "--blocks 1ep 99ep": "Lengths: 99ep is longer than the run",
    "--blocks": "--blocks needs at least one value",
    "--growing 99ep": "First: 99ep is longer than the run",
    "--growing 1ep --set schedule.factor=0": "factor must be a number above 0",
    "--growing 1ep --tail drop": "--growing is a schedule of its own: leave out --tail",
    "--method none --interval 1ep": "no role that leads",
    "--method self-kd --interval 1ep --set method.variant=plain": "no role that leads",
    "--data missing.npz": "There is no file missing.npz",
    "--train-limit 3": "train_limit must be from 10",
    "--batch-size 0": "batch_size must be from 1",
    "--batch-size 39": "--drop-last",
    "--epochs 0": "epochs must be more than 0",
    "--epochs nan": "epochs must be more than 0",
    "--lr -1": "lr must be at least 0",
    "--holdout 1.5": "holdout must be a part",
    "--rate cosin": "Did you mean 'cosine'?",
    "--optimizer sgdd": "Did you mean 'sgd' or 'sgdw'",
    "--set method.temprature=3": "Did you mean 'temperature'",
    "--set method.temperature=0": "temperature must be above 0",
    "--set method.temperature=hot": "must be a number",
    "--set nonsense=3": "Unknown key in spec 'nonsense'",
    "--set a.b=3": "There is no 'a.b' in this spec",
    "--set lr": "--set wants KEY=VALUE",
    "--spec missing.json": "There is no missing.json",
    "--resume missing": "There is no missing",
    "--precision 8-bit": "Unknown precision '8-bit'",
    "--precision 16-true": "Unknown precision '16-true'. Did you mean 'bf16-true'",
    "--precision 16-mixed --devices 2 --strategy fsdp": "precision 16-mixed checks the gradients of whole networks",
    "--accelerator tpu": "Unknown accelerator 'tpu'",
    "--accelerator cuda": "This machine cannot run that",
    "--threads 0": "threads must be",
    "--threads 4000": "threads must be at most",
    "--workers 4000": "workers must be at most",
    "--devices 4000": "devices must be at most",
    "--image-size 50000": "image_size 50000x50000 is too large",
    "--image-size 2000000000": "image_size must be from 1 to",
    "--set network.input_size=50000": "input_size 50000x50000 is too large",
    "--epochs 9e8": "steps, and a run may have 1e+07: lower --epochs",
    "--epochs 1e9": "epochs must be more than 0 and finite, less than 1e9",
    "--weight-decay 1e30": "weight_decay must be from 0 to",
    "--weight-decay 1000": "weight_decay 1000 is too large for lr 0.01",
    "--image-column a --label-column a": "image_column and label_column are both 'a'",
    "--network swin_tiny_patch4_window7_224": "cannot be built for 1x8x8 images",
    "--network swinv2_tiny_window8_256 --set network.input_size=96": "cannot be built for 1x96x96 images",
    "--data data/nope": "There is no folder or file data/nope here",
    "--threads 100000": "threads must be",
    "--workers -1": "workers must be",
    "--devices -1": "devices must be",
    "--crop -1": "crop must be",
    "--rotate nan": "rotate must be",
    "--weight-decay -1": "weight_decay must be",
    "--lr inf": "lr must be",
    "--set optimizer.momentum=-1": "momentum must be",
    "--set optimizer.nesterov=true --set optimizer.momentum=0": "nesterov needs sgd with a momentum above 0",
    "--epochs inf": "epochs must be more than 0 and finite",
    "--epochs 1e-9": "less than one step",
    "--interval 1e308ep": "longer than the run",
    "--set evaluate_every=0ep": "evaluate_every must be at least one step",
    "--set method.label_weight=0 --set method.logit_weight=0 --set method.feature_weight=0": "nothing to learn from",
    "--set schedule.kind=3": "Give --interval 1.5ep or another schedule too",
    "--set schedule=3": "must be a schedule, or an object with a kind",
    "--set teacher.width=3": "--teacher NAME",
    "--set network.num_classes=3": "follows from the data",
    "--method :x": "Cannot load ':x'",
    "--method os:getcwd": "is not a method",
    "--recipe paper": "Unknown recipe 'paper'",
    "--without prob_kl": "name the recipe too",
    "--ema 1": "ema must be a decay",
    "--label-smoothing 1": "label_smoothing must be",
    "--clip 0": "clip must be above 0",
    "--epochs many": "epochs must be a",
    "--flip perhaps": "'perhaps'",
    "--seed 1.5": "seed must be a",
    "--width x": "width must be a",
    "--milestones 1ep": "milestones does not matter to rate constant: leave it out, or use --rate multistep",
    "--milestones": "--milestones needs at least one value",
    "--rate multistep": "A multistep rate needs milestones to fall at: --milestones 60ep 120ep",
    "--floor 0.1": "floor does not matter to rate constant",
    "--momentum 0.9 --optimizer adamw": "momentum does not matter to adamw",
    "--tail drop": "--tail needs an --interval to belong to",
    "--teacher resnet18_small --method self-kd": "--teacher resnet18_small does not matter",
    "--teacher resnet18_small --method none": "--teacher resnet18_small does not matter",
    "--interval 2ep --window 1ep..2ep": "fewer than one interval (10st)",
    "--class-list x": "class_list does not matter for digits",
    "--label-column x": "label_column does not matter for digits",
    "--train-split x": "train_split does not matter for digits",
    "--set data.train_limit=x": "train_limit must be",
    "--set optimizer.lrr=3": "unexpected keyword argument 'lrr'",
    "--optimizer nosuch:thing": "Cannot load 'nosuch:thing'",
    "--weights nowhere": "There are no weights at nowhere",
    "--network vit_tiny_patch16_224": "cannot be built for 1x8x8 images",
    "--method self-kd --network dpn48b": "does not show two or more of its blocks or stages, so it cannot do self KD",
}


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("spacedkd: ")
    assert said.count("\n") == 1
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("typed", BAD_FLAGS)
def test_bad_flags(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = [] if "--resume" in typed else ["--epochs", "3", "--train-limit", "40", "--batch-size", "8"]
    assert BAD_FLAGS[typed] in refused(["train", *tiny, *typed.split()], capsys)
    assert list(tmp_path.iterdir()) == []


def test_bad_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = np.zeros((8, 8, 8), np.uint8), np.arange(8) % 2
    empty = np.zeros((0, 8, 8), np.uint8)
    for name, arrays, message in (
        ("empty", (empty, labels[:0], images, labels), "no training images"),
        (
            "out-of-range",
            (images, labels, images, labels + 1),
            "test has images with label 2, and no training image has it",
        ),
        ("one-class", (images, labels * 0, images, labels * 0), "have label 0"),
    ):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)))
        assert message in refused(["train", "--data", str(path), "--out", str(tmp_path / "run")], capsys)
        assert not (tmp_path / "run").exists()


def test_the_same_images_cannot_be_trained_on_and_tested_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / part / name).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / "photos" / part / name / "0.png")
    words = ["train", "--data", str(tmp_path / "photos"), "--out", str(tmp_path / "run")]
    said = refused([*words, "--train-split", "train", "--test-split", "train"], capsys)
    assert "cannot be trained on and tested on: give another --test-split" in said
    assert not (tmp_path / "run").exists()


def test_a_misspelt_key_in_a_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"epochs": 3, "bach_size": 8}))
    assert "Did you mean 'batch_size'?" in refused(["train", "--spec", str(tmp_path / "spec.json")], capsys)


def test_a_folder_that_holds_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    assert "not empty and not a run" in refused(["train", "--epochs", "3", "--out", str(tmp_path)], capsys)
    assert (tmp_path / "notes.txt").read_text() == "precious"
    (tmp_path / "spec.json").write_text("{}")
    assert "already holds a run" in refused(["train", "--epochs", "3", "--out", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["compare"], "compare needs arms"),
        (["compare", "--arm", "no colon"], "--arm wants 'NAME: FLAGS'"),
        (["compare", "--arm", "a: --method kd", "--arm", "a: --method none"], "same name"),
        (["compare", "--arm", "a: --method kdd"], "Did you mean 'kd'"),
        (["compare", "--arm", "a: --method 'kd"], "No closing quotation"),
        (["compare", "--arm", "a: --seed 3"], "cannot have a seed of its own"),
        (["compare", "--arm", "a: --method kd", "--jobs", "0"], "--jobs must be at least 1"),
        (
            ["compare", "--arm", "a: --method none", "--arm", "b: --interval 99ep", "--epochs", "3"],
            "longer than the run",
        ),
        (["compare", "--arm", "a: --method none", "--arm", "b: --network resnt18"], "Unknown network"),
        (["compare", "--arm", "a: --method kd", "--seeds", "0"], "--seeds must be at least 1"),
        (["compare", "--arm", "a: --method kd", "--seeds", "1000000000"], "--seeds must be from 1 to 10000"),
        (["compare", "--arm", "a: --method kd", "--jobs", "9999"], "--jobs must be at most"),
        (["evaluate", "run", "--threads", "9999"], "threads must be at most"),
        (["compare", "--arm", "a: --method kd", "--against", "b"], "Unknown arm 'b'"),
        (["evaluate"], "Name at least one run folder"),
        (["evaluate", "nowhere"], "There is no folder nowhere"),
        (["report"], "Name at least one run folder"),
        (["report", "nowhere"], "There is no folder nowhere"),
        (["report", "."], "No finished run"),
        (["report", ".", "--out", "page.json"], "its file name must end in .html, got 'page.json'"),
        (["report", ".", "--out", ""], "its file name must end in .html, got '.'"),
        (["list", "methds"], "Did you mean 'methods'?"),
        (["list", "networks", "--pattern", "zzz*"], "No network matches"),
        (["train", "--resume", "x", "--lr", "3"], "--resume takes everything"),
    ],
)
def test_bad_words(
    typed: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(typed, capsys)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    tiny = "train --epochs 1 --width 4 --train-limit 40 --batch-size 8 --precision 32-true".split()
    assert "Not a directory" in refused([*tiny, "--out", str(tmp_path / "file" / "run")], capsys)


@pytest.mark.parametrize("typed", [["trian"], ["train", "--intervl", "3"], ["evaluate", "x", "--steps", "many"]])
def test_words_that_are_no_flags(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(typed)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
