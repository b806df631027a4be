"""One page over all tables and figures that were made again: a verdict for each claim of the paper."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from spacedkd.paper.report import findings
from spacedkd.report.formatting import Found
from spacedkd.report.html import Markup, document, note, paragraph, tag
from spacedkd.report.markdown import escaped, grid
from spacedkd.runtime.files import write_text

TITLE = "The paper's claims, reproduced"
STYLE = """
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


def write_index_page(path: Path, all_found: Sequence[Found]) -> None:
    """Write the index; the page of each table lies in the folder of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render_index(all_found), within=path.parent)


def render_index(all_found: Sequence[Found]) -> str:
    """The page as text."""
    setting = (
        "Every table and figure with results that has been run, each with the claim the paper makes with it and what "
        "these runs say of that claim."
    )
    outcome = [paragraph(findings.overall(all_found)), *map(note, _scales(all_found))]
    claims = [tag("ul", *map(_claim, all_found), class_="claims")] if all_found else []
    return document(TITLE, "spacedkd reproduce", setting, outcome, {"claims": ("Claim by claim", claims)}, STYLE)


def _scales(all_found: Sequence[Found]) -> list[str]:
    return [*dict.fromkeys(f"{findings.capital(findings.scale(found))}." for found in all_found)]


def _claim(found: Found) -> Markup:
    small = f"{found['reference']}; {_how(found)}"
    heading = tag("h3", tag("a", found["title"], href=f"{quote(found['name'], safe='')}/index.html"))
    said = (paragraph(f"Claim: {found['claim']}"), paragraph(found["verdict"]["sentence"], "verdict-line"))
    judged = any(found["verdict"][word] for word in findings.VERDICTS)
    tally = f"{findings.tally(found['verdict'])}." if judged else None
    counts = note(" ".join(filter(None, (tally, findings.unfinished(found)))))
    return tag("li", heading, note(small), *said, _share(found["verdict"]), counts)


def _how(found: Found) -> str:
    """The scale, and the seeds where there are any to speak of."""
    return ", ".join([f"scale {found['scale']['name']}", *([findings.seeds(found)] if found["cells"] else [])])


def _share(verdict: Found) -> Markup:
    """How much of a table has each verdict, as one bar; the words below it say the same."""
    total = sum(verdict[word] for word in findings.VERDICTS)
    if not total:
        return Markup()
    parts = [*_pieces([(word, 100 * verdict[word] / total) for word in findings.VERDICTS if verdict[word]])]
    return tag(
        "svg", *parts, viewBox="0 0 100 10", preserveAspectRatio="none", class_="share", role="img",
        aria_label=findings.tally(verdict),
    )  # fmt: skip


def _pieces(shares: Sequence[tuple[str, float]]) -> Iterator[Markup]:
    start = 0.0
    for word, width in shares:
        yield tag("rect", class_=word.split()[0], x=start, y=0, width=width, height=10)
        start += width


def index_markdown(all_found: Sequence[Found], page: str = "table.md") -> str:
    """The same as Markdown, with links to a file in the folder of each table."""
    lines = [
        [
            f"[{escaped(found['title'])}]({quote(found['name'], safe='')}/{page})",
            escaped(found["claim"]),
            escaped(found["verdict"]["sentence"]),
            *(str(found["verdict"][word]) for word in findings.VERDICTS),
            escaped(_how(found)),
            str(found.get("missing", 0)),
        ]
        for found in all_found
    ]
    heads = ["table or figure", "claim", "verdict", *findings.VERDICTS, "scale and seeds", "runs missing"]
    table = grid(heads, lines, words=(0, 1, 2, len(heads) - 2))
    blocks = [f"# {TITLE}", findings.overall(all_found), *map(escaped, _scales(all_found)), table]
    return "\n\n".join(blocks if all_found else blocks[:2]) + "\n"
