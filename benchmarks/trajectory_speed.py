"""The time that a recorded teacher saves, as ratios measured side by side in one run.

    python -m benchmarks.trajectory_speed --out trajectory_speed.json

1. sharing: five arms of one seed, one run at a time, with one teacher for all of them against one each;
2. targets: eight students of one teacher and one interval, one run at a time, where the first caches the teacher's
   outputs for the others, against eight that each call the teacher;
3. pipeline: teacher and student in two processes of one thread each, against both in one process of one thread, and
   against two processes that share every batch (DDP).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from spacedkd import DataSpec, Duration, EngineSpec, MethodSpec, NetworkSpec, Offline, RunSpec, Spaced, compare
from spacedkd.comparison import scheduler
from spacedkd.config.serialization import to_json
from spacedkd.runtime.files import write_json

BASE = RunSpec(
    data=DataSpec("digits", image_size=32, drop_last=True),
    network=NetworkSpec("resnet18_small", {"width": 16}),
    batch_size=64,
    evaluate_every=Duration(100, "%"),
    save_every=Duration(100, "%"),
    precision="32-true",
    engine=EngineSpec(accelerator="cpu", threads=1),
)
ARMS = {
    "no KD": replace(BASE, method=MethodSpec("none")),
    "online": BASE,
    "0.5 epochs": replace(BASE, schedule=Spaced("0.5ep")),
    "1.5 epochs": replace(BASE, schedule=Spaced("1.5ep")),
    "offline": replace(BASE, schedule=Offline()),
}
STUDENTS = {
    f"temperature {temperature}, {method}": replace(
        BASE, schedule=Spaced("1ep"), method=MethodSpec(method, {"temperature": temperature})
    )
    for method in ("kd", "hinton")
    for temperature in (2, 3, 4, 5)
}
Measured = Mapping[str, float]


def shared(arms: Mapping[str, RunSpec], epochs: float, sharing: bool, folder: Path) -> Measured:
    started, cpu = time.monotonic(), cpu_seconds()
    arms = {label: replace(spec, epochs=epochs) for label, spec in arms.items()}
    found = compare(arms, folder, seeds=1, jobs=1, sharing=sharing).document
    seconds, cpu = time.monotonic() - started, cpu_seconds() - cpu
    computed = [arm["computed"] for arm in found["arms"]]
    passes = sum(one["forward_passes"] + 2 * one["backward_passes"] for one in computed)
    return {"wall seconds": seconds, "CPU seconds": cpu, "passes": passes}


def cpu_seconds() -> float:
    """Of this process and of those that it has started and that have ended: on a busy machine these say more."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def without_targets(epochs: float, folder: Path) -> Measured:
    """Students that share the teacher, as they did before its outputs could be cached."""
    with patch.object(scheduler, "cacheable_targets", lambda run, models: None):
        return shared(STUDENTS, epochs, True, folder)


def trained(epochs: float, engine: Mapping[str, Any], folder: Path) -> Measured:
    """One run in a process of its own; `training` leaves out what it takes to start."""
    spec = replace(BASE, epochs=epochs, schedule=Spaced("1ep"), engine=replace(BASE.engine, **engine))
    folder.mkdir(parents=True)
    write_json(folder / "spec.json", to_json(spec))
    started = time.monotonic()
    words = ["train", "--spec", str(folder / "spec.json"), "--out", str(folder / "run")]
    subprocess.run([sys.executable, "-m", "spacedkd", *words], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    result = json.loads((folder / "run/result.json").read_text())
    return {"wall seconds": seconds, "training seconds": result["seconds"]}


def alternating(ways: Mapping[str, Callable[[Path], Measured]], rounds: int) -> dict[str, dict[str, float]]:
    """The median of every way, measured in turn so that whatever else happens happens to all."""
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for name, way in ways.items():
                found[name].append(way(Path(folder) / name / str(number)))
                print(f"round {number + 1} of {rounds}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    return {name: {key: statistics.median(one[key] for one in all_) for key in all_[0]} for name, all_ in found.items()}


def table(found: Mapping[str, Measured], base: str) -> Iterable[str]:
    keys = [*found[base]]
    yield f"| | {' | '.join(f'{key} (of {base})' for key in keys)} |"
    yield f"|---{'|---' * len(keys)}|"
    for name, measured in found.items():
        cells = (f"{measured[key]:.1f} ({measured[key] / found[base][key]:.2f})" for key in keys)
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="also write the numbers to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--part", choices=("sharing", "targets", "pipeline"), help="measure this alone")
    typed = parser.parse_args()
    epochs = typed.epochs
    parts: dict[str, dict[str, Callable[[Path], Measured]]] = {
        "sharing": {
            "each alone": lambda folder: shared(ARMS, epochs, False, folder),
            "one teacher": lambda folder: shared(ARMS, epochs, True, folder),
        },
        "targets": {
            "the teacher": lambda folder: without_targets(epochs, folder),
            "cached targets": lambda folder: shared(STUDENTS, epochs, True, folder),
        },
        "pipeline": {
            "one process": lambda folder: trained(2 * epochs, {}, folder),
            "pipeline": lambda folder: trained(2 * epochs, {"pipeline": True}, folder),
            "DDP": lambda folder: trained(2 * epochs, {"devices": 2}, folder),
        },
    }
    found = {name: alternating(ways, typed.rounds) for name, ways in parts.items() if typed.part in (None, name)}
    for ways in found.values():
        print("\n".join([*table(ways, next(iter(ways))), ""]))
    if typed.out is not None:
        write_json(typed.out, found)


if __name__ == "__main__":
    main()
