"""How text becomes HTML and SVG: every string from data passes through `text` or an attribute of `tag`."""

from __future__ import annotations

from html import escape
from typing import NewType

Markup = NewType("Markup", str)
"""text that is safe to put into the page as it stands"""

NOTHING = Markup("")
_ALONE = {"meta", "br"}


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
        f' {key.rstrip("_").replace("_", "-")}="{escape(_written(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" + ("" if name in _ALONE else f"{join(*content)}</{name}>"))


def _written(value: str | float) -> str:
    """Coordinates to a tenth of a pixel: finer cannot be seen and makes the page longer."""
    return value if isinstance(value, str) else f"{round(value, 1):g}"
