"""Regression and dense tasks: losses and metrics against formulas, runs against plain loops of torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from spacedkd import (
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    OptimizerSpec,
    Run,
    RunSpec,
    Spaced,
    UserError,
    load_student,
    train,
)
from spacedkd.cli import main
from spacedkd.comparison.document import read_arms
from spacedkd.comparison.results import compare_runs
from spacedkd.config.serialization import to_json
from spacedkd.data import DatasetStream
from spacedkd.data.dataset import Items
from spacedkd.data.stream import Order
from spacedkd.evaluation.evaluate import evaluate
from spacedkd.exporting.request import ExportRequest
from spacedkd.methods import METHODS
from spacedkd.methods.base import Ingredients, Losses, Method, Models, Progress
from spacedkd.models.classifier import Classifier
from spacedkd.reporting.page import render
from spacedkd.task import Classification, Dense, Regression, Task
from tests.training.stopping import assert_same_run, train_in_parts

ALL, IGNORED, CLASSES = 24, 9, 3


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers() -> tuple[TensorDataset, TensorDataset]:
    """Vectors of four numbers, and two that follow from them but for noise."""
    inputs, weights = drawn(ALL, 4, seed=0), drawn(4, 2, seed=1)
    targets = (inputs @ weights).sin() + 0.1 * drawn(ALL, 2, seed=2)
    return TensorDataset(inputs[:16], targets[:16]), TensorDataset(inputs[16:], targets[16:])


def pixels() -> tuple[TensorDataset, TensorDataset]:
    """Images [2, 6, 6], classes of their pixels by brightness, and one pixel in nine that does not count."""
    images = drawn(ALL, 2, 6, 6, seed=0)
    labels = (images[:, 0] > 0.2).long() + (images[:, 1] > 0.5).long()
    labels[drawn(ALL, 6, 6, seed=3) > 1.2] = IGNORED
    return TensorDataset(images[:16], labels[:16]), TensorDataset(images[16:], labels[16:])


def predictor(width: int = 5) -> nn.Module:
    """The same first weights at every call."""
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


def segmenter(width: int = 4) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.Tanh(), nn.Conv2d(width, CLASSES, 1))


@dataclass(frozen=True)
class Setting:
    """A task with its data, its network, and its losses written out."""

    changes: dict[str, Any]
    data: Callable[[], tuple[TensorDataset, TensorDataset]]
    network: Callable[..., nn.Module]
    label_loss: Callable[[Tensor, Tensor], Tensor]
    distance: Callable[[Tensor, Tensor, Tensor], Tensor]

    def spec(self, **changes: Any) -> RunSpec:
        base = RunSpec(
            method=MethodSpec("kd", {"feature_weight": 0.0}),
            schedule=Spaced("3st"),
            epochs=3,
            batch_size=5,
            optimizer=OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.0),
            precision="64-true",
            save_every="3st",
            engine=EngineSpec(threads=1, accelerator="cpu"),
        )
        return replace(base, **{**self.changes, **changes})

    def train(self, folder: Path, **changes: Any) -> Run:
        return train(self.spec(**changes), folder, network=self.network, data=self.data())


def pixel_kl(z: Tensor, t: Tensor, y: Tensor) -> Tensor:
    p, q = (t / 3).softmax(1), (z / 3).softmax(1)
    return (p * (p.log() - q.log())).sum(1)[y != IGNORED].mean()


REGRESSION = Setting(
    {"task": "regression"},
    numbers,
    predictor,
    lambda z, y: ((z - y) ** 2).mean(),
    lambda z, t, y: ((z - t) ** 2).mean(),
)
DENSE = Setting(
    {"task": "dense", "ignore_index": IGNORED},
    pixels,
    segmenter,
    lambda z, y: F.cross_entropy(z, y, ignore_index=IGNORED),
    pixel_kl,
)
SETTINGS = {"regression": REGRESSION, "dense": DENSE}
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def plain_loop(setting: Setting) -> dict[str, nn.Module]:
    """Teacher and student of the setting's spec, trained by nothing but torch."""
    models = {role: setting.network().double() for role in ("teacher", "student")}
    optimizers = {role: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for role, model in models.items()}
    inputs, labels = setting.data()[0].tensors
    order = Order(len(inputs), 5, seed=0)
    for start in range(0, 12, 3):
        for role in ("teacher", "student"):
            for step in range(start, start + 3):
                x, y = (tensor[order.global_batch(step).own_rows] for tensor in (inputs, labels))
                z = models[role](x)
                loss = setting.label_loss(z, y)
                if role == "student":
                    with torch.no_grad():
                        t = models["teacher"](x)
                    loss = 0.7 * loss + 0.3 * setting.distance(z, t, y)
                optimizers[role].zero_grad()
                loss.backward()
                optimizers[role].step()
    return models


