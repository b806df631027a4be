"""Nothing that stands in files reaches the terminal as anything but text: no escape sequence, no line of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.text import Text

from spacedkd.cli import main
from spacedkd.cli.console import SafeConsole, say, say_error
from spacedkd.comparison.results import compare_runs
from spacedkd.reporting import progress
from spacedkd.reporting.progress import RoleBars, jobs_progress, work_progress
from spacedkd.reporting.tables import comparison_tables
from spacedkd.reporting.terminal import rich_table
from spacedkd.runtime.errors import printable
from spacedkd.runtime.files import HOST
from spacedkd.runtime.processes import print_notice
from spacedkd.training.loop import Event
from tests.reporting.fake_runs import FakeArm, write_runs

EVIL = "a\x1b[2J\x1b]0;title\x07\x9b31m\r\nspacedkd: all is well\x08\u202etxt\u2028\x7f"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FAKED = re.compile("^spacedkd: all is well", re.MULTILINE)


def is_clean(text: str) -> bool:
    return "\\x1b" in text and not OBEYED.search(text) and not FAKED.search(text)


def test_escapes_are_shown_and_other_text_stays() -> None:
    assert printable("a\tb\n\x1b[0m\x9b\u202e\ud800") == r"a\tb\n\x1b[0m\x9b\u202e\ud800"
    assert printable("é 猫 😀 ± … ' \\ [b]") == "é 猫 😀 ± … ' \\ [b]"
    assert is_clean(printable(EVIL))


@pytest.mark.parametrize("speak", [say, say_error, print_notice])
def test_lines(speak: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    speak(f"first {EVIL} last")
    out, err = capsys.readouterr()
    assert is_clean(out + err)
    assert (out + err).count("\n") == 1


def test_an_error_is_one_line_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["train", "--resume", EVIL],
        ["status", EVIL],
        ["train", "--spec", f"{EVIL}.yaml"],
        ["export", EVIL, "--to", EVIL],
    ):
        with pytest.raises(SystemExit) as end:
            main(words)
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        assert is_clean(err)
        assert err.count("\n") == 1


def hostile_runs(root: Path) -> Path:
    """A finished run, one that a process on another machine trains, one that has diverged, and a damaged one."""
    folders = write_runs(root, [FakeArm(EVIL, [0.5, 0.6], roles=(EVIL, "student")), FakeArm("b", [0.5] * 3)])
    for number, folder in enumerate(folders):
        spec = json.loads((folder / "spec.json").read_text())
        spec["data"]["source"] = spec["network"]["name"] = EVIL
        (folder / "spec.json").write_text(json.dumps(spec))
        if number:
            (folder / "result.json").unlink()
    (folders[1] / ".progress.json").write_text(json.dumps({"host": EVIL, "process": 1, "role": EVIL, "waiting": EVIL}))
    (folders[2] / "diverged.json").write_text(json.dumps({"said": EVIL, "role": EVIL, "step": 1}))
    (folders[3] / ".progress.json").write_text(json.dumps({"host": HOST, "ended": "failed", "said": EVIL}))
    (folders[4] / "spec.json").write_text(json.dumps({EVIL: 1}))
    return root


def test_status_and_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = hostile_runs(tmp_path / "runs")
    main(["status", str(root)])
    out, err = capsys.readouterr()
    assert is_clean(out)
    assert err == ""
    assert {line.split()[1] for line in out.splitlines()[:5]} == {
        "finished",
        "training",
        "diverged",
        "failed",
        "damaged",
    }
    assert len(out.splitlines()) == 5 + 1 + 4
    main(["list", "runs", str(root)])
    out, err = capsys.readouterr()
    assert is_clean(out)
    assert len(out.splitlines()) == 1 + 5


def test_a_folder_with_such_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile_runs(tmp_path / EVIL.replace("/", "-"))
    for words in (["status"], ["list", "runs"]):
        main([*words, str(tmp_path)])
        out, _ = capsys.readouterr()
        assert is_clean(out)


def test_a_comparison_and_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = write_runs(
        tmp_path / "runs", [FakeArm(EVIL, [0.5, 0.6], roles=(EVIL, "student")), FakeArm("b", [0.5] * 2)]
    )
    main(["report", str(tmp_path / "runs")])
    out, err = capsys.readouterr()
    assert is_clean(out)
    (folders[0] / "evaluation.json").write_text(json.dumps({"instruments": {"accuracy": EVIL, EVIL: EVIL}}))
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "runs")])
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert not OBEYED.search(err)


def on_a_terminal(width: int = 100) -> SafeConsole:
    return SafeConsole(force_terminal=True, color_system="standard", width=width, file=StringIO(), _environ={})


def test_colours_of_our_own_still_reach_a_terminal(tmp_path: Path) -> None:
    console = on_a_terminal()
    console.print(Text(EVIL, style="red"), f"[green]{'yes'}[/]")
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m" in printed
    assert "\x1b[32myes\x1b[0m" in printed
    left = re.sub("\x1b\\[[0-9;]*m", "", printed)
    assert "\\x1b[2J" in left
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", left)


def test_tables_on_a_terminal(tmp_path: Path) -> None:
    console = on_a_terminal(200)
    runs = write_runs(tmp_path, [FakeArm(EVIL, [0.5, 0.6]), FakeArm("b", [0.5, 0.4])])
    console.print(*map(rich_table, comparison_tables(compare_runs(runs))))
    left = re.sub("\x1b\\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]
    assert is_clean(left)
    assert not re.search(r"^\s*spacedkd: all", left, re.MULTILINE)


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = on_a_terminal(200)
    monkeypatch.setattr(progress, "console", console)
    moment = Event(1, 9, EVIL, 1.0, 0.5, "", 1, 5, 2.0, {EVIL: 1.0}, 0.1, 10.0, 5.0)
    with jobs_progress(2) as tell_job:
        tell_job(SimpleNamespace(label=EVIL, seed=0), moment)  # type: ignore[arg-type]
        tell_job(SimpleNamespace(label="b", seed=0), Event(1, 9, "student", 1.0, None, EVIL))  # type: ignore[arg-type]
    with work_progress(EVIL) as show, show(EVIL, 3) as advance:
        advance(1)
    bars = RoleBars()
    bars.update(moment, f"{EVIL} 1.0")
    bars.update(Event(1, 9, EVIL, 1.0, None, EVIL), "")
    console.print(bars)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    own = r"\x1b\[(\d*(;\d+)*m|\?25[lh]|\dA|2K|1A)|\r"  # colours, the cursor, and a line of a bar drawn again
    left = re.sub(own, "", printed)
    assert is_clean(left)
    assert left.count("\\x1b[2J") >= 6
