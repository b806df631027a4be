"""Recipes say what the paper says, and every quirk of the released code can be turned off alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spacedkd import Duration, MethodSpec, NetworkSpec, Online, RunSpec, Spaced, UserError, load_student, train
from spacedkd.cli import main
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import to_spec
from spacedkd.config.recipes import QUIRKS, RECIPES, SETTINGS, quirks_of, recipe, with_settings_table
from spacedkd.config.resolve import resolve
from spacedkd.config.serialization import from_json, to_json, value_at
from spacedkd.data.inputs import DataInfo
from spacedkd.data.sources import resolve_data
from spacedkd.methods import KD, SelfKD, build_method
from spacedkd.models.factory import build_network
from spacedkd.runs.journal import read_journal
from spacedkd.schedule import ReleasedSelfKD, Turn
from spacedkd.training.build import build_models
from tests.conftest import assert_same_bits
from tests.docs.blocks import ROOT

FINGERPRINTS = {
    "paper-cnn": "afcbde2b822fa6d2",
    "paper-self": "cb28ec0b233be848",
    "paper-vit": "261ac67a5fefa6b2",
    "official-cnn": "13a45ec84b73fdf5",
    "official-self": "9cd42f3f91172271",
}
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


def leaves(plain: Any, above: str = "") -> dict[str, Any]:
    """What is set in a spec, as JSON, by its place; options of a network or a method are named without `options`."""
    if not isinstance(plain, dict):
        return {above.rstrip("."): plain}
    inner = (leaves(value, above if key == "options" else f"{above}{key}.") for key, value in plain.items())
    return {place: value for one in inner for place, value in one.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_a_recipe_says_where_it_comes_from(name: str) -> None:
    rows = {one.path: one for one in SETTINGS[name]}
    assert len(rows) == len(SETTINGS[name])
    usual, own = (leaves(to_json(spec)) for spec in (RunSpec(), recipe(name)))
    changed = {place for place in own if own[place] != usual.get(place) and own[place] is not None}
    shown = {place if place in rows else place.rpartition(".")[0] for place in changed}  # a schedule is one setting
    assert shown <= rows.keys()
    for one in rows.values():
        assert one.source.startswith(("paper, ", "released code", "ours", "spaced KD: paper, ")), one


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_are_said_to_be_a_recipes_are(name: str) -> None:
    spec = recipe(name)
    method = build_method(spec.method)
    for one in SETTINGS[name]:
        group, _, field = one.path.partition(".")
        found = getattr(method, field) if group == "method" and field != "name" else value_at(spec, one.path)
        if one.path == "network.init":  # implied: without it a network starts from the same weights
            assert found is None
            shown = DataInfo(torch.zeros(2, 3, 8, 8), ["a", "b"])
            networks = [NetworkSpec(spec.network.name, {"width": 4, **init}) for init in ({}, {"init": one.value})]
            assert_same_bits(*(build_network(network, shown, 0).state_dict() for network in networks))
        else:
            assert found == one.value, one


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("optimizer.weight_decay", SETTINGS),
        ("data.augmentation", SETTINGS),
        ("network.drop_path_rate", ["paper-vit"]),
        ("same_init", ["paper-cnn", "paper-vit"]),
        ("schedule.tail", SETTINGS),
    ],
)
def test_what_the_paper_does_not_say_is_not_called_the_papers(place: str, names: Sequence[str]) -> None:
    for name in names:
        (source,) = (one.source for one in SETTINGS[name] if one.path == place)
        assert not source.startswith("paper")
        assert "not in the paper" in source or "ours" in source


def test_the_page_about_recipes_has_the_table_of_their_settings() -> None:
    """`make docs` writes it."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert with_settings_table(page) == page
    assert "| `optimizer.weight_decay` | 0.05 | vit | released code; not in the paper |" in page.splitlines()
    with pytest.raises(UserError, match="no place for the table"):
        with_settings_table("no marks")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("paper-cnn", "optimizer.lr 0.01 paper, section 5.1"),
        ("official-cnn", "method.logit_loss probability-kl released code: prob_kl (online, spaced, offline)"),
    ],
)
def test_one_recipes_settings_are_listed_with_their_sources(
    name: str, row: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spacedkd.reporting.terminal.console._width", 200)
    main(["list", "recipes", "--pattern", name])
    assert row in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_recipe_that_there_is_not_cannot_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["list", "recipes", "--pattern", "paper-cn"])
    assert stopped.value.code == 2


