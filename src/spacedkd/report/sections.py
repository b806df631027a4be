"""What pages are put together from: sections, notes, figures and grids of small pictures."""

from __future__ import annotations

from collections.abc import Sequence

from spacedkd.report.markup import Markup, tag, text


def section(name: str, title: str, *content: Markup) -> Markup:
    return tag("section", tag("h2", text(title), id=name), *content, aria_labelledby=name)


def note(sentences: str) -> Markup:
    return tag("p", text(sentences), class_="note")


def figure(picture: Markup, caption: str) -> Markup:
    return tag("figure", picture, tag("figcaption", text(caption)))


def grid(panels: Sequence[Markup], caption: str) -> Markup:
    return figure(tag("div", *panels, class_="panels"), caption)


def panel(title: str, below: str, picture: Markup) -> Markup:
    return tag("div", tag("h3", text(title), tag("small", text(below))), picture, class_="panel")
