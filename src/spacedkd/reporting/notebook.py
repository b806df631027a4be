"""Runs and comparisons in a notebook: summaries as HTML, plots with matplotlib, and pages.

`report` is the public function, which writes a page and returns an object that shows it. `Run` and `Comparison` call
the other functions by name.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from spacedkd.comparison.document import Comparison, ComparisonDocument, keep_order, write_comparison
from spacedkd.reporting import findings, html, plots, tables
from spacedkd.reporting.formatting import count, duration, plural
from spacedkd.reporting.html import Markup, html_table, join, legend, note, paragraph, tag
from spacedkd.runs.journal import Curve
from spacedkd.runs.result import Run
from spacedkd.runtime.errors import UserError, install_command

_STYLE = f"""
.spacedkd {{
{html.STYLE.replace(":root", "&").replace("color-scheme: light dark;", "")}
  max-width: 660px; padding: 12px 16px; background: var(--page); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}}
"""
"""the style of pages for what is inside of an element of class `spacedkd`: a notebook keeps its own"""


def run_html(run: Run) -> str:
    """Return accuracies, learning curves and cost of a run as an HTML element."""
    from spacedkd.reporting.page import reached

    return _element(
        tag("h3", f"{run.name}, seed {run.seed}"),
        html_table(reached([run])),
        legend(plots.role_colours(run.roles).items(), "all"),
        plots.roles_chart([run]),
        note(
            f"{plural(run.cost['updates'], 'update')}, {count(run.cost['forward_images'])} images seen, "
            f"{duration(run.seconds)}. Folder: {run.folder}"
        ),
    )


def comparison_html(comparison: Comparison) -> str:
    """Return accuracies, differences, learning curves and cost of a comparison as an HTML element."""
    document, arms = comparison.document, [*comparison.arms.values()]
    _, _, curves = next(plots.accuracy_charts(arms, comparison.against))
    colours = [(arm.label, plots.arm_colour(index)) for index, arm in enumerate(arms)]
    return _element(
        paragraph(findings.headline(arms, comparison.against)),
        *(html_table(table) for table in tables.comparison_tables(document)),
        legend(colours, "all"),
        curves,
        note(f"Folder: {comparison.folder}"),
    )


def _element(*content: str) -> str:
    return join(tag("style", Markup(_STYLE)), tag("div", *content, class_="spacedkd"))


# Pages


@dataclass(frozen=True)
class Report:
    """A page that was written; a notebook shows it."""

    path: Path

    def _repr_html_(self) -> str:
        """Return a frame with the whole page in it, which needs no server, and a link to the file."""
        page = base64.b64encode(self.path.read_bytes()).decode()
        frame = tag("iframe", src=f"data:text/html;base64,{page}", width="100%", height="640", title="Report")
        return join(frame, tag("p", tag("a", str(self.path), href=self.path.as_posix())))


Source = Run | Comparison | str | PathLike[str]
"""what a report is made of: a run, a comparison, or a folder of some"""


def report(runs: Source | Sequence[Source], out: Path | str | None = None, *, against: str | None = None) -> Report:
    """Write the page of runs, and return an object with its `path` that a notebook shows as the page.

    Args:
        runs: a run, a comparison, a folder of one or of many, or a list of these.
        out: the page; its numbers are written into a file next to it. Without it, report.html in the first folder.
        against: the arm that all others are compared with; the first, or that of an earlier comparison.
    """
    from spacedkd.reporting.page import write_page

    several = [runs] if isinstance(runs, Run | Comparison | str | PathLike) else [*runs]
    folders = [Path(each.folder if isinstance(each, Run | Comparison) else each) for each in several]
    made = compare_folders(folders, None if out is None else Path(out), against)
    write_page(made.page, made.comparison, made.unfinished)
    return Report(made.page)


@dataclass(frozen=True)
class ComparedFolders:
    """A comparison of all runs in some folders, and where its page is to be written."""

    comparison: ComparisonDocument
    page: Path
    numbers: Path
    finished: Sequence[Path]
    unfinished: int
    """runs that are neither finished nor lost"""


def compare_folders(folders: Sequence[Path], out: Path | None, against: str | None) -> ComparedFolders:
    """Compare all finished runs in some folders, and write the numbers next to the page.

    Arms that were compared before keep their order, and the arm that they were compared with.
    """
    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise UserError(f"The report is an HTML page: its file name must end in .html, got {str(out)!r}.")
    if not folders:
        raise UserError("Name at least one run folder, for instance runs/demo.")

    from spacedkd.comparison.results import compare_runs, find_runs  # scipy's, and the tensors of students
    from spacedkd.runs.folder import make_folder

    finished, unfinished = find_runs(folders)
    if out is None:
        page, numbers = folders[0] / "report.html", folders[0] / "comparison.json"
    else:
        page, numbers = out, out.with_name(f"{out.stem}-numbers.json")
        make_folder(out.parent, "--out")
    ordered, reference = keep_order(folders[0] / "comparison.json", finished, against)
    comparison = compare_runs(ordered, reference, unfinished)
    write_comparison(numbers, comparison)
    lost = len(comparison["diverged"]) + len(comparison["failed"])
    return ComparedFolders(comparison, page, numbers, finished, len(unfinished) - lost)


# Plots


def plot_run(run: Run, axes: Any = None) -> Any:
    """Draw the accuracy of every role after each epoch, and return matplotlib's `Axes`."""
    curves = {role: run.accuracy_curves[role] for role in run.roles if role in run.accuracy_curves}
    return _plot(curves, axes, run.name, run.spec.metric_title)


def plot_comparison(comparison: Comparison, axes: Any = None) -> Any:
    """Draw the student's mean accuracy over seeds after each epoch for every arm, and return matplotlib's `Axes`."""
    curves = {
        label: plots.mean_curve([run.accuracy_curves[run.roles[-1]] for run in arm.runs])
        for label, arm in comparison.arms.items()
    }
    return _plot(curves, axes, "student, mean over seeds", next(iter(comparison.arms.values())).first.spec.metric_title)


def _plot(curves: Mapping[str, Curve], axes: Any, title: str, metric: str) -> Any:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise UserError(f"Plots need matplotlib, which is not installed: {install_command('plot')}") from None
    axes = pyplot.subplots()[1] if axes is None else axes
    for name, curve in curves.items():
        axes.plot([*curve], [100 * value for value in curve.values()], label=name)
    axes.set(xlabel="epoch", ylabel=f"{metric}, %", title=title)
    axes.legend()
    return axes
