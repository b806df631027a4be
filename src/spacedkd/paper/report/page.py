"""The page of a reproduced table: the verdict, the picture, ours beside the paper's, and all that is behind it."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from spacedkd.paper.report import findings, tables
from spacedkd.paper.report.cells import compared, footnotes, has_paper
from spacedkd.paper.report.figures import figure
from spacedkd.report.formatting import Found, join_words
from spacedkd.report.html import Markup, document, folded, folded_if_many, html_table, note, paragraph, tag
from spacedkd.runtime.files import Folder, write_text

STYLE = """
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


def write_table_page(path: Path, found: Found) -> None:
    """Write the page of one table, with the pictures that lie beside it; equal inputs give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(found, path.parent), within=path.parent)


def render(found: Found, folder: Path) -> str:
    """The page as text."""
    sections = {
        "figure": ("Ours and the paper's", figure(found)),
        "table": ("The table", _table(found)),
        "summaries": ("What the text says of all of them", _summaries(found)),
        "differences": ("Differences, one by one", _differences(found)),
        "rule": ("How a verdict is reached", [paragraph(found["rule"])] if found["cells"] else []),
        "metrics": ("Other metrics of the same runs", _metrics(found)),
        "pictures": ("Pictures", _pictures(found, folder)),
        "lost": ("What is not in these numbers", _lost(found)),
        "notes": ("Notes", _notes(found)),
        "making": ("How this was made", _making(found)),
    }
    setting = f"The paper's claim ({found['reference']}): {found['claim']}"
    return document(
        found["title"], "spacedkd reproduce", setting, _outcome(found), sections, STYLE, bool(found.get("pictures"))
    )


def _outcome(found: Found) -> Iterator[str]:
    yield paragraph(found["verdict"]["sentence"])
    links = [tag("li", tag("a", name, href=quote(name))) for name in found.get("pages", ())]
    yield tag("ul", *links) if links else Markup()
    if found["cells"]:
        yield note(f"Mean over {findings.seeds(found)}; {findings.scale(found)}.")
    yield note(findings.unfinished(found))


def _table(found: Found) -> Iterator[str]:
    if not found["cells"]:
        return
    theirs, both = ("the paper's number as printed, ", " in both") if has_paper(found) else ("", "")
    yield note(
        f"Ours: {findings.measured(found)}, {findings.averaged(found)}. Below: {theirs}the sign of the effect{both} "
        f"(unclear where the interval of ours includes zero), and the verdict. {findings.BOLD}"
    )
    yield html_table(tables.layout(found))
    marks = [tag("li", tag("sup", mark), f" {text}", class_="note") for text, mark in footnotes(found).items()]
    yield tag("ul", *marks, class_="footnotes") if marks else Markup()


def _differences(found: Found) -> Iterator[str]:
    if compared(found):
        yield note(f"Of percents in points. {findings.TESTS}")
        yield note(findings.few_seeds(found))
        yield note("Each interval and each uncorrected p stands for its own comparison; one in twenty errs by chance.")
        cells, table = compared(found), html_table(tables.differences(found))
        yield from folded_if_many(cells, f"All {len(cells)} differences and their tests", table)


def _summaries(found: Found) -> Iterator[str]:
    if found.get("summaries"):
        yield note(findings.SUMMARIES)
        yield html_table(tables.summaries(found))


def _metrics(found: Found) -> Iterator[str]:
    cells = [cell for cell in found["cells"] if cell["also"]]
    if cells:
        yield from folded_if_many(cells, f"All {len(cells)} cells", html_table(tables.other_metrics(found)))


def _pictures(found: Found, folder: Path) -> Iterator[str]:
    missing = []
    for name in found.get("pictures", ()):
        if not (folder / name).is_file():
            missing.append(name)
            continue
        with Folder(folder).reading(folder / name) as file:
            data = b64encode(file.read()).decode()
        image = tag("img", src=f"data:{MIME[Path(name).suffix.lower()]};base64,{data}", alt=name)
        yield tag("figure", image, tag("figcaption", Path(name).stem))
    if missing:
        yield note(f"Not beside the results: {join_words(missing)}.")


def _lost(found: Found) -> Iterator[str]:
    yield from (paragraph(said) for said in [findings.unfinished(found)] if said)
    if found.get("diverged"):
        yield paragraph("These runs diverged. They are in none of the numbers, which are of the other seeds alone.")
        yield html_table(tables.diverged(found))
    if found.get("failed"):
        yield paragraph("These runs failed. They are in none of the numbers; the same command tries them again.")
        yield html_table(tables.failed(found))


def _notes(found: Found) -> Iterator[str]:
    if found["notes"]:
        yield tag("ul", *(tag("li", text) for text in found["notes"]))


def _making(found: Found) -> Iterator[str]:
    yield paragraph(findings.cost(found))
    yield note(findings.origin(found))
    yield tag("pre", tag("code", found["command"]), tabindex=0)
    lines = [
        tag(
            "li",
            f"{cell['row']}: {cell['column']}: {findings.metric_of(found, cell)}; ",
            tag("code", cell["fingerprint"]),
        )
        for cell in found["cells"]
    ]
    if lines:
        yield folded("What every cell was measured on: metric and fingerprint of its runs", tag("ul", *lines))
