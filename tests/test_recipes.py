"""Recipes say what the paper says, and every quirk of the released code can be turned off alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd import KD, Online, RunSpec, SelfKD, Spaced, UserError, train
from spacedkd.cli.changes import to_spec
from spacedkd.cli.flags import parse
from spacedkd.files import read_journal
from spacedkd.json_form import from_json, to_json
from spacedkd.methods import build_method
from spacedkd.recipes import QUIRKS, RECIPES, recipe
from spacedkd.schedule import ReleasedSelfKD
from spacedkd.training.plan import make_plan

OFFICIAL = [(name, quirk) for name, entry in RECIPES.items() for quirk in entry.quirks]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_spec_like_any_other(name: str) -> None:
    spec = recipe(name)
    assert from_json(RunSpec, to_json(spec)) == spec
    assert build_method(spec.method).roles == ("teacher", "student")


def test_the_papers_cnn_settings() -> None:
    """PAPER_VS_CODE.md, section 4.3."""
    spec = recipe("paper-cnn")
    assert (spec.epochs, spec.batch_size, spec.schedule) == (80, 128, Spaced("1.5ep"))
    assert (spec.optimizer.name, spec.optimizer.lr, spec.optimizer.momentum) == ("sgd", 0.01, 0.9)
    assert (spec.optimizer.weight_decay, spec.optimizer.nesterov, spec.rate.shape) == (5e-4, False, "constant")
    assert build_method(spec.method) == KD()
    assert recipe("paper-self").schedule == Spaced("4ep")
    vit = recipe("paper-vit")
    assert (vit.optimizer.name, vit.optimizer.lr, vit.optimizer.weight_decay, vit.epochs) == ("adamw", 5e-4, 0.05, 300)


@pytest.mark.parametrize("name", ["paper-cnn", "paper-self", "paper-vit"])
def test_without_all_quirks_the_official_recipe_is_the_papers(name: str) -> None:
    official = name.replace("paper", "official")
    assert recipe(official, without=RECIPES[official].quirks) == recipe(name)


@pytest.mark.parametrize(("name", "quirk"), OFFICIAL)
def test_each_quirk_changes_something_and_can_be_left_out_alone(name: str, quirk: str) -> None:
    """online_pre concerns online KD only, so all are tried with a spaced and with an online schedule."""

    def online(spec: RunSpec) -> RunSpec:
        return replace(spec, schedule=Online())

    spaced = recipe(name) != recipe(name, without=[quirk])
    unspaced = recipe(name, change=online) != recipe(name, without=[quirk], change=online)
    assert spaced or unspaced
    assert spaced != (quirk == "online_pre")


def test_every_quirk_belongs_to_a_recipe() -> None:
    assert {quirk for _, quirk in OFFICIAL} == set(QUIRKS)


def test_what_the_quirks_do() -> None:
    cnn, own, vit = recipe("official-cnn"), recipe("official-self"), recipe("official-vit")
    assert cnn.method.options["logit_loss"] == "probability-kl"
    assert (cnn.frozen_mode, cnn.same_init, cnn.follower_first) == ("train", False, False)
    assert cnn.schedule == Spaced("1.5ep", tail="drop")
    assert recipe("official-cnn", change=lambda spec: replace(spec, schedule=Online())).follower_first
    assert own.schedule == ReleasedSelfKD("4ep", looks=True)
    assert build_method(own.method) == SelfKD(variant="live", skip_deepest_exit_features=True, exits_run_along=True)
    assert own.data.augmentation == "self-cifar"
    assert (vit.optimizer.moves_frozen, vit.redraw_replay) == (True, True)
    assert vit.method.options["logit_loss"] == "kl-over-classes"


def test_unknown_recipes_and_quirks_are_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'paper-cnn'"):
        recipe("paper-cn")
    with pytest.raises(UserError, match="Did you mean 'prob_kl'"):
        recipe("official-cnn", without=["prob-kl"])
    with pytest.raises(UserError, match="it has none"):
        recipe("paper-cnn", without=["prob_kl"])


def test_what_came_later_leaves_older_specs_as_they_were() -> None:
    assert to_json(ReleasedSelfKD("4ep")) == {"kind": "released-self-kd", "interval": "4ep", "epoch": "1ep"}
    assert to_json(ReleasedSelfKD("4ep", looks=True))["looks"] is True
    assert "exits_run_along" not in to_json(SelfKD())
    assert to_json(SelfKD(exits_run_along=True))["exits_run_along"] is True


TINY = "--data digits --train-limit 40 --batch-size 8 --epochs 2 --threads 1 --precision 32-true".split()


@pytest.mark.parametrize("name", ["paper-self", "official-self"])
@pytest.mark.parametrize(
    "words", ["--interval online", "--set method.variant=plain", "--interval online --set method.variant=plain"]
)
def test_unspaced_self_kd_is_one_joint_update_for_each_batch(name: str, words: str) -> None:
    """The paper's Algorithm 3: no batch is lost, and none is learned twice."""
    plan = make_plan(to_spec(parse([*TINY, "--recipe", name, *words.split()])))
    assert [*plan.turns.after(0)] == [("student", step) for step in range(10)]
    assert plan.spec.method.options["skip_deepest_exit_features"] == (name == "official-self")


def test_two_updates_for_each_batch_of_self_kd_can_still_be_asked_for() -> None:
    words = [*TINY, "--recipe", "paper-self", "--interval", "online", "--set", "method.variant=live"]
    turns = [*make_plan(to_spec(parse(words))).turns.after(0)]
    assert turns == [(role, step) for step in range(10) for role in ("teacher", "student")]


def test_a_plain_variant_with_an_interval_is_refused() -> None:
    words = [*TINY, "--recipe", "paper-self", "--interval", "3st", "--set", "method.variant=plain"]
    with pytest.raises(UserError, match="nothing to space: leave out the interval"):
        make_plan(to_spec(parse(words)))


def test_unspaced_self_kd_trains_what_its_formula_says(tmp_path: Path) -> None:
    words = "--recipe official-self --interval online --width 4".split()
    run = train(to_spec(parse([*TINY, *words])), tmp_path / "run")
    assert run.cost["updates"] == run.cost["forward_passes"] == run.cost["backward_passes"] == 10
    losses = {name for line in read_journal(tmp_path / "run" / "journal.jsonl") for name in line.get("losses", ())}
    assert losses == {"label", "exit label", "exit logit", "exit feature"}


SMALL = {
    "resnet18_small": "--width 4",
    "deit_tiny_patch16_224": "--image-size 8 --set network.patch_size=2 --set network.embed_dim=24 "
    "--set network.depth=2 --set network.num_heads=2 --warmup 0ep",
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains(name: str, tmp_path: Path) -> None:
    tiny = "--data digits --train-limit 40 --batch-size 8 --epochs 2 --interval 1ep --threads 1 --precision 32-true"
    words = f"--recipe {name} {tiny} {SMALL[recipe(name).network.name]}".split()
    result = train(to_spec(parse(words)), tmp_path / "run")
    assert result.accuracy.keys() == {"teacher", "student"}