def algorithm_2(steps: int, interval: int) -> list[tuple[str, int]]:
    """The paper's Algorithm 2 as printed, with the set R cleared after a replay."""
    turns, kept = [], []
    for step in range(steps):
        kept.append(step)
        turns.append(("teacher", step))
        if len(kept) == interval:
            turns += [("student", earlier) for earlier in kept]
            kept = []
    return turns


@pytest.mark.parametrize("name", ["paper-cnn", "paper-self", "paper-vit"])
def test_the_last_block_of_a_recipe_after_the_paper_is_a_choice(name: str) -> None:
    words = f"{' '.join(TINY)} --recipe {name} --interval 4st --augment none --image-size 32 --warmup 0ep"
    text, printed = (
        [*resolve(to_spec(parse(f"{words} {choice}".split()))).timeline.after(0)] for choice in ("", "--tail drop")
    )
    assert printed == algorithm_2(10, 4)
    assert text == [*algorithm_2(10, 4), ("student", 8), ("student", 9)]
    assert value_at(recipe(name), "schedule.tail") == "teach"


def test_recipes_after_the_paper_are_the_runs_they_were() -> None:
    fingerprints = {name: recipe(name).fingerprint() for name in (*SETTINGS, "official-cnn", "official-self")}
    assert fingerprints == FINGERPRINTS


@pytest.mark.parametrize("name", ["paper-cnn", "paper-self", "paper-vit"])
def test_without_all_quirks_the_official_recipe_is_the_papers(name: str) -> None:
    official = name.replace("paper", "official")
    assert recipe(official, without=RECIPES[official].quirks) == recipe(name)


@pytest.mark.parametrize(("name", "quirk"), OFFICIAL)
def test_each_quirk_changes_something_and_can_be_left_out_alone(name: str, quirk: str) -> None:
    """online_pre concerns online KD only, so all are tried with a spaced and with an online schedule."""

    def spaced_(spec: RunSpec) -> RunSpec:
        is_pits = quirk in ("pit_drop_path", "second_pass")
        return replace(spec, network=NetworkSpec("pit_ti_224")) if is_pits else spec

    def online(spec: RunSpec) -> RunSpec:
        return replace(spaced_(spec), schedule=Online())

    spaced = recipe(name, change=spaced_) != recipe(name, without=[quirk], change=spaced_)
    unspaced = recipe(name, change=online) != recipe(name, without=[quirk], change=online)
    assert spaced or unspaced
    assert spaced != (quirk == "online_pre")


def test_every_quirk_belongs_to_a_recipe() -> None:
    assert {quirk for _, quirk in OFFICIAL} == set(QUIRKS)


def test_what_the_quirks_do() -> None:
    cnn, own, vit = recipe("official-cnn"), recipe("official-self"), recipe("official-vit")
    assert cnn.method.options["logit_loss"] == "probability-kl"
    assert cnn.schedule == Spaced("1.5ep", tail="drop")
    assert own.schedule == ReleasedSelfKD("4ep", looks=True)
    assert build_method(own.method) == SelfKD(variant="live", skip_deepest_exit_features=True, exits_run_along=True)
    assert resolve_data(own.data).augmentation == "self-cifar"
    assert vit.method.options["logit_loss"] == "kl-over-classes"
    assert vit.schedule == Spaced("1.5ep+", tail="drop")
    assert {spec.same_init for spec in (cnn, vit)} == {False}
    assert {spec.precision for spec in (cnn, own, vit)} == {"32-true"}  # the released code has no mixed precision


