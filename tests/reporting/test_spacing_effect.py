"""What the page says spacing did: counted, named, and never more than the intervals say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spacedkd.comparison.document import SpacingEffect, read_arms
from spacedkd.comparison.results import compare_runs
from spacedkd.reporting.findings import single_role_caution, spacing_caution, spacing_cost, spacing_headline
from spacedkd.reporting.page import render
from spacedkd.schedule import Spaced
from tests.reporting.fake_runs import FakeArm, page_of, write_runs
from tests.reporting.page_text import Page

INTERVALS = {"better": (0.01, 0.03), "worse": (-0.03, -0.01), "unclear": (-0.01, 0.03), "unknown": (None, None)}


def pair(name: str, outcome: str, updates: float = 1.0, form: str = "online", p_holm: float = 1.0) -> SpacingEffect:
    low, high = INTERVALS[outcome]
    return {
        "name": name,
        "method": name.split()[0],
        "variant": None,
        "spaced": f"{name} spaced",
        "unspaced": name,
        "unspaced_form": form,
        "interval": "spaced 1ep",
        "accuracy": {"unspaced": None, "spaced": None},
        "difference": {"mean": 0.01, "low": low, "high": high, "p": 0.03, "n": 1 if low is None else 3},
        "p_holm": p_holm,
        "cost_ratio": {"updates": updates, "forward_images": updates, "seconds": None},
    }


def test_every_outcome_is_counted_and_what_differs_is_named() -> None:
    found = [pair("kd", "better"), pair("takd", "worse"), pair("dml", "better"), pair("ban", "unclear")]
    assert spacing_headline(found) == (
        "Of 4 methods, 2 did better spaced than unspaced (kd and dml); 1 did worse (takd); "
        "1 showed no clear difference."
    )
    assert spacing_headline([pair(name, "worse") for name in "ab"]) == (
        "Of 2 methods, none did better spaced than unspaced; 2 did worse (a and b)."
    )


def test_many_methods_that_were_hurt_are_all_named() -> None:
    assert "6 did worse (a, b, c, d, e and f)" in spacing_headline([pair(name, "worse") for name in "abcdef"])


def test_nothing_is_claimed_without_an_interval_on_one_side() -> None:
    assert spacing_headline([pair("a", "unclear"), pair("b", "unclear")]) == (
        "Of 2 methods, none did better or worse spaced than unspaced: every interval includes zero."
    )
    assert spacing_headline([pair("a", "unknown"), {**pair("b", "better"), "difference": None}]) == (
        "Of 2 methods, none shares two seeds with its unspaced form, so none is called better or worse."
    )
    assert spacing_headline([pair("a", "unclear"), pair("b", "unknown")]).endswith(
        "none did worse; 1 showed no clear difference; no interval can be given for b."
    )


def test_one_pair_is_a_sentence_of_its_own() -> None:
    assert spacing_headline([pair("kd", "better")]) == "kd did better spaced than unspaced."
    assert spacing_headline([pair("kd", "worse")]) == "kd did worse spaced than unspaced."
    assert spacing_headline([pair("kd", "unclear")]) == (
        "No clear difference between kd spaced and unspaced: the interval includes zero."
    )
    assert spacing_headline([pair("kd", "unknown")]).startswith("No interval can be given for kd")


def test_two_intervals_of_a_method_are_not_two_methods() -> None:
    assert spacing_headline([pair("kd (1ep)", "better"), pair("kd (2ep)", "worse")]).startswith(
        "Of 2 spaced arms, 1 did better"
    )


def test_cost_is_said_with_the_difference() -> None:
    assert spacing_cost([pair("kd", "better")]) == "Spaced, kd took as many updates as unspaced."
    many = [pair(name, "better") for name in "abcd"]
    assert spacing_cost([*many, pair("x", "better", 2.0), pair("y", "worse", 2.0)]) == (
        "Spaced, 4 took as many updates as unspaced; x and y took 2.0\u00d7 as many."
    )
    assert spacing_cost([pair("x", "better", 2.0)]) == "Spaced, x took 2.0\u00d7 as many updates as unspaced."
    assert single_role_caution(many) is None
    assert single_role_caution([pair("dlb", "better", form="plain")]) == (
        "Unspaced, dlb has one role only: there the difference is that of spacing and of the second role together."
    )


def test_many_tests_at_once_are_corrected_for() -> None:
    found = [pair("a", "better", p_holm=0.02), pair("b", "worse", p_holm=0.2), pair("c", "unclear")]
    warning = "Each interval stands for its own comparison; among 3 of them one may miss zero by chance."
    assert spacing_caution(found) == f"{warning} Corrected for all of them at once (Holm), p stays below 0.05 for a."
    assert spacing_caution(found[1:]) is not None
    assert (spacing_caution(found[1:]) or "").endswith("p stays below 0.05 for none.")
    assert "Holm" not in (spacing_caution([pair("a", "unclear"), pair("b", "unclear")]) or "")
    assert spacing_caution(found[:1]) is None


ONLINE = FakeArm("online KD", [0.70, 0.71, 0.72])
SPACED = FakeArm("spaced KD", [0.60, 0.62, 0.61], schedule=Spaced("1.5ep"))
PLAIN = FakeArm("self KD", [0.7, 0.71, 0.7], "self-kd", "plain", roles=("student",))
LIVE = FakeArm("live", [0.8, 0.82, 0.81], "self-kd", "live", schedule=Spaced("2ep"))


def test_the_page_says_what_spacing_did(tmp_path: Path) -> None:
    text = Page(page_of(tmp_path, ONLINE, SPACED, PLAIN, LIVE)).text
    said = "Of 2 methods, 1 did better spaced than unspaced (self-kd); 1 did worse (kd)."
    assert text.count(said) == 1
    finding = (
        "spaced KD vs online KD: \u221210.0 points (95 % interval \u221212.5 to \u22127.5, p = 0.003, 3 seeds): worse."
    )
    order = [said, finding, "Spaced minus unspaced, points", "What spacing did", "Learning curves", "All arms, against"]
    assert sorted(order, key=text.index) == order, "spacing leads, with its picture; other comparisons follow"
    assert "kd" + "spaced KD vs online KD" + "71.0 \u00b1 2.5" + "61.0 \u00b1 2.5" + "\u221210.0worse" in text
    assert "live vs self KD" in text
    assert "\u00d72.0" in text


def test_a_row_adds_up_where_arms_have_different_seeds(tmp_path: Path) -> None:
    more, one = replace(ONLINE, accuracies=[0.70, 0.71, 0.90]), replace(SPACED, accuracies=[0.8])
    text = Page(page_of(tmp_path, more, one)).text
    assert "spaced KD vs online KD" + "70.0 " + "80.0 " + "+10.0" in text
    assert "after the last epoch, over the seeds that both arms have." in text
    assert "Differences are paired by seed, over the seeds that both arms have." in text
    assert "epoch, over the seeds" not in Page(page_of(tmp_path / "same", ONLINE, SPACED)).text


def test_without_a_pair_there_is_no_such_section(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, ONLINE, LIVE, replace(SPACED, epochs=5)))
    assert "spacing" not in [attributes["id"] for attributes in page.all("h2")]
    assert "spaced than unspaced" not in page.text


def test_a_pair_without_a_common_seed_has_costs_but_no_picture(tmp_path: Path) -> None:
    comparison = compare_runs(write_runs(tmp_path, [ONLINE, SPACED]))
    comparison["spacing"][0] |= {"difference": None, "p_holm": None}
    text = Page(render(comparison, read_arms(comparison))).text
    assert "No interval can be given for kd spaced against unspaced: they do not share two seeds." in text
    assert "Spaced minus unspaced" not in text
    assert "61.0 \u00b1 2.5" + "no shared seed" + "\u00d71.0" in text


def arms(methods: int) -> list[FakeArm]:
    every = [
        replace(arm, method=f"own:m{n}", label=f"{arm.label} {n}") for n in range(methods) for arm in (ONLINE, SPACED)
    ]
    return [FakeArm("no KD", [0.5, 0.6, 0.7], "none", roles=("student",)), *every]


def test_what_is_said_of_each_of_very_many_arms_is_folded_away(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path / "many", *arms(17)))
    summaries = [page.text.count(words) for words in ("17 pairs, one by one", "The specs of 35 arms")]
    assert summaries == [1, 1]
    assert page.text.count("Show the other 29") == 1
    assert "spaced 1.5ep, 17 arms" in page.text
    assert "17 did worse (own:m0, own:m1" in page.text
    few = Page(page_of(tmp_path / "few", *arms(2)))
    assert not any(words in few.text for words in ("one by one", "The specs of", "Show the other", "All numbers"))
