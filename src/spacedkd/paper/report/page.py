"""The pages of reproduced tables: one for each, with verdict, picture and all numbers, and the index over all."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from spacedkd.paper.report import findings, tables
from spacedkd.paper.report.figures import figure
from spacedkd.reporting.formatting import join_words
from spacedkd.reporting.html import Markup, document, folded, folded_if_many, html_table, note, paragraph, tag
from spacedkd.runtime.files import Folder, write_text

if TYPE_CHECKING:
    from spacedkd.paper.results import Results, VerdictCounts

TABLE_STYLE = """
path.paper { stroke: var(--leader); } .all.paper { stroke-width: 1.6; stroke-dasharray: 5 4; }
path.fit { stroke: var(--middle-1); }
.all.fit { stroke-width: 1.6; } path.beside { stroke: var(--soft); } .all.beside { stroke-dasharray: 2 4; }
.theirs { fill: var(--leader-ink); }
line.optimum { stroke: var(--middle-1); stroke-width: 3; stroke-linecap: round; }
circle.optimum { fill: var(--middle-1); stroke: var(--page); stroke-width: 1.2; }
th, td { padding: 9px; }
.why { display: block; white-space: normal; min-width: 11rem; }
.footnotes { list-style: none; padding: 0; } .footnotes li { margin-bottom: 4px; }
img { max-width: 100%; height: auto; }
"""
MIME = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


# The page of a table


def write_table_page(path: Path, results: "Results") -> None:
    """Write the page of one table, with the pictures that are next to it; equal inputs give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render_table(results, path.parent), within=path.parent)


def render_table(results: "Results", folder: Path) -> str:
    """Return the page of one table as text; its pictures are read from the folder."""
    sections = {
        "figure": ("Ours and the paper's", figure(results)),
        "table": ("The table", _table(results)),
        "summaries": ("What the text says of all of them", _summaries(results)),
        "differences": ("Differences, one by one", _differences(results)),
        "rule": ("How a verdict is reached", [paragraph(results["rule"])] if results["cells"] else []),
        "metrics": ("Other metrics of the same runs", _metrics(results)),
        "pictures": ("Pictures", _pictures(results, folder)),
        "lost": ("What is not in these numbers", _lost(results)),
        "notes": ("Notes", _notes(results)),
        "making": ("How this was made", _provenance(results)),
    }
    return document(
        results["title"],
        kind="spacedkd reproduce",
        setting=f"The paper's claim ({results['reference']}): {results['claim']}",
        outcome=_outcome(results),
        sections=sections,
        more_style=TABLE_STYLE,
        with_images=bool(results.get("pictures")),
    )


def _outcome(results: "Results") -> Iterator[str]:
    yield paragraph(results["verdict"]["sentence"])
    links = [tag("li", tag("a", name, href=quote(name))) for name in results.get("pages", ())]
    yield tag("ul", *links) if links else Markup()
    if results["cells"]:
        yield note(f"Mean over {findings.seeds(results)}; {findings.scale(results)}.")
    yield note(findings.unfinished(results))


def _table(results: "Results") -> Iterator[str]:
    if not results["cells"]:
        return
    paper, both = ("the paper's number as printed, ", " in both") if tables.has_paper_numbers(results) else ("", "")
    yield note(
        f"Ours: {findings.measured(results)}, {findings.averaged(results)}. Below: {paper}the sign of the effect{both} "
        f"(unclear where the interval of ours includes zero), and the verdict. {findings.BOLD}"
    )
    yield html_table(tables.layout(results))
    marks = [tag("li", tag("sup", mark), f" {text}", class_="note") for text, mark in tables.footnotes(results).items()]
    yield tag("ul", *marks, class_="footnotes") if marks else Markup()


def _differences(results: "Results") -> Iterator[str]:
    if tables.compared_cells(results):
        yield note(f"Of percents in points. {findings.TESTS}")
        yield note(findings.few_seeds(results))
        yield note("Each interval and each uncorrected p stands for its own comparison; one in twenty errs by chance.")
        cells, table = tables.compared_cells(results), html_table(tables.differences(results))
        yield from folded_if_many(cells, f"All {len(cells)} differences and their tests", table)


def _summaries(results: "Results") -> Iterator[str]:
    if results.get("summaries"):
        yield note(findings.SUMMARIES)
        yield html_table(tables.summaries(results))


def _metrics(results: "Results") -> Iterator[str]:
    cells = [cell for cell in results["cells"] if cell["also"]]
    if cells:
        yield from folded_if_many(cells, f"All {len(cells)} cells", html_table(tables.other_metrics(results)))


