"""spacedkd evaluate, from end to end: what it prints, writes, keeps and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spacedkd.cli import main
from tests.cli.test_bad_input import refused
from tests.cli.test_cli import TINY

FEW = "--limit 20 --train-images 20 --draws 2".split()
BRIEF = "--only fog contrast --severities 1 5 --attacks bim --epsilon 2 16".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two seeds of two arms, and a spaced self-KD arm with several heads."""
    out = tmp_path_factory.mktemp("runs")
    for name, flags in (("kd", "--method kd"), ("spaced", "--method kd --interval 1ep"), ("self", "--method self-kd")):
        for seed in ("0", "1"):
            folder = out / name / seed
            main(["train", *TINY, *flags.split(), "--seed", seed, "--set", f"label={name}", "--out", str(folder)])
    return out


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def found(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return result


def test_all_instruments(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "self" / "0"
    main(["evaluate", str(run), "--all", *FEW, *BRIEF, "--error", "0.5"])
    said = capsys.readouterr().out
    for words in ("reliability", "corrupted images", "under attack", "noise on the weights", "curvature", "stage3"):
        assert words in said
    instruments = found(run)["instruments"]
    assert list(instruments) == ["accuracy", "corruptions", "adversarial", "weight_noise", "curvature"]
    assert all(one["measured"]["head"] == "final" for one in instruments.values())
    assert instruments["corruptions"]["severities"] == [1, 5]
    curvature = instruments["curvature"]
    assert (curvature["images"], curvature["error"], curvature["most_products"]) == (20, 0.5, 50)
    attacks = [one["attack"] for one in instruments["adversarial"]["attacks"]]
    assert [(one["epsilon"], one["step"], one["steps"]) for one in attacks] == [(2, 0.5, 10), (16, 4, 10)]
    assert set(instruments["accuracy"]["models"]["network"]["test"]["heads"]) == {
        "final",
        "stage3",
        "stage2",
        "stage1",
        "ensemble",
    }
    origin = found(run)["origin"]
    assert (origin["checkpoint"], origin["epochs"], origin["precision"]) == ("last", 2, "32-true")
    assert not list(run.glob("*.unfinished"))
    main(["evaluate", str(run), "--flatness", "--noise", "0.1", "--train-images", "20", "--draws", "2"])
    levels = found(run)["instruments"]["weight_noise"]["levels"]
    assert [one["level"] for one in levels] == [0.1, 0.05, 0.1, 0.2, 0.3, 0.5]


def test_accuracy_is_that_of_the_result(runs: Path) -> None:
    run = runs / "spaced" / "0"
    main(["evaluate", str(run)])
    models = found(run)["instruments"]["accuracy"]["models"]
    result = json.loads((run / "result.json").read_text())
    for role in ("teacher", "student"):
        assert models[role]["test"]["heads"]["final"]["top1"] == result["accuracy"][role]["test"]["final"]["last"]
    assert set(models["student"]["test"]["agreement"]) == {"teacher"}


def test_a_limit_is_for_what_takes_long(runs: Path) -> None:
    run = runs / "kd" / "0"
    main(["evaluate", str(run), "--adversarial", "--attacks", "fgsm", "--epsilon", "4", "--limit", "20"])
    instruments = found(run)["instruments"]
    assert instruments["adversarial"]["images"] == 20
    assert instruments["accuracy"]["models"]["student"]["test"]["images"] == 898


def test_earlier_instruments_stay_until_the_weights_change(runs: Path) -> None:
    run = runs / "kd" / "0"
    main(["evaluate", str(run), "--adversarial", "--limit", "20", "--attacks", "fgsm", "--epsilon", "4"])
    main(["evaluate", str(run), "--corruptions", "--only", "fog", "--severities", "1", "--limit", "20"])
    assert list(found(run)["instruments"]) == ["accuracy", "adversarial", "corruptions"]
    before = (run / "evaluation.json").read_bytes()
    main(["evaluate", str(run), "--corruptions", "--only", "fog", "--severities", "1", "--limit", "20"])
    assert (run / "evaluation.json").read_bytes() == before, "the same again"
    changed = found(run)
    changed["origin"]["weights_digest"] = "another"
    (run / "evaluation.json").write_text(json.dumps(changed))
    main(["evaluate", str(run)])
    assert list(found(run)["instruments"]) == ["accuracy"]


def test_other_data_makes_earlier_instruments_worthless(runs: Path, tmp_path: Path) -> None:
    network = "evaluate --network resnet18_small --width 4 --data digits --threads 1 --weights".split()
    command = [*network, str(runs / "kd" / "0"), "--out", str(tmp_path / "out")]
    attacked = "--adversarial --attacks fgsm --epsilon 4 --limit 20".split()
    main([*command, "--train-limit", "40", *attacked])
    main([*command, "--train-limit", "40"])
    assert list(found(tmp_path / "out")["instruments"]) == ["accuracy", "adversarial"]
    main([*command, "--train-limit", "50"])
    assert list(found(tmp_path / "out")["instruments"]) == ["accuracy"]


def test_unlike_settings_are_not_put_side_by_side(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attacked = "--adversarial --attacks fgsm --limit 20 --epsilon".split()
    main(["evaluate", *(str(runs / "kd" / seed) for seed in "01"), *attacked, "4"])
    main(["evaluate", str(runs / "spaced" / "0"), *attacked, "8"])
    capsys.readouterr()
    main(["evaluate", *(str(runs / "kd" / seed) for seed in "01"), str(runs / "spaced" / "0")])
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines() if line.startswith(("  kd/", "  spaced/"))]
    assert [len(line) for line in lines] == [5, 5, 4]
    assert "measured with other settings" in " ".join(said.split())


def test_whatever_is_named_twice_is_measured_once(runs: Path) -> None:
    run = str(runs / "kd" / "0")
    twice = "--severities 1 1 --only fog fog --attacks fgsm fgsm --epsilon 4 4 --limit 20".split()
    main(["evaluate", run, run, "--corruptions", "--adversarial", *twice])
    instruments = found(Path(run))["instruments"]
    assert len(instruments["corruptions"]["found"]) == len(instruments["adversarial"]["attacks"]) == 1


def test_a_network_with_options_of_its_own(tmp_path: Path) -> None:
    vit = "network.input_size=16 network.patch_size=4 network.depth=2 network.embed_dim=12 network.num_heads=3".split()
    options = [word for one in vit for word in ("--set", one)]
    run = tmp_path / "run"
    small = "--data digits --train-limit 40 --epochs 2 --batch-size 8 --precision 32-true --threads 1".split()
    main(["train", *small, "--method", "none", "--network", "vit_tiny_patch16_224", *options, "--out", str(run)])
    network = "evaluate --network vit_tiny_patch16_224 --data digits --train-limit 40 --threads 1 --hessian".split()
    few = "--train-images 10 --error 0.9".split()
    main([*network, *options, "--weights", str(run), *few, "--out", str(tmp_path / "out")])
    heads = found(tmp_path / "out")["instruments"]["accuracy"]["models"]["student"]["test"]["heads"]
    result = json.loads((run / "result.json").read_text())
    assert heads["final"]["top1"] == result["accuracy"]["student"]["test"]["final"]["last"]


def test_many_runs_then_the_report(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(runs), "--corruptions", "--adversarial", *BRIEF, "--limit", "20"])
    said = capsys.readouterr().out
    assert "[6 of 6]" in said
    assert "corrupted" in said
    assert len(list(tmp_path.glob("cache/spacedkd/corrupted/*"))) == 1, "six networks share one set of images"
    main(["report", str(runs), "--against", "kd", "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    for words in (
        "Is the student really better?",
        "Corrupted images",
        "Images changed to deceive",
        "Reliability of kd",
    ):
        assert words in page


def test_any_timm_network_with_weights_from_a_file(runs: Path, tmp_path: Path) -> None:
    run, out = runs / "kd" / "0", tmp_path / "out"
    file = run / "student" / "model.safetensors"
    network = "evaluate --network resnet18_small --width 4 --data digits --train-limit 40 --threads 1".split()
    main([*network, "--weights", str(file), "--out", str(out)])
    heads = found(out)["instruments"]["accuracy"]["models"]["student"]["test"]["heads"]
    result = json.loads((run / "result.json").read_text())
    assert heads["final"]["top1"] == result["accuracy"]["student"]["test"]["final"]["last"]
    assert found(out)["origin"]["weights"] == str(file)


def test_the_grid_is_a_picture(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(runs / "kd" / "0"), "--grid", str(tmp_path / "grid.png")])
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert "PNG picture" in refused(["evaluate", str(runs / "kd" / "0"), "--grid", "grid.jpg"], capsys)


BAD_FLAGS = {
    "--corruptions --severities 6": "severity must be from 1 to 5, got 6",
    "--corruptions --severities 0": "severity must be from 1 to 5, got 0",
    "--corruptions --only frog": "Did you mean 'fog'",
    "--severities 1": "--severities belongs to --corruptions",
    "--epsilon 4": "--epsilon belongs to --adversarial",
    "--adversarial --epsilon -1": "epsilon must be above 0 and at most 255",
    "--adversarial --epsilon nan": "epsilon must be above 0 and at most 255",
    "--adversarial --epsilon 300": "epsilon must be above 0 and at most 255",
    "--adversarial --attacks bmi": "Did you mean 'bim'",
    "--adversarial --steps 0": "at least one step",
    "--adversarial --limit 3": "limit must be at least 10, one image of each class",
    "--corruptions --limit 0": "limit must be at least 1",
    "--limit 20": "--limit belongs to --corruptions or --adversarial",
    "--draws 3": "--draws belongs to --flatness",
    "--error 0.1": "--error belongs to --hessian",
    "--flatness --products 20": "--products belongs to --hessian",
    "--train-images 20": "--train-images belongs to --flatness or --hessian",
    "--adversarial --epsilon": "--epsilon needs at least one value",
    "--corruptions --only": "--only needs at least one value",
    "--adversarial --attacks fgsm --steps 5": "fgsm takes one step of epsilon",
    "--set network.width=4": "--set goes with --network",
    "--flatness --draws 0": "at least one draw of each level, got 0",
    "--flatness --noise -1": "absolute weight noise must be a number above 0",
    "--flatness --relative-noise nan": "relative weight noise must be a number above 0",
    "--flatness --relative-noise": "--relative-noise needs at least one value",
    "--noise 0.1": "--noise belongs to --flatness",
    "--hessian --products 7": "products must be at least 8",
    "--hessian --error 0": "error must be a part between 0 and 1",
    "--flatness --train-images 0": "train_images must be at least 1",
    "--hessian --train-images 9": "train_images must be at least 10, one image of each class",
    "--batch-size 0": "batch_size must be at least 1",
    "--threads 0": "--threads must be at least 1",
    "--accelerator tpu": "There is no tpu here",
    "--network resnet18_small": "Give run folders or a --network, not both",
    "--weights file": "--weights goes with --network",
    "--data digits": "--data goes with --network",
    "--out folder": "--out goes with --network",
}


@pytest.mark.parametrize("typed", BAD_FLAGS)
def test_bad_flags(typed: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert BAD_FLAGS[typed] in refused(["evaluate", str(trained / "kd" / "0"), *typed.split()], capsys)
    assert not list(trained.rglob("evaluation.json"))


def test_a_run_without_a_finished_student(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "kd" / "0"
    (run / "result.json").unlink()
    assert "is not finished, so it has no student to measure" in refused(["evaluate", str(run)], capsys)
    assert not (run / "evaluation.json").exists()
    main(["evaluate", str(run), "--unfinished"])
    assert (run / "evaluation.json").exists()
    capsys.readouterr()
    (run / "checkpoint" / "latest.safetensors").unlink()
    assert "has no checkpoint yet" in refused(["evaluate", str(run), "--unfinished"], capsys)


def test_a_checkpoint_that_is_none(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "kd" / "0"
    (run / "checkpoint" / "latest.safetensors").write_bytes(b"no tensors here")
    assert "is not a checkpoint" in refused(["evaluate", str(run)], capsys)
    (tmp_path / "junk.safetensors").write_bytes(b"no tensors here")
    network = "evaluate --network resnet18_small --width 4 --data digits --train-limit 40 --weights".split()
    assert "holds no weights that can be read" in refused([*network, str(tmp_path / "junk.safetensors")], capsys)
    assert "There are no weights at" in refused([*network, str(tmp_path / "nothing")], capsys)
    weights = load_file(runs / "kd" / "1" / "student" / "model.safetensors")
    weights["fc.bias"][3] = float("nan")
    save_file(weights, tmp_path / "nan.safetensors")
    assert "'fc.bias' holds numbers that are not finite" in refused(
        [*network, str(tmp_path / "nan.safetensors")], capsys
    )
    assert "is a file. Name a run folder" in refused(["evaluate", str(tmp_path / "junk.safetensors")], capsys)


def test_classes_that_do_not_match(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = load_file(runs / "kd" / "0" / "student" / "model.safetensors")
    weights["fc.weight"], weights["fc.bias"] = torch.zeros(7, weights["fc.weight"].shape[1]), torch.zeros(7)
    save_file(weights, tmp_path / "seven.safetensors")
    network = "evaluate --network resnet18_small --width 4 --data digits --train-limit 40 --weights".split()
    said = refused([*network, str(tmp_path / "seven.safetensors")], capsys)
    assert "tell 7 classes apart, and the data has 10" in said


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--network resnet18_small", "There are no published weights of resnet18_small: use --weights FILE"),
        ("--network resnet18", "tell 1000 classes apart, and the data has 10"),
        ("--network resnt18", "Did you mean 'resnet18'"),
        ("--network resnet18_small --data digit", "Did you mean 'digits'"),
    ],
)
def test_networks_that_cannot_be_measured(typed: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(["evaluate", *typed.split(), "--train-limit", "40"], capsys)


def test_data_that_has_changed_its_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8)).astype(np.uint8)

    def save(classes: int) -> None:
        labels = np.arange(40) % classes
        np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)

    save(4)
    run = tmp_path / "run"
    small = "--width 4 --epochs 1 --batch-size 8 --precision 32-true --threads 1 --method none".split()
    main(["train", "--data", str(tmp_path / "data.npz"), *small, "--out", str(run)])
    capsys.readouterr()
    save(5)
    assert "has other classes than it was trained on: 4 classes then, 5 classes now" in refused(
        ["evaluate", str(run)], capsys
    )


def test_an_evaluation_that_cannot_be_read(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "kd" / "0"
    main(["evaluate", str(run)])
    whole = found(run)
    capsys.readouterr()
    damages: list[Any] = [
        {},
        [],
        {**whole, "instruments": {}},
        {**whole, "instruments": {"accuracy": {}}},
        {**whole, "instruments": {**whole["instruments"], "curvature": {}}},
    ]
    for damaged in damages:
        (run / "evaluation.json").write_text(json.dumps(damaged))
        for verb in ("evaluate", "report"):
            assert "cannot be read as an evaluation" in refused([verb, str(run)], capsys)
    (run / "evaluation.json").unlink()
    (run / "classes.json").write_text("{")
    assert "classes.json cannot be read" in refused(["evaluate", str(run)], capsys)


def test_a_bad_place_is_noticed_before_the_work(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    network = "evaluate --network resnet18_small --width 4 --data digits --train-limit 40 --threads 1 --weights".split()
    said = refused([*network, str(runs / "kd" / "0"), "--out", str(tmp_path / "file")], capsys)
    assert "(File exists): give --out another name" in said
