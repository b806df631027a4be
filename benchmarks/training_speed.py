"""How fast training is, as ratios measured side by side in one run.

    python -m benchmarks.training_speed

1. our loop against a bare PyTorch loop that does the same arithmetic: what journals, seeds and counting cost;
2. layouts and precisions of the same network: what the defaults gain;
3. one look-up for a whole batch against torchvision's transforms image by image.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import spacedkd  # noqa: F401, before timm: makes torchvision importable next to a CPU build of torch

# isort: split
import timm
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import v2

from spacedkd import AugmentSpec, DataSpec, Duration, Images, MethodSpec, NetworkSpec, RunSpec, train
from spacedkd.data import augment
from spacedkd.data.sources import load
from spacedkd.data.stream import TrainingStream
from spacedkd.train.engine import best_precision

NEVER = Duration(100, "%")


def seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """The fastest of several repeats, after one to warm up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def loop_overhead() -> None:
    spec = RunSpec(
        data=DataSpec("digits"),
        network=NetworkSpec("resnet18_small", {"width": 16}),
        method=MethodSpec("none"),
        epochs=2,
        batch_size=64,
        precision="32-true",
        evaluate_every=NEVER,
        save_every=NEVER,
    )

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(spec, Path(folder) / "run")

    def bare() -> None:
        data = load(spec.data)
        stream = TrainingStream(data.train, 64, 0, AugmentSpec(crop=1, rotate=10))
        model = timm.create_model("resnet18_small", width=16, in_chans=1, num_classes=10)
        model = model.to(memory_format=torch.channels_last).train()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=5e-4)
        for step in range(2 * stream.steps_per_epoch):
            batch = stream.batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(batch.images.to(memory_format=torch.channels_last)), batch.labels).backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()(data.test.shown(torch.arange(len(data.test.labels))))

    print(
        f"our loop takes {seconds(ours) / seconds(bare):.2f} times as long as a bare loop (30 steps, set-up included)"
    )


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
        x: Tensor = batch.images.to(memory_format=layout)

        def run() -> None:
            for _ in range(4):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                    logits = model(x)
                optimizer.zero_grad()
                F.cross_entropy(logits.float(), batch.labels).backward()
                optimizer.step()

        return run

    plain = seconds(step("32-true", False))
    for precision, channels_last in (("32-true", True), ("bf16-mixed", False), ("bf16-mixed", True)):
        gain = plain / seconds(step(precision, channels_last))
        chosen = " (the default here)" if channels_last and precision == best_precision("cpu") else ""
        layout = "channels_last" if channels_last else "NCHW"
        print(f"{precision} {layout}: {gain:.2f} times as fast as 32-true NCHW{chosen}")


def augmentation() -> None:
    pixels = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8)
    ours = AugmentSpec(crop=4, flip=True, rotate=15)
    theirs = v2.Compose([v2.RandomCrop(32, 4), v2.RandomHorizontalFlip(), v2.RandomRotation(15)])
    batched = seconds(lambda: augment.apply(pixels, augment.draw(ours, 128, 0)), 10)
    single = seconds(lambda: torch.stack([theirs(image) for image in pixels]), 3)
    print(f"crop, flip and rotation of a batch: {single / batched:.1f} times as fast as image by image in torchvision")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    loop_overhead()
    precisions()
    augmentation()
