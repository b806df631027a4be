"""Label noise: how many training labels are wrong, which, what they became; and what stays clean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Subset, TensorDataset

from spacedkd import DataSpec, NetworkSpec, RunSpec, UserError, evaluate, train
from spacedkd.cli import main
from spacedkd.data.images import Encoded, Images
from spacedkd.data.run_data import RunData, from_datasets, label_shifts
from spacedkd.data.sources import load
from spacedkd.data.stream import View, batches
from spacedkd.evaluation import EvaluationSpec
from spacedkd.evaluation.weight_noise import WeightNoise
from spacedkd.reporting import findings
from spacedkd.runs.result import read_run
from tests.conftest import TINY, assert_same_bits, tensors
from tests.data.on_disk import class_folders

MANY = 60_000


@pytest.mark.parametrize("part", [0.0, 0.001, 0.2, 1 / 3, 0.5, 0.999])
@pytest.mark.parametrize("count", [10, 37, 899])
def test_exactly_so_many_labels_are_wrong_and_evenly_over_classes(count: int, part: float) -> None:
    labels = torch.arange(count) * 7 % 10
    wrong = label_shifts(labels, torch.arange(count), 10, part) > 0
    assert int(wrong.sum()) == round(part * count)
    for number in range(10):
        of_class = labels == number
        assert abs(int(wrong[of_class].sum()) - part * int(of_class.sum())) <= 1


def test_the_wrong_class_is_uniform_among_the_others() -> None:
    labels = torch.arange(MANY) % 10
    shifts = label_shifts(labels, torch.arange(MANY), 10, 0.5)
    wrong = shifts > 0
    counts = torch.bincount(shifts[wrong], minlength=10)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:].numpy()).pvalue > 0.001
    noisy = (labels + shifts) % 10
    table = np.histogram2d(labels[wrong].numpy(), noisy[wrong].numpy(), bins=10)[0]
    assert (np.diag(table) == 0).all()
    assert stats.chisquare(table[~np.eye(10, dtype=bool)]).pvalue > 0.001


def test_the_wrong_rows_are_anywhere() -> None:
    wrong = (label_shifts(torch.zeros(MANY, dtype=torch.int64), torch.arange(MANY), 10, 0.2) > 0).numpy()
    assert stats.chisquare(wrong.reshape(60, -1).sum(1)).pvalue > 0.001
    assert abs(np.corrcoef(wrong[1:], wrong[:-1])[0, 1]) < 4 / MANY**0.5


def test_more_noise_keeps_the_wrong_labels_of_less() -> None:
    labels, rows = torch.arange(1000) % 10, torch.arange(1000)
    some, more = (label_shifts(labels, rows, 10, part) for part in (0.1, 0.3))
    assert torch.equal(more[some > 0], some[some > 0])


def clean_and_noisy(spec: DataSpec) -> tuple[RunData, RunData]:
    return load(spec), load(replace(spec, label_noise=0.2))


def assert_noisy(clean: RunData, noisy: RunData, changed: int) -> None:
    assert not isinstance(clean.train, Sequence)
    ours, theirs = (data.train.inputs_and_labels(torch.arange(len(data.train))) for data in (clean, noisy))
    assert torch.equal(ours[0], theirs[0])  # type: ignore[arg-type]
    assert int((ours[1] != theirs[1]).sum()) == changed
    for name, part in clean.evaluated_splits().items():
        every = torch.arange(len(part))
        assert torch.equal(part.inputs_and_labels(every)[1], noisy.evaluated_splits()[name].inputs_and_labels(every)[1])


def test_arrays_and_labels_that_stay() -> None:
    clean, noisy = clean_and_noisy(DataSpec("digits", holdout=0.1))
    assert_noisy(clean, noisy, round(0.2 * clean.count))
    assert noisy.describe()["notes"] == [f"{round(0.2 * clean.count)} of {clean.count} training labels are wrong on "
                                         "purpose (label_noise 0.2)."]  # fmt: skip


def test_folders_tables_and_images_that_stay_encoded(tmp_path: Path) -> None:
    class_folders(tmp_path / "images", {"train": 10, "val": 5})
    path = tmp_path / "images"
    for spec in (DataSpec(str(path), image_size=8), DataSpec(str(path), image_size=8, augmentation="none")):
        assert_noisy(*clean_and_noisy(spec), changed=round(0.2 * load(spec).count))
    spec = DataSpec(str(path), image_size=8)
    in_memory, encoded = (load(replace(spec, label_noise=0.2), limit) for limit in (1 << 30, 0))
    assert isinstance(in_memory.train, Images)
    assert isinstance(encoded.train, Encoded)
    assert torch.equal(in_memory.train.labels, encoded.train.labels)


def test_fewer_images_keep_most_of_their_wrong_labels() -> None:
    whole, some = (load(DataSpec("digits", label_noise=0.2, train_limit=limit)) for limit in (None, 450))
    clean = load(DataSpec("digits")).train
    assert isinstance(whole.train, Images)
    assert isinstance(some.train, Images)
    assert some.train.rows is not None
    before = whole.train.labels[some.train.rows] != clean.labels[some.train.rows]
    after = some.train.labels != clean.labels[some.train.rows]
    assert int(after.sum()) == 90
    assert int((before & after).sum()) > 60  # 18 if they were drawn anew
    assert torch.equal(some.train.labels[before & after], whole.train.labels[some.train.rows][before & after])


@pytest.mark.parametrize("changes", [{}, {"mixup": 0.5}, {"cutmix": 1.0}])
def test_batches_have_the_same_bits_with_workers_and_processes(changes: dict[str, float]) -> None:
    data = load(DataSpec("digits", train_limit=60, label_noise=0.3, **changes))  # type: ignore[arg-type]
    whole, halves = data.stream(20, 0), [data.stream(20, 0, rank=rank, ranks=2) for rank in (0, 1)]
    turns = [[View(step)] for step in range(5)]
    for step, (alone, prepared) in enumerate(zip(batches(whole, turns), batches(whole, turns, workers=2), strict=True)):
        assert torch.equal(alone.labels, prepared.labels)
        assert torch.equal(alone.labels, torch.cat([half.batch(step).labels for half in halves]))
    same = load(DataSpec("digits", train_limit=60, label_noise=0.3)).stream(60, 7).batch(0)
    other = load(DataSpec("digits", train_limit=60, label_noise=0.3)).stream(60, 8).batch(0)
    assert torch.equal(same.labels[same.indices.argsort()], other.labels[other.indices.argsort()])


def test_label_smoothing_is_on_top() -> None:
    data = load(DataSpec("digits", train_limit=50, label_noise=0.4))
    hard, soft = data.stream(50, 0).batch(0).labels, data.stream(50, 0, label_smoothing=0.1).batch(0).labels
    assert torch.equal(soft.argmax(1), hard)
    assert torch.allclose(soft.max(1).values, torch.tensor(0.91))


def pair(count: int = 100) -> tuple[TensorDataset, TensorDataset]:
    inputs, labels = torch.arange(count * 2.0).view(count, 2), torch.arange(count) % 4
    return TensorDataset(inputs, labels), TensorDataset(-inputs, labels)


def test_a_users_datasets() -> None:
    clean = from_datasets(pair(), holdout=0.2).with_classes(4)
    noisy = clean.with_label_noise(0.25)
    assert_noisy(clean, noisy, changed=20)
    stream = noisy.stream(80, 0)
    batch = stream.batch(0)
    assert int((batch.labels != clean.stream(80, 0).batch(0).labels).sum()) == 20
    assert noisy.digest["training"]["labels"] == clean.digest["training"]["labels"]
    part = from_datasets((Subset(pair()[0], range(10, 60)), pair()[1])).with_classes(4).with_label_noise(0.1)
    assert int((part.train.inputs_and_labels(torch.arange(50))[1] != (torch.arange(50) + 10) % 4).sum()) == 5


def test_shares_of_classes_are_refused() -> None:
    inputs, shares = torch.randn(10, 3), torch.full((10, 4), 0.25)
    data = from_datasets((TensorDataset(inputs, shares), TensorDataset(inputs, shares))).with_classes(4)
    with pytest.raises(UserError, match=r"^label_noise replaces labels that are whole numbers"):
        data.with_label_noise(0.1)


def test_a_run_on_a_users_datasets(tmp_path: Path) -> None:
    spec = replace(TINY, data=DataSpec(label_noise=0.25, holdout=0.2), network=NetworkSpec(), epochs=1, method="none")  # type: ignore[arg-type]
    train(spec, tmp_path / "run", data=pair(), network=partial(nn.Linear, 2, 4))
    described = json.loads((tmp_path / "run" / "classes.json").read_text())
    assert described["notes"] == ["20 of 80 training labels are wrong on purpose (label_noise 0.25)."]


NOISY = replace(TINY, data=replace(TINY.data, label_noise=0.2, holdout=0.25), epochs=1)


def test_a_run_says_it_and_keeps_its_labels(tmp_path: Path) -> None:
    train(NOISY, tmp_path / "run")
    described = json.loads((tmp_path / "run" / "classes.json").read_text())
    assert "6 of 30 training labels are wrong" in described["notes"][-1]
    with pytest.raises(UserError, match="holds another run"):
        train(replace(NOISY, data=replace(NOISY.data, label_noise=0.3)), tmp_path / "run", if_exists="resume")
    run = read_run(tmp_path / "run")
    assert "20 % of the training labels wrong" in findings.data_name(run.spec)
    entry = evaluate(tmp_path / "run", EvaluationSpec((WeightNoise(draws=1),)))["instruments"]["weight_noise"]
    assert entry["measured"]["label_noise"] == 0.2
    assert "labels trained on, 20 % of them wrong" in WeightNoise.describe([entry])
    described["digest"]["training"]["label noise"] = "0" * 16
    (tmp_path / "run" / "classes.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="its training images have other wrong labels"):
        evaluate(tmp_path / "run")


def test_a_teacher_of_other_labels_is_not_replayed(tmp_path: Path) -> None:
    spec = replace(NOISY, record=("1ep",), epochs=1)  # type: ignore[arg-type]
    train(spec, tmp_path / "teacher")
    with pytest.raises(UserError, match="data"):
        train(
            replace(NOISY, data=replace(NOISY.data, label_noise=0.0), teacher_path=str(tmp_path / "teacher")),
            tmp_path / "student",
        )
    replayed = replace(NOISY, schedule="1ep", teacher_path=str(tmp_path / "teacher"))  # type: ignore[arg-type]
    train(replayed, tmp_path / "replayed")
    train(replace(NOISY, schedule="1ep"), tmp_path / "together")  # type: ignore[arg-type]
    ours, theirs = ({name: t for name, t in tensors(tmp_path / which).items() if "/student/" in name}
                    for which in ("replayed", "together"))  # fmt: skip
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("text", ["-0.1", "1", "1.5", "nan", "some"])
def test_a_part_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--label-noise", text])
    assert stopped.value.code == 2
    assert "label_noise" in capsys.readouterr().err


def test_old_specs_do_not_have_it() -> None:
    from spacedkd.config.serialization import to_json

    assert "label_noise" not in to_json(RunSpec())["data"]
    assert to_json(NOISY)["data"]["label_noise"] == 0.2


def test_an_evaluation_of_clean_labels_does_not_mention_them(tmp_path: Path) -> None:
    train(replace(TINY, epochs=1), tmp_path / "run")
    for _ in range(2):  # the second one reads what the first one wrote
        document = evaluate(tmp_path / "run", EvaluationSpec((WeightNoise(draws=1),)))
    entry = document["instruments"]["weight_noise"]
    assert "label_noise" not in entry["measured"]
    assert "wrong" not in WeightNoise.describe([entry])
