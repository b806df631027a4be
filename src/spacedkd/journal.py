"""What happened in a run, read back line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spacedkd.errors import UserError


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a journal, in order."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # a line cut off by a kill is not an entry yet
                    yield json.loads(line)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a journal: {error}.") from None
