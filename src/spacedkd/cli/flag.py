"""How a flag is described."""

from __future__ import annotations

from typing import Any

import tyro


def flag(help_text: str, default: Any = "", metavar: str | None = None) -> Any:
    """A flag's line in the help, with what the run has when the flag is left out."""
    hint = f"(default: {default})" if default != "" else ""
    return tyro.conf.arg(help=help_text, help_behavior_hint=hint, metavar=metavar)
