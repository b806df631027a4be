"""What people type, from end to end."""

from __future__ import annotations

import html
import json
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
import timm

from spacedkd import Ahead, Offline, Online, RunSpec, Spaced, read_spec
from spacedkd.cli import main
from spacedkd.cli.compare import parse_arm
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import folder_name, to_spec
from spacedkd.schedule import Blocks, Growing, Window
from tests.data.on_disk import class_folders

NETWORK = "--network resnet18_small --width 4 --set network.layers=[1,1,1,1]"
TINY = (
    f"--data digits --train-limit 40 {NETWORK} --epochs 2 --batch-size 8 --lr 0.02 --precision 32-true --threads 1"
).split()


def words(text: str) -> list[str]:
    return text.split()


def test_train_evaluate_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(["train", *TINY, "--interval", "1ep", "--holdout", "0.2", "--out", str(run)])
    trained = capsys.readouterr().out
    assert "teacher" in trained
    assert "best epoch (chosen on holdout)" in trained
    assert {path.name for path in run.iterdir()} >= {
        "spec.json",
        "journal.jsonl",
        "checkpoint",
        "student",
        "result.json",
    }
    assert timm.create_model(f"local-dir:{run}/student", pretrained=True).num_classes == 10

    main(["evaluate", str(run)])
    evaluated = capsys.readouterr().out
    result = json.loads((run / "result.json").read_text())
    last = result["accuracy"]["student"]["test"]["final"]["last"]
    assert re.search(rf"student\s+test\s+{100 * last:.1f}", evaluated)

    main(["train", "--resume", str(run)])  # finds all done, and adds nothing to what was typed
    main(["report", str(run), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    kept = [json.loads(line) for line in (run / "commands.jsonl").read_text().splitlines()]
    assert [one["line"].split()[:3] for one in kept] == [["spacedkd", "train", "--data"]]
    reported = shlex.join(["spacedkd", "report", str(run), "--out", str(tmp_path / "page.html")])
    for line in (kept[0]["line"], reported, kept[0]["date"]):
        assert html.escape(line) in page
    assert abs(datetime.now(UTC) - datetime.strptime(f"{kept[0]['date']}+0000", "%Y-%m-%d %H:%M UTC%z")) < timedelta(
        hours=1
    )


@pytest.mark.parametrize("verb", ["evaluate --help", "list networks"])
def test_nothing_is_said_to_a_reader_who_has_seen_enough(verb: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m spacedkd {verb} | true"
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stderr == ""


def test_a_run_from_its_spec_is_the_same_run(tmp_path: Path) -> None:
    main(["train", *TINY, "--interval", "1.5ep", "--out", str(tmp_path / "flags")])
    main(["train", "--spec", str(tmp_path / "flags" / "spec.json"), "--out", str(tmp_path / "spec")])
    journals = [(tmp_path / name / "journal.jsonl").read_bytes() for name in ("flags", "spec")]
    assert journals[0] == journals[1]
    main(["train", "--spec", str(tmp_path / "flags"), "--seed", "3", "--out", str(tmp_path / "changed")])
    assert read_spec(tmp_path / "changed").seed == 3
    assert read_spec(tmp_path / "changed").schedule == Spaced("1.5ep")


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = ["--arm", "plain: --method self-kd", "--arm", "spaced: --method self-kd --interval 1ep"]
    more = words("--seeds 2 --equal-cost --against plain --log csv --out")
    command = ["compare", *TINY, *arms, *more, str(tmp_path)]
    main(command)
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert [arm["label"] for arm in found["arms"]] == ["plain", "spaced", "spaced, unspaced, 2x epochs"]
    plain, spaced, control = found["arms"]
    assert spaced["cost"]["updates"] == control["cost"]["updates"] == 2 * plain["cost"]["updates"]
    assert "[6 of 6]" in out
    assert len([*tmp_path.glob("*/seed*/logs/csv/metrics.csv")]) == 6
    assert "spaced" in (tmp_path / "report.html").read_text()

    main(command)
    assert "6 of 6 runs" in capsys.readouterr().out
    assert json.loads((tmp_path / "comparison.json").read_text()) == found

    main(["report", str(tmp_path), "--against", "spaced", "--out", str(tmp_path / "new" / "page.html")])
    other = json.loads((tmp_path / "new" / "page-numbers.json").read_text())
    assert [arm["label"] for arm in other["arms"]] == [arm["label"] for arm in found["arms"]]
    assert other["against"] == "spaced"
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    main(["report", str(tmp_path)])  # the same order, against the same arm, as before
    assert json.loads((tmp_path / "comparison.json").read_text())["against"] == "plain"
    assert [arm["label"] for arm in json.loads((tmp_path / "comparison.json").read_text())["arms"]] == [
        arm["label"] for arm in found["arms"]
    ]


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("data", "digits"),
        ("networks --pattern resnet18*", "resnet18_small"),
        ("methods", "self-kd"),
        ("schedules", "--ahead"),
    ],
)
def test_lists(what: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", *words(what)])
    assert shown in capsys.readouterr().out


def test_a_list_without_a_word_says_what_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    said = capsys.readouterr().out
    for word in ("data", "augmentations", "networks", "methods", "schedules", "recipes", "runs"):
        assert word in said


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("--interval 1.5ep", "digits-resnet18_small-kd-spaced-1.5ep-seed0"),
        ("--data my/photos --network resnet34_small --seed 3", "photos-resnet34_small-kd-seed3"),
        ("--data ../cats.and.dogs/ --ahead 2ep", "cats.and.dogs-resnet18_small-kd-constantly-2ep-ahead-seed0"),
        ("--data x/y/z.parquet --network own.nets:make --method self-kd", "z-own.nets-make-self-kd-seed0"),
        ("--network hf_hub:timm/vit --method none", "digits-hf_hub-timm-vit-none-seed0"),
    ],
)
def test_the_folder_of_a_run_that_was_given_none(typed: str, name: str) -> None:
    assert folder_name(to_spec(parse(words(typed)))) == name


