"""Flags come from the specs: every field has one, help says its default, and a flag changes the spec where it lies."""

from __future__ import annotations

import shlex
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import timm

from spacedkd import AugmentSpec, DataSpec, Duration, EngineSpec, OptimizerSpec, RateSpec, RunSpec, Spaced, UserError
from spacedkd.cli import main
from spacedkd.cli.compare import parse_arm
from spacedkd.cli.flags import GROUPS, PATHS, parse
from spacedkd.cli.overrides import apply_flags, to_spec
from spacedkd.config.resolve import resolve_spec
from spacedkd.config.serialization import to_json, with_changes
from spacedkd.config.spec import OURS
from spacedkd.models.small_networks import OUR_NAMES
from spacedkd.runtime.errors import on_command_line
from spacedkd.runtime.files import write_json

WITHOUT_A_FLAG = {
    "schedule": "--interval, --speed, --blocks, --growing, --ahead, --window and --tail",
    "label": "the name of an arm",
    "objects": "what train() was given",
    **dict.fromkeys(("extends.epochs", "extends.turn", "extends.how"), "--extend RUN --epochs NUMBER"),
    "processes_before": "--resume RUN --devices COUNT",
    "network.options": "--width, --set network.NAME",
    "method.options": "--temperature, --alpha, --label-weight, --logit-weight, --set method.NAME",
    "optimizer.options": "--set optimizer.NAME",
    "teacher.options": "--set teacher.NAME",
    "teacher.weights": "--teacher-weights",
    "teacher.name": "--teacher",
}


def places(kind: type[Any], above: str = "") -> list[str]:
    """Every field of a spec and of the specs in it, as optimizer.lr."""
    found = []
    for name, hint in get_type_hints(kind).items():
        inner = next((one for one in (hint, *get_args(hint)) if is_dataclass(one) and one is not Duration), None)
        found += places(inner, f"{above}{name}.") if inner is not None else [f"{above}{name}"]
    return found


def spec_of(words: str, base: RunSpec | None = None) -> RunSpec:
    return apply_flags(base or RunSpec(), parse(shlex.split(words)))


def test_every_field_of_the_spec_has_a_flag_or_a_reason() -> None:
    assert {*places(RunSpec)} == {*PATHS.values(), *WITHOUT_A_FLAG}
    assert not {*PATHS.values()} & {*WITHOUT_A_FLAG}


def at(spec: Any, place: str) -> Any:
    for name in place.split("."):
        spec = getattr(spec, name)
    return spec


def test_help_says_what_every_flag_is_and_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    said = " ".join(capsys.readouterr().out.split())
    spec = replace(RunSpec(), data=DataSpec(augment=AugmentSpec()))
    for one in (flag for group in GROUPS.values() for flag in group):
        default = f" (default: {one.default})" if one.default != "" else ""
        typed = one.option if one.kind is bool else f"{one.option} {one.metavar}"
        if one.kind is bool and not one.is_switch:
            typed = f"--[no-]{one.option[2:]}"
        assert f"{typed} {one.about}{default}" in said
        value = at(spec, one.path) if one.path else None
        if one.path and not one.path.startswith("data.augment.") and value not in (None, ()):
            words = {"True": "yes", "False": "no"}.get(str(value), str(value).removesuffix(".0"))
            assert one.default.removesuffix(" with sgd") == words
    assert "None" not in said


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_fits_a_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    shown = capsys.readouterr().out.partition("options  ")[2].splitlines()
    assert max(len(line) for line in shown) <= int(columns)


def test_our_networks_are_known_by_their_names() -> None:
    import spacedkd.models  # noqa: F401

    assert {name for name in timm.list_models() if OURS.fullmatch(name)} == {*OUR_NAMES}


