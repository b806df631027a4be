"""Three ways to train a teacher and a student: ours, a bare loop, and the loop that was released with the paper.

Each is made once and then trains block after block: a block is the same number of steps of both networks, in turns
(online) or one after the other (spaced by the block).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import spacedkd.models  # noqa: F401, before timm: makes torchvision importable next to a CPU build of torch

# isort: split
import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from spacedkd import DataSpec, Duration, NetworkSpec, OptimizerSpec, RunSpec, Spaced
from spacedkd.config.resolve import resolve
from spacedkd.models.classifier import make_adapter
from spacedkd.runs.folder import RunFolder
from spacedkd.training.device import set_plain_attention, supports_channels_last
from spacedkd.training.session import Session
from spacedkd.training.state import build_state

CLASSES = 20
NEVER = Duration(100, "%")
RELEASED = {
    32: (T.RandomCrop(32, 4), T.RandomHorizontalFlip(), T.RandomRotation(15)),
    64: (T.Resize(64), T.RandomCrop(64, 4), T.RandomHorizontalFlip()),
}
"""what the released code does to single images of CIFAR-100 and of Tiny-ImageNet"""


@dataclass(frozen=True)
class Case:
    """A network, its images, and how many steps a block has."""

    name: str
    network: NetworkSpec
    side: int
    steps: int
    optimizer: OptimizerSpec
    batch_size: int = 128
    repeats: int = 5
    plain: bool = False
    """whether ours and the bare loop have plain attention and update with one kernel, which released does not"""

    def spec(self, data: Path, schedule: Spaced) -> RunSpec:
        """Endless, as far as a benchmark goes: nothing is evaluated or saved on the way."""
        return RunSpec(
            data=DataSpec(str(data), augmentation={32: "cifar", 64: "tiny-imagenet"}[self.side]),
            network=self.network,
            schedule=schedule,
            epochs=1000,
            batch_size=self.batch_size,
            optimizer=replace(self.optimizer, options={"fused": True}) if self.plain else self.optimizer,
            attention="plain" if self.plain else "fused",
            evaluate_every=NEVER,
            save_every=NEVER,
        )


def write_images(path: Path, side: int, count: int) -> None:
    """Pictures of nothing: what they show does not change how long they take."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, number in (("train", count), ("test", 2 * CLASSES)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (number, side, side, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(number) % CLASSES
    np.savez(path, **arrays)


class Ours:
    """The loop of `spacedkd train`, with its session in a folder that is thrown away."""

    def __init__(self, case: Case, data: Path, interval: int) -> None:
        self.steps = case.steps
        spec = case.spec(data, Spaced(Duration(interval, "st")))
        setup = build_state(resolve(spec))
        self.stack = ExitStack()
        place = self.stack.enter_context(tempfile.TemporaryDirectory())
        session = Session(setup, RunFolder(Path(place) / "run"))
        self.stack.enter_context(session.open())
        self.turns = session.turns()

    def block(self) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)  # as it is in our runs, and in neither of the others
        for _ in range(2 * self.steps):
            next(self.turns)

    def close(self) -> None:
        self.turns.close()  # type: ignore[attr-defined]
        self.stack.close()