def _pictures(results: "Results", folder: Path) -> Iterator[str]:
    missing = []
    for name in results.get("pictures", ()):
        if not (folder / name).is_file():
            missing.append(name)
            continue
        with Folder(folder).reading(folder / name) as file:
            data = b64encode(file.read()).decode()
        image = tag("img", src=f"data:{MIME[Path(name).suffix.lower()]};base64,{data}", alt=name)
        yield tag("figure", image, tag("figcaption", Path(name).stem))
    if missing:
        yield note(f"Not beside the results: {join_words(missing)}.")


def _lost(results: "Results") -> Iterator[str]:
    yield from (paragraph(sentence) for sentence in [findings.unfinished(results)] if sentence)
    if results.get("diverged"):
        yield paragraph("These runs diverged. They are in none of the numbers, which are of the other seeds alone.")
        yield html_table(tables.diverged(results))
    if results.get("failed"):
        yield paragraph("These runs failed. They are in none of the numbers; the same command tries them again.")
        yield html_table(tables.failed(results))


def _notes(results: "Results") -> Iterator[str]:
    if results["notes"]:
        yield tag("ul", *(tag("li", text) for text in results["notes"]))


def _provenance(results: "Results") -> Iterator[str]:
    yield paragraph(findings.cost(results))
    yield note(findings.provenance(results))
    yield tag("pre", tag("code", results["command"]), tabindex=0)
    lines = [
        tag(
            "li",
            f"{cell['row']}: {cell['column']}: {findings.metric_of(results, cell)}; ",
            tag("code", cell.get("fingerprint", "")),
        )
        for cell in results["cells"]
    ]
    if lines:
        yield folded("What every cell was measured on: metric and fingerprint of its runs", tag("ul", *lines))


# The index over all tables

INDEX_TITLE = "The paper's claims, reproduced"
INDEX_STYLE = """
.claims { list-style: none; margin: 0; padding: 0; }
.claims li { border-top: 1px solid var(--rule); padding: 16px 0 8px; }
.claims li:first-child { border-top: 0; }
.claims h3 { font-size: 1.06rem; } .claims p { margin-bottom: 6px; }
.claims .verdict-line { font-weight: 600; }
a { color: var(--student-ink); }
.share { width: 100%; max-width: 420px; height: 10px; margin: 6px 0 2px; }
rect.agrees { fill: var(--middle-1); } rect.disagrees { fill: var(--leader); }
rect.smaller { fill: var(--middle-2); } rect.cannot { fill: var(--rule); }
"""


def write_index_page(path: Path, every: "Sequence[Results]") -> None:
    """Write the index; the page of each table is in the folder of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render_index(every), within=path.parent)


def render_index(every: "Sequence[Results]") -> str:
    """Return the index as text."""
    claims = [tag("ul", *map(_claim, every), class_="claims")] if every else []
    return document(
        INDEX_TITLE,
        kind="spacedkd reproduce",
        setting="Every table and figure with results that has been run, each with the claim the paper makes with it "
        "and what these runs say of that claim.",
        outcome=[paragraph(findings.overall(every)), *map(note, findings.scales(every))],
        sections={"claims": ("Claim by claim", claims)},
        more_style=INDEX_STYLE,
    )


def _claim(results: "Results") -> Markup:
    verdict = results["verdict"]
    tally = f"{findings.tally(verdict)}." if any(verdict[word] for word in findings.VERDICTS) else None
    return tag(
        "li",
        tag("h3", tag("a", results["title"], href=f"{quote(results['name'], safe='')}/index.html")),
        note(f"{results['reference']}; {findings.scale_and_seeds(results)}"),
        paragraph(f"Claim: {results['claim']}"),
        paragraph(verdict["sentence"], "verdict-line"),
        _share(verdict),
        note(" ".join(filter(None, (tally, findings.unfinished(results))))),
    )


def _share(verdict: "VerdictCounts") -> Markup:
    """Return how much of a table has each verdict, as one bar; the words below it say the same."""
    total = sum(verdict[word] for word in findings.VERDICTS)
    if not total:
        return Markup()
    parts, start = [], 0.0
    for word in findings.VERDICTS:
        if verdict[word]:
            width = 100 * verdict[word] / total
            parts.append(tag("rect", class_=word.split()[0], x=start, y=0, width=width, height=10))
            start += width
    return tag(
        "svg", *parts, viewBox="0 0 100 10", preserveAspectRatio="none", class_="share", role="img",
        aria_label=findings.tally(verdict),
    )  # fmt: skip
