"""What is not finite is never saved over what is; or, where that is asked for, was never there."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spacedkd import DataSpec, Diverged, NetworkSpec, OptimizerSpec, RunSpec, Spaced, UserError, train
from spacedkd.cli import main
from spacedkd.data import Batch
from spacedkd.data.dataset import Items
from spacedkd.data.run_data import from_datasets
from spacedkd.methods import KD, Models, Progress
from spacedkd.training import state
from tests.conftest import TINY, assert_same_bits, tensors
from tests.training.stopping import assert_same_run, train_in_parts, train_until

Make = Callable[..., RunSpec]


class Overflows(KD):
    """Knowledge distillation in which somebody gets losses at some steps that are infinite, or infinitely steep."""

    def __init__(self, at: Sequence[int], steep: bool = False, who: str = "student") -> None:
        super().__init__()
        self.at, self.steep, self.who = at, steep, who

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> dict[str, Tensor]:
        found = super().losses(role, models, batch, progress)
        if role != self.who or progress.step not in self.at:
            return dict(found)
        if self.steep:  # the slope of a root at zero
            return {name: loss + (loss - loss.detach()).sqrt() for name, loss in found.items()}
        return {name: loss * math.inf for name, loss in found.items()}


def test_weights_that_overflow_are_not_saved_over_good_ones(tmp_path: Path, tiny: RunSpec) -> None:
    """The student's losses of step 7 are numbers; their update makes weights that are none, and a save is due."""
    method = Overflows(at=(7,), steep=True)
    with pytest.raises(Diverged) as stopped:
        train(tiny, tmp_path / "run", method=method)
    assert (stopped.value.role, stopped.value.step) == ("student", 7)
    assert "the student's weights are not finite at step 7" in str(stopped.value)
    train_until(tiny, tmp_path / "good", 15, method=method)
    assert_same_bits(tensors(tmp_path / "run"), tensors(tmp_path / "good"))
    again = pickle.loads(pickle.dumps(stopped.value))
    assert (str(again), again.role, again.step) == (str(stopped.value), "student", 7)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--method none --lr 300 --epochs 0.875", "weights are not finite|loss is not finite"),
        ("--method kd --epochs 2 --set method.feature_weight=1e32", r"Lower --set method.feature_weight \(1e\+32\)"),
        ("--method none --weight-decay 1e30", "weight_decay must be from 0 to 1e.06, got 1e.30"),
        ("--method none --lr 1e30", r"Lower --lr \(1e\+30\), or clip gradients"),
    ],
)
def test_a_run_that_diverges_says_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str, words: str
) -> None:
    line = f"train --data digits --train-limit 64 --batch-size 8 --width 4 --threads 1 {typed} --out {tmp_path}/run"
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(words, said), said
    assert not (tmp_path / "run" / "result.json").exists()
    for value in tensors(tmp_path / "run").values() if (tmp_path / "run" / "checkpoint").exists() else ():
        assert value.isfinite().all()


def test_a_teacher_that_is_no_number_is_not_recorded(tmp_path: Path, tiny: RunSpec) -> None:
    spec = replace(tiny, save_every="100%", log_every="100%", schedule=Spaced("3st"), record=("3st",))
    with pytest.raises(Diverged, match="the teacher's weights are not finite at step 5"):
        train(spec, tmp_path / "run", method=Overflows(at=(5,), steep=True, who="teacher"))
    assert [path.name for path in (tmp_path / "run/path/teacher").glob("*.safetensors")] == ["000000003.safetensors"]


def test_an_average_that_overflows_is_noticed(tmp_path: Path, tiny_with: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count()

    def spoil(average: nn.Module, module: nn.Module, share: float) -> None:
        if next(steps) == 6:
            next(average.buffers()).fill_(float("nan"))

    monkeypatch.setattr(state, "move_average", spoil)
    with pytest.raises(Diverged, match="the average's weights are not finite at step 7"):
        train(tiny_with("none", ema=0.9), tmp_path / "run")


def test_a_mask_of_minus_infinity_is_no_divergence(tmp_path: Path, tiny_with: Make) -> None:
    train(tiny_with("none", epochs=1, network="resnet18_small"), tmp_path / "run", network=Masked)
    assert (tmp_path / "run" / "result.json").exists()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.register_buffer("mask", torch.full((3,), float("-inf")))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.mean(1).flatten(1))
        return logits


SKIP = replace(
    TINY, epochs=2, schedule=Spaced("1ep"), ema=0.9, on_nonfinite="skip", optimizer=OptimizerSpec("adamw", 1e-3)
)


