"""Schedules against written-out lists, the paper's toy trajectories and its bookkeeping (METHODS.md card 1)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spacedkd import Ahead, Duration, Offline, Online, Spaced, UserError
from spacedkd.schedule import (
    Blocks,
    Growing,
    ReleasedSelfKD,
    Schedule,
    Turn,
    Window,
    describe_schedule,
    in_steps,
    interval_of,
)
from spacedkd.timeline import group_turns

PAIR = ("teacher", "student")


def written(schedule: Schedule, steps: int, roles: tuple[str, ...] = PAIR) -> str:
    """Turns as text: 't0 t1 s0 s1'."""
    turns = in_steps(schedule, steps_per_epoch=2, total=steps).turns(roles, range(steps))
    return " ".join(f"{turn.role[0]}{turn.step}" for turn in turns)


@pytest.mark.parametrize(
    ("schedule", "turns"),
    [
        (Online(), "t0 s0 t1 s1 t2 s2 t3 s3"),
        (Spaced("1st"), "t0 s0 t1 s1 t2 s2 t3 s3"),
        (Spaced("2st"), "t0 t1 s0 s1 t2 t3 s2 s3"),
        (Spaced("1ep"), "t0 t1 s0 s1 t2 t3 s2 s3"),
        (Spaced("1.5ep"), "t0 t1 t2 s0 s1 s2 t3 s3"),
        (Spaced("3st", tail="drop"), "t0 t1 t2 s0 s1 s2 t3"),
        (Spaced("4st", tail="drop"), "t0 t1 t2 t3 s0 s1 s2 s3"),
        (Spaced("50%"), "t0 t1 s0 s1 t2 t3 s2 s3"),
        (Offline(), "t0 t1 t2 t3 s0 s1 s2 s3"),
        (Ahead("0st"), "t0 s0 t1 s1 t2 s2 t3 s3"),
        (Ahead("1st"), "t0 t1 s0 t2 s1 t3 s2 s3"),
        (Ahead("1ep"), "t0 t1 t2 s0 t3 s1 s2 s3"),
        (Ahead("4st"), "t0 t1 t2 t3 s0 s1 s2 s3"),
        (Window(Spaced("2st"), Online(), "1st", stop="3st"), "t0 s0 t1 t2 s1 s2 t3 s3"),
        (Window(Spaced("2st"), Online(), "1st", length="2st"), "t0 s0 t1 t2 s1 s2 t3 s3"),
        (Window(Spaced("2st"), Online(), "0st", stop="1ep"), "t0 t1 s0 s1 t2 s2 t3 s3"),
        (Window(Online(), Offline(), "50%", stop="100%"), "t0 t1 s0 s1 t2 s2 t3 s3"),
    ],
)
def test_turns_are_as_written(schedule: Schedule, turns: str) -> None:
    assert written(schedule, 4) == turns


@pytest.mark.parametrize(
    ("schedule", "turns"),
    [
        (Spaced("2st", speed=1), "t0 t1 s0 s1 t2 t3 s2 s3 t4 t5 s4 s5 t6 s6"),
        (Spaced("2st", speed=2), "t0 t1 t2 t3 s0 s1 t4 t5 t6 s2 s3 s4 s5 s6"),
        (Spaced("2st", speed=1.5), "t0 t1 t2 s0 s1 t3 t4 t5 s2 s3 t6 s4 s5 s6"),
        (Spaced("3st", speed=1.5), "t0 t1 t2 t3 s0 s1 s2 t4 t5 t6 s3 s4 s5 s6"),
        (Spaced("1st", speed=1.5), "t0 s0 t1 t2 s1 t3 s2 t4 t5 s3 t6 s4 s5 s6"),
        (Spaced("1st", speed=3), "t0 t1 t2 s0 t3 t4 t5 s1 t6 s2 s3 s4 s5 s6"),
        (Spaced("2st", speed=math.inf), "t0 t1 t2 t3 t4 t5 t6 s0 s1 s2 s3 s4 s5 s6"),
        (Spaced("1ep", speed="inf"), "t0 t1 t2 t3 t4 t5 t6 s0 s1 s2 s3 s4 s5 s6"),
        (Spaced("7st", speed=2), "t0 t1 t2 t3 t4 t5 t6 s0 s1 s2 s3 s4 s5 s6"),
        (Spaced("2st", "drop", 2), "t0 t1 t2 t3 s0 s1 t4 t5 t6 s2 s3 s4 s5"),
        (Spaced("3st", "drop", 2), "t0 t1 t2 t3 t4 t5 s0 s1 s2 t6 s3 s4 s5"),
        (Spaced("5st", "drop", 1.2), "t0 t1 t2 t3 t4 t5 s0 s1 s2 s3 s4 t6"),
        (Spaced("2st", "drop", math.inf), "t0 t1 t2 t3 t4 t5 t6 s0 s1 s2 s3 s4 s5"),
        (Window(Spaced("1st", speed=2), Online(), "1st", stop="5st"), "t0 s0 t1 t2 s1 t3 t4 s2 s3 s4 t5 s5 t6 s6"),
        (Blocks(["1st", "2st", "3st"]), "t0 s0 t1 t2 s1 s2 t3 t4 t5 s3 s4 s5 t6 s6"),
        (Blocks([3, 1]), "t0 t1 t2 s0 s1 s2 t3 s3 t4 s4 t5 s5 t6 s6"),
        (Blocks([1, "2ep"]), "t0 s0 t1 t2 t3 t4 s1 s2 s3 s4 t5 t6 s5 s6"),
        (Blocks([2, 2, 2, 1, 5]), "t0 t1 s0 s1 t2 t3 s2 s3 t4 t5 s4 s5 t6 s6"),
        (Growing("1st"), "t0 s0 t1 t2 s1 s2 t3 t4 t5 t6 s3 s4 s5 s6"),
        (Growing(1, 3), "t0 s0 t1 t2 t3 s1 s2 s3 t4 t5 t6 s4 s5 s6"),
        (Growing("2ep", 0.5), "t0 t1 t2 t3 s0 s1 s2 s3 t4 t5 s4 s5 t6 s6"),
        (Growing(2, 0.1), "t0 t1 s0 s1 t2 s2 t3 s3 t4 s4 t5 s5 t6 s6"),
        (Growing(2, 1.5), "t0 t1 s0 s1 t2 t3 t4 s2 s3 s4 t5 t6 s5 s6"),
    ],
)
def test_turns_with_a_speed_and_with_blocks_of_any_lengths(schedule: Schedule, turns: str) -> None:
    assert written(schedule, 7) == turns


CHAIN = ("teacher", "assistant", "student")


def test_each_role_of_a_chain_is_faster_than_the_one_after_it() -> None:
    assert written(Spaced("1st", speed=2), 6, CHAIN) == "t0 t1 t2 t3 a0 a1 s0 t4 t5 a2 a3 s1 a4 a5 s2 s3 s4 s5"
    assert (
        written(Spaced("2st", speed=1.5), 7, CHAIN) == "t0 t1 t2 t3 a0 a1 a2 s0 s1 t4 t5 t6 a3 a4 a5 s2 s3 a6 s4 s5 s6"
    )
    assert written(Spaced("2st", speed=math.inf), 3, CHAIN) == "t0 t1 t2 a0 a1 a2 s0 s1 s2"
    assert written(Spaced("2st", "drop", 2), 5, CHAIN) == "t0 t1 t2 t3 t4 a0 a1 a2 a3 s0 s1 a4 s2 s3"
    assert written(Blocks([1, 2]), 3, CHAIN) == "t0 a0 s0 t1 t2 a1 a2 s1 s2"
    assert written(Growing(1, 2), 3, CHAIN) == "t0 a0 s0 t1 t2 a1 a2 s1 s2"


def test_any_speed_takes_as_many_turns_and_one_role_alone_just_learns() -> None:
    for schedule in (Spaced("3st", speed=1.3), Spaced("1st", speed=7), Spaced("4st", speed="inf")):
        turns = written(schedule, 11).split()
        assert sorted(turns) == sorted(f"{role}{step}" for role in "ts" for step in range(11))
        assert written(schedule, 4, ("student",)) == "s0 s1 s2 s3"


def test_a_speed_of_one_is_the_schedule_without_one() -> None:
    assert Spaced("1.5ep", speed=1) == Spaced("1.5ep") == Spaced("1.5ep", "teach", 1.0)
    assert Spaced("1.5ep", speed=2) != Spaced("1.5ep")


@pytest.mark.parametrize(
    ("schedule", "words", "interval"),
    [
        (Spaced("1.5ep", speed=2), "spaced 1.5ep, speed 2", None),
        (Spaced("1.5ep", speed=1.25), "spaced 1.5ep, speed 1.25", None),
        (Spaced("1st", speed=4), "online, speed 4", None),
        (Spaced("1.5ep", "drop", "inf"), "spaced 1.5ep, speed inf, tail dropped", None),
        (Spaced("1.5ep", "drop"), "spaced 1.5ep, tail dropped", "1.5ep"),
        (Blocks(["1ep", "2ep", "4ep"]), "blocks of 1ep, 2ep, 4ep", None),
        (Blocks(["1ep", "2ep", "3ep", "4ep", "5ep"]), "blocks of 1ep, 2ep, 3ep, ..., 5ep", None),
        (Blocks(["2ep", "2ep"]), "blocks of 2ep", "2ep"),
        (Growing("0.5ep", 2), "blocks from 0.5ep, each 2 times the one before", None),
        (Growing("4ep", 1), "blocks from 4ep, each 1 times the one before", "4ep"),
    ],
)
def test_words_and_the_interval_that_all_blocks_have(schedule: Schedule, words: str, interval: str | None) -> None:
    assert describe_schedule(schedule) == words
    assert interval_of(schedule) == (None if interval is None else Duration.parse(interval))


@pytest.mark.parametrize("speed", [0.5, 0, -1, math.nan, -math.inf, "fast", "2", None, True, [2], 1e7, 10**400])
def test_what_is_no_speed_is_refused(speed: Any) -> None:
    with pytest.raises(UserError, match="speed must be a number from 1") as error:
        Spaced("1ep", speed=speed)
    assert "\n" not in str(error.value)


def test_offline_has_no_speed() -> None:
    with pytest.raises(UserError, match="leave out"):
        Spaced("100%", speed=2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Blocks([]), "one length or more"),
        (lambda: Blocks("1ep"), "a list of lengths, got '1ep'"),
        (lambda: Blocks(3), "a list of lengths, got 3"),
        (lambda: Blocks(["1ep", 0]), "at least one step each"),
        (lambda: Blocks(["1ep", "soon"]), "Cannot read 'soon'"),
        (lambda: Growing(0), "at least one step"),
        (lambda: Growing(1, 0), "factor must be a number above 0"),
        (lambda: Growing(1, -2), "factor must be"),
        (lambda: Growing(1, math.nan), "factor must be"),
        (lambda: Growing(1, math.inf), "factor must be"),
        (lambda: Growing(1, "2"), "factor must be"),
        (lambda: in_steps(Blocks(["1ep", "9ep"]), 2, 7), "Lengths: 9ep is longer than the run"),
        (lambda: in_steps(Blocks(["0.1ep"]), 2, 7), "less than one step"),
        (lambda: in_steps(Growing("9ep"), 2, 7), "First: 9ep is longer than the run"),
    ],
)
def test_blocks_of_nothing_or_longer_than_the_run_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make()


def test_blocks_of_one_length_are_spaced() -> None:
    for total in (1, 6, 7):
        assert written(Blocks([3]), max(total, 3)) == written(Spaced(3), max(total, 3))
        assert written(Growing(3, 1), max(total, 3)) == written(Spaced(3), max(total, 3))


def test_a_chain_replays_each_block_role_by_role() -> None:
    assert written(Spaced("2st"), 3, ("teacher", "assistant", "student")) == "t0 t1 a0 a1 s0 s1 t2 a2 s2"
    assert written(Ahead("1st"), 3, ("teacher", "assistant", "student")) == "t0 t1 a0 t2 a1 s0 a2 s1 s2"
    assert written(Spaced("2st", tail="drop"), 3, ("teacher", "assistant", "student")) == "t0 t1 a0 a1 s0 s1 t2"


def test_one_role_alone_just_learns() -> None:
    for schedule in (Online(), Spaced("3st"), Offline(), Ahead("2st")):
        assert written(schedule, 4, ("student",)) == "s0 s1 s2 s3"


@pytest.mark.parametrize(
    ("epochs", "interval", "replays", "tail"),
    [("0.5ep", 195, 160, 80), ("1ep", 391, 80, 0), ("1.5ep", 586, 53, 222), ("2ep", 782, 40, 0), ("4ep", 1564, 20, 0)],
)
def test_bookkeeping_of_eighty_epochs(epochs: str, interval: int, replays: int, tail: int) -> None:
    """Card 1, G2."""
    total = 80 * 391
    dropped = in_steps(Spaced(epochs, tail="drop"), 391, total)
    turns = list(dropped.turns(PAIR, range(total)))
    blocks = [block for block in group_turns(turns) if block.role == "student"]
    assert {len(block) for block in blocks} == {interval}
    assert len(blocks) == replays
    assert [turn.step for turn in turns if turn.role == "teacher"] == list(range(total))
    assert total - sum(turn.role == "student" for turn in turns) == tail
    taught = in_steps(Spaced(epochs), 391, total)
    assert [turn.step for turn in taught.turns(PAIR, range(total)) if turn.role == "student"] == list(range(total))


@pytest.mark.parametrize(
    ("rate", "interval", "replays", "replayed", "first"),
    [("0.5ep", 195, 161, 31201, 1), ("1.5ep", 586, 53, 30863, 391), ("4ep", 1564, 20, 30107, 391)],
)
def test_bookkeeping_of_the_released_self_kd_code(
    rate: str, interval: int, replays: int, replayed: int, first: int
) -> None:
    """PAPER_VS_CODE.md, section 4.4."""
    total = 80 * 391
    schedule = in_steps(ReleasedSelfKD(rate), 391, total)
    turns = list(schedule.turns(PAIR, range(total)))
    student = [turn.step for turn in turns if turn.role == "student"]
    assert student == list(range(replayed))
    triggers = set(range(total)) - {turn.step for turn in turns if turn.role == "teacher"}
    assert len(triggers) == replays
    assert sorted(triggers)[0] == first - 1
    assert {b - a for a, b in zip(sorted(triggers), sorted(triggers)[1:], strict=False)} == {interval}


def test_what_the_released_self_kd_code_looks_at() -> None:
    """Batches 2, 5 and 8 of nine trigger; each goes forward right before the first batch of the block it ends."""
    schedule = in_steps(ReleasedSelfKD("3st", looks=True), 2, 9)
    assert written(schedule, 9) == "t0 s0 s1 t2 t3 s2 s3 s4 t5 t6 s5 s6 s7 t8"
    looks = {f"s{before.step}": f"t{look.step}" for before, look in schedule.forward_only_turns(PAIR, range(9)).items()}
    assert looks == {"s0": "t1", "s2": "t4", "s5": "t7"}
    assert ReleasedSelfKD("3st", "2st").forward_only_turns(PAIR, range(9)) == {}


def test_first_replay_at_one_and_a_half_epochs_comes_after_batch_195_of_epoch_2() -> None:
    steps = in_steps(Spaced("1.5ep"), 391, 80 * 391).turns(PAIR, range(80 * 391))
    led = 0
    while next(steps).role == "teacher":
        led += 1
    assert divmod(led, 391) == (1, 195)


SAMPLES = [(1.0, 1.0), (2.0, 2.0), (1.0, 3.0), (3.0, 2.0)]


def toy(schedule: Schedule, roles: tuple[str, ...] = PAIR) -> tuple[float, float]:
    """Final weights of teacher and student, two linear models with squared error (card 1, G1)."""
    weight = {"teacher": 0.0, "student": 0.0}
    for role, step in schedule.turns(roles, range(4)):
        x, y = SAMPLES[step]
        gap = weight[role] * x - y
        if role == "student":
            gap = 0.7 * gap + 0.3 * (weight["student"] - weight["teacher"]) * x
        weight[role] -= 0.1 * gap * x
    return weight["teacher"], weight["student"]


@pytest.mark.parametrize(
    ("schedule", "student"),
    [
        (Online(), 0.65853),
        (Spaced("2st"), 0.6589854),
        (Spaced("3st", tail="drop"), 0.6098988),
        (Spaced("3st"), 0.66226788),
        (Spaced("4st"), 0.661610988),
    ],
)
def test_toy_trajectories(schedule: Schedule, student: float) -> None:
    assert toy(schedule) == pytest.approx((0.6714, student), abs=1e-12)


def test_teaching_before_the_teacher_has_learned_the_batch_is_the_other_order_of_roles() -> None:
    """Card 1's online_pre: what the paper's CNN code does for interval 0."""
    assert toy(Online(), ("student", "teacher")) == pytest.approx((0.6714, 0.66522), abs=1e-12)


def test_the_student_sees_the_teacher_of_the_end_of_the_block() -> None:
    """k(t) = ceil(t/s) s, counting steps from 1."""
    updates, seen = 0, {}
    for turn in Spaced("3st").turns(PAIR, range(12)):
        if turn.role == "teacher":
            updates += 1
        else:
            seen[turn.step + 1] = updates
    assert seen == {t: -(-t // 3) * 3 for t in range(1, 13)}


@pytest.mark.parametrize("speed", [1, 1.1, 1.25, 2, 3.7])
def test_the_student_sees_the_teacher_of_the_faster_trajectory(speed: float) -> None:
    """k(t) = min(T, floor(ceil(t/s) s v)), counting steps from 1; 10 * 1.1 and 20 * 1.15 are whole."""
    updates, seen, total = 0, {}, 50
    for turn in Spaced("10st", speed=speed).turns(PAIR, range(total)):
        if turn.role == "teacher":
            updates += 1
        else:
            seen[turn.step + 1] = updates
    hundredths = round(100 * speed)
    assert seen == {t: min(total, -(-t // 10) * 10 * hundredths // 100) for t in range(1, total + 1)}


@pytest.mark.parametrize(
    ("text", "steps"),
    [("1.5ep", 586), ("586st", 586), ("100%", 31280), ("0.5ep", 195), ("0ep", 0), ("29%", 9071), (" 2 EP ", 782)],
)
def test_durations_in_steps(text: str, steps: int) -> None:
    assert Duration.parse(text).in_steps(391, 31280) == steps


def test_a_fraction_that_is_whole_in_decimal_stays_whole() -> None:
    assert Duration.parse("0.29ep").in_steps(100, 1000) == 29


@pytest.mark.parametrize("text", ["", "ep", "1.5", "nanep", "infst", "-1ep", "2.5st", "1.5 epochs", "1e400ep", "0x3st"])
def test_what_is_no_duration_is_said_so(text: str) -> None:
    with pytest.raises(UserError, match=r"Write|write"):
        Duration.parse(text)


@pytest.mark.parametrize("interval", [0, "0ep", "0st", "0%"])
def test_an_interval_of_nothing_is_refused(interval: str | int) -> None:
    with pytest.raises(UserError, match="at least one step"):
        Spaced(interval)


def test_an_interval_longer_than_the_run_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"Interval: 2ep is longer than the run of 10 steps \(1 epochs\): use at most 10st"
    ):
        in_steps(Spaced("2ep"), 10, 10)


def test_an_interval_shorter_than_a_step_is_refused() -> None:
    with pytest.raises(UserError, match="less than one step"):
        in_steps(Spaced("0.01ep"), 10, 100)


def test_epochs_need_to_be_turned_into_steps_first() -> None:
    with pytest.raises(UserError, match="in_steps"):
        list(Spaced("1ep").turns(PAIR, range(3)))


def test_a_window_needs_one_end_and_must_lie_in_the_run() -> None:
    with pytest.raises(UserError, match="either stop or length"):
        Window(Online(), Online(), "1st")
    with pytest.raises(UserError, match="either stop or length"):
        Window(Online(), Online(), "1st", stop="2st", length="1st")
    with pytest.raises(UserError, match="start before it stops"):
        list(Window(Online(), Online(), "3st", stop="2st").turns(PAIR, range(4)))
    with pytest.raises(UserError, match="end within the run"):
        list(Window(Online(), Online(), "3st", length="2st").turns(PAIR, range(4)))


def test_periods_are_never_shorter_than_a_step_nor_longer_than_the_run() -> None:
    assert Duration.parse("0.01ep").as_period(10, 50) == 1
    assert Duration.parse("100st").as_period(10, 50) == 50


def test_turns_need_not_start_at_zero() -> None:
    assert list(Spaced("2st").turns(("teacher",), range(4, 7))) == [Turn("teacher", step) for step in (4, 5, 6)]


def test_a_window_holds_at_least_one_interval() -> None:
    with pytest.raises(UserError, match="3 steps, fewer than one interval .4st.: lengthen the window"):
        [*Window(Spaced("4st"), Online(), "2st", length="3st").turns(("teacher", "student"), range(10))]