@pytest.mark.parametrize(
    ("name", "interval", "order", "teacher", "moves_frozen", "redrawn", "rate", "tail"),
    [
        ("cnn", "online", "student first", "shared", False, False, "own", "teach"),
        ("cnn", "1.5ep", "teacher first", "train", False, False, "own", "drop"),
        ("cnn", "offline", "teacher first", "eval", False, False, "own", "teach"),
        ("cnn", "80ep", "teacher first", "eval", False, False, "own", "teach"),
        ("cnn", "100%+", "teacher first", "eval", False, False, "own", "teach"),
        ("vit", "online", "student first", "shared", False, False, "own", "teach"),
        ("vit", "0.5ep", "teacher first", "train", True, True, "leader", "drop"),
        ("vit", "offline", "teacher first", "train", False, False, "own", "teach"),
    ],
)
def test_the_released_code_has_other_rules_in_each_mode(
    name: str, interval: str, order: str, teacher: str, moves_frozen: bool, redrawn: bool, rate: str, tail: str
) -> None:
    """PAPER_VS_CODE.md, points 2, 3, 6, 8, 9 and 29: each belongs to the loop it was found in."""
    spec = to_spec(parse(["--recipe", f"official-{name}", "--interval", interval]))
    assert spec.follower_first == (order == "student first")
    assert (spec.frozen_mode, spec.follower_rate) == (teacher, rate)
    assert (spec.optimizer.moves_frozen, spec.redraw_replay) == (moves_frozen, redrawn)
    assert value_at(spec, "schedule.tail") == tail
    assert (spec.same_init, spec.precision) == (False, "32-true")


def test_training_without_a_teacher_has_only_the_quirks_of_a_single_network() -> None:
    alone = to_spec(parse("--recipe official-cnn --method none".split()))
    assert (alone.method.options, alone.network.options, alone.precision) == ({}, {"init": "torch"}, "32-true")
    assert (alone.frozen_mode, alone.schedule) == ("eval", None)


@pytest.mark.parametrize(("per_epoch", "interval", "steps"), [(781, 1.5, 1172), (390, 1.5, 585), (391, 0.5, 196)])
def test_the_transformers_interval_is_a_ceiling(per_epoch: int, interval: float, steps: int) -> None:
    """The released counter runs until counter >= len(loader) * interval."""
    spec = to_spec(parse(f"--recipe official-vit --interval {interval}ep".split()))
    counted = next(n for n in range(10_000) if n >= per_epoch * interval)
    assert value_at(spec, "schedule.interval").in_steps(per_epoch, 10_000) == steps == counted
    assert Duration.parse(str(Duration(interval, "ep", up=True))) == value_at(spec, "schedule.interval")


