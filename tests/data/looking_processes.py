"""A process that loads and trains, and counts the images that it looks at and opens, and the folders that it lists."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from spacedkd import DataSpec, RunSpec, train
from spacedkd.config.serialization import from_json
from spacedkd.data.sources import Library


def main(encoded: Path, pixels: Path, spec: Path) -> None:
    counts: Counter[str] = Counter()
    stat = os.stat

    def counted(path: Any, *args: Any, **options: Any) -> os.stat_result:
        counts["looked at"] += Path(path).suffix == ".png"
        return stat(path, *args, **options)

    def count_opened(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.scandir") and str(args[0]).startswith((f"{encoded}/", f"{pixels}/")):
            counts[event] += 1

    os.stat = counted
    sys.addaudithook(count_opened)
    asked = from_json(RunSpec, json.loads(spec.read_text()))
    Library(memory_limit=0).load(asked.data, processes=2)
    found = {"encoded": dict(counts)}
    counts.clear()
    train(replace(asked, data=DataSpec(str(pixels))), spec.with_name("run"))
    found["pixels"] = dict(counts)
    spec.with_name(f"counts{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
