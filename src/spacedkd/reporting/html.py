"""The renderer of pages: HTML elements, tables, figures, sections that are folded away, and the whole document."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence, Sized
from hashlib import sha256
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from spacedkd.reporting.table import Cell, Table

STYLE = "\n" + Path(__file__).with_name("look.css").read_text(encoding="utf-8")
"""light and dark, in colours that colour-blind readers can tell apart (Okabe-Ito)"""
SCRIPT = Path(__file__).with_name("tools.js").read_text(encoding="utf-8")
"""values under the pointer; tables as CSV and LaTeX, pictures as SVG"""
SCRIPT_DIGEST = f"sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}"
MANY = 12
"""maximum number of arms whose details are shown at once; those of more are folded away"""
SHOWN = 6
"""panels that stay open where there are too many"""


class Markup(str):
    """Text that is safe to put into the page unchanged; every other string is escaped on its way there."""


Titled = tuple[str, str, Markup]
"""the title of a picture, a remark about it, and the picture"""
Sections = Mapping[str, tuple[str, Iterable[str]]]
"""title and content of each by its name; one without content is left out"""


def join(*parts: str) -> Markup:
    """Join texts and elements; texts are escaped.

    >>> join("a < b", Markup("<br>"))
    'a &lt; b<br>'
    """
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def tag(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """Return one element; `class_` is class and an underscore in a name is a hyphen; None leaves an attribute out.

    >>> tag("line", x1=0, stroke_width=1.5, class_='"')
    '<line x1="0" stroke-width="1.5" class="&quot;"></line>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else pixels(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" + ("" if name in ("meta", "img", "input") else f"{join(*content)}</{name}>"))


def pixels(value: float) -> str:
    """Return a length to a tenth of a pixel: finer cannot be seen and makes the page longer."""
    return f"{round(value, 1):g}"


def paragraph(sentences: str | None, class_: str | None = None) -> Markup:
    """Return a paragraph; nothing where there is no sentence."""
    return tag("p", sentences, class_=class_) if sentences else Markup()


def note(sentences: str | None) -> Markup:
    """Return sentences as a paragraph in the smaller style of notes."""
    return paragraph(sentences, "note")


def mark_word(sentence: str, word: str, name: str, class_: str | None = None) -> Sequence[str]:
    """Return the parts of a sentence, in which the last `word` is an element of its own."""
    before, match, after = sentence.rpartition(word)
    return before, tag(name, match, class_=class_) if match else "", after


def grid(pictures: Sequence[Titled], caption: str, wide: bool = False) -> Markup:
    """Return pictures side by side; of very many the first few, the others folded away."""
    class_ = "panels wide" if wide else "panels"
    panels = [
        tag("div", tag("h3", title, tag("small", remark) if remark else ""), picture, class_="panel")
        for title, remark, picture in pictures
    ]
    open_ = len(panels) if len(panels) <= MANY else SHOWN
    shown, rest = (tag("div", *some, class_=class_) for some in (panels[:open_], panels[open_:]))
    more = folded(f"Show the other {len(panels) - open_}", rest) if open_ < len(panels) else ""
    return tag("figure", shown, tag("figcaption", caption), more)


def document(
    title: str,
    *,
    kind: str,
    setting: str,
    outcome: Iterable[str],
    sections: Sections,
    more_style: str = "",
    with_images: bool = False,
    first_figure: Markup | None = None,
) -> str:
    """Return a whole page in one file; nothing in it may be fetched. Images, where there are any, are in it too.

    Args:
        title: the title of the page.
        kind: the line above the title.
        setting: the line below it.
        outcome: the first paragraphs.
        sections: what follows, in order.
        more_style: further style rules.
        with_images: whether the page contains images.
        first_figure: shown next to the outcome; a page with one has the script that reads figures and tables.
    """
    # A page holds text from specs; whatever slipped through escaping could still load nothing, and run nothing: the
    # one script that may run is known by its digest.
    policy = "default-src 'none'; style-src 'unsafe-inline'" + ("; img-src data:" if with_images else "")
    script = Markup()
    if first_figure is not None:
        policy += f"; script-src '{SCRIPT_DIGEST}'"
        script = tag("script", Markup(SCRIPT))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(STYLE + more_style)),
    )
    opening = tag("div", *outcome, class_="outcome")
    if first_figure is not None:
        opening = tag("div", opening, first_figure, class_="opening")
    header = tag("header", paragraph(kind, "kind"), tag("h1", title), paragraph(setting, "setting"), opening)
    main = [
        tag("section", tag("h2", heading, id=name), *content, aria_labelledby=name)
        for name, (heading, parts) in sections.items()
        if (content := [*parts])
    ]
    return "<!doctype html>\n" + tag("html", head, tag("body", header, tag("main", *main), script), lang="en") + "\n"


