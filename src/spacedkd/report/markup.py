"""What a page is put together from: elements, sections, figures, panels, tables, and what is folded away.

Every string from data passes through `text` or an attribute of `tag`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NewType

from spacedkd.report.tables import Cell, Table

Markup = NewType("Markup", str)
"""text that is safe to put into the page as it stands"""

NOTHING = Markup("")
STYLE = "\n" + Path(__file__).with_name("look.css").read_text(encoding="utf-8")
"""light and dark, in colours that colour-blind readers can tell apart (Okabe-Ito)"""
MANY = 12
"""so many arms are more than a reader takes in at once: what is said of each is folded away"""
SHOWN = 6
"""panels that stay open where there are too many"""


def text(value: object) -> Markup:
    """Any value as text of the page.

    >>> text("a < b")
    'a &lt; b'
    """
    return Markup(escape(str(value)))


def join(*parts: Markup) -> Markup:
    return Markup("".join(parts))


def tag(name: str, /, *content: Markup, **attributes: str | float | None) -> Markup:
    """One element; `class_` is class and an underscore in a name is a hyphen; None leaves an attribute out.

    >>> tag("line", x1=0, stroke_width=1.5, class_='"')
    '<line x1="0" stroke-width="1.5" class="&quot;"></line>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else pixels(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" + ("" if name == "meta" else f"{join(*content)}</{name}>"))


def pixels(value: float) -> str:
    """To a tenth of a pixel: finer cannot be seen and makes the page longer."""
    return f"{round(value, 1):g}"


def section(name: str, title: str, *content: Markup) -> Markup:
    return tag("section", tag("h2", text(title), id=name), *content, aria_labelledby=name)


def note(sentences: str) -> Markup:
    return tag("p", text(sentences), class_="note")


def marked(sentence: str, word: str, name: str, class_: str | None = None) -> Sequence[Markup]:
    """A sentence in which the last `word` is an element of its own."""
    before, found, after = sentence.rpartition(word)
    return text(before), tag(name, text(found), class_=class_) if found else NOTHING, text(after)


def figure(picture: Markup, caption: str) -> Markup:
    return tag("figure", picture, tag("figcaption", text(caption)))


def grid(panels: Sequence[Markup], caption: str) -> Markup:
    """Panels side by side; of very many the first few, the others folded away."""
    open_ = len(panels) if len(panels) <= MANY else SHOWN
    shown, rest = (tag("div", *some, class_="panels") for some in (panels[:open_], panels[open_:]))
    more = [folded(f"Show the other {len(panels) - open_}", rest)] if open_ < len(panels) else []
    return tag("figure", shown, tag("figcaption", text(caption)), *more)


def panel(title: str, below: str, picture: Markup) -> Markup:
    return tag("div", tag("h3", text(title), tag("small", text(below))), picture, class_="panel")


def document(title: str, opening: Markup, sections: Iterable[Markup], more_style: str = "") -> str:
    """A whole page in one file; nothing in it may be fetched or run."""
    # A page holds text from specs; whatever slipped through escaping could still load and run nothing.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", text(title)),
        tag("style", Markup(STYLE + more_style)),
    )
    body = tag("body", opening, tag("main", *sections))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def folded(summary: str, *content: Markup) -> Markup:
    return tag("details", tag("summary", text(summary)), *content, class_="more")


def folded_if(many: bool, summary: str, *content: Markup) -> Sequence[Markup]:
    return (folded(summary, *content),) if many else content


def legend(colours: Iterable[tuple[str, str]], kind: Literal["all", "band"]) -> Markup:
    """Names, each with the class of its lines."""
    items = []
    for name, class_ in colours:
        line = tag("path", d="M0 5L30 5", class_=f"{kind} {class_}", stroke_width=3)
        items.append(tag("li", tag("svg", line, viewBox="0 0 30 10", aria_hidden="true"), text(name)))
    return tag("ul", *items, class_="legend")


def html_table(table: Table) -> Markup:
    """A table as the page shows it."""
    kept = [place for place, column in enumerate(table.columns) if column.title is not None]
    heads = [table.columns[place].title or "" for place in kept]
    rows = [[_head_cell(row[0]), *(_cell(row[place]) for place in kept[1:])] for row in table.rows]
    return framed_table(table.name, heads, rows, table.marked)


def framed_table(
    name: str, heads: Sequence[str], rows: Sequence[Sequence[Markup]], marked: Sequence[bool] = ()
) -> Markup:
    """A table that scrolls inside its own frame where the screen is narrow."""
    head = tag("tr", *(tag("th", text(title), scope="col") for title in heads))
    body = [tag("tr", *row, class_="named" if is_marked else None) for row, is_marked in zip_longest(rows, marked)]
    table = tag("table", tag("caption", text(name), class_="unseen"), tag("thead", head), tag("tbody", *body))
    hint = tag("p", text("Scroll the table sideways for more columns."), class_="note hint", aria_hidden="true")
    label = f"{name}, scrolls sideways"
    return join(hint, tag("div", table, class_="scroll", role="region", aria_label=label, tabindex=0))


def _head_cell(cell: Cell) -> Markup:
    return tag("th", text(cell.text), tag("small", text(cell.below)), scope="row")


def _cell(cell: Cell) -> Markup:
    if cell.absent:
        return tag("td", text(cell.text), class_="none")
    parts = [text(cell.text)]
    if cell.strong or cell.half is not None:
        parts = [tag("b" if cell.strong else "span", *parts)]
    if cell.half is not None:
        parts.append(tag("span", text(f" {cell.half}"), class_="half"))
    if cell.verdict:
        parts.append(tag("span", text(cell.verdict), class_=f"verdict {cell.verdict.split()[0]}"))
    if cell.below is not None:
        parts.append(tag("small", text(cell.below)))
    return tag("td", *parts)