def metrics_by_hand(setting: Setting, model: nn.Module) -> dict[str, float]:
    inputs, labels = setting.data()[1].tensors
    with torch.no_grad():
        outputs = model(inputs)
    if setting is REGRESSION:
        error = sum((z - y) ** 2 for z, y in zip(outputs.flatten().tolist(), labels.flatten().tolist(), strict=True))
        means = [sum(column) / len(column) for column in labels.T.tolist()]
        spread = sum((y - means[k]) ** 2 for row in labels.tolist() for k, y in enumerate(row))
        return {"r2": 1 - error / spread, "mse": error / labels.numel()}
    confusion = [[0] * CLASSES for _ in range(CLASSES)]
    for y, z in zip(labels.flatten().tolist(), outputs.argmax(1).flatten().tolist(), strict=True):
        if y != IGNORED:
            confusion[y][z] += 1
    shares = []
    for k in range(CLASSES):
        right, union = confusion[k][k], sum(confusion[k]) + sum(row[k] for row in confusion) - confusion[k][k]
        shares += [right / union] if union else []
    right = sum(confusion[k][k] for k in range(CLASSES))
    return {"miou": sum(shares) / len(shares), "accuracy": right / sum(map(sum, confusion))}


@each_setting
def test_a_run_is_the_plain_loop(setting: Setting, tmp_path: Path) -> None:
    run = setting.train(tmp_path / "run")
    models = plain_loop(setting)
    student = load_file(tmp_path / "run/student/model.safetensors")
    torch.testing.assert_close(student, dict(models["student"].state_dict()), rtol=1e-12, atol=1e-14)
    for role, model in models.items():
        (name, value), *others = metrics_by_hand(setting, model).items()
        scores = run.accuracies[role]["test"]["final"]
        assert scores["last"] == pytest.approx(value, rel=1e-12)
        assert {key: both["last"] for key, both in scores["metrics"].items()} == pytest.approx(dict(others), rel=1e-12)
        assert run.spec.judged_by == name
    inputs, _ = setting.data()[1].tensors
    answers = load_student(run.folder, network=setting.network)(inputs)
    torch.testing.assert_close(answers, models["student"](inputs), rtol=1e-10, atol=1e-12)


@each_setting
def test_stopped_runs_and_replayed_teachers_have_the_same_bits(setting: Setting, tmp_path: Path) -> None:
    objects: dict[str, Any] = {"network": setting.network, "data": setting.data()}
    spec = setting.spec()
    train(spec, tmp_path / "whole", **objects)
    train_in_parts(spec, tmp_path / "parts", 4, 14, **objects)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    train(replace(spec, only="teacher", record=(Spaced("3st"),)), tmp_path / "teacher", **objects)
    replayed = replace(spec, teacher_path=str(tmp_path / "teacher"))
    train(replayed, tmp_path / "replayed", **objects)
    journals = [(tmp_path / name / "journal.jsonl").read_bytes() for name in ("whole", "replayed")]
    assert journals[0] == journals[1]
    if setting is DENSE:
        with pytest.raises(UserError, match="task"):
            train(replace(replayed, metric="accuracy"), tmp_path / "other", **objects)


