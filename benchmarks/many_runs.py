"""What many runs take: time, and the peak memory of the process that looks at them.

    python -m benchmarks.many_runs

1. `spacedkd report` over 1000 finished runs of ten arms, and over 100 of them: what one more run costs;
2. a journal of a million lines beside one of ten thousand: read for its result;
3. `compare` over 200 runs beside the same runs one after the other in this process.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from spacedkd import DataSpec, Duration, EngineSpec, MethodSpec, NetworkSpec, RunSpec
from spacedkd.runtime.files import write_json

TINY = RunSpec(
    data=DataSpec("digits", train_limit=40),
    network=NetworkSpec("resnet18_small", {"width": 4, "layers": [1, 1, 1, 1]}),
    epochs=2,
    batch_size=8,
    precision="32-true",
    engine=EngineSpec(accelerator="cpu", threads=1),
)


def copies(run: Path, out: Path, arms: int, seeds: int) -> None:
    """Runs that differ in arm and seed, each with accuracies of its own, as their files would say."""
    spec, result = (json.loads((run / name).read_text()) for name in ("spec.json", "result.json"))
    for arm in range(arms):
        for seed in range(seeds):
            place = out / f"arm{arm}" / f"seed{seed}"
            place.mkdir(parents=True)
            shutil.copy(run / "journal.jsonl", place)
            write_json(place / "spec.json", {**spec, "label": f"arm {arm}", "seed": seed})
            last = (arm + seed * 7 % 11) / 20
            heads = {"test": {"final": {"last": last, "best": last, "best_epoch": 1.0}}}
            write_json(place / "result.json", {**result, "accuracy": dict.fromkeys(result["accuracy"], heads)})


def in_a_process(action: str, *words: str) -> dict[str, float]:
    """Seconds, and the peak memory in bytes, of one of the actions below in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.many_runs", "--action", action, *words]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


# What an action needs is imported in it, so that its process has nothing else in memory.


def report(folder: str) -> None:
    from spacedkd.cli import main

    main(["report", folder, "--out", f"{folder}/page.html"])


def journal(folder: str) -> None:
    from spacedkd.runs.journal import read_journal

    for _ in read_journal(Path(folder) / "journal.jsonl"):
        pass


def comparison(folder: str, runs: str) -> None:
    from spacedkd import compare

    seeds = int(runs) // 2
    compare({"online": TINY, "no KD": replace(TINY, method=MethodSpec("none"))}, folder, seeds=seeds, sharing=False)


ACTIONS: dict[str, Callable[..., None]] = {"report": report, "journal": journal, "comparison": comparison}


def measured(action: str, words: list[str]) -> dict[str, float]:
    begin = time.perf_counter()
    with redirect_stdout(sys.stderr):
        ACTIONS[action](*words)
    seconds = time.perf_counter() - begin
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return {"seconds": seconds, "bytes": int(peak[1]) * 1024}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_runs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="of the comparison")
    parser.add_argument("--action", nargs="+", help="measure one of report, journal, comparison in this process")
    asked = parser.parse_args()
    if asked.action:
        print(json.dumps(measured(asked.action[0], asked.action[1:])))
        return
    from spacedkd import train

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        train(replace(TINY, log_every=Duration(1, "st")), place / "run")
        for arms, seeds in ((10, 10), (10, 100)):
            out = place / f"report{seeds}"
            copies(place / "run", out, arms, seeds)
            print(f"report over {arms * seeds} runs: {said(in_a_process('report', str(out)))}")
        line = (place / "run/journal.jsonl").read_text().splitlines()[0]
        for lines in (10_000, 1_000_000):
            (place / "journal.jsonl").write_text(f"{line}\n" * lines)
            print(f"journal of {lines} lines: {said(in_a_process('journal', name))}")
        compared(place / "comparison", asked.runs)


def compared(folder: Path, runs: int) -> None:
    found: Any = in_a_process("comparison", str(folder), str(runs))
    trained = sum(json.loads(file.read_text())["seconds"] for file in folder.rglob("result.json"))
    share = trained / found["seconds"]
    print(f"comparison of {runs} runs: {said(found)}; {share:.2f} runs were training at a time")


def said(found: dict[str, float]) -> str:
    return f"{found['seconds']:.1f} s, {found['bytes'] / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
