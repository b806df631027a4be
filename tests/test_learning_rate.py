"""The learning rate, step by step."""

from __future__ import annotations

import math

import pytest

from spacedkd import Duration, OptimizerSpec, RateSpec, learning_rate


def rates(rate: RateSpec, total: int) -> list[float]:
    lr = learning_rate.from_spec(OptimizerSpec(lr=2.0), rate, 2, total)
    return [lr(step) for step in range(total)]


def test_constant_is_constant() -> None:
    assert rates(RateSpec(), 3) == [2.0, 2.0, 2.0]


def test_warmup_rises_to_the_full_rate() -> None:
    assert rates(RateSpec(warmup=Duration(4, "st"), warmup_start=0.2), 6) == pytest.approx([0.4, 0.8, 1.2, 1.6, 2, 2])


def test_multistep_falls_at_its_milestones() -> None:
    rate = RateSpec("multistep", milestones=(Duration(2, "st"), Duration(3, "st")), factor=0.5)
    assert rates(rate, 5) == [2.0, 2.0, 1.0, 0.5, 0.5]


def test_a_rate_may_change_only_between_epochs() -> None:
    assert rates(RateSpec("multistep", milestones=(Duration(3, "st"),), per_epoch=True), 5) == pytest.approx(
        [2, 2, 2, 2, 0.2]
    )


@pytest.mark.parametrize(
    ("epoch", "value"),
    [(0, 5e-7), (1, 2.5475e-5), (19, 4.75025e-4), (20, 4.945915e-4), (150, 2.525e-4), (299, 5.0136e-6)],
)
def test_the_transformer_recipe(epoch: int, value: float) -> None:
    """METHODS.md card 7."""
    rate = RateSpec(
        "cosine",
        floor=0.01,
        warmup=Duration(20 * 390, "st"),
        warmup_start=0.001,
        restart_after_warmup=False,
        per_epoch=True,
    )
    lr = learning_rate.from_spec(OptimizerSpec("adamw", lr=5e-4), rate, 390, 300 * 390)
    for step in (0, 200, 389):
        assert lr(epoch * 390 + step) == pytest.approx(value, rel=1e-5)


def test_cosine_falls_from_the_full_rate_to_its_floor() -> None:
    found = rates(RateSpec("cosine", floor=0.1), 4)
    expected = [0.2 + 1.8 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert found == pytest.approx(expected)
    assert found[0] == 2.0


def test_a_warmup_as_long_as_the_run_is_only_a_warmup() -> None:
    assert rates(RateSpec("cosine", warmup=Duration(2, "st"), warmup_start=0.5), 2) == [1.0, 1.5]


def test_rates_compose() -> None:
    """A warm-up, a plateau and a cosine by hand, changed once an epoch of two steps."""
    lr = learning_rate.join(
        learning_rate.linear(0.0, 4.0, steps=4),
        learning_rate.join(learning_rate.constant(4.0), learning_rate.cosine(4.0, steps=4), at=2),
        at=4,
    )
    assert [lr(step) for step in range(10)] == pytest.approx(
        [0, 1, 2, 3, 4, 4, *(2 * (1 + math.cos(math.pi * u / 4)) for u in range(4))]
    )
    assert [learning_rate.per_epoch(lr, 2)(step) for step in range(6)] == [0, 0, 2, 2, 4, 4]
    assert learning_rate.join(lr, lr, at=1, restart=False)(3) == lr(3)