@each_setting
def test_cached_targets_have_the_same_bits(setting: Setting, tmp_path: Path) -> None:
    objects: dict[str, Any] = {"network": setting.network, "data": setting.data()}
    spec = setting.spec()
    train(spec, tmp_path / "alone", **objects)
    train(replace(spec, cache_targets=True), tmp_path / "caches", **objects)
    train(replace(spec, targets_path=str(tmp_path / "caches")), tmp_path / "reads", **objects)
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert len({(tmp_path / run / name).read_bytes() for run in ("alone", "caches", "reads")}) == 1
    with pytest.raises(UserError, match="top-k"):
        train(replace(spec, cache_targets=True, targets_form="top-k:1"), tmp_path / "other", **objects)


@each_setting
def test_the_best_epoch_is_that_of_the_metric_on_held_out_items(setting: Setting, tmp_path: Path) -> None:
    run = setting.train(tmp_path / "run", data={"holdout": 0.25})
    lines = map(json.loads, (tmp_path / "run/journal.jsonl").read_text().splitlines())
    entries = [line for line in lines if line["event"] == "accuracy" and line["role"] == "student"]
    best = max(entries, key=lambda entry: entry["accuracy"]["holdout"]["final"])
    scores = run.accuracies["student"]["test"]["final"]
    assert (scores["best"], scores["best_epoch"]) == (best["accuracy"]["test"]["final"], best["epoch"])
    assert {name: both["best"] for name, both in scores["metrics"].items()} == best["metrics"]["test"]["final"]


@each_setting
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", {}),
        ("kd", {}),
        ("hinton", {}),
        ("eskd", {"distil_for": "50%"}),
        ("takd", {}),
        ("ban", {"generations": 2}),
    ],
)
def test_methods_that_learn_every_task(setting: Setting, name: str, options: dict[str, Any], tmp_path: Path) -> None:
    schedule = None if name == "none" else Spaced("3st")
    run = setting.train(tmp_path / "run", method=MethodSpec(name, options), schedule=schedule, epochs=1)
    assert run.score() <= 1
    (entry, *_) = [
        json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines() if '"loss"' in line
    ]
    assert {"label"} <= entry["losses"].keys()


def test_the_methods_that_a_refusal_names() -> None:
    able = [name for name in METHODS if "tasks" in vars(METHODS[name])]
    assert able == ["none", "kd", "hinton", "eskd", "takd", "ban"]
    with pytest.raises(UserError, match=f"Methods {', '.join(able)} do"):
        METHODS["dkd"]().check_task("dense")


def test_a_trained_teacher_that_does_not_learn(tmp_path: Path) -> None:
    first = REGRESSION.train(tmp_path / "first")
    spec = REGRESSION.spec(
        method=MethodSpec("kd", {"teacher_learns": False, "feature_weight": 0.0}),
        schedule=None,
        teacher=NetworkSpec(weights=str(tmp_path / "first")),
    )
    run = train(spec, tmp_path / "run", network=predictor, teacher=predictor, data=numbers())
    assert run.score() != first.score()


@dataclass(frozen=True)
class Nearest(Method):
    """A method of a user that asks its task."""

    roles = ("student",)
    tasks = ("regression", "dense")

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        return {"student": Classifier(ingredients.network("student"))}

    def losses(self, role: str, models: Models, batch: Any, progress: Progress) -> Losses:
        (prediction,) = models[role](batch.inputs)
        return {"label": progress.task.label_loss(prediction.logits, batch.labels)}


@dataclass(frozen=True)
class Unaware(Nearest):
    """One that builds on it and does not say what it can learn."""


def test_methods_of_a_user(tmp_path: Path) -> None:
    objects: dict[str, Any] = {"network": predictor, "data": numbers()}
    spec = REGRESSION.spec(method=MethodSpec(), schedule=None)
    train(spec, tmp_path / "own", method=Nearest(), **objects)
    train(replace(spec, method=MethodSpec("none")), tmp_path / "none", **objects)
    students = [(tmp_path / name / "student/model.safetensors").read_bytes() for name in ("own", "none")]
    assert students[0] == students[1]
    with pytest.raises(UserError, match=r"^Method Unaware learns classification, not task regression"):
        train(spec, tmp_path / "unaware", method=Unaware(), **objects)
    with pytest.raises(UserError, match=r"^Method Nearest learns regression, dense, not task classification"):
        train(replace(spec, task="classification"), tmp_path / "classes", method=Nearest(), **objects)


