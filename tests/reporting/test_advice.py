"""What a report says of the study: the regime that is most like the runs, and sentences that follow from intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spacedkd.config.optimizer import RateSpec
from spacedkd.config.spec import DataSpec, RunSpec
from spacedkd.reporting.advice import Contrast, Regime, advice, closest, regimes
from spacedkd.runs.schema import Estimate
from spacedkd.schedule import Duration
from tests.reporting.fake_runs import FakeArm, page_of
from tests.reporting.page_text import Page

RESULTS = Path(__file__).parents[2] / "studies" / "spacing" / "results.json"
COSINE = RateSpec("cosine")


def estimate(mean: float, half: float) -> Estimate:
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": 4}


def regime(name: str, rate: str = "constant", label_noise: float = 0.0, images: bool = True) -> Regime:
    contrasts: list[Contrast] = [
        {
            "measure": measure,
            "arm": "1.5",
            "against": "online",
            "difference": estimate(difference, 0.005),
            "claim": claim,
        }
        for measure, difference, claim in (("last iterate", 0.012, "better"), ("average poly:2", -0.001, "not told"))
    ]
    return {
        "setting": name,
        "images": images,
        "rate": rate,
        "label_noise": label_noise,
        "gains": {"no KD": estimate(0.02, 0.01), "online": estimate(0.001, 0.002)},
        "contrasts": contrasts,
    }


ALL = [
    regime("constant"),
    regime("cosine", "cosine"),
    regime("signals", "cosine", images=False),
    regime("noisy", "cosine", 0.2, images=False),
]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (RunSpec(), "constant"),
        (RunSpec(rate=COSINE), "cosine"),
        (RunSpec(rate=RateSpec("multistep", milestones=(Duration(1, "ep"),))), "cosine"),
        (RunSpec(data=DataSpec("mnist1d"), rate=COSINE), "signals"),
        (RunSpec(data=DataSpec("digits", label_noise=0.1), rate=COSINE), "noisy"),
        (RunSpec(data=DataSpec("digits", label_noise=0.1)), "constant"),
    ],
)
def test_the_closest_regime(spec: RunSpec, name: str) -> None:
    measured = closest(spec, ALL)
    assert measured is not None
    assert measured["setting"] == name


def test_nothing_is_said_where_no_rate_is_alike() -> None:
    assert [*advice([RunSpec(rate=COSINE)], [regime("constant")])] == []


def test_sentences_follow_from_the_intervals() -> None:
    _, averages, contrast = advice([RunSpec()], ALL)
    assert "helped no KD and not all: +2.0 ± 1.0 for no KD and +0.1 ± 0.2 for online KD" in averages
    assert contrast == "Spaced KD by 1.5 epochs was better than online KD: +1.2 ± 0.5 points (last iterate, 4 seeds)."


def test_runs_that_keep_an_average_are_told_about_averages() -> None:
    *_, contrast = advice([RunSpec(average="poly:2")], ALL)
    assert "were not told apart: −0.1 ± 0.5 points (average poly:2, 4 seeds)" in contrast  # noqa: RUF001


def test_numbers_are_those_of_the_study() -> None:
    primary = [test for question in json.loads(RESULTS.read_text()).values() for test in question["primary"]]
    effects = {
        (test["measure"], test["arm"], test["against"], test["word"], test["effect"]["mean"]) for test in primary
    }
    cited = [contrast for measured in regimes() for contrast in measured["contrasts"]]
    assert cited
    for contrast in cited:
        mean = contrast["difference"]["mean"]
        assert (contrast["measure"], contrast["arm"], contrast["against"], contrast["claim"], mean) in effects


def test_a_report_has_it(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, FakeArm("online KD", [0.7, 0.71]), FakeArm("no KD", [0.6, 0.61], "none")))
    assert "advice" in [attributes["id"] for attributes in page.all("h2")]
    assert all(sentence in page.text for sentence in advice([RunSpec()]))
