"""What a new user types: booleans in any spelling, names in any case, and flags that other programs have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spacedkd.cli import main
from spacedkd.cli.flags import GROUPS, PATHS, parse
from spacedkd.cli.overrides import to_spec
from spacedkd.cli.usage import _HINTS
from spacedkd.config.optimizer import OptimizerSpec
from spacedkd.config.serialization import value_at
from spacedkd.config.spec import DATASETS, AugmentSpec, DataSpec, MethodSpec, NetworkSpec, RunSpec
from spacedkd.data.sources import dataset_names
from spacedkd.runtime.errors import PYTHON_NAMES, UserError
from tests.cli.test_bad_input import refused
from tests.cli.test_cli import TINY

TRUE, FALSE = ("true", "True", "TRUE", "yes", "Yes"), ("false", "False", "FALSE", "no", "No")
SPELLINGS = [*((text, True) for text in TRUE), *((text, False) for text in FALSE)]
BASE = "--data digits --train-limit 40 --width 4 --epochs 1 --batch-size 8 --threads 1 --accelerator cpu".split()
OWN = """
from dataclasses import dataclass

from torch import nn

from spacedkd.methods import KD

class Net(nn.Sequential):
    def __init__(self, deep: bool, language: str = "en", free=None):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        assert deep is False and language == "no" and free is True, (deep, language, free)

@dataclass(frozen=True)
class Method(KD):
    loud: bool = True
    language: str = "en"
