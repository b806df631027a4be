"""How fast training is beside the loop that was released with the paper, and beside a bare loop.

    python -m benchmarks.released_way --out released_way.json

On two idle cores it takes about a quarter of an hour; --quick tries everything on networks of almost nothing, and its
numbers mean nothing. Three things are measured:

1. images a second, online and spaced, of a ResNet-18 at full and at quarter width and of a DeiT-Tiny at 64 pixels, as
   it is and with --attention plain --set optimizer.fused=true ("plain"). The three ways take turns, block by block; a
   ratio is the median of the ratios within each round;
   Beside it stands the ratio that could be had at all: if every multiplication went as fast as in one large matrix;
2. the peak memory of a process as the interval grows, each in a process of its own;
3. the share of time that is spent waiting for data, with workers that decode JPEG files of 64 pixels.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import fastest
from benchmarks.ways import NEVER, Bare, Case, Ours, Released, write_images
from spacedkd import DataSpec, Duration, EngineSpec, NetworkSpec, OptimizerSpec, RunSpec, Spaced, train
from spacedkd.config.resolve import best_precision
from spacedkd.data.sources import Library
from spacedkd.data.stream import Batch, batches
from spacedkd.runs.folder import RunFolder
from spacedkd.training.forecast import peak_memory
from spacedkd.training.train import train_run

SGD, ADAMW = OptimizerSpec(lr=0.01), OptimizerSpec("adamw", lr=5e-4, weight_decay=0.05)
QUARTER = NetworkSpec("resnet18_small", {"width": 16})
CASES = [
    Case("ResNet-18, full width", NetworkSpec("resnet18_small"), 32, steps=2, optimizer=SGD),
    Case("ResNet-18, quarter width", QUARTER, 32, steps=8, optimizer=SGD),
    Case("DeiT-Tiny, 64 px", NetworkSpec("deit_tiny_patch16_224"), 64, steps=4, optimizer=ADAMW),
    Case("DeiT-Tiny, plain", NetworkSpec("deit_tiny_patch16_224"), 64, steps=4, optimizer=ADAMW, plain=True),
]
GOALS = {
    ("ResNet-18, full width", "released"): 2.0,
    ("ResNet-18, quarter width", "released"): 3.0,
    ("DeiT-Tiny, plain", "released"): 2.0,
    **{(case.name, "bare"): 0.95 for case in CASES},
}
"""how many times as fast as each way we want to be"""
WAYS: dict[str, type[Ours] | type[Bare] | type[Released]] = {"ours": Ours, "bare": Bare, "released": Released}
INTERVALS = ("1st", "1.5ep", "100%")
GIVEN_BACK = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "131072") | {"MALLOC_ARENA_MAX": "1"}
"""has glibc give memory back at once: otherwise a peak has what it kept for later in it, a few percent by chance"""


def quick(case: Case) -> Case:
    network = replace(case.network, options={"width": 4} if case.side == 32 else {"depth": 2})
    return replace(case, network=network, steps=2, batch_size=8, repeats=2)


def speed(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Images a second of all ways, which take turns; for online and for spaced."""
    data = folder / f"{case.side}px.npz"
    write_images(data, case.side, 8 * case.batch_size)
    found = []
    for schedule, interval in (("online", 1), ("spaced", case.steps)):
        ways = {name: way(case, data, interval) for name, way in WAYS.items()}
        flops = flops_of(ways["bare"])
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(case.repeats + 1):
            for name, way in ways.items():
                start = time.perf_counter()
                way.block()
                if turn:  # the first ones warm up
                    times[name].append(time.perf_counter() - start)
        for way in ways.values():
            way.close()
        rates = {name: case.steps * case.batch_size / statistics.median(took) for name, took in times.items()}
        ratios = {
            f"times_{name}": statistics.median(o / u for o, u in zip(times[name], times["ours"], strict=True))
            for name in ("released", "bare")
        }
        limit = matrix_speed() * statistics.median(times["released"]) / flops
        found.append({"network": case.name, "schedule": schedule, "images_per_second": rates, **ratios, "limit": limit})
    return found


def flops_of(way: Ours | Bare | Released) -> int:
    """Of a block: two for each multiplication with its addition."""
    with FlopCounterMode(display=False) as counted:
        way.block()
    return int(counted.get_total_flops())


def matrix_speed() -> float:
    """FLOPs a second of one large product of matrices, in the precision that runs have by default."""
    dtype = torch.bfloat16 if best_precision("cpu") == "bf16-mixed" else torch.float32
    side = 2048
    left, right = (torch.randn(side, side).to(dtype) for _ in range(2))
    return 2 * side**3 / fastest(lambda: left @ right, repeats=10)[0]


def memory_case(is_quick: bool) -> tuple[Case, int, int]:
    """Also how many steps an epoch and how many epochs there are."""
    case = Case("memory", QUARTER, 32, steps=1, optimizer=SGD)
    return (quick(case), 4, 3) if is_quick else (case, 8, 4)


def memory_of(way: str, interval: str, is_quick: bool) -> int:
    """The peak of this process after a run of that interval."""
    case, per_epoch, epochs = memory_case(is_quick)
    steps = per_epoch * epochs
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "images.npz"
        write_images(data, case.side, per_epoch * case.batch_size)
        if way == "ours":
            train(replace(case.spec(data, Spaced(interval)), epochs=epochs), Path(place) / "run")
        else:
            released = Released(replace(case, steps=steps), data, Duration.parse(interval).in_steps(per_epoch, steps))
            released.block()
    return peak_memory()


