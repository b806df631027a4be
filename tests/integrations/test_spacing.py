"""One object for both runs: the bits of its parts, resumes, the record of the teacher's batches, what is refused."""

from __future__ import annotations

import gc
import json
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from spacedkd import Snapshots, SnapshotTeacher, Spaced, Spacing, UserError, seeded_loader
from spacedkd.timeline import TeacherUpdates
from tests.conftest import assert_same_bits
from tests.training.two_processes import finished, started, torchrun_variables
from tests.trajectory import bare_loop

ITEMS = TensorDataset(
    torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24, dtype=torch.long) % 3
)
EPOCH, EPOCHS, INTERVAL = 6, 3, 4  # 18 steps; blocks of 4, 4, 4, 4 and 2
STEPS = EPOCH * EPOCHS
Loaders = Callable[[], Iterable[Any]]


def network(dropout: float = 0.5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def whole() -> Iterable[Any]:
    return seeded_loader(ITEMS, 4, seed=0, steps=range(STEPS))


def epochs() -> Iterable[Any]:
    return seeded_loader(ITEMS, 4, seed=0)


def shuffled() -> Iterable[Any]:
    """Batches whose order is drawn from the global generator."""
    return DataLoader(ITEMS, 4, shuffle=True)


def shuffled_by_its_own() -> Iterable[Any]:
    return DataLoader(ITEMS, 4, shuffle=True, generator=torch.Generator().manual_seed(3))


def prepared() -> Iterable[Any]:
    """A loader of accelerate, which loads one batch ahead and counts epochs itself."""
    accelerate = pytest.importorskip("accelerate")
    made: Iterable[Any] = accelerate.data_loader.prepare_data_loader(epochs(), num_processes=1, process_index=0)
    return made


class Run:
    """A loop of one's own, which can be stopped after any step and resumed from a file."""

    def __init__(self, spacing: Spacing, loader: Iterable[Any], is_student: bool = False) -> None:
        self.spacing, self.loader, self.model = spacing, loader, network()
        self.teacher = spacing.teacher(network) if is_student else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, 0.9)
        self.updates: list[int | None] = []
        self.steps: list[int] = []

    def resume(self, file: Path) -> Run:
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.spacing.load_state_dict(state["spacing"])
        return self

    def save(self, file: Path) -> None:
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "spacing": self.spacing}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)

    def train(self, save: Path | None = None, after: int = -1, **options: Any) -> Run:
        if getattr(getattr(self.loader, "batch_sampler", None), "steps", None) is None and "epochs" not in options:
            options["epochs"] = EPOCHS
        network_to_save = self.model if self.teacher is None else None
        for step, (x, y) in self.spacing.steps(self.loader, save=network_to_save, **options):
            self.steps.append(step)
            noise = 0.01 * (random.random() + np.random.rand())
            z = self.model(x + noise)
            loss = F.cross_entropy(z, y)
            if self.teacher is not None:
                self.updates.append(self.teacher.updates)
                loss = loss + F.mse_loss(z, self.teacher(x))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if save is not None and step + 1 == after:
                self.save(save)
                break
        return self


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def snapshots_in(folder: Path) -> dict[str, dict[str, Tensor]]:
    return {file.stem: load_file(file) for file in folder.glob("step-*")}


def assert_same_snapshots(one: Path, other: Path) -> None:
    first, second = snapshots_in(one), snapshots_in(other)
    assert first.keys() == second.keys() == {"step-4", "step-8", "step-12", "step-16", "step-18"}
    for name in first:
        assert_same_bits(first[name], second[name])


