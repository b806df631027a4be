"""The learning rate, step by step."""

from __future__ import annotations

import math

import pytest

from spacedkd import Duration, OptimizerSpec, RateSpec
from spacedkd.train.rate import learning_rate


def rates(rate: RateSpec, total: int) -> list[float]:
    lr = learning_rate(OptimizerSpec(lr=2.0), rate, total)
    return [lr(step) for step in range(total)]


def test_constant_is_constant() -> None:
    assert rates(RateSpec(), 3) == [2.0, 2.0, 2.0]


def test_warmup_rises_to_the_full_rate() -> None:
    assert rates(RateSpec(warmup=Duration(4, "st")), 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_cosine_falls_from_the_full_rate_to_its_floor() -> None:
    found = rates(RateSpec("cosine", floor=0.1), 4)
    expected = [0.2 + 1.8 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert found == pytest.approx(expected)
    assert found[0] == 2.0


def test_a_warmup_as_long_as_the_run_is_only_a_warmup() -> None:
    assert rates(RateSpec("cosine", warmup=Duration(2, "st")), 2) == [1.0, 2.0]
