"""A spec in YAML or TOML is the spec in JSON: the same run, the same checks, and nothing in it is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spacedkd import DataSpec, NetworkSpec, OptimizerSpec, RunSpec, Spaced, UserError, read_spec
from spacedkd.cli import main
from spacedkd.cli.changes import to_spec
from spacedkd.cli.flags import parse
from spacedkd.own_code import FromFile

YAML = """
# what was meant
data: {source: digits, train_limit: 40}
network:
  name: resnet18_small
  options: {width: 4, layers: [1, 1, 1, 1]}
schedule: 1.5ep
epochs: 2
batch_size: 8
optimizer: {name: adamw, lr: 1e-3}
evaluate_every: 2ep
precision: 32-true
same_init: false
teacher: null
engine: {threads: 1}
"""
TOML = """
schedule = "1.5ep"
epochs = 2
batch_size = 8
evaluate_every = "2ep"
precision = "32-true"
same_init = false
data = {source = "digits", train_limit = 40}
engine = {threads = 1}

[network]  # what was meant
name = "resnet18_small"
options = {width = 4, layers = [1, 1, 1, 1]}

[optimizer]
name = "adamw"
lr = 1e-3
"""
MEANT = RunSpec(
    data=DataSpec("digits", train_limit=40),
    network=NetworkSpec("resnet18_small", {"width": 4, "layers": [1, 1, 1, 1]}),
    schedule=Spaced("1.5ep"),
    epochs=2,
    batch_size=8,
    optimizer=OptimizerSpec("adamw", lr=0.001),
    evaluate_every="2ep",
    precision="32-true",
    same_init=False,
    engine={"threads": 1},
)


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.YML", YAML), ("a.toml", TOML)])
def test_the_same_spec(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert read_spec(tmp_path / name) == MEANT
    changed = to_spec(parse(["--spec", str(tmp_path / name), "--lr", "0.5"]))
    assert (changed.optimizer.lr, changed.optimizer.name) == (0.5, "adamw")


def test_a_run_from_yaml_is_the_run_from_its_own_spec(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    main(["train", "--spec", str(tmp_path / "a.yaml"), "--out", str(tmp_path / "yaml")])
    main(["train", "--spec", str(tmp_path / "yaml"), "--out", str(tmp_path / "json")])
    assert (tmp_path / "yaml/journal.jsonl").read_bytes() == (tmp_path / "json/journal.jsonl").read_bytes()
    assert json.loads((tmp_path / "yaml/spec.json").read_text())["optimizer"]["lr"] == 0.001


@pytest.mark.parametrize(
    ("number", "value"),
    [("1e-3", 0.001), ("1E3", 1000.0), ("-2e0", -2.0), (".5e1", 5.0), ("1.e2", 100.0), ("3", 3), ("1e", "1e")],
)
def test_numbers_in_yaml_are_those_of_json(number: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"method: {{name: kd, options: {{x: {number}, y: '{number}'}}}}")
    assert read_spec(tmp_path / "a.yaml").method.options == {"x": value, "y": number}


BAD = {
    "a.yaml": [
        ("epochs: [1", "line 1: expected ',' or ']'"),
        ("epochs: 1: 2", "line 1: mapping values are not allowed here"),
        ("data: &d {source: digits}\nnetwork: *d", "line 2 has an alias"),
        ("label: !!python/object/apply:os.system ['touch ran']", "could not determine a constructor"),
        ("label: 2024-01-01", "label is a date: write it in quotes"),
        ("1: 2", "the key 1 is no text"),
        ("label: \x00", "special characters are not allowed"),
        ("[" * 5000, "nested more than 64 levels deep"),
        ("a: 1\n---\na: 2", "expected a single document"),
        ("", "spec must be an object with keys and values"),
        ("epoch: 2", "Unknown key in spec 'epoch'. Did you mean 'epochs'"),
        ("epochs: yes", "must be a number"),
    ],
    "a.toml": [
        ("epochs = ", "Invalid value"),
        ("label = 2024-01-01", "label is a date: write it in quotes"),
        ("epochs = 1\nepochs = 2", "Cannot overwrite a value"),
        ("a = " + "[" * 5000, "recursion"),
        ("epoch = 2", "Unknown key in spec 'epoch'"),
    ],
}


@pytest.mark.parametrize(("name", "text", "message"), [(name, *case) for name in BAD for case in BAD[name]])
def test_broken_files_are_one_line(
    name: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(UserError) as error:
        read_spec(name)
    assert str(error.value).startswith(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("name", "text"), [("a.yaml", "network: own:make"), ("a.toml", 'network = "own:make"')])
def test_names_of_code_are_marked(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert isinstance(read_spec(tmp_path / name).network.name, FromFile)
    assert not isinstance(read_spec(tmp_path / name, trust_code=True).network.name, FromFile)