def test_both_runs_have_the_bits_of_their_parts(tmp_path: Path) -> None:
    torch.manual_seed(1)
    teacher = bare_loop.network()
    first = {name: value.clone() for name, value in teacher.state_dict().items()}
    bare_loop.train_teacher(teacher, tmp_path / "parts")
    student = bare_loop.network()
    student.load_state_dict(first)
    seen = SnapshotTeacher(tmp_path / "parts", bare_loop.INTERVAL, bare_loop.network, total=bare_loop.STEPS)
    bare_loop.loop(student, bare_loop.distilled(seen))

    spacing = Spacing(tmp_path / "one", every=bare_loop.INTERVAL)

    def train(model: nn.Module, loss: bare_loop.Loss, **save: Any) -> None:
        model.load_state_dict(first)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4)
        loader = seeded_loader(bare_loop.Spots(40), 8, bare_loop.SEED, steps=range(bare_loop.STEPS))
        for step, (x, y) in spacing.steps(loader, **save):
            optimizer.param_groups[0]["lr"] = bare_loop.LR(step)
            optimizer.zero_grad()
            loss(step, x, y, model(x)).backward()
            optimizer.step()

    own_teacher, own_student = bare_loop.network(), bare_loop.network()
    train(own_teacher, lambda step, x, y, z: F.cross_entropy(z, y), save=own_teacher)
    assert_same_bits(own_teacher.state_dict(), teacher.state_dict())
    for name, weights in snapshots_in(tmp_path / "parts").items():
        assert_same_bits(load_file(tmp_path / "one" / f"{name}.safetensors"), weights)
    train(own_student, bare_loop.distilled(spacing.teacher(bare_loop.network)))
    assert_same_bits(own_student.state_dict(), student.state_dict())


@pytest.mark.parametrize("loader", [whole, epochs, shuffled, shuffled_by_its_own, prepared])
@pytest.mark.parametrize("after", [1, 5, 6, 13])
def test_a_resumed_loop_has_the_bits_of_one_that_was_never_stopped(loader: Loaders, after: int, tmp_path: Path) -> None:
    """Both runs, with dropout and draws from all generators; in the middle and at the end of a pass."""
    seed(1)
    complete = Run(Spacing(tmp_path / "whole", INTERVAL), loader()).train()
    assert complete.steps == [*range(STEPS)]
    seed(1)
    Run(Spacing(tmp_path / "parts", INTERVAL), loader()).train(tmp_path / "teacher.pt", after)
    seed(2)
    resumed = Run(Spacing(tmp_path / "parts", INTERVAL), loader()).resume(tmp_path / "teacher.pt").train()
    assert resumed.steps == [*range(after, STEPS)]
    assert_same_bits(resumed.model.state_dict(), complete.model.state_dict())
    assert_same_snapshots(tmp_path / "whole", tmp_path / "parts")

    seed(1)  # the batches of the teacher's run
    complete = Run(Spacing(tmp_path / "whole", INTERVAL), loader(), is_student=True).train()
    assert complete.updates == [4] * 4 + [8] * 4 + [12] * 4 + [16] * 4 + [18] * 2
    seed(1)
    Run(Spacing(tmp_path / "whole", INTERVAL), loader(), is_student=True).train(tmp_path / "student.pt", after)
    seed(3)
    again = Run(Spacing(tmp_path / "whole", INTERVAL), loader(), is_student=True).resume(tmp_path / "student.pt")
    assert again.train().updates == complete.updates[after:]
    assert_same_bits(again.model.state_dict(), complete.model.state_dict())


def test_one_pass_after_the_other_and_a_second_run(tmp_path: Path) -> None:
    spacing, loader = Spacing(tmp_path, INTERVAL, total=STEPS), epochs()
    for is_student in (False, True, True):
        torch.manual_seed(0)
        run = Run(spacing, loader, is_student)
        for _ in range(EPOCHS):
            run.train(epochs=None)
        assert run.steps == [*range(STEPS)]
    assert len(snapshots_in(tmp_path)) == 5


def test_a_teacher_that_is_not_in_use_is_read_no_more(tmp_path: Path) -> None:
    Run(Spacing(tmp_path, INTERVAL), whole()).train()
    spacing = Spacing(tmp_path, INTERVAL)
    for _ in range(2):
        Run(spacing, whole(), is_student=True).train()
        gc.collect()
    assert spacing.teachers == []
    kept = spacing.teacher(network)
    copied = pickle.loads(pickle.dumps([spacing, kept]))
    assert copied[0].teachers == [copied[1]]


def test_any_sized_collection_of_batches(tmp_path: Path) -> None:
    batches = [ITEMS[row : row + 4] for row in range(0, 24, 4)]
    assert Run(Spacing(tmp_path, INTERVAL), batches).train().steps == [*range(STEPS)]
    assert Run(Spacing(tmp_path, INTERVAL), batches, is_student=True).train().updates[-1] == STEPS


