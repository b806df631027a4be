"""How fast images are read, as ratios of CPU time measured side by side in one run.

    python -m benchmarks.data_speed [FOLDER]

FOLDER has a folder of photographs for each class, for instance the train folder of Tiny-ImageNet; without it pictures
are drawn.

1. training batches of JPEGs, 224 px and 500 x 375 px, decoded one by one in one process: the augmentation `imagenet`
   against the same transforms in torchvision's own way (ImageFolder and default_collate), and against a plainer
   pipeline that neither rotates nor normalises;
2. a folder of 64 px JPEGs: the first start, which decodes, against later ones, which map what was kept; and how much
   memory each process holds by itself.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import spacedkd.models  # noqa: F401, before torchvision: makes it importable next to a CPU build of torch

# isort: split
import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from spacedkd import DataSpec
from spacedkd.data.sources import load
from spacedkd.data.transforms import IMAGENET

BATCH = 40
ROUNDS = 30
TILE = 64


def pictures(folder: Path | None) -> list[Image.Image]:
    """64 px pictures with the detail of photographs."""
    if folder is None:
        chance = np.random.default_rng(0)
        rough = [Image.fromarray(chance.integers(0, 256, (24, 24, 3), dtype=np.uint8)) for _ in range(64)]
        return [one.resize((TILE, TILE), Image.Resampling.BICUBIC) for one in rough]
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    return [Image.open(path).convert("RGB").resize((TILE, TILE)) for path in found[:800]]


def mosaics(tiles: list[Image.Image], place: Path, width: int, height: int, count: int) -> Path:
    """Folders of JPEGs, each put together of pictures, so that they are as hard to decode as real ones."""
    chance = random.Random(0)
    for number in range(count):
        whole = Image.new("RGB", (width, height))
        for left in range(0, width, TILE):
            for top in range(0, height, TILE):
                whole.paste(chance.choice(tiles), (left, top))
        file = place / ("val" if number % 10 < 2 else "train") / f"class{number % 2}" / f"{number:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        whole.save(file, quality=90)
    return place


def cpu_time(actions: dict[str, Callable[[int], object]]) -> dict[str, float]:
    """The median CPU seconds of each action; they take turns, so that what else the machine does hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(ROUNDS + 1):
        for name, action in actions.items():
            start = time.process_time()
            action(turn)
            if turn:  # the first ones warm up
                times[name].append(time.process_time() - start)
    return {name: float(np.median(found)) for name, found in times.items()}


def torchvision_way(place: Path, *more: Callable[..., object]) -> Callable[[int], object]:
    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *more[:-1], T.ToTensor(), *more[-1:]]
    images = ImageFolder(str(place / "train"), T.Compose(steps))

    def batch(turn: int) -> object:
        rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(turn))[:BATCH]
        return default_collate([images[row] for row in rows.tolist()])

    return batch


def streams(place: Path, called: str) -> None:
    stream = load(DataSpec(str(place), augmentation="imagenet"), memory_limit=0).stream(BATCH, 0, drop_last=True)
    took = cpu_time(
        {
            "ours": stream.batch,
            "same": torchvision_way(place, T.RandomRotation(15), T.Normalize(*IMAGENET)),
            "plainer": torchvision_way(place),
        }
    )
    print(
        f"{called} JPEGs: {BATCH / took['ours']:.0f} images a CPU-second; {took['same'] / took['ours']:.2f} times the "
        f"speed of the same transforms in torchvision's own way, {took['plainer'] / took['ours']:.2f} times that of "
        "others that neither rotate nor normalise"
    )


START = """
import resource, sys, time
import spacedkd.models
from spacedkd import DataSpec
from spacedkd.data.sources import load
def cpu():
    return sum(getattr(resource.getrusage(who), name) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
               for name in ("ru_utime", "ru_stime"))
def private():
    lines = (line.split() for line in open("/proc/self/status"))
    return sum(int(line[1]) for line in lines if line[0] in ("RssAnon:", "RssShmem:"))
began, held = cpu(), private()
data = load(DataSpec(sys.argv[1], augmentation="tiny-imagenet"))
took = cpu() - began
data.train.pixels.sum()  # memory counts when it is read
print(took, private() - held)
"""


def starts(place: Path, count: int) -> None:
    """Each start is a process of its own."""
    with tempfile.TemporaryDirectory() as kept:

        def start(cache: str) -> tuple[float, float]:
            environment = {**os.environ, "XDG_CACHE_HOME": cache}
            command = [sys.executable, "-c", START, str(place)]
            said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
            return float(said[0]), float(said[1])

        first, later = start(kept), [start(kept) for _ in range(3)]
        without = start(os.devnull)  # which no folder can be made in
    second = min(seconds for seconds, _ in later)
    print(
        f"{count} 64 px JPEGs: a later start takes {second / first[0]:.3f} of the first one's CPU time "
        f"({second:.2f} s, {first[0]:.1f} s) and holds {min(held for _, held in later) / 1024:.0f} MB of its own, "
        f"{without[1] / 1024:.0f} MB where nothing can be kept"
    )


def main(folder: Path | None) -> None:
    torch.set_num_threads(1)
    tiles = pictures(folder)
    with tempfile.TemporaryDirectory() as made:
        for width, height in ((224, 224), (500, 375)):
            streams(mosaics(tiles, Path(made, str(width)), width, height, 160), f"{width} x {height} px")
        starts(mosaics(tiles, Path(made, "small"), TILE, TILE, 30_000), 30_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