def test_a_replay_has_the_learning_rate_of_the_teachers_epoch() -> None:
    """METHODS.md card 7: 5e-7 + 2.4975e-5 e in the warm-up, then a cosine of all 300 epochs, for epoch e."""
    words = "--recipe official-vit --data digits --train-limit 40 --batch-size 8 --augment none"
    plan = resolve(to_spec(parse([*words.split(), "--image-size", "8", "--threads", "1"])))
    interval, per_epoch = 8, 5  # 1.5 epochs of 5 steps, rounded up
    assert (plan.steps_per_epoch, plan.total_steps) == (per_epoch, 1500)

    def rate(epoch: int) -> float:
        return 5e-7 + 2.4975e-5 * epoch if epoch < 20 else 5e-6 + 4.95e-4 * (1 + math.cos(math.pi * epoch / 300)) / 2

    seen = [*plan.timeline.after(0)]
    assert seen[: 3 * interval] == [
        *(Turn("teacher", step) for step in range(interval)),
        *(Turn("student", step) for step in range(interval)),
        *(Turn("teacher", step) for step in range(interval, 2 * interval)),
    ]
    reached = 0
    for turn in seen:
        reached = turn.step if turn.role == "teacher" else reached
        assert plan.lr(turn) == pytest.approx(rate(reached // per_epoch), rel=1e-9)
    assert plan.lr(Turn("student", 0)) == pytest.approx(2.5475e-5)
    assert plan.last_step == {"teacher": 1499, "student": 1495}  # 187 blocks of 8; the last 4 steps are not taught


def test_first_weights_are_those_of_the_released_networks() -> None:
    """PyTorch draws uniformly from +-1/sqrt(fan in); the paper's DeiT has a zero head, and tokens of deviation 0.02."""
    words = "--data digits --train-limit 40 --batch-size 8 --threads 1"
    cnn = build_models(resolve(to_spec(parse(f"--recipe official-cnn {words} --teacher resnet18x2".split()))))
    for model in cnn.values():
        convolutions = [part.weight for part in model.modules() if isinstance(part, nn.Conv2d)]
        assert convolutions
        for weight in convolutions:
            bound = 1 / math.sqrt(weight[0].numel())
            assert 0.9 * bound < weight.abs().max() <= bound
    small = f"{words} --image-size 32 --set network.depth=1"
    vit = build_models(resolve(to_spec(parse(f"--recipe official-vit {small}".split()))))
    tokens = []
    for model in vit.values():
        network: Any = model.network
        assert not network.head.weight.any()
        assert not network.head.bias.any()
        assert network.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.02)
        tokens.append(network.cls_token.flatten())
        assert tokens[-1].std().item() == pytest.approx(0.02, rel=0.2)
    assert not torch.equal(*tokens)
    paper = build_models(resolve(to_spec(parse(f"--recipe paper-vit {small}".split()))))["student"].network
    assert paper.head.weight.any()  # type: ignore[union-attr]
    pit = to_spec(parse("--recipe official-vit --network pit_ti_224".split()))
    assert "init" not in pit.network.options  # timm's PiT starts as the released one


def drop_path_rates(words: str) -> list[float]:
    """Of both residual branches of every block of the student, from the first to the last."""
    tiny = "--data digits --train-limit 40 --batch-size 8 --threads 1 --augment none --image-size 32"
    student: Any = build_models(resolve(to_spec(parse(f"{tiny} {words}".split()))))["student"].network
    branches = ((block.drop_path1, block.drop_path2) for stage in student.transformers for block in stage.blocks)
    return [getattr(branch, "drop_prob", 0.0) for pair in branches for branch in pair]


def test_drop_path_of_a_pit_is_that_of_the_released_code() -> None:
    """PAPER_VS_CODE.md: 0.1 * i / 12 over the twelve blocks of PiT-Tiny, in timm 0.1 * i / 11."""
    pit = "--network pit_ti_224 --set network.patch_size=8 --set network.stride=4"
    twelfths = [0, 1 / 120, 1 / 60, 1 / 40, 1 / 30, 1 / 24, 1 / 20, 7 / 120, 1 / 15, 3 / 40, 1 / 12, 11 / 120]
    twice = [rate for rate in twelfths for _ in range(2)]
    for mode in ("--interval 1.5ep", "--interval online", "--method none"):
        assert drop_path_rates(f"--recipe official-vit {pit} {mode}") == pytest.approx(twice, rel=1e-12)
    assert drop_path_rates(f"--recipe official-vit {pit} --set network.drop_path_rate=0.0") == [0.0] * 24
    elevenths = [0.1 * block / 11 for block in range(12) for _ in range(2)]
    for others in ("paper-vit", "official-vit --without pit_drop_path"):
        assert drop_path_rates(f"--recipe {others} {pit}") == pytest.approx(elevenths, rel=1e-6)
    spec = to_spec(parse("--recipe official-vit --teacher pit_s_224".split()))
    assert value_at(spec, "teacher.drop_path_rule") == "i/N"
    assert value_at(spec, "network.drop_path_rule") is None


@pytest.mark.parametrize(
    "words",
    [
        "--network vit_tiny_patch16_224 --set network.drop_path_rule=i/N --image-size 32",
        "--network pit_ti_224 --set network.drop_path_rule=linear --image-size 32",
    ],
)
def test_a_drop_path_rule_that_there_is_not_is_refused(words: str) -> None:
    with pytest.raises(UserError, match="drop_path_rule must be i/N, of a PiT; got"):
        build_models(resolve(to_spec(parse(f"--data digits --train-limit 40 {words}".split()))))


@pytest.mark.parametrize(
    ("words", "student", "teacher"),
    [
        ("", "deit_tiny_patch16_224, distilled", "deit_tiny_patch16_224"),
        ("--interval online", "deit_tiny_patch16_224, distilled", "deit_tiny_patch16_224"),
        ("--interval offline", "deit_tiny_patch16_224, distilled", "deit_tiny_patch16_224"),
        ("--network deit_small_patch16_224", "deit_small_patch16_224, distilled", "deit_small_patch16_224"),
        ("--network deit_tiny_distilled_patch16_224", "deit_tiny_distilled_patch16_224", "deit_tiny_patch16_224"),
        ("--teacher resnet18_small", "deit_tiny_patch16_224, distilled", "resnet18_small"),
        ("--network pit_ti_224 --teacher deit_tiny_patch16_224", "pit_ti_224", "deit_tiny_patch16_224"),
        ("--without distillation_token", "deit_tiny_patch16_224", None),
        ("--method none", "deit_tiny_patch16_224", None),
    ],
)
def test_a_deit_that_is_taught_has_a_distillation_token_and_its_teacher_none(
    words: str, student: str, teacher: str | None
) -> None:
    """PAPER_VS_CODE.md, point 27: neither has the network that learns without a teacher."""
    spec = to_spec(parse(["--recipe", "official-vit", *words.split()]))
    name, _, distilled = student.partition(", ")
    assert (spec.network.name, spec.network.options.get("distilled", False)) == (name, bool(distilled))
    assert (spec.teacher.name if spec.teacher else None) == teacher
    assert spec.teacher is None or "distilled" not in spec.teacher.options
    assert spec.method.options.get("distillation_token", False) == (bool(distilled) or "distilled" in name)
    both = (spec.network, spec.teacher or spec.network)
    assert {one.options.get("init") for one in both if one.name.startswith("deit")} == {"zero-head"}


def test_the_deits_of_the_released_code_have_its_parameters() -> None:
    """METHODS.md, card 7: 5 563 400 of the student, 5 543 716 of the teacher, with 100 classes at 224 pixels."""
    spec = recipe("official-vit")
    shown = DataInfo(torch.zeros(2, 3, 224, 224), [str(number) for number in range(100)])
    assert spec.teacher is not None
    counts = [
        sum(one.numel() for one in build_network(network, shown, 0).parameters())
        for network in (spec.network, spec.teacher)
    ]
    assert counts == [5_563_400, 5_543_716]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("shake", {"distillation_token": True}),
        ("fitnet", {"second_pass": True}),
        ("ban", {"second_pass": True}),
        ("kd", {"second_pass": True, "distillation_token": True}),
        ("kd", {"second_pass": True, "logit_weight": 0.0}),
    ],
)
def test_options_that_a_method_would_not_heed_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="leave"):
        build_method(MethodSpec(name, options))


