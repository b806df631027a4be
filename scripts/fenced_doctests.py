"""Doctests in docstrings are shown as code (an extension of griffe)."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    r"""A docstring in Markdown: what begins with >>> and ends with an empty line is Python.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n\nThat is all.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThat is all.'
    """
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)


class FencedDoctests(griffe.Extension):
    """Changes the docstrings of everything that is shown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
