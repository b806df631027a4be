"""spacedkd evaluate, from end to end: what it prints, writes, keeps and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from spacedkd.cli import main
from tests.cli.test_bad_input import refused
from tests.cli.test_cli import NETWORK

FEW = "--limit 20 --train-images 20 --draws 2".split()
BRIEF = "--only fog contrast --severities 1 5 --attacks bim --epsilon 2 16".split()


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
    assert list(instruments) == ["accuracy", "confusion", "corruptions", "adversarial", "weight_noise", "curvature"]
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
    network = f"evaluate {NETWORK} --data digits --threads 1 --weights".split()
    command = [*network, str(runs / "kd" / "0"), "--out", str(tmp_path / "out")]
    attacked = "--adversarial --attacks fgsm --epsilon 4 --limit 20".split()
    main([*command, "--train-limit", "40", *attacked])
    main([*command, "--train-limit", "40"])
    assert list(found(tmp_path / "out")["instruments"]) == ["accuracy", "adversarial"]
    main([*command, "--train-limit", "50"])
    assert list(found(tmp_path / "out")["instruments"]) == ["accuracy"]
    main([*command, "--train-limit", "50", *attacked])
    main([*command, "--train-limit", "50", "--set", "network.input_size=16"])
    assert list(found(tmp_path / "out")["instruments"]) == ["accuracy"], "the same weights see other images"


def test_unlike_settings_are_not_put_side_by_side(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attacked = "--adversarial --attacks fgsm --limit 20 --epsilon".split()
    main(["evaluate", *(str(runs / "kd" / seed) for seed in "01"), *attacked, "4"])
    main(["evaluate", str(runs / "spaced" / "0"), *attacked, "8"])
    capsys.readouterr()
    main(["evaluate", *(str(runs / "kd" / seed) for seed in "01"), str(runs / "spaced" / "0")])
    said = capsys.readouterr().out
    table = [line.split() for line in said.splitlines() if line.startswith(("  kd ", "  spaced ", "    0 ", "    1 "))]
    assert [line[0] for line in table] == ["kd", "0", "1", "spaced", "0"]
    assert [line[-1].endswith("*") for line in table if len(line) > 1] == [False, False, True]
    assert "* measured with other settings" in " ".join(said.split())


def test_whatever_is_named_twice_is_measured_once(runs: Path) -> None:
    run = str(runs / "kd" / "0")
    twice = "--severities 1 1 --only fog fog --attacks fgsm fgsm --epsilon 4 4 --limit 20".split()
    main(["evaluate", run, str(Path(run) / ".." / "0"), "--corruptions", "--adversarial", *twice])
    instruments = found(Path(run))["instruments"]
    assert len(instruments["corruptions"]["found"]) == len(instruments["adversarial"]["attacks"]) == 1


def test_runs_may_be_named_in_any_way(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    main(["evaluate", "kd/0", str(runs / "kd" / "1")])
    assert (runs / "kd" / "1" / "evaluation.json").exists()


def test_class_names_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("train", "test"):
        for name in ("[red]", "other"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for number in range(4):
                Image.new("L", (8, 8), 20 * number).save(tmp_path / "data" / part / name / f"{number}.png")
    small = "--width 4 --epochs 1 --batch-size 4 --precision 32-true --threads 1 --method none".split()
    main(["train", "--data", str(tmp_path / "data"), *small, "--out", str(tmp_path / "run")])
    main(["evaluate", str(tmp_path / "run")])
    assert "[red]" in capsys.readouterr().out


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
        "Adversarial images",
        "Reliability of kd",
    ):
        assert words in page


def test_any_timm_network_with_weights_from_a_file(runs: Path, tmp_path: Path) -> None:
    run, out = runs / "kd" / "0", tmp_path / "out"
    file = run / "student" / "model.safetensors"
    network = f"evaluate {NETWORK} --data digits --train-limit 40 --threads 1".split()
    main([*network, "--weights", str(file), "--out", str(out)])
    heads = found(out)["instruments"]["accuracy"]["models"]["student"]["test"]["heads"]
    result = json.loads((run / "result.json").read_text())
    assert heads["final"]["top1"] == result["accuracy"]["student"]["test"]["final"]["last"]
    assert found(out)["origin"]["weights"] == str(file)


def test_the_grid_is_a_picture(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(runs / "kd" / "0"), "--grid", str(tmp_path / "grid.png")])
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert "PNG picture" in refused(["evaluate", str(runs / "kd" / "0"), "--grid", "grid.jpg"], capsys)
