"""What a page is put together from: sections, notes, figures, panels, and what is folded away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spacedkd.report.markup import NOTHING, Markup, tag, text
from spacedkd.report.numbers import counted, listed

MANY = 12
"""so many arms are more than a reader takes in at once: what is said of each is folded away"""
SHOWN = 6
"""panels that stay open where there are too many"""
# A page holds text from specs; whatever slipped through escaping could still load and run nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def section(name: str, title: str, *content: Markup) -> Markup:
    return tag("section", tag("h2", text(title), id=name), *content, aria_labelledby=name)


def note(sentences: str) -> Markup:
    return tag("p", text(sentences), class_="note")


def with_code(sentence: str, word: str) -> Markup:
    """A sentence in which one word is typed on the command line, and so must not be broken."""
    before, found, after = sentence.partition(word)
    return tag("p", text(before), tag("code", text(found)) if found else NOTHING, text(after))


def judged(sentence: str, verdict: str | None) -> Sequence[Markup]:
    """A sentence whose last `better` or `worse` has a colour."""
    if verdict not in ("better", "worse"):
        return (text(sentence),)
    before, found, after = sentence.rpartition(verdict)
    return (text(before), tag("b", text(found), class_=verdict), text(after))


def figure(picture: Markup, caption: str) -> Markup:
    return tag("figure", picture, tag("figcaption", text(caption)))


def grid(panels: Sequence[Markup], caption: str) -> Markup:
    """Panels side by side; of very many the first few, the others folded away."""
    if len(panels) <= MANY:
        return figure(_side_by_side(panels), caption)
    rest = folded(f"Show the other {len(panels) - SHOWN}", _side_by_side(panels[SHOWN:]))
    return tag("figure", _side_by_side(panels[:SHOWN]), tag("figcaption", text(caption)), rest)


def _side_by_side(panels: Sequence[Markup]) -> Markup:
    return tag("div", *panels, class_="panels")


def panel(title: str, below: str, picture: Markup) -> Markup:
    return tag("div", tag("h3", text(title), tag("small", text(below))), picture, class_="panel")


def panel_of(labels: Sequence[str], what: str, picture: Markup) -> Markup:
    """A panel that several arms share: named by them, or by what they share where they are too many for a title."""
    if len(labels) < 4:
        return panel(listed(labels), what, picture)
    return panel(f"{what}, {counted(len(labels), 'arm')}", listed(labels), picture)


def document(title: str, style: str, opening: Markup, sections: Iterable[Markup]) -> str:
    """A whole page in one file; nothing in it may be fetched or run."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", text(title)),
        tag("style", Markup(style)),
    )
    body = tag("body", opening, tag("main", *sections))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def folded(summary: str, *content: Markup) -> Markup:
    return tag("details", tag("summary", text(summary)), *content, class_="more")


def folded_if(many: bool, summary: str, *content: Markup) -> Sequence[Markup]:
    return (folded(summary, *content),) if many else content


def legend(colours: Mapping[str, str], dashed: bool) -> Markup:
    def key(class_: str) -> Markup:
        stroke = f"all {class_}" if dashed else f"band {class_}"
        line = tag("path", d="M0 5L30 5", class_=stroke, stroke_width=3)
        return tag("svg", line, viewBox="0 0 30 10", aria_hidden="true")

    return tag("ul", *(tag("li", key(class_), text(role)) for role, class_ in colours.items()), class_="legend")
