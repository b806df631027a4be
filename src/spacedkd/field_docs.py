"""The sentence written below each field of a dataclass: what the command line's help and the methods' pages say."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any


def sentences(kind: type[Any]) -> dict[str, str]:
    """The sentence below each field of a class of ours; of the class itself, not of those it comes from.

    >>> from spacedkd.spec import OptimizerSpec
    >>> sentences(OptimizerSpec)["lr"]
    'learning rate'
    """
    if kind.__module__.partition(".")[0] != "spacedkd":
        return {}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    said = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            said[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return said
