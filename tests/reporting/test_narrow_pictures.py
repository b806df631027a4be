"""Words in pictures do not lie on each other or beyond the edge, on a phone and on a desk, as a browser draws them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spacedkd.schedule import Spaced
from tests.reporting import browser
from tests.reporting.browser import Browser
from tests.reporting.fake_runs import FakeArm, page_of

PROGRAM = browser.found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=browser.MISSING)

BAD = FakeArm("bad", [0.0, 0.0], lead=0.0, steps_per_epoch=4)
GOOD = FakeArm("good", [0.99, 0.98], schedule=Spaced("1.5ep"), lead=0.0, steps_per_epoch=4)
INTERVALS = ("6st", "0.5ep", "2st", "1ep", "2ep")
# Pairs of words of a picture that lie on each other, and words left of where the picture begins.
COLLIDING = """
[...document.querySelectorAll(".panel > svg")].flatMap((picture) => {
  const words = [...picture.querySelectorAll(".tick")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  const left = picture.getBoundingClientRect().left;
  const beyond = words.filter(([, place]) => place.left < left - 1).map(([word]) => word);
  const touch = ([, one], [, other]) => one.left < other.right && other.left < one.right
    && one.top < other.bottom && other.top < one.bottom;
  const pairs = words.flatMap((one, place) => words.slice(place + 1).filter((other) => touch(one, other))
    .map((other) => `${one[0]} on ${other[0]}`));
  return [...beyond, ...pairs];
})
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("narrow")
    page_of(folder, GOOD, BAD, *(replace(GOOD, label=text, schedule=Spaced(text)) for text in INTERVALS))
    assert PROGRAM is not None
    with Browser(PROGRAM, folder / "home", 1280, 800) as opened:
        opened.open(folder / "page.html")
        yield opened


@pytest.mark.parametrize("width", [360, 400, 1280])
def test_no_words_collide(page: Browser, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert page.run("document.querySelectorAll('.panel > svg').length") > 6
    assert page.run(COLLIDING) == []