def test_two_data_sets_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in docs/data.md: the second command must not find the folder of the first."""
    monkeypatch.chdir(tmp_path)
    for place in ("one", "two"):
        class_folders(tmp_path / place)
        main(["train", "--data", place, *TINY[4:], "--method", "none", "--epochs", "1"])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "one-resnet18_small-none-seed0",
        "two-resnet18_small-none-seed0",
    ]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    versions = f"spacedkd {version('spacedkd')}, torch {version('torch')}, Python {platform.python_version()}\n"
    assert capsys.readouterr().out == versions


@pytest.mark.parametrize("verb", ["", "train", "compare", "evaluate", "report", "status", "list"])
def test_help_has_an_example_and_no_none(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*words(verb), "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "None" not in text
    assert verb == "list" or "Example" in text


@pytest.mark.parametrize(
    ("typed", "schedule"),
    [
        ("", None),
        ("--interval online", Online()),
        ("--interval 1.5ep", Spaced("1.5ep")),
        ("--interval 586st --tail drop", Spaced("586st", tail="drop")),
        ("--interval 1.5ep --speed 2", Spaced("1.5ep", speed=2)),
        ("--interval online --speed inf --tail drop", Spaced("1st", "drop", "inf")),
        ("--interval 1.5ep --set schedule.speed=inf", Spaced("1.5ep", speed="inf")),
        ("--blocks 1ep 2ep 586st", Blocks(["1ep", "2ep", "586st"])),
        ("--growing 0.5ep", Growing("0.5ep")),
        ("--growing 4ep --set schedule.factor=0.5", Growing("4ep", 0.5)),
        ("--interval growing --set schedule.first=1ep", Growing("1ep")),
        ("--interval offline", Offline()),
        ("--ahead 2ep", Ahead("2ep")),
        ("--interval 1.5ep --window 20ep..40ep", Window(Spaced("1.5ep"), Online(), "20ep", stop="40ep")),
        ("--interval 1.5ep --window 20ep+10ep", Window(Spaced("1.5ep"), Online(), "20ep", length="10ep")),
    ],
)
def test_schedules_as_flags(typed: str, schedule: object) -> None:
    assert to_spec(parse(words(typed))).schedule == schedule


def test_every_flag_reaches_the_spec() -> None:
    typed = (
        "--data digits --train-limit 9 --holdout 0.5 --crop 3 --flip True --rotate 4 --network resnet34_small "
        "--width 3 --teacher resnet50_small --method kd --epochs 2 --batch-size 5 --drop-last True --optimizer sgd "
        "--lr 0.5 --weight-decay 0.1 --rate cosine --warmup 1ep --seed 7 --precision 32-true --accelerator cpu "
        "--devices 2 --workers 3 --threads 4 --set method.temperature=5 --momentum 0.8 --set label=mine"
    )
    spec, default = to_spec(parse(words(typed))), RunSpec()
    assert spec.data.augment is not None
    assert (spec.data.augment.crop, spec.data.augment.flip, spec.data.augment.rotate) == (3, True, 4)
    assert (spec.data.train_limit, spec.data.holdout, spec.data.drop_last) == (9, 0.5, True)
    assert (spec.network.name, spec.network.options) == ("resnet34_small", {"width": 3})
    assert spec.teacher is not None
    assert spec.teacher.name == "resnet50_small"
    assert spec.method.options == {"temperature": 5}
    assert (spec.optimizer.name, spec.optimizer.lr, spec.optimizer.momentum, spec.optimizer.weight_decay) == (
        "sgd",
        0.5,
        0.8,
        0.1,
    )
    assert (spec.rate.shape, str(spec.rate.warmup), spec.seed, spec.precision, spec.label) == (
        "cosine",
        "1ep",
        7,
        "32-true",
        "mine",
    )
    assert (spec.engine.accelerator, spec.engine.devices, spec.engine.workers, spec.engine.threads) == ("cpu", 2, 3, 4)
    assert (spec.epochs, spec.batch_size) == (2, 5)
    assert spec != default


def test_what_spacing_implies_is_left_to_the_core() -> None:
    assert to_spec(parse(words("--method self-kd --interval 4ep"))).method.options == {}
    snapshot = words("--method self-kd --interval 4ep --set method.variant=snapshot")
    assert to_spec(parse(snapshot)).method.options == {"variant": "snapshot"}


def test_an_arm_adds_its_flags_to_the_base() -> None:
    base = parse(words("--epochs 7 --lr 0.3 --interval 1ep --set method.temperature=4"))
    name, spec = parse_arm("far ahead: --interval 3ep --lr 0.2 --set method.label_weight=1.0", base)
    assert name == "far ahead"
    assert (spec.epochs, spec.optimizer.lr, spec.schedule) == (7, 0.2, Spaced("3ep"))
    assert spec.method.options == {"temperature": 4, "label_weight": 1.0}
    _, own = parse_arm("self: --method self-kd", parse(words("--interval 4ep")))
    assert (own.schedule, own.method.options) == (Spaced("4ep"), {})


def test_a_recipe_in_an_arm_is_changed_by_the_bases_flags() -> None:
    _, spec = parse_arm("theirs: --recipe official-cnn --without prob_kl", parse(words("--epochs 7 --width 8")))
    assert (spec.epochs, spec.network.options, spec.frozen_mode) == (7, {"width": 8, "init": "torch"}, "train")
    assert spec.method.options == {}
