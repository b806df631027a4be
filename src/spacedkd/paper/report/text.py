"""A reproduced table as text: Markdown with everything needed to judge it, LaTeX to paste, CSV with every number."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from spacedkd.paper.report import findings, tables
from spacedkd.paper.report.page import INDEX_TITLE, write_table_page
from spacedkd.reporting import latex as latex_renderer
from spacedkd.reporting.csv import csv_table
from spacedkd.reporting.latex import latex_tables
from spacedkd.reporting.markdown import escaped, fenced, markdown_table
from spacedkd.runtime.files import write_json, write_text

if TYPE_CHECKING:
    from spacedkd.paper.results import Results


def write_table(folder: Path, results: "Results") -> None:
    """Write a table in all its forms: results.json, table.md, table.tex, table.csv and index.html."""
    write_json(folder / "results.json", results, folder)
    write_text(folder / "table.md", markdown(results), folder)
    write_text(folder / "table.tex", latex(results), folder)
    write_text(folder / "table.csv", csv_text(results), folder)
    write_table_page(folder / "index.html", results)


def csv_text(results: "Results") -> str:
    """Return a line for each cell with every number."""
    return csv_table(tables.all_numbers(results))


def latex(results: "Results") -> str:
    """Return a table in the paper's layout; only a remark where there is no table."""
    if not results["cells"]:
        return f"% {results['name']}: no table. {' '.join(results['verdict']['sentence'].split())}\n"
    has_paper = tables.has_paper_numbers(results)
    sentences = [
        results["title"],
        f"Ours: {findings.measured(results)}, {findings.averaged(results)}",
        findings.capital(findings.scale(results)),
        f"Beneath: the paper's numbers ({results['reference']})" if has_paper else results["reference"],
        findings.BOLD,
    ]
    caption = ". ".join(sentence.removesuffix(".") for sentence in sentences) + "."
    return latex_tables(tables.layout(results), results["name"], caption, [*_latex_notes(results)])


def _latex_notes(results: "Results") -> Iterator[str]:
    yield from (f"$^{{{mark}}}$ {latex_renderer.escaped(text)}" for text, mark in tables.footnotes(results).items())
    for statement, stated, printed, _, ours, _ in findings.summary_lines(results):
        yield latex_renderer.escaped(
            f"{findings.capital(str(statement))}: stated {stated}, printed differences {printed}, ours {ours}."
        )
    yield from map(latex_renderer.escaped, results["notes"])


def markdown(results: "Results") -> str:
    """Return the table and what it says, for a repository or a notebook."""
    blocks = [*_opening(results), *(_body(results) if results["cells"] else ()), *_ending(results)]
    return "\n\n".join(blocks) + "\n"


def _opening(results: "Results") -> Iterator[str]:
    yield f"# {escaped(results['title'])}"
    yield escaped(f"{results['reference']}. The paper's claim: {results['claim']}")
    yield f"**{escaped(results['verdict']['sentence'])}**"


def _body(results: "Results") -> Iterator[str]:
    paper = "In brackets: the paper's number. " if tables.has_paper_numbers(results) else ""
    yield escaped(
        f"Ours: {findings.measured(results)}, {findings.averaged(results)}, at the {findings.scale(results)}. "
        f"{paper}{findings.BOLD}"
    )
    yield markdown_table(tables.layout(results))
    yield from (f"<sup>{mark}</sup> {escaped(text)}" for text, mark in tables.footnotes(results).items())
    if results.get("summaries"):
        yield "## What the text says of all of them"
        yield escaped(findings.SUMMARIES)
        yield markdown_table(tables.summaries(results))
    if tables.compared_cells(results):
        yield "## Differences"
        yield markdown_table(tables.differences(results))
        yield escaped(" ".join(filter(None, (findings.TESTS, findings.few_seeds(results)))))
    if results["fits"]:
        yield "## Fitted parabolas"
        yield "\n".join(f"- {escaped(fit['row'])}: {escaped(findings.optimum(fit))}" for fit in results["fits"])
    yield f"## Rule\n\n{escaped(results['rule'])}"
    yield from _lost(results)
    other_metrics = tables.other_metrics(results)
    if other_metrics.rows:
        yield "## Other metrics"
        yield markdown_table(other_metrics)


def _lost(results: "Results") -> Iterator[str]:
    if sentence := findings.unfinished(results):
        yield sentence
    if results.get("diverged"):
        yield "## Diverged\n\nThese runs are in none of the numbers."
        yield _list(
            f"{run['row']}: {run['column']}, seed {run['seed']}, at step {run.get('step')}"
            for run in results["diverged"]
        )
    if runs := results.get("failed"):
        yield "## Failed\n\nThese runs are in none of the numbers; the same command tries them again."
        yield _list(f"{run['row']}: {run['column']}, seed {run['seed']}: {run.get('said')}" for run in runs)


def _ending(results: "Results") -> Iterator[str]:
    if results["notes"]:
        yield "## Notes"
        yield _list(results["notes"])
    yield "## How this was made"
    yield escaped(" ".join(filter(None, (findings.cost(results), findings.provenance(results)))))
    yield fenced(results["command"])


def _list(items: "Iterator[str] | Sequence[str]") -> str:
    return "\n".join(f"- {escaped(item)}" for item in items)


def index_markdown(every: "Sequence[Results]", page: str = "table.md") -> str:
    """Return the index over all tables, with a link to a file in the folder of each."""
    blocks = [f"# {INDEX_TITLE}", findings.overall(every)]
    if every:
        links = [f"{quote(results['name'], safe='')}/{page}" for results in every]
        blocks += [*map(escaped, findings.scales(every)), markdown_table(tables.index_table(every, links))]
    return "\n\n".join(blocks) + "\n"
