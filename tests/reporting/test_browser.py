"""The page in a browser: arms are shown and hidden, values read, and tables and pictures taken along."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from spacedkd.schedule import Spaced
from tests.reporting import browser
from tests.reporting.browser import Browser
from tests.reporting.fake_runs import FakeArm, page_of

PROGRAM = browser.found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=browser.MISSING)

ARMS = [
    FakeArm("online KD", [0.70, 0.71, 0.72]),
    FakeArm("spaced, 50% <b>", [0.80, 0.82, 0.81], schedule=Spaced("1.5ep")),
    FakeArm("no KD", [0.60, 0.61, 0.61], "none", roles=("student",)),
]
SVG = "{http://www.w3.org/2000/svg}"
CHART = "document.querySelector('#curves ~ figure .panel svg[data-x]')"
# What a button would save is kept in the page instead of a file.
CAUGHT = """
window.saved = [];
URL.createObjectURL = (blob) => { window.saved.push(blob); return "blob:none"; };
HTMLAnchorElement.prototype.click = function () { window.saved.push(this.download); };
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    page_of(folder, *ARMS)
    assert PROGRAM is not None
    with Browser(PROGRAM, folder / "home", 1280, 800) as opened:
        opened.open(folder / "page.html")
        opened.run(CAUGHT)
        yield opened
        assert opened.complaints == [], "the page's own script runs, and nothing else"


def saved(page: Browser, button: str) -> tuple[str, str]:
    """Name and text of the file that a button saves."""
    page.run(f"window.saved = []; document.querySelector({button!r}).click()")
    name: str = page.run("window.saved[1]")
    text: str = page.run("window.saved[0].text()")
    return name, text


def test_the_first_figure_is_seen_without_scrolling(page: Browser) -> None:
    top, bottom = page.run(
        "(({top, bottom}) => [top, bottom])(document.querySelector('figure .forest').getBoundingClientRect())"
    )
    assert 0 < top < bottom < 800
    assert page.run("document.querySelector('figure h3').textContent") == "Spaced minus unspaced, points"


def test_nothing_is_wider_than_a_phone(page: Browser) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    assert page.run("document.documentElement.scrollWidth") <= 390
    page.call("Emulation.clearDeviceMetricsOverride")


def test_an_arm_that_is_not_ticked_is_in_no_overlay(page: Browser) -> None:
    shown = "[...document.querySelectorAll('g.arm-1')].map((one) => getComputedStyle(one).display)"
    before = page.run(shown)
    assert len(before) > 3
    assert "none" not in before
    page.run("document.querySelector('#show-arm-1').click()")
    assert page.run(shown) == ["none"] * len(before)
    assert page.run("getComputedStyle(document.querySelector('g.arm-0')).display") != "none"
    page.run("document.querySelector('#show-arm-1').click()")
    assert page.run(shown) == before


def test_values_are_read_with_the_keys_and_with_the_pointer(page: Browser) -> None:
    pressed = "dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))"
    page.run(f"{CHART}.focus(); {CHART}.{pressed}")
    words = "[...document.querySelectorAll('.tip b, .tip span')].map((one) => one.textContent)"
    everybody = ["epoch 4", "spaced, 50% <b>", "81.00", "online KD", "71.00", "no KD", "60.67"]
    assert page.run(words) == everybody
    page.run("document.querySelector('#show-arm-0').click()")
    page.run(f"{CHART}.{pressed}")
    assert page.run(words) == [one for one in everybody if one not in ("online KD", "71.00")]
    page.run("document.querySelector('#show-arm-0').click()")
    moved = "(box) => new PointerEvent('pointermove', {clientX: box.left + box.width * 0.52, clientY: box.top + 50})"
    page.run(f"{CHART}.dispatchEvent(({moved})({CHART}.getBoundingClientRect()))")
    assert page.run(words)[:3] == ["epoch 2", "spaced, 50% <b>", "40.50"]
    page.run(f"{CHART}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Escape'}}))")
    assert page.run(words) == []