# Metrics and losses alone.


@pytest.mark.parametrize("task", [Classification(), Regression(), Dense("miou", IGNORED), Dense("accuracy", None)])
def test_tallies_of_batches_add_up(task: Task) -> None:
    shapes = {"classification": (2, 8, CLASSES), "regression": (2, 8, 3), "dense": (2, 8, CLASSES, 4, 5)}
    outputs = drawn(*shapes[task.name], seed=0)
    labels = drawn(8, 3, seed=1) if task.name == "regression" else torch.arange(8) % CLASSES
    if task.name == "dense":
        labels = (drawn(8, 4, 5, seed=1) > 0).long()
        labels[0, 0] = IGNORED if task == Dense("miou", IGNORED) else 2
    whole = task.tally(outputs, labels)
    parts = task.tally(outputs[:, :3], labels[:3]) + task.tally(outputs[:, 3:], labels[3:])
    for one, other in zip(whole.T.tolist(), parts.T.tolist(), strict=True):
        assert task.metrics(one, 8) == pytest.approx(task.metrics(other, 8), rel=1e-12)
    outputs[1, 5] = math.nan
    assert task.tally(outputs, labels)[-1].tolist() == [0, 1]


def test_mean_iou_is_over_the_classes_that_occur() -> None:
    labels = torch.tensor([[[0, 0, 1, IGNORED]]])
    answers = torch.tensor([[[0, 1, 1, 2]]])
    outputs = F.one_hot(answers, 5).movedim(-1, 1).double()[None]
    task = Dense("miou", IGNORED)
    assert task.metrics(task.tally(outputs, labels)[:, 0].tolist(), 1) == {"miou": 0.5, "accuracy": 2 / 3}
    assert [*Dense("accuracy").metrics([1, 0, 1, 2, 0], 1)] == ["accuracy", "miou"]
    with pytest.raises(UserError, match="No pixel"):
        task.metrics(task.tally(outputs, torch.full_like(labels, IGNORED))[:, 0].tolist(), 1)


def test_r2_of_a_perfect_answer_of_the_mean_and_of_equal_targets() -> None:
    task, y = Regression(), drawn(6, 2, seed=0) + 100
    outputs = torch.stack([y, y.mean(0).expand(6, 2)])
    perfect, mean = (task.metrics(of_head, 6) for of_head in task.tally(outputs, y).T.tolist())
    assert perfect == {"r2": 1, "mse": 0}
    assert mean["r2"] == pytest.approx(0, abs=1e-9)
    assert mean["mse"] == pytest.approx(y.var(0, correction=0).mean().item(), rel=1e-9)
    with pytest.raises(UserError, match="equal"):
        task.metrics(task.tally(outputs, torch.full((6, 2), 0.1).double())[:, 0].tolist(), 6)


def test_no_pixel_that_counts_is_zero_with_a_gradient_of_zero() -> None:
    outputs = drawn(2, CLASSES, 3, 3, seed=0).requires_grad_()
    loss = Dense(ignore_index=IGNORED).label_loss(outputs, torch.full((2, 3, 3), IGNORED))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(outputs.grad, torch.zeros_like(outputs))  # type: ignore[arg-type]


def test_one_number_for_each_item_may_be_flat() -> None:
    inputs, targets = numbers()[0].tensors
    data = TensorDataset(inputs, targets[:, 0])
    items = Items(data, torch.arange(16), task=Regression(double=True), classes=1)
    assert torch.equal(items.inputs_and_labels(torch.arange(4))[1], targets[:4, :1])
    assert DatasetStream(data, 4, 0, task=Regression()).batch(2).labels.shape == (4, 1)

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs)[:, 0]  # type: ignore[no-any-return]

    (prediction,) = Classifier(Flat())(inputs.float())
    assert prediction.logits.shape == (16, 1)
    assert prediction.features.shape == (16, 4)