def test_flags_that_appeared_by_themselves() -> None:
    spec = spec_of(
        "--momentum 0.8 --nesterov True --rate cosine --floor 0.1 --warmup 2ep --warmup-start 0.5 --drop-last True "
        "--evaluate-every 2ep --save-every 3st --log-every 4st --same-init False --channels-last False "
        "--frozen-mode train --weights runs/x --nodes 2 --clip 1 --moves-frozen True --per-epoch True"
    )
    assert spec.optimizer == OptimizerSpec(momentum=0.8, nesterov=True, clip=1, moves_frozen=True)
    assert spec.rate == RateSpec("cosine", floor=0.1, warmup="2ep", warmup_start=0.5, per_epoch=True)
    assert (spec.evaluate_every, spec.save_every, spec.log_every) == tuple(map(Duration.parse, ("2ep", "3st", "4st")))
    assert (spec.same_init, spec.channels_last, spec.frozen_mode) == (False, False, "train")
    assert (spec.data.drop_last, spec.network.weights, spec.engine.nodes) == (True, "runs/x", 2)


def test_set_changes_what_has_no_flag() -> None:
    spec = spec_of(
        "--teacher resnet34_small --set teacher.width=8 --set network.drop_rate=0.5 --set optimizer.betas=[0.9,0.99] "
        "--optimizer lion --set method.options.temperature=2 --set method.label_weight=0.5 --set label=mine "
        '--set rate.shape=multistep --set \'rate.milestones=["1ep", "2ep"]\' --set evaluate_every=2ep'
    )
    assert spec.teacher is not None
    assert (spec.teacher.options, spec.network.options) == ({"width": 8}, {"drop_rate": 0.5})
    assert (spec.optimizer.name, spec.optimizer.options) == ("lion", {"betas": [0.9, 0.99]})
    assert (spec.method.options, spec.label) == ({"temperature": 2, "label_weight": 0.5}, "mine")
    assert (spec.rate.milestones, str(spec.evaluate_every)) == ((Duration(1, "ep"), Duration(2, "ep")), "2ep")
    assert with_changes(
        RunSpec(), [("schedule", {"kind": "spaced", "interval": "2ep"}), ("schedule.tail", "drop")]
    ) == (RunSpec(schedule=Spaced("2ep", tail="drop")))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("rate.shap=cosine", "Unknown key in spec.rate 'shap'. Did you mean 'shape'"),
        ("bach_size=3", "Unknown key in spec 'bach_size'. Did you mean 'batch_size'"),
        ("data.augment.crop=3", "Use --crop, --flip or --rotate"),
        ("epochs.more=3", "There is no 'epochs.more' in this spec"),
        ("data.train_limit=many", "train_limit must be a whole number, got 'many'"),
        ("rate.warmup=soon", "Cannot read 'soon' as a length of training"),
    ],
)
def test_set_refuses_by_name(place: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        spec_of(f"--set {place}")
    assert message in str(error.value)


def test_what_belongs_to_another_shape_or_optimizer_goes_back_to_its_default() -> None:
    rate = RateSpec("multistep", milestones=("60ep",), factor=0.2, warmup="1ep")
    base = RunSpec(rate=rate, optimizer=OptimizerSpec(momentum=0.7, nesterov=True, lr=0.3, options={"dampening": 0.0}))
    assert spec_of("--rate cosine", base).rate == RateSpec("cosine", warmup="1ep")
    assert spec_of("--rate cosine --floor 0.1", base).rate == RateSpec("cosine", floor=0.1, warmup="1ep")
    assert spec_of("--rate multistep --factor 0.5", base).rate == replace(rate, factor=0.5)
    assert spec_of("--optimizer adamw", base).optimizer == OptimizerSpec("adamw", lr=0.3)
    assert spec_of("--optimizer sgd --momentum 0.8", base).optimizer == replace(base.optimizer, momentum=0.8)
    late = RunSpec(rate=RateSpec("cosine", warmup="5ep", warmup_start=0.1, restart_after_warmup=False))
    assert spec_of("--warmup 0ep", late).rate == RateSpec("cosine")
    assert spec_of("--method dkd", RunSpec(method={"name": "kd", "options": {"temperature": 3}})).method.options == {}


def test_a_spec_that_was_not_spaced_can_be(tmp_path: Path) -> None:
    plain = resolve_spec(RunSpec(method="self-kd"))
    assert (plain.schedule, plain.method.options["variant"]) == (None, "plain")
    write_json(tmp_path / "spec.json", to_json(plain))
    spaced = resolve_spec(to_spec(parse(["--spec", str(tmp_path), "--interval", "2ep"])))
    assert (spaced.schedule, spaced.method.options["variant"]) == (Spaced("2ep"), "live")
    by_hand = parse(["--spec", str(tmp_path), "--interval", "2ep", "--set", "method.variant=snapshot"])
    assert resolve_spec(to_spec(by_hand)).method.options["variant"] == "snapshot"
    snapshot = replace(plain, method={"name": "self-kd", "options": {"variant": "snapshot"}}, schedule=Spaced("1ep"))
    assert spec_of("--interval 2ep", snapshot).method.options == {"variant": "snapshot"}, "it is spaced already"


def test_another_method_on_a_run_that_asked_for_no_schedule() -> None:
    online = resolve_spec(RunSpec(method="kd"))
    assert online.schedule == Spaced("1st")
    assert resolve_spec(spec_of("--method self-kd", online)) == resolve_spec(RunSpec(method="self-kd"))
    assert resolve_spec(spec_of("--method none", online)) == resolve_spec(RunSpec(method="none"))
    assert resolve_spec(spec_of("--method dkd", online)) == resolve_spec(RunSpec(method="dkd"))


SAME = {
    "--method self-kd --interval 3st": RunSpec(method="self-kd", schedule=Spaced("3st")),
    "--method dlb": RunSpec(method="dlb"),
    "--method dlb --interval online": RunSpec(method="dlb", schedule=Spaced("1st")),
    "--optimizer lion --lr 0.001": RunSpec(optimizer=OptimizerSpec("lion", lr=0.001)),
    "--rate multistep --milestones 1ep 2ep --warmup 3st": RunSpec(
        rate=RateSpec("multistep", milestones=["1ep", "2ep"], warmup="3st")
    ),
    "--rate cosine --floor 0.01": RunSpec(rate=RateSpec("cosine", floor=0.01)),
    "--teacher resnet34_small --width 4": RunSpec(
        network={"name": "resnet18_small", "options": {"width": 4}},
        teacher={"name": "resnet34_small", "options": {"width": 4}},
    ),
    "--augment cifar --flip False": RunSpec(data=DataSpec(augmentation="cifar", augment=AugmentSpec(4, False, 15))),
}


@pytest.mark.parametrize("typed", SAME)
def test_a_run_is_the_same_from_flags_from_python_and_from_its_spec(typed: str, tmp_path: Path) -> None:
    flags, python = resolve_spec(spec_of(typed)), resolve_spec(SAME[typed])
    write_json(tmp_path / "asked.json", to_json(SAME[typed]))
    write_json(tmp_path / "filled.json", to_json(flags))
    asked, filled = (resolve_spec(to_spec({"spec": tmp_path / f"{name}.json"})) for name in ("asked", "filled"))
    assert len({one.fingerprint() for one in (flags, python, asked, filled)}) == 1
    others = {resolve_spec(spec).fingerprint() for other, spec in SAME.items() if other != typed}
    assert flags.fingerprint() not in others


@pytest.mark.parametrize(
    "words",
    ["--flip", "--flip true", "--flip=yes", "--flip True", "--no-flip --flip", "--flip --lr 0.1", "--compile --flip"],
)
def test_a_truth_value_is_a_pair_of_flags(words: str) -> None:
    assert parse(shlex.split(words))["flip"] is True


@pytest.mark.parametrize("words", ["--no-flip", "--no-flip --lr 0.1", "--flip false", "--flip no"])
def test_the_other_flag_of_the_pair(words: str) -> None:
    assert parse(shlex.split(words))["flip"] is False


def test_a_flag_switches_off_what_a_spec_has() -> None:
    base = RunSpec(channels_last=True, engine=EngineSpec(compile=True))
    spec = apply_flags(base, parse(["--no-compile", "--no-channels-last"]))
    assert (spec.engine.compile, spec.channels_last) == (False, False)


# --- Options of methods


def fingerprint(words: str) -> str:
    return resolve_spec(spec_of(words)).fingerprint()


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("--temperature 4", {"temperature": 4}),
        ("--label-weight 1 --logit-weight 2", {"label_weight": 1, "logit_weight": 2}),
        ("--alpha 0.9", {"label_weight": 0.1, "logit_weight": 0.9}),
        ("--alpha 1", {"label_weight": 0, "logit_weight": 1}),
        ("--method takd --alpha 0.3 --temperature 2", {"label_weight": 0.7, "logit_weight": 0.3, "temperature": 2}),
        ("--method tsb-like --temperature 2", {"temperature": 2}),
        ("--method lskd --logit-weight 4.5", {"logit_weight": 4.5}),
        ("--set method.name=hinton --alpha 0.5", {"label_weight": 0.5, "logit_weight": 0.5}),
        ("--method ctkd --temperature 2 --set method.curriculum=0", {"temperature": 2, "curriculum": 0}),
        ("--method own.module:Method --alpha 0.5", {"label_weight": 0.5, "logit_weight": 0.5}),
    ],
)
def test_flags_of_methods_set_their_options(typed: str, options: dict[str, float]) -> None:
    assert spec_of(typed).method.options == options


