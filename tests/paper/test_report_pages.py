"""The pages of reproduced tables: the verdict first, then the picture, one file that fetches and runs nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spacedkd.paper.report import index_markdown, write_index_page, write_table_page
from spacedkd.paper.report.figures import Axis, Line
from spacedkd.paper.report.findings import VERDICTS
from spacedkd.paper.report.tables import cells_by_key
from tests.paper.fake_results import (
    DEIT,
    HOSTILE,
    R18,
    R50,
    Document,
    cell,
    intervals,
    losses,
    results,
    values,
    without_cells,
)
from tests.reporting.page_text import Page

BOTH = pytest.mark.parametrize("found", [intervals(), losses()], ids=["intervals", "losses"])


def html_of(found: Document, folder: Path) -> str:
    write_table_page(folder / "index.html", found)
    return (folder / "index.html").read_text(encoding="utf-8")


@BOTH
def test_the_page_nests_and_fetches_nothing(found: Document, tmp_path: Path) -> None:
    html = html_of(found, tmp_path)
    page = Page(html)
    for fetching in ("http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"):
        assert fetching not in html, fetching
    assert HOSTILE in page.text or found["name"] != "loss"
    assert not page.all("b") or "<b>|" not in html
    assert all(attributes["aria-label"] for _, attributes in page.elements if attributes.get("role") == "img")
    assert html == html_of(found, tmp_path / "again")


def test_the_verdict_comes_first_then_the_picture_then_the_table(tmp_path: Path) -> None:
    page = Page(html_of(intervals(), tmp_path))
    sections = [attributes["id"] for attributes in page.all("h2")]
    assert sections == ["figure", "table", "differences", "rule", "metrics", "lost", "notes", "making"]
    text = page.text
    order = [
        "The paper's claim",
        "Spacing helps here, too.",
        "Ours and the paper's",
        "The table",
        "paired 95 % interval",
    ]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)


def test_a_cell_has_ours_the_papers_both_signs_and_the_verdict(tmp_path: Path) -> None:
    found = intervals()
    text = Page(html_of(found, tmp_path)).text
    one = cells_by_key(found)[R18, "w/ 1.5"]
    half = (one["estimate"]["high"] - one["estimate"]["low"]) / 2
    ours = f"{100 * one['estimate']['mean']:.2f} \u00b1 {100 * half:.2f}a"
    assert f"{ours}paper 72.43effect + (paper +)agrees" in text
    other = cells_by_key(found)[R50, "w/ 1.5"]
    half = (other["estimate"]["high"] - other["estimate"]["low"]) / 2
    ours = f"{100 * other['estimate']['mean']:.2f} \u00b1 {100 * half:.2f}"
    assert f"{ours}paper 73.77effect \u2212 (paper +)disagrees" in text
    assert "not finishedpaper 73.28" in text
    assert "paper: none" in text
    assert "a Printed as s = 1.5, but made with 1.0." in text


def test_every_difference_has_its_tests(tmp_path: Path) -> None:
    found = intervals()
    one = cells_by_key(found)[R18, "w/ 0.5"]["difference"]
    low, high = 100 * one["low"], 100 * one["high"]
    p = [f"{one[name]:.3f}" if one[name] >= 0.001 else "< 0.001" for name in ("p", "holm_p", "sign_flip_p")]
    said = f"w/ 0.5 vs online+{100 * one['mean']:.2f}+{low:.2f} to +{high:.2f}+0.97agrees"
    text = Page(html_of(found, tmp_path)).text
    assert said in text
    assert "".join(["6", *p, f"{100 * one['detectable']:.2f}"]) in text
    assert "can never reach" not in text
    few = Page(html_of(intervals(seeds=4), tmp_path)).text
    assert "its p is 0.125 at the least: fewer than 6 seeds can never reach p < 0.05 exactly." in few


def test_last_and_best_stand_beside_the_main_metric(tmp_path: Path) -> None:
    text = Page(html_of(intervals(), tmp_path)).text.split("Other metrics of the same runs")[1]
    assert (
        "test accuracy, mean over the last ten epochs, % (main)test accuracy after the last epoch, %best epoch" in text
    )
    assert "weight_noise/loss" in Page(html_of(losses(), tmp_path)).text


def test_what_is_lost_and_how_it_was_made(tmp_path: Path) -> None:
    text = Page(html_of(intervals(), tmp_path)).text
    assert "12 runs are not finished" in text
    assert f"{R50}w/ 1.031234" in text
    assert (
        "42 runs, 36 of them from a teacher that another run had trained; 4 h 6 min by the clock, 123\u2009456 opt"
        in text
    )
    for words in ("spacedkd reproduce interval --scale cpu", "2026-11-16", "2 cores, 8 GB", "torch 2.13.0"):
        assert words in text


def test_the_papers_numbers_are_moved_onto_our_reference() -> None:
    """So that in the picture an effect of a point is as high as one of ours."""
    found = intervals()
    line = Line(found, R18)
    mean = cells_by_key(found)[R18, "online"]["estimate"]["mean"]
    assert {*line.offsets.values()} == {mean - 0.7105}
    assert [cell["column"] for cell in line.cells] == ["online", "w/ 0.5", "w/ 1.0", "w/ 1.5", "w/ 2.0"]
    assert Line(found, DEIT).offsets == {}, "the paper has no such row"


def test_where_marks_lie() -> None:
    """Hollow and filled marks in the drawing, read back with the scale that the ticks give."""
    found = intervals()
    html = Line(found, R18).draw()
    ticks = [(float(y) - 4, float(v)) for y, v in re.findall(r'x="34" y="([\d.]+)" text-anchor="end">([\d.]+)<', html)]
    (y0, v0), (y1, v1) = ticks[0], ticks[-1]
    read = [
        [
            v0 + (float(y) - y0) * (v1 - v0) / (y1 - y0)
            for y in re.findall(rf'class="{name}" cx="[\d.]+" cy="([\d.]+)"', html)
        ]
        for name in ("mean", "hollow")
    ]
    cells = Line(found, R18).cells
    assert read[0] == pytest.approx([100 * one["estimate"]["mean"] for one in cells], abs=0.03)
    online = 100 * cells[0]["estimate"]["mean"]
    assert read[1] == pytest.approx([online + one["paper"] - 71.05 for one in cells], abs=0.03)
    right = re.findall(r'class="tick theirs" x="[\d.]+" y="([\d.]+)">([\d.]+)<', html)
    for y, value in right:
        assert v0 + (float(y) - 4 - y0) * (v1 - v0) / (y1 - y0) == pytest.approx(
            online + float(value) - 71.05, abs=0.03
        )


def test_rows_against_other_rows_are_moved_column_by_column() -> None:
    axis = {"title": "noise", "values": {"0": 0.0, "1": 1.0}}
    cells = [cell("online", c, values(v, 0.1), p) for c, v, p in (("0", 0.9, 99.0), ("1", 0.6, 80.0))]
    cells += [cell("spaced", c, values(v, 0.1), p, ("online", c)) for c, v, p in (("0", 0.91, 99.5), ("1", 0.7, 88.0))]
    found = results("noise", cells, axis=axis)
    assert Line(found, "spaced").offsets == pytest.approx({("spaced", "0"): -0.09, ("spaced", "1"): -0.2})
    assert len(Line(found, "spaced").references) == 2
    assert Line(found, "online").offsets == pytest.approx({("online", "0"): -0.145, ("online", "1"): -0.145})
    assert "theirs" not in Line(found, "spaced").draw()


def test_places_too_far_apart_lie_evenly() -> None:
    axis = Axis("interval", {"online": 0.0, "1": 1.0, "2": 2.0, "max": 80.0})
    assert [axis.position(value) for value in (0, 1, 2, 41, 80)] == [0, 1, 2, 2.5, 3]
    assert Axis("interval", {"online": 0.0, "1": 1.0, "2": 2.0}).position(1.5) == 1.5


def test_without_an_axis_differences_are_drawn(tmp_path: Path) -> None:
    page = Page(html_of(losses(), tmp_path))
    percents, numbers = (one["aria-label"] for one in page.all("div") if one.get("role") == "img")
    assert percents.startswith("spaced minus online, points: L1 \u22121.00; MSE (Sum) +1.90; ")
    assert numbers.startswith("spaced minus online: loss under noise \u22120.20")
    hollow = [one for one in page.all("circle") if one.get("class") == "hollow"]
    assert len(hollow) == 3, "one row has no number of the paper's"


def test_pictures_are_in_the_page(tmp_path: Path) -> None:
    (tmp_path / "corruptions.png").write_bytes(b"\x89PNG")
    html = html_of(results("c", [cell("a", "b", [0.5])], pictures=["corruptions.png", "gone.png"]), tmp_path)
    assert 'src="data:image/png;base64,iVBORw==" alt="corruptions.png"' in html
    assert "img-src data:" in html
    assert "Not beside the results: gone.png." in Page(html).text


@pytest.mark.parametrize("axis", [None, {"title": "s", "values": {"online": 0.0, "spaced": 1.0}}])
def test_a_page_of_which_nothing_is_finished(tmp_path: Path, axis: Document) -> None:
    cells = [cell("a", "online", {}, 70.0), cell("a", "spaced", {}, 71.0, ("a", "online"))]
    text = Page(html_of(results("new", cells, missing=4, axis=axis), tmp_path)).text
    assert "4 runs are not finished" in text
    assert ("nothing to draw" in text) == (axis is None)


def test_a_claim_without_a_table(tmp_path: Path) -> None:
    page = Page(html_of(without_cells() | {"pages": ["theory.html"]}, tmp_path))
    assert [attributes["id"] for attributes in page.all("h2")] == ["notes", "making"]
    assert [attributes["href"] for attributes in page.all("a")] == ["theory.html"]
    write_index_page(tmp_path / "all.html", [without_cells()])
    text = Page((tmp_path / "all.html").read_text(encoding="utf-8")).text
    assert "scale cpuClaim" in text


def test_the_index_has_a_line_for_each_claim_and_links_to_its_page(tmp_path: Path) -> None:
    found = [intervals(), losses()]
    write_index_page(tmp_path / "index.html", found)
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert [one["href"] for one in page.all("a")] == ["interval/index.html", "loss/index.html"]
    assert page.text.count("Spacing helps here, too.") == 2
    # intervals: R18 6 effects, all with the paper's sign; R50 no KD above and three spaced below online
    assert "2 of the paper's tables and figures" in page.text
    for one in found:
        agrees, disagrees, _, unknown = (one["verdict"][word] for word in VERDICTS)
        counted = [f"{agrees} agree", f"{disagrees} disagree", f"{unknown} cannot tell"]
        assert re.search("s?, ".join(counted), page.text)
    text = index_markdown(found)
    assert "[Feature losses & more](loss/table.md)" in text
    assert "Nothing has been run yet." in index_markdown([])


def test_a_scale_without_verdicts_has_no_tally(tmp_path: Path) -> None:
    found = intervals()
    found["verdict"] = dict.fromkeys(VERDICTS, 0) | {"sentence": "Not judged: two seeds."}
    write_index_page(tmp_path / "index.html", [found])
    text = Page((tmp_path / "index.html").read_text(encoding="utf-8")).text
    assert "Not judged: two seeds." in text
    assert "No effect is judged." in text
    assert "0 agree" not in text
