"""How often each verdict of `spacedkd reproduce` comes out, where the truth is known.

    python -m benchmarks.verdict_rates

Runs are drawn instead of trained: ours paired by seed, the paper's three repeats not. Both scatter as ResNet-18 on
CIFAR-100 does at the scale cpu: online and spaced KD by 0.62 points over seeds, their difference paired by seed by
0.45.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from spacedkd.evaluation.statistics import paired_difference
from spacedkd.paper.verdict import REPEATS, VERDICTS, Reported, judge, reported_error

OF_RUNS = 0.62
"""deviation of a run's accuracy over seeds, in points"""
OF_DIFFERENCES = 0.45
"""deviation of a difference of two arms paired by seed, in points"""


class Case(NamedTuple):
    """A truth at our scale, and a truth at the paper's or a number that it prints, in points."""

    name: str
    ours: float
    paper: float
    seeds: int = 6
    printed: bool = False
    """whether the paper prints its truth exactly; otherwise the mean of three repeats"""


CASES = (
    Case("the paper is right, and prints exactly 0.25", 0.25, 0.25, printed=True),
    Case("the paper is right: 0.25", 0.25, 0.25),
    Case("the paper is right: 0.25, three seeds", 0.25, 0.25, seeds=3),
    Case("the paper is right: 0.25, two seeds", 0.25, 0.25, seeds=2),
    Case("the paper is right: 1.38", 1.38, 1.38),
    Case("no effect, the paper prints exactly 0.25", 0.0, 0.25, printed=True),
    Case("no effect, the paper prints exactly 1.38", 0.0, 1.38, printed=True),
    Case("the opposite effect, the paper prints exactly 0.25", -0.25, 0.25, printed=True),
    Case("the opposite effect, the paper prints exactly 1.38", -1.38, 1.38, printed=True),
)


def rates(case: Case, draws: int, seed: int = 0) -> dict[str, float]:
    """Return the share of each verdict; a printed number that has the wrong sign by chance is drawn again."""
    counts = Counter(_verdicts(case, draws, np.random.default_rng(seed)))
    return {verdict: counts[verdict] / draws for verdict in VERDICTS}


def _verdicts(case: Case, draws: int, chance: np.random.Generator) -> Iterator[str]:
    own = OF_DIFFERENCES / math.sqrt(2)  # what a run has for itself; the rest is the seed's, which both arms share
    shared = math.sqrt(OF_RUNS**2 - own**2)
    for _ in range(draws):
        of_seeds = chance.normal(0, shared, case.seeds)
        reference = of_seeds + chance.normal(0, own, case.seeds)
        arm = of_seeds + chance.normal(case.ours, own, case.seeds)
        paper = case.paper
        while not case.printed and (paper := _printed(case, chance)) * case.paper <= 0:
            pass
        gain = paired_difference(dict(enumerate(arm.tolist())), dict(enumerate(reference.tolist())))
        assert gain is not None
        yield judge(gain, Reported(paper, reported_error(arm.tolist(), reference.tolist())), "gain").verdict


def _printed(case: Case, chance: np.random.Generator) -> float:
    return float(chance.normal(case.paper, OF_RUNS, REPEATS).mean() - chance.normal(0, OF_RUNS, REPEATS).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of verdicts where the truth is known.")
    parser.add_argument("--draws", type=int, default=20_000)
    draws = parser.parse_args().draws
    print(f"| truth | {' | '.join(VERDICTS)} |")
    print(f"|---|{'---:|' * len(VERDICTS)}")
    for case in CASES:
        shares = rates(case, draws)
        print(f"| {case.name} | {' | '.join(f'{100 * shares[verdict]:.1f} %' for verdict in VERDICTS)} |")


if __name__ == "__main__":
    main()