def folded(summary: str, *content: str) -> Markup:
    """Return content that is folded away below a summary."""
    return tag("details", tag("summary", summary), *content, class_="more")


def folded_if_many(arms: Sized, summary: str, *content: str) -> Sequence[str]:
    """Return content as it is, or folded away where there are too many arms to be taken in at once."""
    return (folded(summary, *content),) if len(arms) > MANY else content


def legend(colours: Iterable[tuple[str, str]], kind: Literal["all", "band"]) -> Markup:
    """Return a legend: names, each with the class of its lines."""
    items = []
    for name, class_ in colours:
        line = tag("path", d="M0 5L30 5", class_=f"{kind} {class_}", stroke_width=3)
        items.append(tag("li", tag("svg", line, viewBox="0 0 30 10", aria_hidden="true"), name))
    return tag("ul", *items, class_="legend")


def html_table(table: Table) -> Markup:
    """Return a table as the page shows it; it scrolls inside its own frame where the screen is narrow."""
    columns = [(index, column.title) for index, column in enumerate(table.columns) if column.title is not None]
    head = tag("tr", *(tag("th", title, scope="col") for _, title in columns))
    body = [
        tag(
            "tr",
            *(_cell(row[index], is_head=index == 0) for index, _ in columns),
            class_="named" if is_marked else None,
        )
        for row, is_marked in zip_longest(table.rows, table.marked)
    ]
    inner = tag("table", tag("caption", table.name, class_="unseen"), tag("thead", head), tag("tbody", *body))
    hint = tag("p", "Scroll the table sideways for more columns.", class_="note hint", aria_hidden="true")
    label = f"{table.name}, scrolls sideways"
    return join(hint, tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex=0))


def numbers(description: str, heads: Sequence[tuple[str, str | None]], rows: Iterable[Sequence[str]]) -> Markup:
    """Return the numbers of a picture as a table that is folded away.

    A head may have the key of a line in the picture, by which the page's script finds the numbers of that line.
    """
    head = tag("tr", *(tag("th", title, scope="col", data_line=key) for title, key in heads))
    body = [tag("tr", tag("th", first, scope="row"), *(tag("td", text) for text in texts)) for first, *texts in rows]
    inner = tag("table", tag("caption", description, class_="unseen"), tag("thead", head), tag("tbody", *body))
    frame = tag("div", inner, class_="scroll", role="region", aria_label="Numbers, scroll sideways", tabindex=0)
    return tag("details", tag("summary", "Numbers"), frame, class_="numbers")


def _cell(cell: Cell, is_head: bool) -> Markup:
    if cell.absent:
        return tag("td", cell.text, class_="none")
    mark = tag("sup", cell.mark) if cell.mark else ""
    parts = [cell.text]
    if cell.strong or cell.half is not None:
        parts = [tag("b" if cell.strong else "span", *parts)]
    if cell.half is not None:
        parts.append(tag("span", cell.half, mark, class_="half"))
    elif mark:
        parts.append(mark)
    if cell.verdict:
        parts.append(tag("span", cell.verdict, class_=f"verdict {cell.verdict.split()[0]}"))
    if cell.below is not None:
        parts.append(tag("small", cell.below))
    return tag("th", *parts, scope="row") if is_head else tag("td", *parts)
