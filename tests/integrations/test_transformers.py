"""Two runs of Hugging Face's Trainer are one run of ours, to the bit; accumulated batches count as one batch does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import spacedkd.integrations
from spacedkd import Snapshots, SnapshotTeacher, UserError, losses
from tests.conftest import assert_same_bits
from tests.integrations.digits import BATCH, INTERVAL, STEPS, TRAIN, loader, network, ours, sgd

transformers = pytest.importorskip("transformers")
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from spacedkd.integrations.transformers import (  # noqa: E402
    DistillationMixin,
    DistillationTrainer,
    SnapshotCallback,
)

UPDATES = [7] * 7 + [14] * 7 + [20] * 6


class Stop(Exception):
    """A run that is cut off."""


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise Stop


class Classifier(nn.Module):
    """The network as a Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.network(images)
        return (
            {"logits": logits} if labels is None else {"loss": losses.cross_entropy(logits, labels), "logits": logits}
        )


def named(items: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    return {"images": torch.stack([image for image, _ in items]), "labels": torch.tensor([label for _, label in items])}


class OurBatches(Trainer):
    """With batches that are equal to the bit, noise included."""

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(loader(collate=named))


class Student(DistillationMixin, OurBatches):
    """Notes which teacher it has."""

    def _ask(self, inputs: Any) -> Tensor:
        taught = super()._ask(inputs)
        noted.append(self.teacher.updates)
        return taught


noted: list[int | None] = []


def fit(kind: type[Trainer], folder: Path, *callbacks: Any, resume: bool = False, **options: Any) -> Any:
    """Three steps, then a checkpoint; a constant rate, and gradients as they are."""
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    given = {"max_steps": STEPS, "save_steps": 3, "max_grad_norm": 0.0, "per_device_train_batch_size": BATCH, **quiet}
    args = TrainingArguments(str(folder), dataloader_pin_memory=False, **given)
    model = Classifier()
    optimizer = sgd(model)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    made = kind(model, args, train_dataset=TRAIN, callbacks=[*callbacks], optimizers=(optimizer, rate), **options)
    made.train(resume_from_checkpoint=resume or None)
    return made


def test_both_runs_have_the_bits_of_ours(tmp_path: Path) -> None:
    expected = ours(tmp_path / "ours")
    left = tmp_path / "left"
    teacher = fit(OurBatches, tmp_path / "teacher", SnapshotCallback(Snapshots(left, INTERVAL)))
    assert {path.name for path in left.iterdir()} == {f"step-{n}.safetensors" for n in (7, 14, 20)}
    assert_same_bits(teacher.model.network.state_dict(), expected["teacher"])
    assert_same_bits(
        load_file(left / "step-20.safetensors"), load_file(tmp_path / "teacher/checkpoint-20/model.safetensors")
    )

    noted.clear()
    student = fit(Student, tmp_path / "student", teacher=SnapshotTeacher(left, INTERVAL, Classifier, total=STEPS))
    assert_same_bits(student.model.network.state_dict(), expected["student"])
    assert noted == UPDATES
    assert_same_bits(load_file(tmp_path / "student/checkpoint-20/model.safetensors"), student.model.state_dict())

    noted.clear()
    seen = SnapshotTeacher(left, INTERVAL, Classifier, total=STEPS)
    with pytest.raises(Stop):  # after 13 steps, in the middle of an epoch and of a block
        fit(Student, tmp_path / "stopped", StopAfter(13), teacher=seen)
    seen = SnapshotTeacher(left, INTERVAL, Classifier, total=STEPS)
    resumed = fit(Student, tmp_path / "stopped", resume=True, teacher=seen)
    assert_same_bits(resumed.model.network.state_dict(), expected["student"])
    assert noted == UPDATES[:13] + UPDATES[12:]

    images, labels = TRAIN.images[:8], torch.tensor(TRAIN.labels[:8])
    items = [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]
    eval_loss = resumed.evaluate(items)["eval_loss"]  # that of the labels alone
    assert eval_loss == pytest.approx(F.cross_entropy(resumed.model.network(images), labels).item(), rel=1e-5)


def test_checkpoints_of_the_trainer_are_snapshots(tmp_path: Path) -> None:
    teacher = fit(OurBatches, tmp_path)
    seen = SnapshotTeacher(tmp_path, 6, Classifier, total=STEPS)  # of which save_steps=3 leaves more than are needed
    assert [seen.seek(step).updates for step in (0, 5, 6, 17, 18)] == [6, 6, 12, 18, 20]
    assert_same_bits(seen.network.state_dict(), teacher.model.state_dict())


def tokens(kind: str) -> Any:
    """A tiny network with a label for every token, without dropout."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "token classes":
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 5}
        config = transformers.BertConfig(vocab_size=12, max_position_embeddings=8, **sizes, **still)
        return transformers.BertForTokenClassification(config)
    config = transformers.LlamaConfig(vocab_size=12, tie_word_embeddings=True, **sizes)
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize(("kind", "smoothing"), [("token classes", 0.2), ("next tokens", 0.0)])
def test_an_update_is_the_mean_over_all_its_tokens(kind: str, smoothing: float, tmp_path: Path) -> None:
    """Two accumulated batches with different numbers of labels, against the formula for all of them at once."""
    torch.manual_seed(0)
    ids, labels = torch.randint(0, 12, (4, 6)), torch.randint(0, 5, (4, 6))
    for row, known in enumerate((6, 2, 4, 1)):
        labels[row, known:] = -100
    teacher, student = tokens(kind), tokens(kind)
    Snapshots(tmp_path / "snapshots", 1).save(1, teacher)
    before = {name: value.clone() for name, value in student.state_dict().items()}

    z, t = student(input_ids=ids).logits, teacher(input_ids=ids).logits.detach()
    pairs = [(z, t, labels)] if kind == "token classes" else [(z[:, :-1], t[:, :-1], labels[:, 1:])]
    ((z, t, y),) = [(one[y != -100], other[y != -100], y[y != -100]) for one, other, y in pairs]
    p, q = (t / 2).softmax(1), (z / 2).log_softmax(1)
    kl = (p * (p.log() - q)).sum() / len(y)
    (0.6 * F.cross_entropy(z, y, label_smoothing=smoothing) + 0.4 * kl).backward()
    expected = {name: before[name] - 0.1 * weight.grad for name, weight in student.named_parameters()}

    student.zero_grad()
    args = TrainingArguments(
        str(tmp_path / "run"),
        max_steps=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=0.0,
        label_smoothing_factor=smoothing,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    DistillationTrainer(
        student,
        args,
        train_dataset=[{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)],
        optimizers=(torch.optim.SGD(student.parameters(), 0.1), None),
        teacher=SnapshotTeacher(tmp_path / "snapshots", 1, lambda: tokens(kind)),
        label_weight=0.6,
        logit_weight=0.4,
        temperature=2.0,
    ).train()
    torch.testing.assert_close(dict(student.named_parameters()), expected)


def test_what_cannot_be(tmp_path: Path) -> None:
    Snapshots(tmp_path, 1).save(1, Classifier())
    seen = SnapshotTeacher(tmp_path, 1, Classifier)
    for options, line in (
        ({"compute_loss_func": print}, "compute_loss_func would take the place of the distillation loss"),
        ({"logit_loss": "kll"}, "Unknown logit loss 'kll'. Did you mean 'kl'"),
        ({"logit_weight": -1.0}, "logit_weight must be at least 0 and finite, got -1."),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, got 0."),
    ):
        with pytest.raises(UserError) as error:
            fit(Student, tmp_path / "run", teacher=seen, **options)
        assert str(error.value).startswith(line)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    file = Path(spacedkd.integrations.__file__).with_name("transformers.py")
    spec = importlib.util.spec_from_file_location("transformers_anew", file)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(UserError) as error:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert str(error.value) == (
        "spacedkd.integrations.transformers needs transformers (import of transformers halted; None in sys.modules): "
        "pip install 'transformers>=5' 'accelerate>=1.1'"
    )
