"""Help that fits a screen, all of it on request, and completion in a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from spacedkd.cli import COMMANDS, main
from spacedkd.cli.flags import GROUPS
from spacedkd.cli.usage import FIRST, about

FLAGS = {one.name: one for flags in GROUPS.values() for one in flags}
SCREEN = 72
"""lines"""


def said(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert not stop.value.code
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("verb", "asked"), [("train", "--help"), ("compare", "-h")])
def test_help_shows_what_people_need_first(
    verb: str, asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = said([verb, "--data", "digits", asked], capsys, monkeypatch)
    assert any(line.startswith(f"Example: spacedkd {verb} --data digits") for line in lines)
    assert lines[-1] == f"Every flag: spacedkd {verb} --help-all"
    shown = lines[next(number for number, line in enumerate(lines) if line.startswith(" options  ")) : -1]
    assert len(shown) <= SCREEN
    assert max(map(len, shown)) <= 80
    text = " ".join(" ".join(shown).split())
    first = [name for names in FIRST.values() for name in names]
    for name in first:
        assert f"--{name.replace('_', '-')} {FLAGS[name].metavar} {FLAGS[name].about}" in text
    assert "--out FOLDER" in text
    for name in FLAGS.keys() - {*first}:
        assert f" --{name.replace('_', '-')} " not in text


@pytest.mark.parametrize("verb", ["", *COMMANDS])
def test_help_fits_into_80_columns(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(map(len, said([*verb.split(), "--help-all"], capsys, monkeypatch))) <= 80


def test_every_flag_is_in_the_long_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("-H", "--help-all"):
        text = " ".join(said(["compare", word], capsys, monkeypatch))
        for name in (*FLAGS, "arm", "equal_cost", "no_sharing", "ray"):
            option = name.replace("_", "-")
            assert f" --{option} " in text or f" --[no-]{option} " in text


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_shows_a_flag_that_is_on_or_off_once(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = said([verb, "--help-all"], capsys, monkeypatch)
    assert not any(re.search(r", --no-|--no-(?!sharing)[a-z-]+ *│", line) for line in shown)
    assert all(len(line) == len(shown[-1]) for line in shown if line.startswith("│ --[no-]"))


def test_every_verb_has_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = said(["--help"], capsys, monkeypatch)
    verbs = [line.strip("│").split(maxsplit=2)[1:] for line in lines if "•" in line]
    assert [(name, line.strip()) for name, line in verbs] == [(name, about(verb)) for name, verb in COMMANDS.items()]
    assert len(lines) < 28
    assert lines[-1].endswith("spacedkd --version")


def test_a_shell_completes_verbs_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script").write_text("\n".join(said(["completion", "bash"], capsys, monkeypatch)))
    asked = {"exp": "export", "train --teacher-pa": "--teacher-path", "train --help-a": "", "completion --he": "--help"}
    for typed, completed in asked.items():
        words = ["spacedkd", *typed.split()]
        bash = (
            'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
            "$(complete -p spacedkd | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo \"${COMPREPLY[@]}\""
        )
        ran = subprocess.run(["bash", "-c", bash, "bash", *words], cwd=tmp_path, capture_output=True, text=True)
        assert (ran.stdout.strip(), ran.stderr) == (completed, "")


@pytest.mark.parametrize(
    ("shell", "sign"), [("zsh", "#compdef spacedkd"), ("fish", "complete --no-files --command 'spacedkd'")]
)
def test_scripts_for_other_shells(
    shell: str, sign: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(said(["completion", shell], capsys, monkeypatch))
    assert sign in text
    assert "--teacher-path" in text
