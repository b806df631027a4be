"""The turns of a run, as its schedule and its roles have them."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from spacedkd.errors import unknown
from spacedkd.schedule import ReleasedSelfKD, Schedule, Turn
from spacedkd.schedule import turns_of as schedule_turns


class Turns:
    """All turns of a run, walked once and kept small: a run on ImageNet has millions."""

    def __init__(
        self, roles: Sequence[str], turns: Iterable[Turn], kept: Sequence[str], looks: Mapping[Turn, Turn] | None = None
    ) -> None:
        """Those of the roles that are `kept`."""
        self.looks = looks or {}
        """turns that are forward passes alone, each by the turn it comes right before"""
        self._roles = roles
        self._places, self._steps = array("H"), array("q")
        place = {role: number for number, role in enumerate(roles)}
        for role, step in turns:
            if role not in place:
                raise unknown("role in the schedule's turns", role, roles)
            if role not in kept:
                continue
            self._places.append(place[role])
            self._steps.append(step)

    def __len__(self) -> int:
        return len(self._steps)

    def counts(self) -> dict[str, int]:
        """How many turns each role has."""
        return {role: self._places.count(place) for place, role in enumerate(self._roles)}

    def ends(self) -> dict[str, int]:
        """How many batches of the run each role comes to, of which it may leave out some."""
        found = dict.fromkeys(self._roles, 0)
        for role, step in self.after(0):
            found[role] = max(found[role], step + 1)
        return found

    def led(self) -> dict[str, Sequence[int]]:
        """The leader's last step at each step of those that follow it; of the first at the least."""
        stands, found = 0, {role: array("q") for role in self._roles[1:]}
        for role, step in self.after(0):
            if role == self._roles[0]:
                stands = step
            else:
                found[role].extend([stands] * (step + 1 - len(found[role])))
                found[role][step] = stands
        return {**found}

    def is_replay(self, turn: Turn) -> bool:
        """Whether a turn belongs to a replay: its role has several turns in a row, or the leader is further already.

        >>> from spacedkd.schedule import Ahead, Spaced
        >>> roles = ("teacher", "student")
        >>> def replays(schedule: Schedule) -> list[bool]:
        ...     turns = Turns(roles, schedule.turns(roles, range(5)), roles)
        ...     return [turns.is_replay(Turn("student", step)) for step in range(5)]
        >>> replays(Spaced("1st")), replays(Spaced("2st"))
        ([False, False, False, False, False], [True, True, True, True, False])
        >>> replays(Ahead("0st")), replays(Ahead("1st"))
        ([False, False, False, False, False], [True, True, True, True, True])
        """
        return turn.role in self._replays and bool(self._replays[turn.role][turn.step])

    @cached_property
    def _replays(self) -> dict[str, bytearray]:
        """For each role that follows and each of its steps, whether that turn belongs to a replay."""
        found = {role: bytearray() for role in self._roles[1:]}
        leader, before = -1, Turn("", 0)
        for turn in self.after(0):
            role, step = turn
            if role == self._roles[0]:
                leader = step
            else:
                found[role].extend(bytes(max(0, step + 1 - len(found[role]))))
                found[role][step] = role == before.role or leader > step
                if role == before.role:
                    found[role][before.step] = True
            before = turn
        return found

    def after(self, done: int) -> Iterator[Turn]:
        """The turns that are left when so many are done."""
        for number in range(done, len(self)):
            yield Turn(self._roles[self._places[number]], self._steps[number])


def masked_by(turn: Turn, frozen_mode: str) -> tuple[str, int]:
    """What decides a turn's dropout masks; those of a shared forward pass are the same in everybody's turns."""
    return ("shared", turn.step) if frozen_mode == "shared" else turn


def turns_of(
    schedule: Schedule, roles: Sequence[str], follower_first: bool, stops: Mapping[str, int], total: int
) -> Iterator[Turn]:
    """The turns of a schedule written in steps; a role that has learned enough has no more of them."""
    order = roles[::-1] if follower_first else roles
    every = schedule_turns(schedule, order, range(total))
    return (turn for turn in every if turn.step < stops.get(turn.role, total))


def looks_of(schedule: Schedule, roles: Sequence[str], total: int) -> Mapping[Turn, Turn]:
    """Turns of a schedule written in steps that are forward passes alone, each by the turn it comes right before."""
    return schedule.looked_at(roles, range(total)) if isinstance(schedule, ReleasedSelfKD) else {}
