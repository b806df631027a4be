"""compare --methods: each method unspaced and spaced; and spacing that comes from a recipe or a spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spacedkd import Online, Spaced, UserError
from spacedkd.cli import main
from spacedkd.cli.arms import make_arms
from spacedkd.cli.flags import RunFlags, to_spec
from spacedkd.json_form import to_json
from spacedkd.methods import METHODS, build_method

BASE = RunFlags(interval="2ep", epochs=6)


def test_a_method_is_there_unspaced_and_spaced() -> None:
    arms = make_arms([], ["dkd", "self-kd", "ps-kd", "none"], BASE)
    found = {label: (spec.schedule, spec.method.options.get("variant")) for label, spec in arms.items()}
    assert found == {
        "dkd": (Online(), None),
        "dkd spaced": (Spaced("2ep"), None),
        "self-kd": (Online(), None),
        "self-kd spaced": (Spaced("2ep"), "live"),
        "ps-kd": (Online(), None),
        "ps-kd online": (Online(), "taught"),
        "ps-kd spaced": (Spaced("2ep"), "taught"),
        "none": (Online(), None),
    }


def test_all_are_all() -> None:
    arms = make_arms([], ["all", "kd"], BASE)
    assert {spec.method.name for spec in arms.values()} == {*METHODS}
    spaced = [spec for label, spec in arms.items() if label.endswith(" spaced")]
    assert len(spaced) == len(METHODS) - 1
    assert all(len(build_method(spec.method).roles) > 1 for spec in spaced)


@pytest.mark.parametrize(
    ("written", "methods", "base", "message"),
    [
        ([], ["kdd"], BASE, "Did you mean 'kd'"),
        ([], ["kd"], RunFlags(), "say how far, --interval 1.5ep"),
        ([], ["kd"], RunFlags(interval="offline"), "say how far, --interval 1.5ep"),
        (["kd: --lr 5"], ["kd"], BASE, "would add an arm called 'kd', but there is one"),
        (["a: --lr 5", "a: --lr 6"], [], BASE, "Two arms have the same name"),
        ([], [], BASE, "compare needs arms"),
    ],
)
def test_what_is_wrong(written: list[str], methods: list[str], base: RunFlags, message: str) -> None:
    with pytest.raises(UserError) as error:
        make_arms(written, methods, base)
    assert message in str(error.value)


def test_a_window_belongs_to_the_spaced_arm() -> None:
    arms = make_arms([], ["kd"], RunFlags(interval="1ep", window="1ep..4ep", epochs=6))
    assert arms["kd"].schedule == Online()
    assert arms["kd spaced"].schedule != Online()


def test_an_interval_from_a_recipe_or_a_spec_spaces_other_methods_too(tmp_path: Path) -> None:
    for typed in (RunFlags(recipe="paper-cnn", method="ps-kd"), RunFlags(recipe="paper-self", method="one")):
        assert len(build_method(to_spec(typed).method).roles) == 2
    (tmp_path / "spec.json").write_text(json.dumps(to_json(to_spec(RunFlags(interval="2ep", method="kd")))))
    assert to_spec(RunFlags(spec=tmp_path, method="one")).method.options["variant"] == "live"
    assert to_spec(RunFlags(recipe="paper-cnn", method="none")).method.name == "none"


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--data digits --train-limit 40 --width 2 --batch-size 8 --epochs 2 --precision 32-true --seeds 2"
    main(["compare", *words.split(), "--methods", "kd", "--interval", "1ep", "--out", str(tmp_path / "out")])
    assert "kd spaced" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [arm["label"] for arm in found["arms"]] == ["kd", "kd spaced"]
    assert found["spacing"][0]["unspaced"] == "kd"
    assert "What spacing did" in (tmp_path / "out" / "report.html").read_text()