def test_a_flag_of_a_method_is_the_same_run_as_its_option() -> None:
    assert fingerprint("--temperature 4") == fingerprint("--set method.temperature=4")
    assert fingerprint("--alpha 0.3") == fingerprint("") != fingerprint("--alpha 0.4")
    for method in ("hinton", "eskd", "ctkd"):  # whose loss is 0.1 CE + 0.9 KL
        assert fingerprint(f"--method {method} --alpha 0.9") == fingerprint(f"--method {method}")


def test_a_flag_of_a_method_replaces_the_option_of_the_spec_and_of_the_comparison() -> None:
    base = RunSpec(method={"name": "dkd", "options": {"temperature": 3, "warmup": 5}})
    assert spec_of("--temperature 2", base).method.options == {"temperature": 2, "warmup": 5}
    _, spec = parse_arm("warm: --temperature 8", parse(["--temperature", "4", "--alpha", "0.5"]))
    assert spec.method.options == {"temperature": 8, "label_weight": 0.5, "logit_weight": 0.5}


def test_a_flag_of_a_method_wins_over_a_recipe() -> None:
    options = to_spec(parse(["--recipe", "official-vit", "--temperature", "2.5", "--alpha", "0.25"])).method.options
    assert (options["temperature"], options["label_weight"], options["logit_weight"]) == (2.5, 0.75, 0.25)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("--method none --temperature 4", ["none", "temperature", "no options"]),
        ("--method tsb-like --label-weight 1", ["tsb-like", "label_weight", "--temperature", "method.mu="]),
        ("--method tsb-like --alpha 0.5", ["tsb-like", "label_weight", "logit_weight"]),
        ("--method dkd --alpha 0.5", ["dkd", "--label-weight", "--logit-weight"]),
        ("--method ps-kd --alpha 0.5", ["ps-kd", "--set method.alpha=0.5"]),
        ("--method ctkd --temperature 3", ["ctkd", "--temperature", "method.curriculum=0"]),
        ("--alpha 9", ["--alpha", "from 0 to 1", "got 9"]),
        ("--alpha nan", ["--alpha", "nan"]),
        ("--alpha high", ["--alpha", "'high'"]),
        ("--temperature 0", ["temperature", "above 0"]),
        ("--alpha 0.5 --label-weight 0.5", ["--alpha", "--label-weight"]),
        ("--alpha 0.5 --logit-weight 0.5", ["--alpha", "--logit-weight"]),
        ("--alpha 0.5 --set method.logit_weight=0.5", ["--alpha", "--set method.logit_weight"]),
        ("--temperature 3 --set method.options.temperature=3", ["--temperature", "--set method.options.temperature"]),
        ('--temperature 3 --set \'method={"name": "kd"}\'', ["--temperature", "--set method"]),
    ],
)
def test_flags_of_methods_are_refused_by_name(typed: str, named: list[str]) -> None:
    with on_command_line(), pytest.raises(UserError) as error:
        resolve_spec(spec_of(typed))
    assert all(word in str(error.value) for word in named)


@pytest.mark.parametrize("typed", ["--lr-schedule cosine", "--lr-schedule=cosine", "--lr_schedule cosine"])
def test_lr_schedule_is_the_rate(typed: str) -> None:
    assert spec_of(typed) == spec_of("--rate cosine")


def test_a_switch_has_no_opposite() -> None:
    with pytest.raises(SystemExit):
        main(["train", "--no-plan"])
    assert parse(["--trust-code"])["trust_code"] is True
