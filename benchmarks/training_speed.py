"""How fast training is, as ratios measured side by side in one run.

    python -m benchmarks.training_speed

1. our loop against a bare PyTorch loop that does the same arithmetic: what journals, seeds and counting cost;
2. layouts and precisions of the same network: what the defaults gain;
3. one look-up for a whole batch against torchvision's transforms image by image.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import spacedkd.models  # noqa: F401, before timm: makes torchvision importable next to a CPU build of torch

# isort: split
import timm
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import v2

from benchmarks.timing import fastest
from spacedkd import AugmentSpec, DataSpec, Duration, MethodSpec, NetworkSpec, RunSpec, train
from spacedkd.config.resolve import best_precision
from spacedkd.data import Images, transforms
from spacedkd.data.sources import load
from spacedkd.data.stream import TrainingStream

NEVER = Duration(100, "%")


def loop_overhead() -> None:
    spec = RunSpec(
        data=DataSpec("digits"),
        network=NetworkSpec("resnet18_small", {"width": 16}),
        method=MethodSpec("none"),
        batch_size=64,
        precision="32-true",
        evaluate_every=NEVER,
        save_every=NEVER,
    )

    def ours(epochs: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(replace(spec, epochs=epochs), Path(folder) / "run")

    def bare(epochs: int) -> None:
        torch.use_deterministic_algorithms(False)  # which our loop left on
        data = load(spec.data)
        stream = data.stream(64, 0)
        model = timm.create_model("resnet18_small", width=16, in_chans=1, num_classes=10)
        model = model.to(memory_format=torch.channels_last).train()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=5e-4)
        for step in range(epochs * stream.steps_per_epoch):
            batch = stream.batch(step)
            optimizer.zero_grad()
            images = cast(Tensor, batch.inputs).to(memory_format=torch.channels_last)
            F.cross_entropy(model(images), batch.labels).backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()(data.test.inputs_and_labels(torch.arange(len(data.test)))[0])

    short, short_bare, long, long_bare = fastest(
        *(partial(action, epochs) for epochs in (2, 10) for action in (ours, bare)), repeats=5
    )
    print(f"a step of our loop takes {(long - short) / (long_bare - short_bare):.2f} times as long as in a bare loop")
    print(f"30 steps with set-up, evaluation and saving: {short / short_bare:.2f} times; 150: {long / long_bare:.2f}")


def precisions() -> None:
    images = Images(
        torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8),
        torch.arange(256) % 100,
        tuple(map(str, range(100))),
        (0.5,) * 3,
        (0.25,) * 3,
    )
    batch = TrainingStream(images, 128, 0).batch(0)

    def step(precision: str, channels_last: bool) -> Callable[[], None]:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        model = timm.create_model("resnet18_small", width=16, num_classes=100).to(memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
        x = cast(Tensor, batch.inputs).to(memory_format=layout)

        def run() -> None:
            for _ in range(4):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                    logits = model(x)
                optimizer.zero_grad()
                F.cross_entropy(logits.float(), batch.labels).backward()
                optimizer.step()

        return run

    others = (("32-true", True), ("bf16-mixed", False), ("bf16-mixed", True))
    plain, *found = fastest(step("32-true", False), *(step(*other) for other in others), repeats=5)
    for (precision, channels_last), took in zip(others, found, strict=True):
        gain = plain / took
        chosen = " (the default here)" if channels_last and precision == best_precision("cpu") else ""
        layout = "channels_last" if channels_last else "NCHW"
        print(f"{precision} {layout}: {gain:.2f} times as fast as 32-true NCHW{chosen}")


def augmentation() -> None:
    pixels = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8)
    ours = AugmentSpec(crop=4, flip=True, rotate=15)
    theirs = v2.Compose([v2.RandomCrop(32, 4), v2.RandomHorizontalFlip(), v2.RandomRotation(15)])
    batched, single = fastest(
        lambda: transforms.apply_affine(pixels, transforms.draw_affine(ours, 128, 0)),
        lambda: torch.stack([theirs(image) for image in pixels]),
        repeats=10,
    )
    print(f"crop, flip and rotation of a batch: {single / batched:.1f} times as fast as image by image in torchvision")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    loop_overhead()
    precisions()
    augmentation()