# Refusals, before anything is trained.


def floats(labels: Tensor) -> tuple[TensorDataset, TensorDataset]:
    inputs = drawn(ALL, 4, seed=0)
    return TensorDataset(inputs[:16], labels[:16]), TensorDataset(inputs[16:], labels[16:])


@pytest.mark.parametrize(
    ("setting", "changes", "data", "names"),
    [
        (REGRESSION, {"metric": "mse"}, None, ["metric", "MSE", "r2"]),
        (REGRESSION, {"metric": "miou"}, None, ["miou", "regression", "r2"]),
        (REGRESSION, {"ignore_index": 3}, None, ["ignore_index", "regression"]),
        (REGRESSION, {"targets_form": "top-k:1"}, None, ["targets_form", "regression", "bfloat16"]),
        (REGRESSION, {"targets_form": "sample:5@3"}, None, ["targets_form", "regression"]),
        (DENSE, {"targets_form": "top-k:1"}, None, ["targets_form", "dense"]),
        (REGRESSION, {"label_smoothing": 0.1}, None, ["label_smoothing", "regression"]),
        (DENSE, {"data": {"label_noise": 0.1}}, None, ["label_noise", "dense"]),
        (DENSE, {"method": "self-kd"}, None, ["SelfKD", "dense"]),
        (DENSE, {"method": "dml"}, None, ["DML", "dense"]),
        (DENSE, {"method": MethodSpec("kd", {"logit_loss": "decoupled"})}, None, ["decoupled", "dense"]),
        (DENSE, {"method": MethodSpec("ban", {"knowledge": "permuted"})}, None, ["knowledge", "dense"]),
        (REGRESSION, {"method": "dkd"}, None, ["DKD", "regression"]),
        (REGRESSION, {"method": MethodSpec("kd", {"temperature": 2.0})}, None, ["temperature", "regression"]),
        (REGRESSION, {"method": MethodSpec("kd", {"standardise": True})}, None, ["standardise", "regression"]),
        (REGRESSION, {"method": MethodSpec("kd", {"curriculum": 3})}, None, ["curriculum", "regression"]),
        (REGRESSION, {}, floats(torch.arange(ALL)), ["floats [8]", "int64[8]"]),
        (REGRESSION, {}, floats(torch.full((ALL, 2), math.nan)), ["item 0", "NaN"]),
        (REGRESSION, {}, floats(drawn(ALL, 3, seed=1)), ["2 numbers", "3"]),
        (REGRESSION, {"task": "dense"}, None, ["[8, height, width]", "float64[8, 2]"]),
        (REGRESSION, {"task": "classification"}, None, ["item 0", "regression"]),
        (DENSE, {"task": "classification", "ignore_index": None}, None, ["int64[8, 6, 6]", "dense"]),
        (DENSE, {"ignore_index": None}, None, ["label 9", "3 classes", "ignore_index"]),
        (DENSE, {"ignore_index": 1}, None, ["label 9", "3 classes"]),
    ],
)
def test_what_does_not_fit_is_refused(
    setting: Setting, changes: dict[str, Any], data: Any, names: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        train(setting.spec(**changes), tmp_path / "run", network=setting.network, data=data or setting.data())
    assert all(name in str(refused.value) for name in names), refused.value
    assert not (tmp_path / "run/journal.jsonl").exists()


def test_named_data_evaluate_and_export_are_for_classes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="digits has classes"):
        train(RunSpec(task="regression"), tmp_path / "digits")
    run = REGRESSION.train(tmp_path / "run", epochs=1)
    with pytest.raises(UserError, match="task is regression"):
        evaluate(run, network=predictor, data=numbers())
    with pytest.raises(UserError, match="is regression"):
        ExportRequest(run.folder, tmp_path / "out").check()


def test_a_run_of_classes_is_written_as_before() -> None:
    assert not {"task", "metric", "ignore_index"} & to_json(RunSpec()).keys()
    assert to_json(RunSpec(task="dense", ignore_index=0))["ignore_index"] == 0


