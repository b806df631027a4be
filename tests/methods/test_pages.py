"""The pages about methods are what the methods say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from spacedkd.methods import METHODS
from spacedkd.methods.pages import index, options, page, summary

DOCS = Path(__file__).parent.parent.parent / "docs" / "methods"


@pytest.mark.parametrize("name", METHODS)
def test_the_page_in_the_docs_is_up_to_date(name: str) -> None:
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == page(name), "make docs"


def test_the_table_in_the_docs_is_up_to_date() -> None:
    assert (DOCS / "README.md").read_text(encoding="utf-8") == index(), "make docs"
    assert {path.stem for path in DOCS.glob("*.md")} == {*METHODS, "README"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name: str) -> None:
    assert METHODS[name].card.kind in ("nobody", "teacher", "chain", "peers", "self")
    assert {"__doc__", "paper", "weights", "source"} <= {*vars(METHODS[name])}, "its own, not those of its family"
    assert all((METHODS[name].paper, METHODS[name].source)) or name == "none"
    assert METHODS[name].weights
    written = page(name)
    assert f"--method {name}" in written, "an example"
    assert "\n    " in written, "a formula"
    undescribed = [option for option, _, does in options(METHODS[name]) if not does]
    assert not undescribed


def test_a_reconstruction_says_so_wherever_it_is_named() -> None:
    """Its very name does, in reports too."""
    assert "reconstruction" in summary(METHODS["tsb-like"]).lower()
    assert "reconstruction" in METHODS["tsb-like"].source
    assert "pcl" in METHODS["tsb-like"].source


def test_weights_on_the_page_are_the_defaults() -> None:
    for name in ("kd", "hinton", "lskd", "ctkd", "dkd", "takd"):
        method = METHODS[name]()
        assert METHODS[name].weights.startswith(f"{method.label_weight:g} CE + {method.logit_weight:g} ")