def answer(network: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled features and logits."""
    features = network.forward_head(network.forward_features(images), pre_logits=True)
    return features, network.get_classifier()(features)


class Pair:
    """Two networks, an adapter, and the arithmetic of a step of each."""

    def __init__(self, case: Case, precision: str, channels_last: bool, plain: bool = False) -> None:
        options = dict(case.network.options)
        if not case.network.name.endswith("_small"):
            options["img_size"] = case.side
        torch.manual_seed(0)
        self.teacher, self.student = (
            timm.create_model(case.network.name, num_classes=CLASSES, **options) for _ in range(2)
        )
        if plain:
            set_plain_attention([self.teacher, self.student])
        shown = [torch.zeros(2, 3, case.side, case.side)]
        channels_last = channels_last and supports_channels_last(self.student, torch.device("cpu"), shown, precision)
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.student.adapter = make_adapter(self.student.num_features, self.teacher.num_features)
        self.cast = torch.bfloat16 if precision == "bf16-mixed" else None
        models = [model.to(memory_format=self.layout) for model in (self.teacher, self.student)]
        self.optimizers = [self._optimizer(case.optimizer, model, plain) for model in models]

    @staticmethod
    def _optimizer(spec: OptimizerSpec, model: nn.Module, fused: bool) -> torch.optim.Optimizer:
        if spec.name == "adamw":
            return torch.optim.AdamW(model.parameters(), spec.lr, weight_decay=spec.weight_decay, fused=fused)
        return torch.optim.SGD(model.parameters(), spec.lr, 0.9, weight_decay=spec.weight_decay)

    def _autocast(self) -> Any:
        return nullcontext() if self.cast is None else torch.autocast("cpu", self.cast)

    def shown(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=self.layout)

    def teach(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """A step of the teacher; gives what it said before it."""
        with self._autocast():
            features, logits = answer(self.teacher, images)
        self.optimizers[0].zero_grad()
        F.cross_entropy(logits.float(), labels).backward()
        self.optimizers[0].step()
        return features.detach(), logits.detach()

    def ask(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), self._autocast():
            return answer(self.teacher, images)

    def follow(self, images: Tensor, labels: Tensor, said: tuple[Tensor, Tensor]) -> None:
        """A step of the student: 0.7 CE + 0.3 KL at T = 3 + 0.03 || A(f_s) - f_t ||."""
        with self._autocast():
            features, logits = answer(self.student, images)
            features = self.student.adapter(features)
        (their_features, their_logits), logits = (part.float() for part in said), logits.float()
        apart = F.kl_div(
            (logits / 3).log_softmax(1), (their_logits / 3).log_softmax(1), reduction="batchmean", log_target=True
        )
        loss = 0.7 * F.cross_entropy(logits, labels) + 0.3 * apart + 0.03 * (features.float() - their_features).norm()
        self.optimizers[1].zero_grad()
        loss.backward()
        self.optimizers[1].step()


class Bare:
    """The same arithmetic and the same batches as ours, with nothing around them."""

    def __init__(self, case: Case, data: Path, interval: int) -> None:
        plan = resolve(case.spec(data, Spaced(Duration(interval, "st"))))
        self.stream = plan.data.stream(case.batch_size, 0)
        self.pair = Pair(case, plan.spec.precision, channels_last=True, plain=case.plain)
        self.steps, self.interval, self.done = case.steps, interval, 0

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        batch = self.stream.batch(step)
        return self.pair.shown(cast(Tensor, batch.inputs)), batch.labels

    def block(self) -> None:
        torch.use_deterministic_algorithms(False)
        for start in range(self.done, self.done + self.steps, self.interval):
            stretch = range(start, start + self.interval)
            self.pair.teacher.train()
            for step in stretch:
                self.pair.teach(*self._batch(step))
            self.pair.teacher.eval()
            self.pair.student.train()
            for step in stretch:
                images, labels = self._batch(step)
                self.pair.follow(images, labels, self.pair.ask(images))
        self.done += self.steps

    def close(self) -> None:
        """There is nothing to close."""


class SingleImages(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one by one, as torchvision's data sets give them."""

    def __init__(self, data: Path, side: int) -> None:
        arrays = np.load(data)
        self.images, self.labels = arrays["x_train"], arrays["y_train"]
        steps = [*RELEASED[side], T.ToTensor(), T.Normalize((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))]
        self.transform = T.Compose(steps)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[row])), int(self.labels[row])


class Released:
    """The released loop: float32, channels first, images one by one in workers, tensors kept until they are replayed.

    Online the student learns from what the teacher said before its own step, so that no second pass is needed; in a
    replay the teacher is asked again, in train mode. Every block starts the workers, as every epoch does there, so that
    no batch of it is made while another way is timed.
    """

    def __init__(self, case: Case, data: Path, interval: int, workers: int = 2) -> None:
        self.pair = Pair(case, "32-true", channels_last=False)
        self.dataset, self.workers = SingleImages(data, case.side), workers
        self.steps, self.interval, self.batch_size = case.steps, interval, case.batch_size
        self.buffer: list[tuple[Tensor, Tensor]] = []
        self.pair.teacher.train()
        self.pair.student.train()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows = torch.randint(len(self.dataset), (self.steps, self.batch_size)).tolist()
        return iter(DataLoader(self.dataset, batch_sampler=rows, num_workers=self.workers))

    def block(self) -> None:
        torch.use_deterministic_algorithms(False)
        for images, labels in self._batches():
            said = self.pair.teach(images, labels)
            if self.interval == 1:
                self.pair.follow(images, labels, said)
                continue
            self.buffer.append((images, labels))
            if len(self.buffer) == self.interval:
                for seen in self.buffer:
                    self.pair.follow(*seen, self.pair.ask(seen[0]))
                self.buffer.clear()

    def close(self) -> None:
        """There is nothing to close."""