# The command line, comparisons and reports.

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def numbers():
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
    y = x[:, :1].sin() + x[:, 1:2]
    return TensorDataset(x[:32], y[:32, 0]), TensorDataset(x[32:], y[32:, 0])

def network(width: int = 8):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
"""


def test_a_comparison_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sines.py").write_text(MODULE)
    base = "--data sines:numbers --network sines:network --epochs 2 --batch-size 8 --precision 32-true --jobs 1".split()
    arms = ["--arm", "online: --interval online", "--arm", "spaced: --interval 1ep"]
    main(["compare", "--task", "regression", *base, *arms, "--seeds", "2", "--out", "compared"])
    printed = capsys.readouterr().out
    assert "R² of the student" in printed
    assert "MSE, last" in printed
    document = json.loads(Path("compared/comparison.json").read_text())
    assert document["metric"] == "R²"
    folders = [Path("compared", run["folder"]) for run in document["arms"][1]["runs"]]
    runs = [json.loads((folder / "result.json").read_text()) for folder in folders]
    scores = [run["accuracy"]["student"]["test"]["final"] for run in runs]
    assert document["arms"][1]["last"]["mean"] == pytest.approx(sum(score["last"] for score in scores) / 2)
    page = re.sub(r"<style.*?</style>", "", Path("compared/report.html").read_text(), flags=re.S)
    assert "R² after the last epoch" in page
    assert "ccuracy" not in page
    main(["status", "compared"])
    assert "student R²" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["compare", *base, "--arm", "a: --task regression", "--arm", "b: --method none", "--out", "mixed"])
    assert "one task: a has regression, and b has classification" in capsys.readouterr().err
    assert not Path("mixed").exists()


def test_reports_of_other_metrics(tmp_path: Path) -> None:
    DENSE.train(tmp_path / "iou", label="iou", epochs=1)
    DENSE.train(tmp_path / "pixels", label="pixels", metric="accuracy", epochs=1)
    comparison = compare_runs([tmp_path / "iou"])
    assert "mean IoU, %" in render(comparison, read_arms(comparison))
    with pytest.raises(UserError, match="one metric: iou has mean IoU, and pixels has pixel accuracy"):
        compare_runs([tmp_path / "iou", tmp_path / "pixels"])


def heights(page: str) -> list[float]:
    """Return the heights of all points of the learning curves on a page; pictures are 222 high."""
    pictures = re.findall(r'aria-label="Learning curves of .*?</svg>', page, flags=re.S)
    lines = [line for picture in pictures for line in re.findall(r' d="(M[^"]+)"', picture)]
    return [float(point.split()[1]) for line in lines for point in re.split("[ML]", line)[1:]]


def test_a_report_of_a_low_r2_stays_within_its_pictures(tmp_path: Path) -> None:
    inputs, targets = numbers()[0].tensors
    far = replace(REGRESSION, data=lambda: (TensorDataset(inputs, targets + 9), TensorDataset(inputs, targets + 9)))
    runs = [
        far.train(tmp_path / f"{name}{seed}", label=name, seed=seed, epochs=2, optimizer=OptimizerSpec(lr=lr))
        for name, lr in (("slow", 1e-4), ("slower", 1e-5))
        for seed in (0, 1)
    ]
    assert max(run.score() for run in runs) < -1
    for another in (None, "high"):
        if another:  # from here on one is in sight, and the others are far below it
            runs.append(REGRESSION.train(tmp_path / another, label=another, epochs=2, optimizer=OptimizerSpec(lr=0.01)))
            assert runs[-1].score() > -1
        comparison = compare_runs([run.folder for run in runs])
        page = render(comparison, read_arms(comparison))
        assert all(0 <= height <= 222 for height in heights(page))
        assert len({*heights(page)}) > 4
        strips = page[page.index('class="forest"') :]
        places = [float(place) for place in re.findall(r' (?:cx|x1|x2)="([-.0-9]+)%"', strips)]
        assert all(0 <= place <= 100 for place in places)
        assert len({*places}) > 4
