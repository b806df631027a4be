"""What saving takes of the time of training, written beside the training and written while it waits.

    python -m benchmarks.saving_speed --out saving_speed.json

The default network, teacher and student, learns random images of CIFAR's size and everything is saved every few steps.
Rounds take turns: without any save but the last, with saves that training waits for, with saves that are written beside
it. The share is what an epoch of CIFAR (391 steps of both roles, one save of each) spends on its saves, in whatever way
they slow it down.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from spacedkd import DataSpec, Duration, EngineSpec, NetworkSpec, RunSpec, train
from spacedkd.runtime.files import write_json
from spacedkd.training import Event
from spacedkd.training.callbacks import BackgroundThread

EPOCH = 391
"""steps of an epoch of CIFAR in the default batches, after which a run is saved if nothing else is said"""


def at_once(background: BackgroundThread, work: Callable[[], None]) -> None:
    work()


def measured(spec: RunSpec, folder: Path, start: Callable[[BackgroundThread, Callable[[], None]], None]) -> float:
    """The seconds from the end of the first turn to the end of the last, with all that is still to be written."""
    turns: list[float] = []

    def callback(event: Event) -> None:
        turns.append(time.perf_counter())
        if event.turn == event.turns:
            raise KeyboardInterrupt  # the student and the result are no part of this

    usual, BackgroundThread.start = BackgroundThread.start, start  # type: ignore[method-assign, assignment]
    try:
        train(spec, folder, callback=callback)
    except KeyboardInterrupt:
        return time.perf_counter() - turns[0]
    finally:
        BackgroundThread.start = usual  # type: ignore[method-assign]
    raise AssertionError("it was to be stopped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="also write the numbers to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24, help="of each role in a round")
    parser.add_argument("--every", type=int, default=6, help="steps from save to save")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    typed = parser.parse_args()
    beside = BackgroundThread.start
    with tempfile.TemporaryDirectory() as place:
        images = np.random.default_rng(0).integers(0, 256, (typed.steps * typed.batch_size, 32, 32, 3), np.uint8)
        labels = np.arange(len(images)) % 100
        few = slice(0, 100)
        np.savez(Path(place, "random.npz"), x_train=images, y_train=labels, x_test=images[few], y_test=labels[few])
        spec = RunSpec(
            data=DataSpec(str(Path(place, "random.npz"))),
            network=NetworkSpec("resnet18_small", {"width": typed.width}),
            epochs=1,
            batch_size=typed.batch_size,
            evaluate_every=Duration(100, "%"),
            save_every=Duration(typed.every, "st"),
            engine=EngineSpec(accelerator="cpu"),
        )
        ways = {
            "no saves": lambda folder: measured(replace(spec, save_every=Duration(100, "%")), folder, at_once),
            "in between": lambda folder: measured(spec, folder, at_once),
            "beside": lambda folder: measured(spec, folder, beside),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(typed.rounds):
            for name, way in ways.items():
                found[name].append(way(Path(place, name, str(number))))
                print(f"round {number + 1} of {typed.rounds}, {name}: {found[name][-1]:.2f} s", file=sys.stderr)
    report(found, typed.steps, typed.every, typed.out)


def report(found: Mapping[str, list[float]], steps: int, every: int, out: Path | None) -> None:
    seconds = {name: statistics.median(times) for name, times in found.items()}
    step = seconds["no saves"] / steps
    saves = steps // every - 1  # the last one is made without saves, too
    rows = {}
    for name in ("in between", "beside"):
        save = (seconds[name] - seconds["no saves"]) / saves
        rows[name] = {"seconds": save, "share": save / (EPOCH * step + save)}
    print(f"a step of teacher and student: {step:.3f} s")
    print("| written | a step's two saves | share of an epoch of 391 steps |\n|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['seconds']:.3f} s | {100 * row['share']:.2f} % |")
    if out is not None:
        write_json(out, {"seconds": dict(found), "step": step, "ways": rows})


if __name__ == "__main__":
    main()
