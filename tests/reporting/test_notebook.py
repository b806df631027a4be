"""What a notebook shows of runs, comparisons and reports."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spacedkd import UserError, read_run, report
from spacedkd.comparison.document import Comparison
from spacedkd.comparison.results import compare_runs
from spacedkd.schedule import Spaced
from tests.reporting.fake_runs import FakeArm, write_runs

ONLINE, SPACED = FakeArm("online", [0.7, 0.8]), FakeArm("spaced <b>", [0.75, 0.9], schedule=Spaced("1ep"))


def comparison(root: Path) -> Comparison:
    return Comparison(root, compare_runs(write_runs(root, [ONLINE, SPACED])))


def curves_in(html: str) -> int:
    """The lines in the pictures of an element, which must be well-formed."""
    html = re.sub("<style>.*?</style>", "", html, flags=re.DOTALL)
    ElementTree.fromstring(f"<body>{html}</body>")
    return len(re.findall(r'<path d="M[^"]*L[^"Z]*"', re.sub(r'<ul class="legend">.*?</ul>', "", html)))


def test_a_run_shows_accuracies_curves_and_cost(tmp_path: Path) -> None:
    html = read_run(write_runs(tmp_path, [ONLINE])[0])._repr_html_()
    assert curves_in(html) == 2, "teacher and student"
    cells = re.findall(r"<td><b>(.*?)</b></td>", html)
    assert cells == ["70.0", "70.0"], "of teacher and student, after the last epoch"
    assert "80 updates" in html
    assert all(rule.startswith(".spacedkd {") for rule in re.findall(r"<style>\s*(.{11})", html))


def test_a_comparison_shows_every_arm(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    html = compared._repr_html_()
    assert curves_in(html) == 2
    assert "spaced &lt;b&gt;" in html
    assert "<b>" not in html.split("spaced")[1][:6]
    assert repr(compared) == f"Comparison('{tmp_path}': online 75.0 %, spaced <b> 82.5 %)"


def test_the_tables_of_a_comparison(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    results = compared.results.set_index("arm")
    assert results.accuracy.to_dict() == pytest.approx({"online": 0.75, "spaced <b>": 0.825})
    assert results.difference["spaced <b>"] == pytest.approx(0.075)
    assert results.seeds.tolist() == [2, 2]
    curves = compared.curves
    last = curves[(curves.epoch == 4) & (curves.role == "student")]
    assert [*zip(last.arm, last.seed, last.accuracy, strict=True)] == [
        ("online", 0, 0.7),
        ("online", 1, 0.8),
        ("spaced <b>", 0, 0.75),
        ("spaced <b>", 1, 0.9),
    ]
    assert compared.arms["spaced <b>"].runs[1].accuracy == 0.9


def test_a_report_writes_the_page_and_shows_it(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    for runs in (compared, tmp_path, str(tmp_path), [run for arm in compared.arms.values() for run in arm.runs]):
        page = report(runs, tmp_path / "out" / "page.html", against="spaced <b>")
        assert page.path == tmp_path / "out" / "page.html"
        shown = re.search(r'src="data:text/html;base64,([^"]*)"', page._repr_html_())
        assert shown is not None
        assert base64.b64decode(shown[1]) == page.path.read_bytes()
        assert "against spaced &lt;b&gt;" in page.path.read_text()
    assert report(compared).path == tmp_path / "report.html"
    with pytest.raises(UserError, match="must end in .html"):
        report(compared, tmp_path / "page.pdf")


def test_plots_have_a_line_for_each_role_or_arm(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib, of the extra plot, is not installed")
    matplotlib.use("agg")
    compared = comparison(tmp_path)
    (teacher, student) = compared.arms["online"].runs[0].plot().lines
    assert (teacher.get_label(), student.get_label()) == ("teacher", "student")
    assert student.get_ydata() == pytest.approx([17.5, 35, 52.5, 70])
    online, spaced = compared.plot().lines
    assert online.get_ydata()[-1] == pytest.approx(75)
    assert spaced.get_ydata()[-1] == pytest.approx(82.5)


def test_a_plot_without_matplotlib_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_run(write_runs(tmp_path, [ONLINE])[0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'spacedkd\[plot\]'"):
        run.plot()
