"""What is given to functions in Python: the obvious is taken for what it means, everything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spacedkd import MethodSpec, NetworkSpec, RunSpec, Spaced, UserError, compare, evaluate, forecast, train
from spacedkd.config.spec import DataSpec, read_spec
from spacedkd.schedule import Window


def test_names_and_lengths_stand_for_what_they_mean() -> None:
    spec = RunSpec(data="digits", network="resnet18_small", method="kd", schedule="1.5ep", teacher="resnet20x4")
    written_out = RunSpec(
        data=DataSpec("digits"),
        network=NetworkSpec("resnet18_small"),
        method=MethodSpec("kd"),
        schedule=Spaced("1.5ep"),
        teacher=NetworkSpec("resnet20x4"),
    )
    assert spec == written_out
    assert Window("1.5ep", "online", "1ep", length="2ep") == Window(Spaced("1.5ep"), Spaced("1st"), "1ep", length="2ep")


@pytest.mark.parametrize("wrong", [None, 3, 1.5, [], object(), b"x", {1, 2}, 10**400, float("nan")])
@pytest.mark.parametrize("field", ["data", "network", "method", "optimizer", "rate", "engine", "epochs", "batch_size"])
def test_fields_of_the_wrong_kind_are_refused_by_name(field: str, wrong: Any) -> None:
    if (field, wrong) in (("epochs", 3), ("epochs", 1.5), ("batch_size", 3)):
        return
    with pytest.raises(UserError, match=field):
        RunSpec(**{field: wrong})


@pytest.mark.parametrize("wrong", [3.5, object(), {"kind": 3}, {"kind": "spaced", "interval": None}, int])
def test_what_is_no_schedule_is_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match="schedule|length of training"):
        RunSpec(schedule=wrong)
    with pytest.raises(UserError, match="inside of a Window"):
        Window(wrong if not isinstance(wrong, type) else None, "online", "1ep", length="1ep")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: train(None, "run"), "The spec must be a RunSpec, got None"),
        (lambda: train({"epochs": 3}, "run"), "The spec must be a RunSpec"),
        (lambda: train("spec.json", "run"), "The spec must be a RunSpec, got 'spec.json'"),
        (lambda: train(Path("spec.json"), "run"), "The spec must be a RunSpec"),
        (lambda: train(RunSpec(), None), "folder must name a folder"),
        (lambda: train(RunSpec(), ""), "folder must name a folder"),
        (lambda: forecast(RunSpec(), 3), "folder must name a folder"),
        (lambda: forecast(None), "The spec must be a RunSpec"),
        (lambda: compare({"a": None}, "out"), "The spec must be a RunSpec"),  # type: ignore[dict-item]
        (lambda: compare(["a"], "out"), "arms must be specs by name"),
        (lambda: compare({"a": RunSpec()}, None), "out must name a folder"),
        (lambda: evaluate(None), "run must name a folder"),
        (lambda: read_spec(None), "must name a folder"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(
    call: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        call()
    assert list(tmp_path.iterdir()) == []