def test_an_interval_in_epochs(tmp_path: Path) -> None:
    Run(Spacing(tmp_path, "1.5ep"), epochs()).train()
    assert snapshots_in(tmp_path).keys() == {"step-9", "step-18"}
    assert Run(Spacing(tmp_path, "1.5ep"), whole(), is_student=True).train().updates == [9] * 9 + [18] * 9


@pytest.mark.parametrize("loader", [whole, epochs])
def test_the_state_of_a_run_that_is_over_leaves_nothing_to_do(loader: Loaders, tmp_path: Path) -> None:
    run = Run(Spacing(tmp_path, INTERVAL), loader()).train()
    run.save(tmp_path / "saved.pt")
    again = Run(Spacing(tmp_path, INTERVAL), loader()).resume(tmp_path / "saved.pt")
    assert again.train().steps == []
    assert_same_bits(again.model.state_dict(), run.model.state_dict())
    assert len(snapshots_in(tmp_path)) == 5
    assert Run(again.spacing, loader(), is_student=True).train().steps == [*range(STEPS)], "another run"


def test_an_average_is_in_the_state(tmp_path: Path) -> None:
    """`state_dict` is called before the loop has come back for the batch's snapshot."""
    for folder in ("whole", "parts"):
        seed(1)
        stop = {"save": tmp_path / "saved.pt", "after": 8} if folder == "parts" else {}
        Run(Spacing(tmp_path / folder, INTERVAL, average="poly:2"), whole()).train(**stop)
    Run(Spacing(tmp_path / "parts", INTERVAL, average="poly:2"), whole()).resume(tmp_path / "saved.pt").train()
    assert_same_snapshots(tmp_path / "whole", tmp_path / "parts")