def test_a_click_enlarges_a_chart_until_the_next(page: Browser) -> None:
    chart = "document.querySelector('svg[data-x]')"
    width = f"{chart}.getBoundingClientRect().width"
    before = page.run(width)
    page.run(f"{chart}.dispatchEvent(new MouseEvent('click'))")
    assert page.run(width) > 1.2 * before
    page.run(f"{chart}.dispatchEvent(new MouseEvent('click'))")
    assert page.run(width) == before
    for key, enlarged in (("Enter", True), ("Escape", False)):
        page.run(f"{chart}.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}' }}))")
        assert (page.run(width) > before) is enlarged


def test_a_figure_becomes_csv(page: Browser) -> None:
    name, text = saved(page, "#curves ~ figure button[aria-label$=CSV]")
    assert name == "student.csv"
    rows = [*csv.reader(io.StringIO(text))]
    arms = ("online KD", "spaced, 50% <b>", "no KD")
    assert rows[0] == ["epoch", *(f"{arm}{bound}" for arm in arms for bound in ("", ", low", ", high"))]
    assert (rows[-1][0], rows[-1][1::3]) == ("4", ["71.00", "81.00", "60.67"])
    assert all(
        float(low) <= float(mean) <= float(high)
        for mean, low, high in zip(*(rows[-1][k::3] for k in (1, 2, 3)), strict=True)
    )
    assert len(rows) == 1 + 4


def test_a_table_becomes_csv_with_a_number_in_a_cell(page: Browser) -> None:
    name, text = saved(page, "section[aria-labelledby=spacing] button[aria-label$=CSV]")
    assert name == "what-spacing-did.csv"
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["Method"], row["Unspaced"], row["Unspaced ±"]) == ("kd", "71.0", "2.5")
    assert (row["Difference, points"], row["Difference, points, verdict"]) == ("+10.0", "better")
    assert row["Difference, points, note"] == "+7.5 to +12.5, p = 0.003"


def test_a_table_becomes_latex(page: Browser) -> None:
    page.run("document.querySelector('section[aria-labelledby=results] button[aria-label$=LaTeX]').click()")
    lines = page.run("document.querySelector('section[aria-labelledby=results] textarea').value").splitlines()
    assert lines[0] == r"% needs \usepackage{booktabs}"
    (row,) = [line for line in lines if line.startswith("spaced")]
    name, last, *_ = row.split(" & ")
    assert name == r"spaced, 50\% \textless{}b\textgreater{}"
    assert last == r"81.0 $\pm$ 2.5"
    assert "+10.0 (+7.5 to +12.5, p = 0.003)" in row
    assert rf"\begin{{tabular}}{{l{'r' * row.count(' & ')}}}" in lines


def test_a_figure_becomes_a_picture_of_the_arms_that_are_shown(page: Browser) -> None:
    def drawn() -> tuple[list[str], int]:
        name, text = saved(page, "#curves ~ figure button[aria-label$=SVG]")
        assert name == "student.svg"
        root = ElementTree.fromstring(text)
        assert root.tag == f"{SVG}svg"
        words = [one.text or "" for one in root.iter(f"{SVG}text")]
        coloured = [one for one in root.iter(f"{SVG}path") if one.get("stroke", "").startswith("rgb")]
        return words, len(coloured)

    words, lines = drawn()
    assert {"Student", "epoch", "accuracy, %", "spaced, 50% <b>", "no KD"} <= {*words}
    page.run("document.querySelector('#show-arm-2').click()")
    fewer, left = drawn()
    assert "no KD" not in fewer
    assert left == lines - 2, "the line, and its place in the legend"
    page.run("document.querySelector('#show-arm-2').click()")
    assert page.run("document.querySelectorAll('#curves ~ figure ul.legend').length") == 0, "nothing is left behind"


def test_a_picture_of_words_and_dots_becomes_one_svg(page: Browser) -> None:
    _, text = saved(page, ".opening button[aria-label$=SVG]")
    words = [one.text for one in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert words[0] == "Spaced minus unspaced, points"
    assert {"kd", "+10.0"} <= {*words}
