"""Methods by name, and what is said of bad options."""

from __future__ import annotations

from typing import Any

import pytest

from spacedkd import Duration, MethodSpec, NetworkSpec, UserError
from spacedkd.methods import KD, METHODS, NoKD, SelfKD, build_method, describe


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_same_after_a_round_trip(name: str) -> None:
    method = build_method(MethodSpec(name))
    assert build_method(describe(method)) == method
    assert describe(method).name == name


def test_the_papers_weights_are_the_defaults() -> None:
    assert KD() == KD(label_weight=0.7, logit_weight=0.3, feature_weight=0.03, temperature=3, temperature_squared=False)
    assert (SelfKD().label_weight, SelfKD().logit_weight, SelfKD().feature_weight) == (0.7, 0.3, 0.03)


def test_roles_go_from_leader_to_follower() -> None:
    assert NoKD().roles == ("student",)
    assert KD().roles == ("teacher", "student")
    assert SelfKD().roles == ("student",)
    assert SelfKD(variant="live").roles == ("teacher", "student")
    assert SelfKD(variant="live").learners == {"teacher": "network", "student": "network"}


def test_a_method_of_ones_own_is_named_by_its_place() -> None:
    spec = MethodSpec("spacedkd.methods.kd:KD", {"temperature": 4.0})
    assert build_method(spec) == KD(temperature=4.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "kdd",
            {},
            "Unknown method 'kdd'. Did you mean 'kd' or 'dkd'? Available: none, kd, hinton, fitnet, lskd, ctkd, dkd, "
            "eskd, shake, takd, ban, dml, kdcl, tsb-like, pcl, one, self-kd, dlb, ps-kd.",
        ),
        ("kd", {"temprature": 3}, "Did you mean 'temperature'"),
        ("kd", {"temperature": 0}, "temperature must be above 0 and finite, got 0"),
        ("kd", {"temperature": float("nan")}, "temperature must be above 0"),
        ("kd", {"label_weight": -1}, "label_weight must be 0 or more"),
        ("kd", {"logit_loss": "k"}, "Unknown logit loss 'k'"),
        ("kd", {"feature_loss": "mae"}, "Unknown feature loss 'mae'. Did you mean 'mse'?"),
        ("self-kd", {"variant": "alive"}, "Did you mean 'live'?"),
        ("no.such.module:Method", {}, "Cannot load"),
    ],
)
def test_bad_methods_are_explained(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build_method(MethodSpec(name, options))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kd", {"temperature": "hot"}, "temperature must be a number, got 'hot'."),
        ("kd", {"teacher_learns": "maybe"}, "teacher_learns must be true or false, got 'maybe'."),
        ("kd", {"logit_loss": 3}, "logit_loss must be text, got 3."),
        ("tsb-like", {"peers": 2.5}, "peers must be a whole number, got 2.5."),
        ("tsb-like", {"spatial": "unifrom"}, "Unknown spatial 'unifrom'. Did you mean 'uniform'? Available: uniform,"),
        ("dlb", {"variant": "taut"}, "Unknown variant 'taut'. Did you mean 'taught'?"),
        ("self-kd", {"student_reduction": "max"}, "Unknown student_reduction 'max'."),
        ("dml", {"peer_reduction": "max"}, "Unknown peer_reduction 'max'."),
        ("kdcl", {"target": "avg"}, "Unknown target 'avg'."),
        ("ban", {"knowledge": "none"}, "Unknown knowledge 'none'."),
        ("takd", {"assistants": 3}, "assistants must be a list, got 3."),
    ],
)
def test_fields_are_checked_in_python_too(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        METHODS[name](**options)
    assert str(error.value).startswith(message)


def test_fields_are_brought_to_their_types() -> None:
    assert describe(KD(temperature=4)) == describe(KD(temperature=4.0))
    assert repr(KD(temperature=4).temperature) == "4.0"
    assert METHODS["eskd"](teacher_for="35ep").teacher_for == Duration(35, "ep")
    (assistant,) = METHODS["takd"](assistants=["resnet34_small"]).assistants
    assert assistant == NetworkSpec("resnet34_small")
