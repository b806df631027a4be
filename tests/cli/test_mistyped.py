"""Words that cannot be read end in one line that says what to type, and exit code 2."""

from __future__ import annotations

import pytest

from spacedkd.cli import COMMANDS, main, usage
from spacedkd.cli.flags import GROUPS
from spacedkd.cli.usage import flags_of

VERB_NAMES = "train, compare, evaluate, predict, report, export, theory, reproduce, status, list, completion"
SAID = {
    (): f"Name a command: {VERB_NAMES}. See spacedkd --help",
    ("tran", "--epochs", "3"): f"Unknown command 'tran'. Did you mean 'train'? Available: {VERB_NAMES}.",
    ("--bogus",): f"Unknown command '--bogus'. Available: {VERB_NAMES}.",
    ("train", "--bogus", "3"): "train has no flag '--bogus'. Every flag: spacedkd train --help-all",
    ("train", "--intervall=3", "--data", "digits"): (
        "train has no flag '--intervall'. Did you mean '--interval'? Every flag: spacedkd train --help-all"
    ),
    ("train", "--epoch", "3"): (
        "train has no flag '--epoch'. Did you mean '--epochs' or '--per-epoch'? Every flag: spacedkd train --help-all"
    ),
    ("train", "--a\nb"): "train has no flag '--a\\nb'. Every flag: spacedkd train --help-all",
    ("status", "-x"): "status has no flag '-x'. Every flag: spacedkd status --help-all",
    ("train", "digits"): "train does not expect the word 'digits'. Every flag: spacedkd train --help-all",
    ("train", "--epochs"): "--epochs needs a value. See spacedkd train --help-all",
    ("export",): "export needs RUN. See spacedkd export --help",
    ("theory", "--seed", "1.5"): "--seed must be a whole number, got '1.5'.",
    ("reproduce", "--seeds", "x"): "--seeds must be a whole number, got 'x'.",
    ("reproduce", "--max-hours", "[a]"): "--max-hours must be a number, got '[a]'.",
    ("evaluate", "run", "--severities", "a", "b"): "--severities must be whole numbers, got 'a', 'b'.",
    ("evaluate", "run", "--epsilon", "a"): "--epsilon must be numbers, got 'a'.",
    ("compare", "--arm", "x: --bogus 3"): (
        "--arm 'x: --bogus 3' cannot be read: train has no flag '--bogus'. Every flag: spacedkd train --help-all"
    ),
    ("compare", "--arm", "x: --epochs"): (
        "--arm 'x: --epochs' cannot be read: --epochs needs a value. See spacedkd train --help-all"
    ),
}


@pytest.mark.parametrize(("words", "line"), SAID.items(), ids=lambda one: " ".join(one) if one in SAID else "")
def test_one_line_says_what_to_type(words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    out, errors = capsys.readouterr()
    assert (end.value.code, out, errors) == (2, "", f"spacedkd: {line}\n")


def test_a_flag_of_every_verb_is_known() -> None:
    every = {f"--{one.name.replace('_', '-')}" for group in GROUPS.values() for one in group}
    assert every <= {*flags_of(COMMANDS["train"])}
    known = {verb: {*flags_of(found)} for verb, found in COMMANDS.items()}
    assert {"--arm", "--seeds"} <= known["compare"]
    assert "--max-hours" in known["reproduce"]
    assert known["list"] == {"--pattern", "--help"}


def test_another_version_of_tyro_says_it_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(usage, "_errors", None)
    with pytest.raises(SystemExit) as end:
        main(["train", "--bogus"])
    assert end.value.code == 2
    assert "Unrecognized options: --bogus" in capsys.readouterr().err
