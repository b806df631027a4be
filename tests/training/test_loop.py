"""The loop and the order of its callbacks, on which guarantees rest."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spacedkd import RunSpec, Spaced, UserError, train
from spacedkd.runs.checkpoint import Position
from spacedkd.runs.folder import RunFolder
from spacedkd.schedule import Turn
from spacedkd.timeline import Block, Timeline
from spacedkd.training import Event
from spacedkd.training.loggers import Loggers
from spacedkd.training.loop import Callback, StepResult, training_loop
from spacedkd.training.session import Session
from tests.training.stepping import ready

ROLES = ("teacher", "student")


class Trained:
    """A role that learns nothing, and writes down what it is asked."""

    def __init__(self, calls: list[str], waits: int = 0) -> None:
        self.calls, self.waits = calls, waits

    def begin(self, block: Block, previous: str) -> Any:
        self.calls.append(f"begin {block.role} {block.start} after {previous or 'nobody'}")
        return iter(["waiting"] * self.waits)

    def turns(self, block: Block) -> Any:
        return block

    def step(self, turn: Turn, batches: Any) -> StepResult:
        self.calls.append(f"step {turn.role} {turn.step}")
        return StepResult({}, 0.1, 8)

    def evaluate(self, turn: Turn) -> Any:
        return iter([(turn.role, {"test": {"final": 0.5}})])

    def finish(self) -> Any:
        return iter(())


class Replayed(Trained):
    """A role that takes no turns."""

    def turns(self, block: Block) -> Any:
        return ()


class Stop:
    """Stops after so many polls."""

    def __init__(self, after: int = 1000) -> None:
        self.after = after

    def poll(self) -> bool:
        self.after -= 1
        return self.after <= 0

    poll_waiting = poll


class Written(Callback):
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def on_wait(self, turn: Turn | None, waiting: str) -> None:
        self.calls.append("wait at the end" if turn is None else f"wait before {turn.role} {turn.step}")

    def on_evaluate(self, turn: Turn, model: str, scores: Any) -> None:
        self.calls.append(f"evaluate {model} {turn.step}")

    def on_stop(self) -> None:
        self.calls.append("stop")

    def on_end(self) -> None:
        self.calls.append("end")


def run(calls: list[str], position: Position, stop: Stop | None = None, **roles: Any) -> list[Turn]:
    timeline = Timeline(ROLES, Spaced("2st").turns(ROLES, range(3)), ROLES)
    plan: Any = SimpleNamespace(timeline=timeline, evaluates=lambda turn: turn.step == 2)
    return [*training_loop(plan, position, roles, iter(()), Written(calls), stop or Stop())]


def test_blocks_are_taken_in_turn() -> None:
    calls: list[str] = []
    position = Position()
    turns = run(calls, position, teacher=Trained(calls), student=Trained(calls))
    assert turns == [*Spaced("2st").turns(ROLES, range(3))]
    assert calls == [
        "begin teacher 0 after nobody",
        "step teacher 0",
        "step teacher 1",
        "begin student 2 after teacher",
        "step student 0",
        "step student 1",
        "begin teacher 4 after student",
        "step teacher 2",
        "evaluate teacher 2",
        "begin student 5 after teacher",
        "step student 2",
        "evaluate student 2",
        "end",
    ]
    assert (position.turns, position.role) == (6, "student")


def test_a_block_is_resumed_in_its_middle() -> None:
    calls: list[str] = []
    run(calls, Position(turns=3, role="student"), teacher=Trained(calls), student=Trained(calls))
    assert calls[:2] == ["begin student 3 after student", "step student 1"]


def test_a_replayed_role_takes_no_turns_and_the_position_stays_at_the_last_turn_that_was_taken() -> None:
    calls: list[str] = []
    position = Position()
    turns = run(calls, position, teacher=Replayed(calls), student=Trained(calls))
    assert turns == [("student", 0), ("student", 1), ("student", 2)]
    assert position.turns == 6
    position = Position()
    assert run([], position, Stop(2), teacher=Replayed([]), student=Trained([])) == [("student", 0), ("student", 1)]
    assert (position.turns, position.role) == (4, "student")


def test_a_run_stops_after_a_turn_and_while_it_waits() -> None:
    calls: list[str] = []
    position = Position()
    run(calls, position, Stop(1), teacher=Trained(calls), student=Trained(calls))
    assert calls == ["begin teacher 0 after nobody", "step teacher 0", "stop"]
    assert position.turns == 1
    calls, position = [], Position()
    run(calls, position, Stop(2), teacher=Replayed(calls), student=Trained(calls, waits=5))
    assert calls[-3:] == ["wait before student 0", "wait before student 0", "stop"]
    assert position.turns == 0, "what was not loaded counts as not done"


def test_a_run_that_is_asked_to_stop_at_its_last_turn_is_finished(tmp_path: Path, tiny: RunSpec) -> None:
    calls: list[str] = []
    run(calls, Position(), Stop(6), teacher=Trained(calls), student=Trained(calls))
    assert calls[-1] == "end"
    events: list[Event] = []
    spec = replace(tiny, epochs=1)
    finished = train(spec, tmp_path / "run", callback=events.append, stop=lambda: events[8:] != [])
    assert finished.cost["updates"] == len(events) == 10


def test_a_lack_of_memory_while_it_is_saved_is_one_line(
    tmp_path: Path, tiny: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*given: object, **named: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr("spacedkd.runs.checkpoint.save", save)
    with pytest.raises(UserError, match=r"Out of memory at step 3 of the teacher"):
        train(tiny, tmp_path / "run")


def test_only_the_first_process_tells_loggers_of_a_replayed_teacher(tiny: RunSpec) -> None:
    told: list[Any] = []
    logger = SimpleNamespace(log_metrics=lambda *given: told.append(given), log_hyperparams=lambda params: None)
    session = Session(ready(tiny), RunFolder(Path("nowhere")), Loggers((), [logger]))
    next(session.turns())
    entry = {"event": "skipped", "turn": 1, "role": "teacher", "step": 0, "epoch": 0.2, "not_finite": "loss"}
    session.journal.add(entry)
    assert told == []


def test_the_callbacks_of_a_run_have_one_order(tiny: RunSpec) -> None:
    session = Session(ready(tiny), RunFolder(Path("nowhere")))
    next(session.turns())
    assert [type(callback).__name__ for callback in session.callbacks.callbacks] == [
        "Guard",  # what has diverged is neither logged nor saved
        "Cost",
        "Timer",
        "JournalCallback",
        "Loggers",
        "BestStudent",
        "RecordingCallback",  # with the journal up to its snapshot
        "TargetsCallback",
        "CheckpointCallback",  # after these three, which it says are there
        "ProgressCallback",
        "Heartbeat",
        "UserCallback",  # who is told of a turn can rely on what was saved
        "ResultCallback",  # last of all
    ]


def test_the_documentation_shows_the_loop_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    shown = page.partition("```python\n")[2].partition("```")[0]
    source = inspect.getsource(training_loop)
    lines = [line.partition("  # ")[0].strip() for line in shown.splitlines()]
    code = [line.partition("  # ")[0].strip() for line in source.splitlines()]
    start = code.index("for block in run.timeline.blocks(after=position.turns):")
    assert lines[0] == "previous = position.role"
    assert lines[1:] == code[start : start + len(lines) - 1]


@pytest.mark.parametrize("fails_at", [1, 7])
@pytest.mark.parametrize("error", [ZeroDivisionError("of the user"), MemoryError("of the user"), StopIteration()])
def test_what_a_user_s_callback_raises_is_left_alone(
    tmp_path: Path, tiny: RunSpec, fails_at: int, error: Exception
) -> None:
    def callback(event: Any) -> None:
        if event.turn == fails_at:
            raise error

    with pytest.raises(type(error)) as raised:
        train(replace(tiny, epochs=1), tmp_path / "run", callback=callback)
    assert raised.value is error
