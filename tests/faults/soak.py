"""Runs of every kind, killed at random until so many kills have been made; every one must end with the same bits.

    python -m tests.faults.soak --kills 1000 --out soak.json

Half of the kills are at a random point of the run (`injected/points.py`), half at a random time, with everything that
the run has started. Between two kills it goes on where it was left; after a few it goes on to its end and is compared:
checkpoint, journal, result and student. Nothing is random but for --seed, except how far a run gets in some time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.killing import Point, assert_same, ended, finished, killed, started, traced
from tests.faults.kinds import KINDS

RARELY = 0.2
"""for each run of another kind there are so many of those that start processes, which takes seconds"""


def whole_runs(place: Path) -> dict[str, tuple[Path, list[Point], float]]:
    """Of every kind: a run that nobody kills, its points, and how long it takes."""
    found = {}
    traced("kd", place / "first")  # the server begins
    for kind in KINDS:
        begin = time.monotonic()
        points = traced(kind, place / kind)
        found[kind] = place / kind, points, time.monotonic() - begin
        print(f"{kind}: {len(points)} points, {found[kind][2]:.1f} s", file=sys.stderr, flush=True)
    return found


def killed_in_time(kind: str, folder: Path, seconds: float) -> bool:
    """Whether the run was still going on then."""
    folder.mkdir(parents=True, exist_ok=True)
    process = started(kind, folder)
    process.join(seconds)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    return ended(process) != 0


def soak(kills: int, seed: int, place: Path) -> dict[str, Any]:
    whole, chance = whole_runs(place / "whole"), random.Random(seed)
    made: Counter[str] = Counter()
    by_name: Counter[str] = Counter()
    different: list[dict[str, Any]] = []
    runs = 0
    while made.total() < kills:
        kind = chance.choices([*KINDS], [RARELY if one.slow else 1.0 for one in KINDS.values()])[0]
        expected, points, seconds = whole[kind]
        folder, history = place / "killed" / str(runs), []
        try:
            for _ in range(chance.randint(2, 8)):
                point, moment = chance.choice(points), chance.uniform(0, seconds)
                if chance.random() < 0.5:
                    history.append(str(point))
                    hit = killed(kind, folder, point)
                    by_name[f"{point.name.split()[0]} {Path(point.name).name}"] += hit
                else:
                    history.append(f"{moment:.3f} s")
                    hit = killed_in_time(kind, folder, moment)
                made[kind] += hit
            finished(kind, folder)
            assert_same(kind, expected, folder)
        except AssertionError as error:
            different.append({"kind": kind, "killed at": history, "error": str(error)})
            print(f"DIFFERENT: {different[-1]}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(folder)
        runs += 1
        if runs % 20 == 0:
            line = f"{made.total()} kills of {runs} runs, {len(different)} of them different"
            print(line, file=sys.stderr, flush=True)
    found = {"kills": made.total(), "runs": runs, "different": different, "kills of each kind": dict(made)}
    return {**found, "points": sum(len(points) for _, points, _ in whole.values()), "at points": dict(by_name)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = soak(asked.kills, asked.seed, Path(place))
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{found['kills']} kills of {found['runs']} runs; {len(found['different'])} ended differently.")
    raise SystemExit(1 if found["different"] else 0)


if __name__ == "__main__":
    main()
