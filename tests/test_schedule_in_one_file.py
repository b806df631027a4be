"""A schedule is one class in one file and an entry in SCHEDULES: all else follows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from spacedkd import RunSpec, Spaced, UserError
from spacedkd.cli import main
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import to_spec
from spacedkd.comparison.document import read_arms
from spacedkd.comparison.results import compare_runs
from spacedkd.config.serialization import from_json, to_json
from spacedkd.reporting.schedules import schedule_section
from spacedkd.schedule import SCHEDULES, BaseSchedule, Schedule, Turn, Window, describe_schedule, interval_of
from spacedkd.timeline import TeacherUpdates
from tests.reporting.fake_runs import FakeArm, write_runs


@dataclass(frozen=True)
class Widening(BaseSchedule):
    """Blocks of `start` steps, each `grow` steps longer than the one before."""

    start: int = 2
    grow: int = 1

    examples: ClassVar[Mapping[str, str]] = {"--interval widening": "blocks that widen"}

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        first, size = 0, self.start
        while first < len(steps):
            yield from (Turn(role, step) for role in roles for step in steps[first : first + size])
            first, size = first + size, size + self.grow

    def describe(self) -> str:
        return f"widening from {self.start} by {self.grow}"


@dataclass(frozen=True)
class Bare:
    """One block after the other."""

    size: int = 3

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        return Spaced(self.size).turns(roles, steps)


@pytest.fixture(autouse=True)
def _entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "widening", Widening)
    monkeypatch.setitem(SCHEDULES, "bare", Bare)


def test_it_is_in_the_list_of_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "schedules"])
    lines = capsys.readouterr().out.splitlines()
    assert any("--interval widening" in line and "blocks that widen" in line for line in lines)
    assert any("--interval bare" in line and "One block after the other." in line for line in lines)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("--interval widening", Widening()),
        ("--interval widening --set schedule.start=5", Widening(start=5)),
        ("--interval bare --set schedule.size=7", Bare(7)),
        ("--interval widening --window 1ep..2ep", Window(Widening(), "online", "1ep", "2ep")),  # type: ignore[arg-type]
    ],
)
def test_the_command_line_takes_it(words: str, schedule: Schedule) -> None:
    assert to_spec(parse(words.split())).schedule == schedule


def test_it_may_have_a_file_of_its_own_which_is_imported_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "alternating.py").write_text(
        "from dataclasses import dataclass\n\n"
        "from spacedkd.schedule import BaseSchedule, Spaced\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Alternating(BaseSchedule):\n"
        "    size: int = 2\n\n"
        "    def turns(self, roles, steps):\n"
        "        return Spaced(self.size).turns(roles, steps)\n"
    )
    code = (
        "import sys\n"
        "from spacedkd.schedule import SCHEDULES\n"
        "SCHEDULES['alternating'] = 'alternating:Alternating'\n"
        "from spacedkd import RunSpec, Spaced\n"
        "from spacedkd.config.serialization import from_json, to_json\n"
        "assert to_json(Spaced(1))['kind'] == 'spaced' and 'alternating' not in sys.modules\n"
        "plain = {'schedule': {'kind': 'alternating', 'size': 3}}\n"
        "spec = from_json(RunSpec, plain)\n"
        "assert to_json(spec)['schedule'] == plain['schedule']\n"
        "assert RunSpec(schedule='alternating').schedule == sys.modules['alternating'].Alternating(2)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_its_options_are_checked() -> None:
    with pytest.raises(UserError, match="strat"):
        to_spec(parse("--interval widening --set schedule.strat=5".split()))
    with pytest.raises(UserError, match="tail"):
        to_spec(parse("--interval widening --tail drop".split()))


def test_a_spec_survives_json() -> None:
    spec = RunSpec(schedule=Widening(grow=4))
    plain = json.loads(json.dumps(to_json(spec)))
    assert plain["schedule"] == {"kind": "widening", "start": 2, "grow": 4}
    assert from_json(RunSpec, plain) == spec
    assert RunSpec(schedule="widening").schedule == Widening()  # type: ignore[arg-type]
    assert to_json(Bare()) == {"kind": "bare", "size": 3}


def test_its_words_and_the_defaults_of_what_it_does_not_say() -> None:
    assert describe_schedule(Widening()) == "widening from 2 by 1"
    assert describe_schedule(Bare()) == "Bare"
    assert interval_of(Widening()) is None
    assert interval_of(Bare()) is None


@pytest.mark.parametrize(
    ("schedule", "updates"), [(Widening(), [2, 2, 5, 5, 5, 9, 9, 9, 9]), (Bare(4), [4, 4, 4, 4, 8, 8, 8, 8, 9])]
)
def test_the_teacher_that_each_step_sees(schedule: Schedule, updates: list[int]) -> None:
    seen = TeacherUpdates(schedule, total=9)
    assert [seen.at(step) for step in range(9)] == updates


def test_the_report_draws_it(tmp_path: Path) -> None:
    folders = write_runs(tmp_path, [FakeArm("mine", [0.7], schedule=Widening(start=10, grow=10))])
    page = "".join(schedule_section(read_arms(compare_runs(folders))))
    assert "widening from 10 by 10" in page
    assert page.count('class="band leader"') == page.count('class="band student"') == 2  # legend and picture