def test_an_update_that_is_skipped_has_never_been(tmp_path: Path) -> None:
    """Neither weights, statistics, optimizer nor average move; it is counted, and a resumed run has the same bits."""
    train(SKIP, tmp_path / "usual")
    train(replace(SKIP, on_nonfinite="stop"), tmp_path / "stop")
    assert_same_bits(tensors(tmp_path / "usual"), tensors(tmp_path / "stop"))
    run = train(SKIP, tmp_path / "skips", method=Overflows(at=(3, 8)))
    assert run.plan["skipped_updates"] == {"student": 2}
    assert all(value.isfinite().all() for value in tensors(tmp_path / "skips").values() if value.is_floating_point())
    train_in_parts(SKIP, tmp_path / "parts", 12, method=Overflows(at=(3, 8)))
    assert_same_run(tmp_path / "skips", tmp_path / "parts")
    lines = [json.loads(line) for line in (tmp_path / "skips" / "journal.jsonl").read_text().splitlines()]
    skipped = [line for line in lines if line["event"] == "skipped"]
    assert [(line["role"], line["step"], line["not_finite"]) for line in skipped] == [
        ("student", step, "loss") for step in (3, 8)
    ]


def test_a_state_before_and_after_a_skipped_update_is_the_same(tmp_path: Path) -> None:
    """Saved after every step: the student's checkpoints before and after step 6 differ in nothing."""
    often = replace(SKIP, schedule=None, save_every="1st")
    train_until(often, tmp_path / "nine", 13, method=Overflows(at=(6,)))
    train_until(often, tmp_path / "ten", 14, method=Overflows(at=(6,)))
    assert_same_bits(tensors(tmp_path / "nine"), tensors(tmp_path / "ten"))


def test_weights_that_would_overflow_are_skipped_too(tmp_path: Path, tiny_with: Make) -> None:
    spec = tiny_with("none", on_nonfinite="skip", optimizer=OptimizerSpec())
    run = train(spec, tmp_path / "run", lr=lambda step: 3e38 if step in (0, 7) else 0.02)
    assert run.plan["skipped_updates"] == {"student": 2}


class Growing(nn.Module):
    """Keeps a statistic that overflows, in a buffer that is a new tensor every time."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.mean: Tensor
        self.register_buffer("mean", torch.ones(1))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.mean = self.mean * 1e10
        found: Tensor = self.body(images)
        return found


def test_a_buffer_that_is_assigned_anew_is_watched_too(tmp_path: Path, tiny: RunSpec) -> None:
    with pytest.raises(Diverged, match="student's weights are not finite"):
        train(replace(tiny, method="none", network=NetworkSpec()), tmp_path / "run", network=Growing)


class Some(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Forty rows of eight numbers in two classes, with NaN in one."""

    classes = ("low", "high")

    def __init__(self, nan: int | None = None, seed: int = 0) -> None:
        self.x = torch.randn(40, 8, generator=torch.Generator().manual_seed(seed))
        self.y = (self.x.sum(1) > 0).long()
        if nan is not None:
            self.x[nan, 3] = math.nan

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row], int(self.y[row])


@pytest.mark.parametrize("log_every", ["1st", "100%"])
def test_nan_in_the_training_data_is_named(tmp_path: Path, log_every: str) -> None:
    spec = replace(TINY, data=DataSpec(), network=NetworkSpec(), method="none", log_every=log_every, save_every="100%")
    with pytest.raises(Diverged, match="Item 17 of the training data holds NaN") as stopped:
        train(spec, tmp_path / "run", data=(Some(17), Some(seed=1)), network=lambda: nn.Linear(8, 2))
    assert "--lr" not in str(stopped.value)
    with pytest.raises(Diverged, match="Item 23 of the test data holds NaN") as stopped:
        train(spec, tmp_path / "test", data=(Some(), Some(23, seed=1)), network=lambda: nn.Linear(8, 2))
    assert "--lr" not in str(stopped.value)


class Square(Some):
    """The same rows as images of 2 x 4 pixels."""

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row].view(1, 2, 4), int(self.y[row])


def test_nan_in_the_items_a_network_is_tried_on_is_named(tmp_path: Path) -> None:
    spec = replace(TINY, data=DataSpec(), method="none")
    line = "^Item 1 of the test data holds NaN or infinity"
    with pytest.raises(UserError, match=line):
        train(
            replace(spec, network=NetworkSpec()),
            tmp_path / "own",
            data=(Some(), Some(1)),
            network=lambda: nn.Linear(8, 2),
        )
    with pytest.raises(UserError, match=line):
        train(spec, tmp_path / "timm", data=(Square(), Square(1)))


def test_nan_in_a_held_out_item_is_named_by_its_row_in_the_training_data(tmp_path: Path) -> None:
    data = (Some(), Some(seed=1))
    spec = replace(TINY, data=DataSpec(holdout=0.5), network=NetworkSpec(), method="none")
    holdout = from_datasets(data, holdout=0.5).holdout
    assert isinstance(holdout, Items)
    row = int(holdout.rows[-1])
    data[0].x[row, 3] = math.nan
    with pytest.raises(Diverged, match=f"holdout images .* Item {row} of the training data holds NaN"):
        train(spec, tmp_path / "run", data=data, network=lambda: nn.Linear(8, 2))
