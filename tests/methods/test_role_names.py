"""Roles are known by their place: under other names every method learns the same, to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from spacedkd import MethodSpec, Spaced
from spacedkd.config.objects import Objects
from spacedkd.methods import METHODS
from spacedkd.methods.kd import KD
from spacedkd.methods.one_network import OneNetwork
from tests.conftest import TINY, assert_same_bits
from tests.training.stepping import ready, state, turn_by_turn

NAMES = {"teacher": "mentor", "student": "pupil"}


def renamed(kind: type[Any]) -> type[Any]:
    """The same method with a mentor and a pupil."""
    part = "roles" if issubclass(kind, OneNetwork) else "chain"
    own = getattr(kind, part)
    names = property(lambda self: tuple(NAMES.get(one, one) for one in own.fget(self)))
    return dataclass(frozen=True)(type(f"Other{kind.__name__}", (kind,), {part: names}))


CASES: dict[str, dict[str, Any]] = {
    "kd": {"curriculum": 2},
    "fitnet": {},
    "shake": {"teacher_weight": 0.5},
    "eskd": {"teacher_for": "40%", "distil_for": "60%"},
    "takd": {},
    "self-kd": {"variant": "snapshot"},
    "one": {"variant": "snapshot"},
    "pcl": {"variant": "live"},
    "dlb": {"variant": "taught"},
    "ps-kd": {"variant": "taught"},
}


@pytest.mark.parametrize("name", CASES)
def test_names_of_roles_do_not_matter(name: str) -> None:
    spec = replace(TINY, method=MethodSpec(name, CASES[name]), schedule=Spaced("3st"), epochs=1.6)
    other = ready(replace(spec, method=MethodSpec()), Objects(method=renamed(METHODS[name])(**CASES[name])))
    assert (other.run.method.roles[0], other.run.method.roles[-1]) == ("mentor", "pupil")
    setup = ready(spec)
    roles = [[moment.role for moment in turn_by_turn(one)] for one in (setup, other)]
    assert roles[1] == [NAMES.get(role, role) for role in roles[0]]
    expected = {f"{NAMES.get(model, model)}/{key}": value for (model, key), value in split(state(setup)).items()}
    assert_same_bits(state(other), expected)


def split(found: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(name.partition("/")[0], name.partition("/")[2]): value for name, value in found.items()}


def test_a_trained_teacher_is_fixed_and_no_role() -> None:
    assert (KD().frozen, KD(teacher_learns=False).frozen) == ([], ["teacher"])
    assert renamed(KD)(teacher_learns=False).frozen == ["mentor"]
    assert METHODS["takd"](teacher_learns=False).frozen == ["teacher"]
    shake = METHODS["shake"](teacher_learns=False)  # its teacher's network stands still, but its shadow learns
    assert (shake.frozen, [*shake.roles]) == ([], ["teacher", "student"])
    assert not METHODS["none"]().frozen
