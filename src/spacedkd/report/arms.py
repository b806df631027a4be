"""The arms of a comparison, each with its runs and the colours of its roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spacedkd.report.formatting import Found
from spacedkd.runs.result import Run, read_run


@dataclass(frozen=True)
class Arm:
    """The runs that differ only in their seed, with their numbers in the comparison."""

    label: str
    numbers: Found
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """The first run, which stands for all where the seed does not matter."""
        return self.runs[0]

    @property
    def by_seed(self) -> Mapping[int, float]:
        """The student's last accuracy of each seed."""
        return {run.seed: run.student() for run in self.runs}


def read_arms(comparison: Found) -> list[Arm]:
    """Read the arms in the comparison's order, each with its runs by seed."""
    return [
        Arm(arm["label"], arm, [read_run(run["folder"]) for run in sorted(arm["runs"], key=lambda run: run["seed"])])
        for arm in comparison["arms"]
    ]


def role_colours(roles: Sequence[str]) -> dict[str, str]:
    """Return the style class of each role, by its place in the chain.

    >>> role_colours(["mentor", "helper", "pupil"]), role_colours(["alone"])
    ({'mentor': 'leader', 'helper': 'middle-1', 'pupil': 'student'}, {'alone': 'student'})
    """
    middle = [f"middle-{index % 2 + 1}" for index in range(len(roles) - 2)]
    return dict(zip(roles, ["leader", *middle, "student"][-len(roles) :], strict=True))


def role_legend(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Return every role of the page with its class, leaders first."""
    pairs = dict.fromkeys(pair for arm in arms for pair in role_colours(arm.first.roles).items())
    return sorted(pairs, key=lambda pair: ("leader", "middle-1", "middle-2", "student").index(pair[1]))