def test_a_student_without_a_distillation_token_cannot_learn_by_it() -> None:
    words = "--data digits --train-limit 40 --width 4 --set method.distillation_token=true"
    with pytest.raises(UserError, match="distillation_token needs a student with a distillation token"):
        build_models(resolve(to_spec(parse(words.split()))))


@pytest.mark.parametrize("name", ["paper-vit", "official-vit"])
def test_drop_path_is_that_of_the_recipe_in_every_transformer(name: str) -> None:
    """PAPER_VS_CODE.md, section 4.2: all of them have 0.1."""

    def rates(words: str) -> list[float | None]:
        spec = to_spec(parse(f"--recipe {name} {words}".split()))
        networks = (spec.network, spec.teacher or spec.network)
        return [network.options.get("drop_path_rate") for network in networks]

    assert rates("--network pit_ti_224") == [0.1, 0.1]
    assert rates("--teacher deit_small_patch16_224") == [0.1, 0.1]
    assert rates("--network resnet18_small --teacher deit_tiny_patch16_224") == [None, 0.1]
    assert rates("--network pit_ti_224 --set network.drop_path_rate=0.2") == [0.2, 0.2]
    assert rates("--set network.drop_path_rate=0.0") == [0.0, 0.0]


def test_without_its_recipe_a_transformer_drops_no_path() -> None:
    assert to_spec(parse("--network pit_ti_224".split())).network.options == {}
    assert to_spec(parse("--recipe paper-cnn --network pit_ti_224".split())).network.options == {}


def test_a_zero_head_is_for_transformers_with_a_class_token() -> None:
    words = "--data digits --train-limit 40 --network resnet10t --set network.init=zero-head"
    with pytest.raises(UserError, match="resnet10t is none: leave it out"):
        build_models(resolve(to_spec(parse(words.split()))))


