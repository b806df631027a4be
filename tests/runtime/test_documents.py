"""A spec in YAML or TOML is the spec in JSON; and whatever a file holds is read, or refused in one line, in time."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from spacedkd import DataSpec, NetworkSpec, OptimizerSpec, RunSpec, Spaced, UserError, read_spec
from spacedkd.cli import main
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import to_spec
from spacedkd.runs.journal import read_journal
from spacedkd.runtime.documents import parse_json, read_document, read_json, read_lines, read_small_json
from spacedkd.runtime.errors import CannotRead, Linked
from spacedkd.runtime.files import write_json
from spacedkd.runtime.user_code import FromFile

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
        ("label: !!python/object/apply:os.system ['touch ran']", "has a tag"),
        ("label: !!int ''", "line 1 has a tag"),
        ("epochs: 1\nepochs: 2", "the key 'epochs' occurs twice"),
        ("seed: " + "1" * 401, "64 bits"),
        ("seed: 0x" + "f" * 17, "64 bits"),
        ("epochs: 1e999", "out of range"),
        ('label: "\\ud800"', "half a character"),
        ('label: "\\UFFFFFFFF"', "not valid YAML"),
        ("label: 9999-12-31 23:59:59 -23:59", "write it in quotes"),
        ("network: {<<: {name: x}}", "<<"),
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
        ("a = " + "[" * 5000, "nested more than 64 levels deep"),
        ("a." * 20_000 + "a = 1", "a key of more than 64 parts"),
        ("[" + '"a" . ' * 5000 + "a]", "a key of more than 64 parts"),
        ("seed = " + "1" * 5000, "64 bits"),
        ("seed = 0x" + "f" * 17, "64 bits"),
        ("epochs = 1e999", "out of range"),
        ("#" * (1 << 17) + "x", "larger than 131,072 bytes"),
        ("epoch = 2", "Unknown key in spec 'epoch'"),
    ],
    "a.json": [
        ("{", "not valid JSON"),
        ("{} {}", "Extra data"),
        ("[" * 100_000, "nested more than 64 levels deep"),
        ("[" * 65 + "]" * 65, "nested more than 64 levels deep"),
        ('{"epochs": 1, "epochs": 2}', "the key 'epochs' occurs twice"),
        ('{"seed": ' + "1" * 401 + "}", "64 bits"),
        ('{"seed": 18446744073709551616}', "64 bits"),
        ('{"epochs": -1e999}', "out of range"),
        ('{"epochs": Infinity}', "epochs"),
        ('{"label": "\\udc00"}', "half a character"),
        ('{"\\ud83d": 1}', "half a character"),
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


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.toml"])
def test_what_is_no_ordinary_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    for path in (tmp_path / name, Path("/dev/zero")):
        with pytest.raises(CannotRead, match="not an ordinary file"):
            read_document(path)


def test_other_encodings_are_named_and_a_mark_of_utf_8_is_no_part_of_the_text(tmp_path: Path) -> None:
    for contents, byte in ((b'{"a": "\xe9"}', 7), ('{"a": 1}'.encode("utf-16"), 0)):
        (tmp_path / "a.json").write_bytes(contents)
        with pytest.raises(UserError, match=f"byte {byte} is no UTF-8"):
            read_document(tmp_path / "a.json")
    for name, text in (("a.json", '{"a": 1}'), ("a.yaml", "a: 1"), ("a.toml", "a = 1")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert read_document(tmp_path / name) == {"a": 1}


def test_base_60_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("[1:30, 1:30.5, 010, 0x1f, 0b11, 1_000, -.inf, yes, 1e3x, " + "1:" * 9000 + "1]")
    *short, long = read_document(tmp_path / "a.yaml")
    assert short == ["1:30", "1:30.5", 8, 31, 3, 1000, -math.inf, True, "1e3x"]
    assert long == "1:" * 9000 + "1"


@pytest.mark.parametrize(
    "value",
    [
        {
            "seed": 2**63,
            "least": -(2**63),
            "zero": 0,
            "x": [1e308, -1.5e-300, 0.1, -0.0, True, None],
            "t": "é😀\u202e\n",
        },
        {"options": {"a": math.inf, "b": -math.inf}},
        "",
        [[[{}]], []],
        {"wide": [[{"a": [number]}] for number in range(100)]},
    ],
)
def test_what_is_written_is_read_again(value: object, tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert repr(parse_json(json.dumps(value), "it")) == repr(value)


def test_the_deepest_nesting_is_64_levels(tmp_path: Path) -> None:
    for text in ("[" * 64 + "]" * 64, '{"a":' * 63 + "[]" + "}" * 63):
        parse_json(text, "it")
        with pytest.raises(UserError, match="it is not valid JSON: it is nested more than 64"):
            parse_json(f"[{text}]", "it")


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)  # of a terabyte, none of which is on the disk
    with pytest.raises(CannotRead, match="larger than"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").rename(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="a line of more than"):
        next(read_journal(tmp_path / "a.jsonl"))


def test_a_journal_is_read_in_blocks_to_its_last_complete_line(tmp_path: Path) -> None:
    lines = [json.dumps({"event": "loss", "number": number, "text": "x" * (number % 500)}) for number in range(9000)]
    path = tmp_path / "journal.jsonl"
    path.write_text("\n".join(lines) + '\n{"event": "cut o')
    assert path.stat().st_size > 2 << 20
    assert [entry["number"] for entry in read_journal(path)] == [*range(9000)]
    start = len(lines[0]) + 1 + len(lines[1]) + 1
    assert next(read_lines(path, start=start)).decode() == lines[2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"event": "loss", "event": "loss"}', "the key 'event' occurs twice"),
        ('{"event": "loss", "step": 1' + "0" * 400 + "}", "64 bits"),
        ('{"event": "loss", "x": 1e999}', "out of range"),
        ('{"event": "\\ud800"}', "half a character"),
        ("[" * 100_000, "nested more than 64"),
        ("", "Expecting value"),
        ('{"event": 1}', "not an entry with an event"),
    ],
)
def test_a_line_of_a_journal_that_is_wrong_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "loss"}\n' * 2 + line + "\n")
    with pytest.raises(UserError) as error:
        [*read_journal(path)]
    assert str(error.value).startswith(f"{path} cannot be read: line 3 is ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_links_in_a_run_are_not_followed(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other.json"
    run.mkdir()
    other.write_text('{"event": "x"}\n')
    (run / "a.json").symlink_to(other)
    assert read_json(run / "a.json") == {"event": "x"}
    with pytest.raises(Linked, match="a.json is a symbolic link"):
        read_json(run / "a.json", within=run)
    with pytest.raises(Linked, match="a.json is a symbolic link"):
        [*read_journal(run / "a.json", within=run)]
    assert read_small_json(run / "a.json", within=run) == {}
    (run / "spec.json").symlink_to(other)
    with pytest.raises(UserError, match="symbolic link"):
        read_spec(run)


def test_a_spec_cannot_hold_what_could_not_be_read_again() -> None:
    for options in ({"x": 10**30}, {"x": "\udcff"}, {"x": json.loads("[" * 80 + "]" * 80)}):
        with pytest.raises(UserError, match="method.options must hold what a spec.json can"):
            RunSpec(method={"name": "kd", "options": options})
    with pytest.raises(UserError, match="source must be text in Unicode"):
        RunSpec(data=Path(os.fsdecode(b"photos\xff")))