def test_a_resume_removes_later_snapshots(tmp_path: Path) -> None:
    """Of a run that is not the same to the bit, such as one on a GPU: they would be a mixture of two teachers."""
    seed(1)
    Run(Spacing(tmp_path, INTERVAL), whole()).train(tmp_path / "saved.pt", 5)
    before = load_file(tmp_path / "step-4.safetensors")
    for name in ("step-8", "step-12"):
        save_file({"other": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    (tmp_path / "step-notes.txt").touch()
    run = Run(Spacing(tmp_path, INTERVAL), whole()).resume(tmp_path / "saved.pt").train()
    assert_same_bits(load_file(tmp_path / "step-18.safetensors"), run.model.state_dict())
    assert_same_bits(load_file(tmp_path / "step-4.safetensors"), before)
    assert "other" not in load_file(tmp_path / "step-8.safetensors")
    assert (tmp_path / "step-notes.txt").exists()


# Accumulated gradients and several optimizers


def learn(spacing: Spacing, loader: Iterable[Any], is_update: Callable[[int], bool], **options: Any) -> list[int]:
    """A loop with two optimizers, which steps after some of the batches; returns the step of each batch."""
    model, steps = network(), []
    parts = [torch.optim.SGD(part.parameters(), 0.1) for part in (model[0], model[4])]  # type: ignore[index]
    for number, (step, (x, y)) in enumerate(spacing.steps(loader, save=model, **options), 1):
        steps.append(step)
        F.cross_entropy(model(x), y).backward()
        if is_update(number):
            for optimizer in parts:
                optimizer.step()
                optimizer.zero_grad()
    return steps


def test_two_optimizers_and_accumulated_batches_are_one_update(tmp_path: Path) -> None:
    assert learn(Spacing(tmp_path / "one", 4), epochs(), lambda number: True, epochs=1) == [*range(6)]
    folder = tmp_path / "two"
    assert learn(Spacing(folder, 4), epochs(), lambda number: number % 2 == 0, epochs=3, accumulate=2) == [
        number // 2 for number in range(18)
    ]
    assert snapshots_in(folder).keys() == {"step-4", "step-8", "step-9"}
    # Of six batches four are an update, and the rest of a pass another one, as accelerate and Lightning do it.
    uneven = learn(
        Spacing(tmp_path / "rest", 2, total=6), epochs(), lambda number: number % 6 in (0, 4), epochs=3, accumulate=4
    )
    assert uneven == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5]
    assert snapshots_in(tmp_path / "rest").keys() == {"step-2", "step-4", "step-6"}


def test_a_step_that_mixed_precision_leaves_out_is_an_update(tmp_path: Path) -> None:
    assert learn(Spacing(tmp_path, 4), whole(), lambda number: number not in (1, 2, 9)) == [*range(STEPS)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"is_update": lambda number: number % 3 == 0}, "^Optimizers step after every 3 batches, .*accumulate=3"),
        ({"accumulate": 4, "epochs": 3}, "^18 batches do not divide into updates of 4.* give Spacing total="),
        ({"epochs": None}, r"^How long is this run\? Give steps\(loader, epochs="),
        ({"loader": whole()}, r"^A loader of steps=range\(0, 18\) is the whole run: leave epochs= out."),
        ({"loader": iter([])}, r"^How long is this run\?"),
        ({"epochs": 0}, "^epochs must be a whole number from 1 up, got 0."),
        ({"accumulate": 0}, "^accumulate must be a whole number from 1 up, got 0."),
    ],
)
def test_loops_that_cannot_be_counted(options: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        learn(Spacing(tmp_path, 4), **{"loader": epochs(), "is_update": lambda number: True, "epochs": 3, **options})


# What is refused


def test_a_wrong_order_of_calls(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no snapshots: .* Train the teacher first"):
        Spacing(tmp_path, INTERVAL).teacher(network)
    with pytest.raises(UserError, match=r"^Whose run is this\? Give steps\(loader, save=network\) in the teacher's"):
        next(Spacing(tmp_path, INTERVAL).steps(whole()))
    with pytest.raises(UserError, match="^save must be the network that the teacher's run trains; got True"):
        next(Spacing(tmp_path, INTERVAL).steps(whole(), save=True))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="lengths? such as|must be a schedule|length"):
        Spacing(tmp_path, every="1.5 eps")
    Run(Spacing(tmp_path, INTERVAL), whole()).train()
    teacher = Spacing(tmp_path, INTERVAL).teacher(network)
    with pytest.raises(UserError, match=r"^The run that this Spacing serves has not started: .*callbacks="):
        teacher.seek(0)
    with pytest.raises(UserError, match="must know the student's step"):
        teacher(torch.zeros(1, 4))


class Recoded(TensorDataset):
    """Other numbers in the same rows."""

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(row)
        return x + 1, y


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (lambda: seeded_loader(ITEMS, 3, seed=0, steps=range(18)), ["batch size: 3 here, 4 there"]),
        (lambda: seeded_loader(ITEMS, 4, seed=1, steps=range(18)), ["seed: 1 here, 0 there", "first rows: ["]),
        (
            lambda: seeded_loader(TensorDataset(*ITEMS[:20]), 4, seed=0, steps=range(15)),
            ["items: 20 here, 24 there", "steps per epoch: 5 here, 6"],
        ),
        (lambda: DataLoader(ITEMS, 4), ["first rows: [0, 1, 2, 3, 4, 5, 6, 7] here"]),
        (lambda: DataLoader(ITEMS, 4, shuffle=True), ["digest of the first batch: "]),
        (lambda: seeded_loader(Recoded(*ITEMS.tensors), 4, seed=0, steps=range(18)), ["digest of the first batch"]),
    ],
)
def test_other_batches_are_refused_by_name(loader: Loaders, named: list[str], tmp_path: Path) -> None:
    Run(Spacing(tmp_path, INTERVAL), whole()).train()
    for is_student in (True, False):
        with pytest.raises(UserError) as error:
            Run(Spacing(tmp_path, INTERVAL), loader(), is_student).train()
        assert "\n" not in str(error.value)
        for part in (*named, str(tmp_path), "same_batches=False"):
            assert part in str(error.value)
    Run(Spacing(tmp_path, INTERVAL, same_batches=False), loader(), is_student=True).train()