@pytest.mark.parametrize(
    ("name", "data", "augmentation"),
    [
        *((f"{kind}-cnn", "cifar100", "cifar") for kind in ("paper", "official")),
        *((f"{kind}-cnn", "tiny-imagenet", "tiny-imagenet") for kind in ("paper", "official")),
        *((f"{kind}-cnn", "imagenet-1k", "imagenet") for kind in ("paper", "official")),
        ("paper-self", "cifar100", "cifar"),
        ("official-self", "cifar100", "self-cifar"),
        ("official-self", "tiny-imagenet", "tiny-imagenet"),
        *(("official-vit", data, "vit") for data in ("cifar100", "tiny-imagenet")),
        ("paper-cnn", "32x32x3", "cifar"),
        ("official-self", "32x32x3", "self-cifar"),
        ("paper-cnn", "64x64x3", "tiny-imagenet"),
        ("paper-cnn", "28x28x1", "small"),
        ("paper-cnn", "32x32x4", "small"),
    ],
)
def test_other_data_gets_the_augmentation_the_papers_code_has_for_it(
    name: str, data: str, augmentation: str, tmp_path: Path
) -> None:
    """PAPER_VS_CODE.md, section 4.1."""
    if data[0].isdigit():
        data = _arrays(tmp_path / "own.npz", *(int(side) for side in data.split("x")))
    found = resolve_data(to_spec(parse(["--recipe", name, "--data", data])).data)
    assert found.augmentation == augmentation
    if augmentation == "tiny-imagenet":
        assert found.augment is not None
        assert (found.augment.crop, found.augment.flip, found.augment.rotate) == (4, True, 0)


def _arrays(path: Path, *shape: int) -> str:
    images = np.zeros((4, *shape), np.uint8)
    np.savez(path, x_train=images, x_test=images, y_train=np.arange(4) % 2, y_test=np.arange(4) % 2)
    return str(path)


@pytest.mark.parametrize(
    ("name", "typed", "place", "value", "quirk"),
    [
        ("cnn", "--set method.logit_loss=kl", "method.logit_loss", "kl", "prob_kl"),
        ("cnn", "--tail teach", "schedule.tail", "teach", "no_flush"),
        ("cnn", "--frozen-mode eval", "frozen_mode", "eval", "teacher_train_mode"),
        ("cnn", "--same-init true", "same_init", True, "other_init"),
        ("cnn", "--set network.init=kaiming", "network.init", "kaiming", "torch_init"),
        ("cnn", "--precision auto", "precision", "auto", "full_precision"),
        ("cnn", "--follower-first false --interval online", "follower_first", False, "online_pre"),
        ("self", "--augment cifar", "data.augmentation", "cifar", "self_augmentation"),
        ("self", "--crop 2", "data.augmentation", "paper", "self_augmentation"),
        ("self", "--flip false", "data.augmentation", "paper", "self_augmentation"),
        ("self", "--augment none", "data.augmentation", "none", "self_augmentation"),
        ("self", "--set method.variant=snapshot", "method.variant", "snapshot", "live_teacher"),
        ("vit", "--set method.options.temperature=4", "method.temperature", 4, "numel_kl"),
        ("vit", "--set method.temperature=3.0", "method.temperature", 3.0, "numel_kl"),
        ("vit", "--set optimizer.moves_frozen=false", "optimizer.moves_frozen", False, "joint_adamw_zero_grads"),
        ("vit", "--set schedule.interval=2ep", "schedule.interval", Duration(2, "ep"), "rounded_up"),
    ],
)
def test_what_is_typed_wins_over_a_quirk_and_is_said_to(
    name: str, typed: str, place: str, value: Any, quirk: str
) -> None:
    spec = to_spec(parse(f"--recipe official-{name} {typed}".split()))
    assert value_at(spec, place) == value
    said = quirks_of(f"official-{name}", (), spec)
    part = " in part" if quirk in ("numel_kl", "online_pre") else ""
    assert said["overridden"] == f"{quirk}{part}, by {place}={value}"
    left = recipe(f"official-{name}", change=lambda one: replace(one, schedule=spec.schedule))
    assert quirk not in said["quirks"].split(", ")
    assert {*said["quirks"].split(", ")} == {*quirks_of(f"official-{name}", (), left)["quirks"].split(", ")} - {quirk}