def memory(is_quick: bool) -> dict[str, dict[str, int]]:
    """Peak bytes of a process for each interval, ours and the released way's."""

    def measured(way: str, interval: str) -> int:
        words = ["--memory-of", way, interval, *(["--quick"] if is_quick else [])]
        command = [sys.executable, "-m", "benchmarks.released_way", *words]
        environment = {**os.environ, **GIVEN_BACK}
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return int(ended.stdout.split()[-1])

    return {way: {interval: measured(way, interval) for interval in INTERVALS} for way in ("ours", "released")}


def write_jpegs(folder: Path, count: int) -> None:
    """Folders of smooth pictures, in size and in time to decode like photographs of 64 pixels."""
    draw = np.random.default_rng(0)
    for part, number in (("train", count), ("val", 20)):
        for place in range(number):
            colours = Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8))
            path = folder / part / f"class{place % 10}" / f"{place}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            colours.resize((64, 64), Image.Resampling.BICUBIC).save(path, quality=90)


def waiting(folder: Path, workers: int, is_quick: bool) -> dict[str, float]:
    """The share of a run's time in which the loop waits for a batch, once the workers have begun to give them."""
    batch, per_epoch = (8, 6) if is_quick else (128, 12)
    write_jpegs(folder / "jpeg", batch * per_epoch)
    spec = RunSpec(
        data=DataSpec(str(folder / "jpeg"), augmentation="tiny-imagenet"),
        network=replace(QUARTER, options={"width": 4}) if is_quick else QUARTER,
        schedule=Spaced("1.5ep"),
        epochs=2,
        batch_size=batch,
        evaluate_every=NEVER,
        save_every=NEVER,
        engine=EngineSpec(workers=workers),
    )
    waits: list[float] = []
    ends: list[float] = []

    def watched(*given: Any) -> Iterator[Batch]:
        return _watched(batches(*given), waits, ends)

    encoded = Library(memory_limit=0)  # images stay encoded, so that workers have something to do
    with patch("spacedkd.training.session.batches", watched):
        train_run(spec, RunFolder(folder / "run"), library=encoded)
    first = 2 * workers  # made while the loop was starting
    return {"share": sum(waits[first + 1 :]) / (ends[-1] - ends[first]), "seconds_until_the_first": waits[0]}


def _watched(given: Iterable[Batch], waits: list[float], ends: list[float]) -> Iterator[Batch]:
    source = iter(given)
    while True:
        start = time.perf_counter()
        batch = next(source, None)
        if batch is None:
            return
        ends.append(time.perf_counter())
        waits.append(ends[-1] - start)
        yield batch


def markdown(found: dict[str, Any]) -> str:
    """All of it as tables."""
    lines: list[str] = []
    if "speed" in found:
        lines += [
            "| network | schedule | ours, images/s | bare | released | times bare | times released | at most |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for row in found.get("speed", ()):
        rates = " | ".join(f"{row['images_per_second'][way]:.1f}" for way in WAYS)
        ratios = " | ".join(_judged(row, way) for way in ("bare", "released"))
        lines.append(f"| {row['network']} | {row['schedule']} | {rates} | {ratios} | {row['limit']:.1f} |")
    if "memory" in found:
        lines += ["", f"| peak memory, MB | {' | '.join(INTERVALS)} | largest over smallest |", "|---|---|---|---|---|"]
    for way, peaks in found.get("memory", {}).items():
        spread = max(peaks.values()) / min(peaks.values())
        lines.append(f"| {way} | {' | '.join(f'{peak / 1e6:.0f}' for peak in peaks.values())} | {spread:.3f} |")
    if "waiting" in found:
        lines += ["", f"Waiting for data: {100 * found['waiting']['share']:.2f} % of the time (goal: under 2 %)."]
    return "\n".join(lines)


def _judged(row: dict[str, Any], way: str) -> str:
    goal = GOALS.get((row["network"], way))
    return f"{row[f'times_{way}']:.2f}" + (f" (goal {goal:g})" if goal else "")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.released_way", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, help="write the numbers here, as JSON")
    parser.add_argument("--part", choices=("speed", "memory", "waiting"), help="measure this alone")
    parser.add_argument("--quick", action="store_true", help="try it out on networks of almost nothing")
    parser.add_argument("--workers", type=int, default=2, help="that decode JPEG files")
    parser.add_argument("--memory-of", nargs=2, metavar=("WAY", "INTERVAL"), help="the peak of one run, in bytes")
    asked = parser.parse_args(words)
    if asked.memory_of:
        way, interval = asked.memory_of
        print(memory_of(way, interval, asked.quick))
        return
    began = time.perf_counter()
    found: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads(), "quick": asked.quick}
    with tempfile.TemporaryDirectory() as place:
        if asked.part in (None, "memory"):
            found["memory"] = memory(asked.quick)
        if asked.part in (None, "speed"):
            cases = [quick(case) for case in CASES] if asked.quick else CASES
            found["speed"] = [row for case in cases for row in speed(case, Path(place))]
        if asked.part in (None, "waiting"):
            found["waiting"] = waiting(Path(place), asked.workers, asked.quick)
    found["seconds"] = time.perf_counter() - began
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main()
