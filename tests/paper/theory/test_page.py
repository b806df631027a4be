"""The theory page: complete, self-contained, and its judgements follow the numbers."""

from __future__ import annotations

from copy import deepcopy

import pytest

from spacedkd.paper.theory import findings
from spacedkd.paper.theory.experiment import Setting, measure
from spacedkd.paper.theory.findings import TheoryResults
from spacedkd.paper.theory.page import render_theory
from tests.reporting.page_text import Page

TINY = Setting(
    steps=300, intervals=(2, 6, 300), problems=2, orders=3, samples=8, inputs=3, width=24, measurements=30, rate=0.2
)
MEASURED = measure([TINY], lambda *news: None)


def with_verdicts(held: float, broken: float) -> TheoryResults:
    """The measured experiment, had every statement come out like this."""
    results = deepcopy(MEASURED)
    for interval in results["settings"][0]["intervals"]:
        for verdict in (interval["verdicts"]["near"] or {}).values():
            verdict["held"], verdict["broken"] = held, broken
    return results


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    html = render_theory(MEASURED, "spacedkd theory --out runs/theory")
    page = Page(html)
    assert [heading["id"] for heading in page.all("h2")] == ["stated", "gap", "steps", "traces", "numbers", "making"]
    for fetching in ("http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"):
        assert fetching not in html, fetching
    assert "spacedkd theory --out runs/theory" in page.text
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.all("svg"))
    assert "nan" not in page.text.lower().split()
    assert html == render_theory(MEASURED, "spacedkd theory --out runs/theory")


def test_text_from_outside_is_escaped() -> None:
    results = deepcopy(MEASURED)
    results["settings"][0]["setting"]["name"] = "<b>tanh"
    html = render_theory(results, "<i>typed")
    assert "<b>tanh" not in html
    assert "<i>" not in html
    assert "&lt;b&gt;tanh" in html
    assert "&lt;i&gt;typed" in html


@pytest.mark.parametrize(
    ("held", "broken", "judgement"),
    [
        (0.9, 0.01, "was not contradicted"),
        (0.01, 0.9, "was contradicted"),
        (0.4, 0.4, "held in some cases and failed in others"),
        (0.03, 0.03, "was neither confirmed nor contradicted"),
    ],
)
def test_a_judgement_is_read_off_the_numbers(held: float, broken: float, judgement: str) -> None:
    results = with_verdicts(held, broken)
    assert {findings.judgement(results, name) for name in findings.STATEMENTS} == {judgement}
    assert f"The Lemma {judgement}." in Page(render_theory(results, "")).text
    assert (
        f"clearly held in {findings.format_share(held)} % of cases, clearly broken in {findings.format_share(broken)} %"
        in findings.finding(results, "lemma")
    )


def test_an_experiment_that_came_nowhere_near_convergence_says_so() -> None:
    short = Setting(steps=4, intervals=(2, 4), problems=2, orders=2, samples=8, inputs=3, width=12, rate=0.001)
    results = measure([short], lambda *news: None)
    page = Page(render_theory(results, ""))
    assert "No teacher came near convergence: give the experiment more steps." in page.text
    assert "The Lemma could not be judged." in page.text


def test_the_end_of_training_is_told_either_way() -> None:
    results = deepcopy(MEASURED)
    ends = [(-0.02, -0.03, -0.01), (0.02, 0.01, 0.03), (0.01, -0.01, 0.03)]
    for interval, (mean, low, high) in zip(results["settings"][0]["intervals"], ends, strict=True):
        interval["end"]["change"] = {"mean": mean, "low": low, "high": high, "n": 2}
    (sentence,) = findings.end_findings(results)
    assert "smaller for 1 epoch (\N{MINUS SIGN}2 %); larger for 3 epochs (+2 %)" in sentence
    assert "not clearly different for offline (+1 %)" in sentence
