"""--other-init: one meaning with --no-same-init and --set same_init=false; refused where it cannot matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from spacedkd import RunSpec, UserError
from spacedkd.cli import main
from spacedkd.cli.compare import make_arms, parse_arm
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import to_spec
from spacedkd.cli.train import run_request
from spacedkd.config.serialization import to_json


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--other-init"], False),
        (["--other_init"], False),
        (["--no-other-init"], True),
        (["--other-init", "false"], True),
        (["--other-init=yes"], False),
        (["--no-same-init"], False),
        (["--set", "same_init=false"], False),
        (["--other-init", "--epochs", "3"], False),
    ],
)
def test_it_is_the_opposite_of_same_init(words: list[str], same: bool) -> None:
    assert to_spec(parse(words)).same_init is same
    if "--epochs" not in words:
        assert to_spec(parse(words)).fingerprint() == RunSpec(same_init=same).fingerprint()


def request(words: list[str]) -> RunSpec:
    return run_request(parse(words), None, None, False, None).spec


def test_where_it_matters() -> None:
    for more in ([], ["--method", "ctkd"], ["--teacher", "resnet18_small"], ["--interval", "2ep", "--method", "dlb"]):
        assert request(["--other-init", *more]).same_init is False


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--method", "none"], "method none"),
        (["--method", "self-kd"], "method self-kd"),
        (["--method", "self-kd", "--interval", "2ep"], "method self-kd"),
        (["--method", "dlb"], "method dlb"),
        (["--teacher", "resnet34_small"], "resnet34_small"),
        (["--teacher", "resnet18_small", "--set", "teacher.width=8"], "with other options"),
    ],
)
def test_where_it_does_not_it_is_refused(words: list[str], why: str) -> None:
    for flag in ("--other-init", "--no-same-init"):
        with pytest.raises(UserError, match=rf"^--other-init .*does not matter here: .*{why}"):
            request([flag, *words])
    spec = to_spec(parse([*words, "--set", "same_init=false"]))  # as a spec or a recipe has it
    assert to_json(spec)["same_init"] is False


def test_in_a_comparison_one_arm_for_which_it_matters_is_enough() -> None:
    base = parse(["--other-init"])
    arms = make_arms(["alone: --method none", "kd: --method kd"], (), base)
    assert [spec.same_init for spec in arms.values()] == [False, False]
    assert parse_arm("kd: --other-init", {})[1].same_init is False
    with pytest.raises(UserError, match="method none"):
        parse_arm("alone: --method none --other-init", {})
    with pytest.raises(UserError, match="method none"):
        make_arms(["alone: --method none", "self: --method self-kd"], (), base)


def test_the_command_says_it_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--method", "none", "--other-init", "--out", str(tmp_path / "run")])
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "--other-init" in " ".join(lines)
    assert not (tmp_path / "run").exists()