"""


@pytest.mark.parametrize(("text", "meant"), SPELLINGS)
def test_a_boolean_is_read_in_one_way(text: str, meant: bool) -> None:
    places = [
        "network.zero_init_last",
        "method.temperature_squared",
        "optimizer.foreach",
        "same_init",
        "data.drop_last",
    ]
    spec = to_spec(parse([word for place in places for word in ("--set", f"{place}={text}")]))
    assert spec.network.options["zero_init_last"] is meant
    assert spec.method.options["temperature_squared"] is meant
    assert spec.optimizer.options["foreach"] is meant
    assert (spec.same_init, spec.data.drop_last) == (meant, meant)
    assert to_spec(parse(["--same-init", text])).same_init is meant
    in_python = RunSpec(same_init=text, network=NetworkSpec("resnet10t", {"zero_init_last": text}))  # type: ignore[arg-type]
    assert (in_python.same_init, in_python.network.options["zero_init_last"]) == (meant, meant)


def test_a_text_in_a_file_means_what_it_says(tmp_path: Path) -> None:
    for name, text in (
        ("a.json", '{"network": {"options": {"x": "False"}}}'),
        ("a.yaml", "network: {options: {x: no}}"),
    ):
        (tmp_path / name).write_text(text)
        assert to_spec({"spec": tmp_path / name}).network.options["x"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--set network.zero_init_last=maybe", "zero_init_last must be true or false, got 'maybe'"),
        ("--set network.drop_rate=lots", "drop_rate must be a number, got 'lots'"),
        ("--set network.drop_rate=yes", "drop_rate must be a number, got True"),
        ("--set network.drop_rate=2", "dropout probability has to be between 0 and 1, but got 2"),
        ("--set method.temperature_squared=maybe", "temperature_squared must be true or false, got 'maybe'"),
        ("--set method.temperature=yes", "temperature must be a number"),
        ("--set optimizer.foreach=maybe", "foreach must be true or false, got 'maybe'"),
        ("--optimizer lion --set optimizer.caution=maybe", "caution must be true or false, got 'maybe'"),
        ("--same-init maybe", "does not expect the word 'maybe'"),
        ("--network resnet10t", "--width is for our own networks"),
        ("--network ResNet18_Small", "ResNet18_Small is none of them"),
    ],
)
def test_what_an_option_cannot_be_is_refused(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["train", *BASE, *words.split(), "--out", str(tmp_path / "run")], capsys)
    assert said in line
    assert "input_size" not in line
    assert not (tmp_path / "run").exists()


def test_the_parameters_of_ones_own_decide_by_their_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("options_of_mine.py").write_text(OWN)
    own = "--width 4 --network options_of_mine:Net --method options_of_mine:Method".split()
    plain = [word for word in BASE if word not in ("--width", "4")]
    options = {"network": {"deep": "no", "language": "no", "free": "yes"}, "method": {"loud": "no", "language": "no"}}
    sets = [f"{where}.{name}={text}" for where, given in options.items() for name, text in given.items()]
    words = ["train", *plain, *own[2:], *(word for one in sets for word in ("--set", one)), "--out", "run"]
    main([*words, "--set", "method.feature_weight=0"])
    spec = json.loads(Path("run/spec.json").read_text())
    assert spec["network"]["options"] == {"deep": False, "language": "no", "free": True}
    assert (spec["method"]["options"]["loud"], spec["method"]["options"]["language"]) == (False, "no")
    capsys.readouterr()
    for place in ("network.deep", "method.loud"):
        line = refused([*words[:-1], "other", "--set", f"{place}=maybe"], capsys)
        assert f"{place.partition('.')[2]} must be true or false, got 'maybe'" in line
    for place in ("network.language", "method.language"):  # JSON's false, which a `no` of YAML is as well
        line = refused([*words[:-1], "other", "--set", f"{place}=false"], capsys)
        assert "language must be text, got False" in line


@pytest.mark.parametrize(
    ("typed", "name"),
    [("KD", "kd"), ("Self_KD", "self-kd"), ("selfkd", "self-kd"), ("PSKD", "ps-kd"), ("TSB-Like", "tsb-like")],
)
def test_methods_in_any_case(typed: str, name: str) -> None:
    assert MethodSpec(typed).name == name
    one, other = (to_spec(parse(["--method", word, "--interval", "2ep"])) for word in (typed, name))
    assert one.fingerprint() == other.fingerprint()


def test_data_optimizers_rates_and_recipes_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("CIFAR100", "cifar-100", "Cifar_100"):
        assert to_spec(parse(["--data", typed])) == to_spec(parse(["--data", "cifar100"]))
    Path("CIFAR100").mkdir()
    assert to_spec(parse(["--data", "CIFAR100"])).data.source == "CIFAR100"  # the folder that is there
    assert OptimizerSpec("AdamW") == OptimizerSpec("adam-w") == OptimizerSpec("adamw")
    assert to_spec(parse(["--rate", "Cosine"])) == to_spec(parse(["--rate", "cosine"]))
    assert to_spec(parse(["--recipe", "Paper-CNN"])) == to_spec(parse(["--recipe", "paper-cnn"]))
    assert {*DATASETS} <= {*dataset_names()}


def test_a_method_of_another_case_keeps_what_belongs_to_it() -> None:
    spec = to_spec({**parse(["--method", "KD", "--set", "method.temperature=4"])})
    assert (spec.method.name, spec.method.options) == ("kd", {"temperature": 4})


def test_a_run_stores_the_name_of_its_data(tmp_path: Path) -> None:
    main(["train", *TINY, "--data", "DIGITS", "--method", "KD", "--out", str(tmp_path / "run")])
    spec = json.loads((tmp_path / "run" / "spec.json").read_text())
    assert (spec["data"]["source"], spec["method"]["name"]) == ("digits", "kd")


@pytest.mark.parametrize(
    ("flag", "use"),
    [
        ("--kd-t", "--temperature 4"),
        ("--kd-alpha", "--alpha 0.9"),
        ("--lr-scheduler", "--rate cosine"),
        ("--learning-rate", "--lr "),
        ("--learning_rate", "--lr "),
        ("--model", "--network "),
        ("--pretrained", "--teacher-weights timm"),
        ("--config", "--spec "),
        ("--gpus", "--devices "),
        ("--device", "--accelerator "),
        ("--dataset", "--data "),
        ("--bs", "--batch-size "),
        ("--wd", "--weight-decay "),
        ("--num-workers", "--workers "),
        ("--output", "--out "),
        ("--teacher-model", "--teacher "),
        ("--scheduler", "--rate "),
        ("--amp", "--precision "),
        ("--dropout", "--set network.drop_rate="),
    ],
)
def test_words_of_the_field_get_the_right_hint(flag: str, use: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", flag, "1"], ["train", f"{flag}=1"], ["compare", "--arm", f"a: {flag} 1"]):
        line = refused(words, capsys)
        assert f"'{flag}'" in line
        assert f"Use {use}" in line or f", or {use}" in line


def test_hints_name_flags_that_there_are() -> None:
    every = {f"--{one.name.replace('_', '-')}" for group in GROUPS.values() for one in group}
    named = {flag for hint in _HINTS.values() for flag in re.findall(r"--[a-z-]+", hint)}
    assert named <= every | {"--out", "--resume"}
    assert not {f"--{word}" for word in _HINTS} & every, "a flag needs no hint"
    for hint in _HINTS.values():
        values = re.findall(r"--set (\S+=\S+)", hint)
        to_spec({"set": values})  # places that exist, with values that can be read


def test_flags_of_the_comparison_are_no_flags_of_an_arm(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--out", "--seeds", "--jobs"):
        line = refused(["compare", "--arm", f"a: {flag} 3"], capsys)
        assert f"{flag} is no flag of an arm" in line
        assert "Did you mean" not in line


def test_a_place_of_a_run_is_called_so_in_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    usage = capsys.readouterr().out.partition("\n\n")[0]
    assert "report [-h] RUN ... " in usage


def test_every_flag_of_a_run_has_a_name_in_python() -> None:
    for flag, path in PATHS.items():
        name, _, value = PYTHON_NAMES[flag.replace("_", "-")].partition("=")
        assert name == path or path.startswith(f"{name}."), flag
        assert (value == "True") is isinstance(value_at(RunSpec(data=DataSpec(augment=AugmentSpec())), path), bool), (
            flag
        )
    for place in ("network=3", "data.nothing=1"):
        with pytest.raises(UserError):
            to_spec({"set": [place]})


def test_options_are_left_alone_where_they_are_no_texts() -> None:
    given: dict[str, Any] = {"width": 4, "layers": [1, 2], "act_layer": "gelu", "deep": {"x": "no", "y": 0}}
    assert NetworkSpec("resnet18_small", given).options == {**given, "deep": {"x": False, "y": 0}}
    assert DataSpec("no").source == "no"
