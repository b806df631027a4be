"""The arms of a comparison, each with its runs and the colours of its roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spacedkd.report.formatting import Found
from spacedkd.runs.result import Run, read_run


@dataclass(frozen=True)
class Arm:
    """The runs that differ only in their seed, and what the comparison says of them."""

    label: str
    numbers: Found
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """Stands for all of them where the seed does not matter."""
        return self.runs[0]

    @property
    def by_seed(self) -> Mapping[int, float]:
        return {run.seed: run.student() for run in self.runs}


def read_arms(comparison: Found) -> list[Arm]:
    """The arms in the comparison's order, each with its runs by seed."""
    return [
        Arm(arm["label"], arm, [read_run(one["folder"]) for one in sorted(arm["runs"], key=lambda one: one["seed"])])
        for arm in comparison["arms"]
    ]


def role_colours(roles: Sequence[str]) -> dict[str, str]:
    """The style class of each role, by its place in the chain.

    >>> role_colours(["mentor", "helper", "pupil"]), role_colours(["alone"])
    ({'mentor': 'leader', 'helper': 'middle-1', 'pupil': 'student'}, {'alone': 'student'})
    """
    middle = [f"middle-{place % 2 + 1}" for place in range(len(roles) - 2)]
    return dict(zip(roles, ["leader", *middle, "student"][-len(roles) :], strict=True))


def role_legend(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Every role of the page with its class, leaders first."""
    found = dict.fromkeys(pair for arm in arms for pair in role_colours(arm.first.roles).items())
    return sorted(found, key=lambda pair: ("leader", "middle-1", "middle-2", "student").index(pair[1]))