def test_other_lengths_and_intervals(tmp_path: Path) -> None:
    Run(Spacing(tmp_path, INTERVAL), whole()).train()

    def student(every: Any, steps: int) -> Run:
        loader = seeded_loader(ITEMS, 4, seed=0, steps=range(steps))
        return Run(Spacing(tmp_path, every), loader, is_student=True).train()

    with pytest.raises(UserError, match=r"^The student's run has 20 steps, and the teacher's in .* has 18 steps"):
        student(INTERVAL, 20)
    with pytest.raises(UserError, match="no snapshot after 3 updates, which step 0 needs; it has those after 4, 8"):
        student(3, 18)
    assert student(INTERVAL, 10).updates == [4] * 4 + [8] * 4 + [12] * 2, "a part of the run has its teachers"
    assert student(8, 18).updates == [8] * 8 + [16] * 8 + [18] * 2, "whose snapshots are there"
    with pytest.raises(UserError, match="^.* has the snapshots of a run of 18 steps, and this one has 20 steps"):
        Run(Spacing(tmp_path, INTERVAL), seeded_loader(ITEMS, 4, seed=0, steps=range(20))).train()
    longer = Spacing(tmp_path, INTERVAL, overwrite=True)
    Run(longer, seeded_loader(ITEMS, 4, seed=0, steps=range(20))).train()
    assert snapshots_in(tmp_path).keys() == {"step-4", "step-8", "step-12", "step-16", "step-20"}


def test_a_damaged_record_and_one_of_a_run_without_snapshots(tmp_path: Path) -> None:
    Run(Spacing(tmp_path, INTERVAL), whole()).train()
    record = tmp_path / "spacing.json"
    assert json.loads(record.read_text())["batches"]["seed"] == 0
    text = record.read_text()
    for damaged in ("{", '{"total": 18}', '{"total": "18", "batches": {}}'):
        record.write_text(damaged)
        with pytest.raises(UserError, match=r"spacing.json"):
            Run(Spacing(tmp_path, INTERVAL), whole(), is_student=True).train()
    record.write_text(text)
    for file in tmp_path.glob("step-*"):
        file.unlink()
    Run(Spacing(tmp_path, INTERVAL), seeded_loader(ITEMS, 6, seed=5, steps=range(8))).train()
    assert json.loads(record.read_text())["total"] == 8


def test_snapshots_of_others_say_nothing_of_their_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshots, model = Snapshots(tmp_path, INTERVAL, total=STEPS), network()
    for update in range(1, STEPS + 1):
        snapshots.after(update, model)
    capsys.readouterr()
    Run(Spacing(tmp_path, INTERVAL), whole(), is_student=True).train()
    assert capsys.readouterr().err == (
        f"{tmp_path} does not say which batches its teacher learned: give the student the same\n"
    )


def test_adapters_of_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "adapter_model.safetensors").touch()
    with pytest.raises(UserError, match="checkpoint-4 holds adapters of PEFT alone, .* spacing.transformers.teacher"):
        Spacing(tmp_path, INTERVAL).teacher(network)


def test_checkpoints_of_the_same_run_may_lie_in_the_folder(tmp_path: Path) -> None:
    run = Run(Spacing(tmp_path, INTERVAL), whole()).train()
    (tmp_path / "checkpoint-8").mkdir()
    save_file(run.model.state_dict(), tmp_path / "checkpoint-8" / "model.safetensors")
    assert Run(Spacing(tmp_path, INTERVAL), whole(), is_student=True).train().updates[5] == 8


# What snapshots hold


def test_the_first_snapshot_says_what_all_of_them_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(1000, 250, bias=False)  # 1 MB
    Snapshots(tmp_path / "a", 1, total=286).after(1, model)
    assert capsys.readouterr().err == f"{tmp_path / 'a'} gets 286 snapshots of 1 MB, 286 MB in all\n"
    resumed = Snapshots(tmp_path / "a", 100, total=286)
    for update in range(1, 287):
        resumed.after(update, model)
    assert capsys.readouterr().err == f"{tmp_path / 'a'} gets 3 snapshots of 1 MB, 3 MB in all\n"
    Snapshots(tmp_path / "b", 1).after(1, model)
    assert "gets a snapshot of 1 MB whenever one is due" in capsys.readouterr().err
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=200_000_000))
    with pytest.raises(UserError, match="is to get 286 snapshots of 1 MB, 286 MB in all, and its disk has 200 MB free"):
        Snapshots(tmp_path / "c" / "d", 1, total=286).after(1, model)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("schedule", [3, Spaced(3, speed=2), Spaced(2, tail="drop"), "online", "50%"])
def test_the_snapshots_a_run_needs(schedule: Any) -> None:
    updates = TeacherUpdates(schedule, total=14)
    assert [*updates.needed()] == [update for update in range(1, 15) if updates.includes(update)]