def test_the_table_of_a_recipe_says_what_became_of_its_quirks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*given: Any, **options: Any) -> None:
        raise UserError("That is enough.")

    monkeypatch.setattr("spacedkd.training.train.train_run", train)
    with pytest.raises(SystemExit):
        main("train --recipe official-vit --data digits --set method.temperature=4 --without zero_head".split())
    printed = " ".join(capsys.readouterr().out.split())
    assert "overridden numel_kl in part, by method.temperature=4 left out zero_head" in printed
    assert (
        "quirks other_init, distillation_token, teacher_train_mode, joint_adamw_zero_grads, resampled_replay" in printed
    )


def test_a_change_in_python_wins_too() -> None:
    spec = recipe("official-cnn", change=lambda spec: replace(spec, precision="bf16-mixed", schedule=Spaced("2ep")))
    assert (spec.precision, spec.schedule) == ("bf16-mixed", Spaced("2ep", tail="drop"))
    taught = recipe("official-cnn", change=lambda spec: replace(spec, schedule=Spaced("2ep")), asked_for=["schedule"])
    assert taught.schedule == Spaced("2ep")


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
    "words",
    [
        "--interval online",
        "--interval online --tail drop",
        "--set schedule=null",
        "--set method.variant=plain",
        "--interval online --set method.variant=plain",
    ],
)
def test_unspaced_self_kd_is_one_joint_update_for_each_batch(name: str, words: str) -> None:
    """The paper's Algorithm 3: no batch is lost, and none is learned twice."""
    plan = resolve(to_spec(parse([*TINY, "--recipe", name, *words.split()])))
    assert [*plan.timeline.after(0)] == [("student", step) for step in range(10)]
    assert plan.spec.method.options["skip_deepest_exit_features"] == (name == "official-self")


def test_two_updates_for_each_batch_of_self_kd_can_still_be_asked_for() -> None:
    words = [*TINY, "--recipe", "paper-self", "--interval", "online", "--set", "method.variant=live"]
    turns = [*resolve(to_spec(parse(words))).timeline.after(0)]
    assert turns == [(role, step) for step in range(10) for role in ("teacher", "student")]


def test_unspaced_self_kd_may_be_asked_for_in_python() -> None:
    spec = recipe("official-self", change=lambda spec: replace(spec, schedule=None))
    assert (spec.method.options["variant"], spec.schedule) == ("plain", None)


@pytest.mark.parametrize("name", ["paper-self", "official-self"])
def test_a_plain_variant_with_the_recipes_own_interval_is_refused_where_it_is_typed(name: str) -> None:
    with pytest.raises(UserError, match="Plain self-kd has no role that leads, so schedule spaces nothing"):
        to_spec(parse([*TINY, "--recipe", name, "--interval", "4ep", "--set", "method.variant=plain"]))


@pytest.mark.parametrize(("name", "mode"), [("paper-cnn", "eval"), ("official-cnn", "eval"), ("official-vit", "train")])
def test_a_trained_teacher_is_the_released_offline_mode(name: str, mode: str) -> None:
    spec = to_spec(parse(["--recipe", name, "--teacher", "resnet18", "--teacher-weights", "timm"]))
    assert (spec.schedule, spec.frozen_mode, spec.follower_first, spec.redraw_replay) == (None, mode, False, False)
    learns = ["--set", "method.teacher_learns=true"]
    kept = to_spec(parse(["--recipe", name, "--teacher", "resnet18", "--teacher-weights", "timm", *learns]))
    assert value_at(kept, "schedule.interval") == Duration(1.5, "ep", up=name == "official-vit")


def test_an_overridden_schedule_is_said_in_words() -> None:
    words = parse(["--recipe", "official-self", "--tail", "drop"])
    overridden = quirks_of("official-self", (), to_spec(words))["overridden"]
    assert overridden == "negative_counter, by schedule='spaced 4ep, tail dropped'"


def test_a_plain_variant_with_an_interval_is_refused() -> None:
    words = [*TINY, "--recipe", "paper-self", "--interval", "3st", "--set", "method.variant=plain"]
    with pytest.raises(UserError, match="nothing to space: leave out the interval"):
        resolve(to_spec(parse(words)))


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
    assert result.accuracies.keys() == {"teacher", "student"}
    assert load_student(tmp_path / "run").num_classes == 10
