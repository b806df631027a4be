"""compare --methods: each method unspaced and spaced; and spacing that comes from a recipe or a spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spacedkd import Online, Spaced, UserError
from spacedkd.cli import main
from spacedkd.cli.compare import make_arms
from spacedkd.cli.flags import Given
from spacedkd.cli.overrides import to_spec
from spacedkd.config.resolve import resolve_method, resolve_spec
from spacedkd.config.serialization import to_json
from spacedkd.methods import METHODS
from spacedkd.schedule import Window

BASE = {"interval": "2ep", "epochs": 6.0}
WITHOUT = {  # what is about another method than those
    "paper-cnn": (),
    "official-cnn": ("prob_kl",),
    "paper-self": (),
    "official-self": ("live_teacher", "exits_run_along", "skip_head3_feature"),
}


def test_a_method_is_there_unspaced_and_spaced() -> None:
    arms = make_arms([], ["dkd", "self-kd", "ps-kd", "none"], BASE)
    assert {label: spec.schedule for label, spec in arms.items()} == {
        "dkd": None,
        "dkd spaced": Spaced("2ep"),
        "self-kd": None,
        "self-kd spaced": Spaced("2ep"),
        "ps-kd": None,
        "ps-kd online": Online(),
        "ps-kd spaced": Spaced("2ep"),
        "none": None,
    }
    meant = {label: resolve_method(spec) for label, spec in arms.items()}
    assert {label: getattr(method, "variant", None) for label, (method, _) in meant.items()} == {
        "dkd": None,
        "dkd spaced": None,
        "self-kd": "plain",
        "self-kd spaced": "live",
        "ps-kd": "plain",
        "ps-kd online": "taught",
        "ps-kd spaced": "taught",
        "none": None,
    }
    assert (meant["dkd"][1], meant["self-kd"][1]) == (Online(), None)


@pytest.mark.parametrize("recipe", ["paper-cnn", "official-cnn", "paper-self", "official-self"])
def test_unspaced_is_unspaced_whatever_a_recipe_says(recipe: str) -> None:
    arms = make_arms([], ["kd", "self-kd"], {"recipe": recipe, "interval": "2ep", "without": WITHOUT[recipe]})
    meant = {label: resolve_method(spec) for label, spec in arms.items()}
    assert (meant["kd"][1], meant["self-kd"][1]) == (Online(), None)
    assert meant["self-kd"][0].variant == "plain"  # type: ignore[attr-defined]
    assert all(len(meant[f"{name} spaced"][0].roles) == 2 for name in ("kd", "self-kd"))
    assert all(meant[f"{name} spaced"][1] not in (None, Online()) for name in ("kd", "self-kd"))


def test_unspaced_is_unspaced_whatever_a_spec_says(tmp_path: Path) -> None:
    for method, variant in (("kd", None), ("self-kd", "live")):
        spec = resolve_spec(to_spec({"interval": "2ep", "method": method, "data": "digits"}))
        assert spec.method.options.get("variant") == variant
        (tmp_path / "spec.json").write_text(json.dumps(to_json(spec)))
        arms = make_arms([], [method], {"spec": tmp_path, "interval": "1ep", "set": ("schedule.tail=drop",)})
        assert arms[method].schedule is None
        assert len(resolve_method(arms[method])[0].roles) == (2 if method == "kd" else 1)
        assert arms[f"{method} spaced"].schedule == Spaced("1ep", tail="drop")


def test_all_are_all() -> None:
    arms = make_arms([], ["all", "kd"], BASE)
    assert {spec.method.name for spec in arms.values()} == {*METHODS}
    spaced = [spec for label, spec in arms.items() if label.endswith(" spaced")]
    assert len(spaced) == len(METHODS) - 1
    assert all(len(resolve_method(spec)[0].roles) > 1 for spec in spaced)


@pytest.mark.parametrize(
    ("written", "methods", "base", "message"),
    [
        ([], ["kdd"], BASE, "Did you mean 'kd'"),
        ([], ["kd"], {}, "--interval 1.5ep"),
        ([], ["kd"], {"interval": "offline"}, "--interval 1.5ep"),
        (["kd: --lr 5"], ["kd"], BASE, "would add an arm called 'kd', but there is one"),
        (["a: --lr 5", "a: --lr 6"], [], BASE, "Two arms have the same name"),
        ([], [], BASE, "compare needs arms"),
    ],
)
def test_what_is_wrong(written: list[str], methods: list[str], base: Given, message: str) -> None:
    with pytest.raises(UserError) as error:
        make_arms(written, methods, base)
    assert message in str(error.value)


def test_a_window_belongs_to_the_spaced_arm() -> None:
    arms = make_arms([], ["kd"], {"interval": "1ep", "window": "1ep..4ep", "epochs": 6.0})
    assert arms["kd"].schedule is None
    assert arms["kd spaced"].schedule == Window(Spaced("1ep"), Online(), "1ep", stop="4ep")


def test_an_interval_from_a_recipe_or_a_spec_spaces_other_methods_too(tmp_path: Path) -> None:
    for typed in ({"recipe": "paper-cnn", "method": "ps-kd"}, {"recipe": "paper-self", "method": "one"}):
        assert len(resolve_method(to_spec(typed))[0].roles) == 2
    (tmp_path / "spec.json").write_text(json.dumps(to_json(to_spec({"interval": "2ep", "method": "kd"}))))
    method, schedule = resolve_method(to_spec({"spec": tmp_path, "method": "one"}))
    assert (method.variant, schedule) == ("live", Spaced("2ep"))  # type: ignore[attr-defined]


def test_plain_training_takes_no_schedule_from_a_recipe() -> None:
    spec = to_spec({"recipe": "paper-cnn", "method": "none"})
    method, schedule = resolve_method(spec)
    assert (spec.method.name, len(method.roles), schedule) == ("none", 1, None)


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--data digits --train-limit 40 --width 2 --batch-size 8 --epochs 2 --precision 32-true --seeds 2"
    main(["compare", *words.split(), "--methods", "kd", "--interval", "1ep", "--out", str(tmp_path / "out")])
    assert "kd spaced" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [arm["label"] for arm in found["arms"]] == ["kd", "kd spaced"]
    assert found["spacing"][0]["unspaced"] == "kd"
    assert "What spacing did" in (tmp_path / "out" / "report.html").read_text()