class Adapted(nn.Module):
    """A frozen base with an adapter that learns, and statistics of its own."""

    def __init__(self, base: float = 1.0) -> None:
        super().__init__()
        self.base, self.adapter, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        nn.init.constant_(self.base.weight, base).requires_grad_(False)
        nn.init.zeros_(self.base.bias).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.norm(self.base(x) + self.adapter(x))
        return answer


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_trained_parameters_alone(dtype: torch.dtype | None, tmp_path: Path) -> None:
    x, models = torch.randn(8, 4), []
    for update in (1, 2):
        models.append(Adapted())
        models[-1](x + update)  # other statistics
        Snapshots(tmp_path, 1, trained_only=True, total=2).after(update, models[-1])
    saved = load_file(tmp_path / "step-1.safetensors").keys()
    assert saved == {name for name in models[0].state_dict() if not name.startswith("base")}
    teacher = SnapshotTeacher(tmp_path, 1, Adapted, total=2, dtype=dtype)
    for step, model in enumerate(models):
        answer = teacher.seek(step)(x)
        assert answer.dtype == (dtype or torch.float32)
        torch.testing.assert_close(answer.float(), model.eval()(x), atol=0.05 if dtype else 0, rtol=0)
    with pytest.raises(
        UserError, match="step-1.safetensors holds trained parameters alone, and the frozen ones .*base"
    ):
        SnapshotTeacher(tmp_path, 1, lambda: Adapted(2.0), total=2).seek(0)
    with pytest.raises(UserError, match="are not those of the network given .*'adapter.bias' is"):
        SnapshotTeacher(tmp_path, 1, network, total=2, prefix="").seek(0)


def test_dtype_is_one_of_floating_point(tmp_path: Path) -> None:
    Snapshots(tmp_path, 1).save(1, network())
    for wrong in (torch.int8, "float16"):
        with pytest.raises(UserError, match="^dtype must be one of floating point, such as torch.bfloat16; got"):
            SnapshotTeacher(tmp_path, 1, network, dtype=wrong)  # type: ignore[arg-type]


# Two processes


def test_two_processes(tmp_path: Path) -> None:
    """Each batch split in two: what one process learns, up to rounding. Loaders that do not split are refused."""
    for code, _, errors in finished(started(["-m", __name__, str(tmp_path / "two")], torchrun_variables())):
        assert code == 0, errors
    learned = both_runs(tmp_path / "one")
    torch.testing.assert_close(load_file(tmp_path / "two" / "student.safetensors"), learned.state_dict())
    record = json.loads((tmp_path / "two" / "snapshots" / "spacing.json").read_text())
    assert record["batches"]["batch size"] == 4
    assert {path.stem for path in (tmp_path / "two" / "snapshots").glob("step-*")} == {"step-9", "step-18"}


def both_runs(folder: Path) -> nn.Module:
    spacing = Spacing(folder / "snapshots", "1.5ep")
    for is_student in (False, True):
        torch.manual_seed(0)
        bare = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        model = DistributedDataParallel(bare) if torch.distributed.is_initialized() else bare
        teacher = spacing.teacher(bare) if is_student else None
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _, (x, y) in spacing.steps(whole(), save=None if is_student else model):
            z = model(x)
            loss = F.cross_entropy(z, y) if teacher is None else F.mse_loss(z, teacher(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return bare


def one_of_two(folder: Path) -> None:
    torch.distributed.init_process_group("gloo")
    learned = both_runs(folder)
    if torch.distributed.get_rank() == 0:
        save_file(learned.state_dict(), folder / "student.safetensors")
    for shuffle in (True, False):
        loader = DataLoader(ITEMS, 4, shuffle=shuffle)
        with pytest.raises(UserError, match="^Each of 2 processes would take .* seeded_loader.*DistributedSampler"):
            next(Spacing(folder / "none", 2).steps(loader, epochs=1, save=network()))
    shared = DataLoader(ITEMS, 2, sampler=DistributedSampler(ITEMS, seed=3))
    spacing = Spacing(folder / f"shared-{torch.distributed.get_rank()}", 2)
    assert [step for step, _ in spacing.steps(shared, epochs=2, save=network())] == [*range(12)]
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_of_two(Path(sys.argv[1]))
