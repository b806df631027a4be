"""Two runs of Hugging Face's Trainer are one run of ours, to the bit; accumulated batches count as one batch does."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import spacedkd.integrations
from spacedkd import Snapshots, SnapshotTeacher, Spacing, UserError, losses
from tests.conftest import assert_same_bits
from tests.integrations.digits import BATCH, INTERVAL, STEPS, TRAIN, loader, network, ours, sgd
from tests.training.two_processes import finished, started, torchrun_variables

transformers = pytest.importorskip("transformers")
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from spacedkd.integrations.transformers import (  # noqa: E402
    StudentMixin,
    StudentTrainer,
    predicts_next_token,
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

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.network = network()
        if dropout:
            self.network.insert(4, nn.Dropout(dropout))  # type: ignore[operator]

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


class Student(StudentMixin, OurBatches):
    """Notes which teacher it has."""

    def _ask(self, inputs: Any) -> Tensor:
        taught = super()._ask(inputs)
        noted.append(self.teacher.updates)
        return taught


noted: list[int | None] = []


def fit(
    kind: type[Trainer], folder: Path, *callbacks: Any, resume: bool = False, dropout: float = 0.0, **options: Any
) -> Any:
    """Three steps, then a checkpoint; a constant rate, and gradients as they are."""
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    given = {"max_steps": STEPS, "save_steps": 3, "max_grad_norm": 0.0, "per_device_train_batch_size": BATCH, **quiet}
    args = TrainingArguments(str(folder), dataloader_pin_memory=False, **given)
    model = Classifier(dropout)
    optimizer = sgd(model)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    made = kind(model, args, train_dataset=TRAIN, callbacks=[*callbacks], optimizers=(optimizer, rate), **options)
    made.train(resume_from_checkpoint=resume or None)
    return made


def taught(snapshots: Path, folder: Path, *callbacks: Any, **options: Any) -> Any:
    """A student's run by a Spacing."""
    spacing = Spacing(snapshots, INTERVAL)
    return fit(
        Student, folder, spacing.transformers.student(), *callbacks, teacher=spacing.teacher(Classifier), **options
    )


def test_both_runs_have_the_bits_of_ours(tmp_path: Path) -> None:
    expected = ours(tmp_path / "ours")
    left = tmp_path / "left"
    teacher = fit(OurBatches, tmp_path / "teacher", Spacing(left, INTERVAL).transformers.teacher())
    assert {path.name for path in left.glob("step-*")} == {f"step-{n}.safetensors" for n in (7, 14, 20)}
    assert_same_bits(teacher.model.network.state_dict(), expected["teacher"])
    assert_same_bits(
        load_file(left / "step-20.safetensors"), load_file(tmp_path / "teacher/checkpoint-20/model.safetensors")
    )

    noted.clear()
    student = taught(left, tmp_path / "student")
    assert_same_bits(student.model.network.state_dict(), expected["student"])
    assert noted == UPDATES
    assert_same_bits(load_file(tmp_path / "student/checkpoint-20/model.safetensors"), student.model.state_dict())

    noted.clear()
    with pytest.raises(Stop):  # after 13 steps, in the middle of an epoch and of a block
        taught(left, tmp_path / "stopped", StopAfter(13))
    resumed = taught(left, tmp_path / "stopped", resume=True)
    assert_same_bits(resumed.model.network.state_dict(), expected["student"])
    assert noted == UPDATES[:13] + UPDATES[12:]

    images, labels = TRAIN.images[:8], torch.tensor(TRAIN.labels[:8])
    items = [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]
    eval_loss = resumed.evaluate(items)["eval_loss"]  # that of the labels alone
    assert eval_loss == pytest.approx(F.cross_entropy(resumed.model.network(images), labels).item(), rel=1e-5)


def plain(role: Any, kind: type[Trainer], folder: Path, *callbacks: Any, **options: Any) -> Any:
    """A run of the Trainer with the order of batches that is its own; `role` makes its callback and its teacher."""
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    given = {"max_steps": STEPS, "per_device_train_batch_size": BATCH, "save_strategy": "no", **quiet, **options}
    callback, teacher = role
    made = kind(
        Classifier(),
        TrainingArguments(str(folder), **given),
        train_dataset=TRAIN,
        eval_dataset=[TRAIN[row] for row in range(8)],
        data_collator=named,
        callbacks=[callback, *callbacks],
        **({} if teacher is None else {"teacher": teacher}),
    )
    made.train()
    return made


def student_of(snapshots: Path, every: Any = INTERVAL) -> Any:
    spacing = Spacing(snapshots, every)
    teacher = spacing.teacher(Classifier)
    return spacing.transformers.student(), teacher


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    plain((Spacing(folder, INTERVAL).transformers.teacher(), None), Trainer, folder / "run", data_seed=3)
    return folder


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"data_seed": 4}, ["seed: 4 here, 3 there", "first rows: ["]),
        ({"per_device_train_batch_size": 4}, ["batch size: 4 here, 8 there"]),
        ({"gradient_accumulation_steps": 2}, ["batches per update: 2 here, 1 there", "steps per epoch: 5 here"]),
        ({"max_steps": 21}, ["The student's run has 21 steps, and the teacher's in", "has 20 steps"]),
        ({"every": 5}, ["no snapshot after 5 updates, which step 0 needs; it has those after 7, 14, 20"]),
    ],
)
def test_other_batches_are_refused_by_name(options: Any, parts: list[str], snapshots: Path, tmp_path: Path) -> None:
    options = {"data_seed": 3, **options}
    with pytest.raises(UserError) as error:
        plain(student_of(snapshots, options.pop("every", INTERVAL)), StudentTrainer, tmp_path, **options)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_evaluation_has_the_teacher_of_the_step_just_learned(snapshots: Path, tmp_path: Path) -> None:
    """For trainers, such as TRL's, whose loss in evaluation is that of distillation too."""

    class Distils(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            notes.append((model.training, self.state.global_step, teacher.updates))
            return super().compute_loss(model, inputs, *args, **options)

    notes: list[tuple[bool, int, int | None]] = []
    callback, teacher = student_of(snapshots)
    options = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 7, "per_device_eval_batch_size": 8}
    plain((callback, None), Distils, tmp_path, data_seed=3, **options)
    assert notes[0] == (False, 0, 7)
    assert [updates for training, _, updates in notes if training] == UPDATES
    assert [note[1:] for note in notes[1:] if not note[0]] == [(7, 7), (14, 14), (20, 20)]


def test_a_student_without_its_parts(snapshots: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^The student's run has no teacher: give its trainer spacing.teacher\(make\)"):
        plain((Spacing(snapshots, INTERVAL).transformers.student(), None), Trainer, tmp_path)
    _, teacher = student_of(snapshots)
    with pytest.raises(UserError, match=r"has not started: .*\[spacing.transformers.student\(\)\]"):
        plain((TrainerCallback(), teacher), StudentTrainer, tmp_path)


def test_adapters_alone_are_saved(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def make(seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return lora()

    spacing, trained = Spacing(tmp_path, 1, total=2), []
    for update in (1, 2):
        model = make()
        with torch.no_grad():
            for weight in model.parameters():
                weight += update * weight.requires_grad
        spacing_parts = Snapshots(tmp_path, 1, total=2)
        spacing_parts.after(update, model)
        trained.append(model)
    saved = load_file(tmp_path / "step-1.safetensors")
    assert saved.keys() == {name for name, weight in trained[0].named_parameters() if weight.requires_grad}
    assert all("lora_" in name for name in saved)
    ids = torch.arange(6)[None]
    teacher = SnapshotTeacher(tmp_path, 1, make, total=2)
    for step, model in enumerate(trained):
        assert torch.equal(teacher.seek(step)(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    with pytest.raises(UserError, match="holds trained parameters alone, and the frozen ones"):
        SnapshotTeacher(tmp_path, 1, lambda: make(1), total=2).seek(0)
    assert isinstance(spacing.teacher(make).network, peft.PeftModel)


def test_a_resumed_teacher_with_dropout_has_the_same_bits(tmp_path: Path) -> None:
    """Its generators are in the Trainer's checkpoints; its own snapshots would refuse other weights."""
    whole = fit(OurBatches, tmp_path / "whole", Spacing(tmp_path / "left", 4).transformers.teacher(), dropout=0.5)
    with pytest.raises(Stop):  # the last checkpoint is that of step 12
        fit(OurBatches, tmp_path / "part", StopAfter(13), dropout=0.5)
    again = Spacing(tmp_path / "left", 4).transformers.teacher()
    resumed = fit(OurBatches, tmp_path / "part", again, resume=True, dropout=0.5)
    assert_same_bits(resumed.model.state_dict(), whole.model.state_dict())


def test_checkpoints_of_the_trainer_are_snapshots(tmp_path: Path) -> None:
    teacher = fit(OurBatches, tmp_path)
    seen = SnapshotTeacher(tmp_path, 6, Classifier, total=STEPS)  # of which save_steps=3 leaves more than are needed
    assert [seen.seek(step).updates for step in (0, 5, 6, 17, 18)] == [6, 6, 12, 18, 20]
    assert_same_bits(seen.network.state_dict(), teacher.model.state_dict())


SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


class Inherited(transformers.LlamaForCausalLM):  # type: ignore[name-defined, misc]
    """A causal model by what it inherits alone."""


class Adapter(nn.Module):
    """Wraps a model as PEFT does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = model

    def get_base_model(self) -> nn.Module:
        return self.base_model

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        return self.base_model(input_ids=input_ids)


class Own(nn.Module):
    """A model of which nothing says what it predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.model(input_ids=input_ids).logits}


def llama(kind: Any = transformers.LlamaForCausalLM, vocabulary: int = 12) -> Any:
    return kind(transformers.LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=True, **SIZES))


def lora() -> Any:
    peft = pytest.importorskip("peft")
    config = transformers.GPT2Config(vocab_size=12, n_positions=8, n_embd=8, n_layer=1, n_head=2, **NO_DROPOUT)
    still = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)
    return peft.get_peft_model(transformers.GPT2LMHeadModel(config), still)


NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def tokens(kind: str) -> Any:
    """A tiny network with a label for every token, without dropout."""
    if kind == "token classes":
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 5}
        config = transformers.BertConfig(vocab_size=12, max_position_embeddings=8, **SIZES, **still)
        return transformers.BertForTokenClassification(config)
    makes = {"inherited": lambda: llama(Inherited), "adapter": lambda: Adapter(llama(Inherited)), "lora": lora}
    return {**makes, "own, next": Own, "own, same place": Own}.get(kind, llama)()


@pytest.mark.parametrize(
    ("kind", "smoothing", "shift"),
    [
        ("token classes", 0.2, None),
        ("next tokens", 0.0, None),
        ("inherited", 0.0, None),
        ("adapter", 0.0, None),
        ("lora", 0.0, None),
        ("own, next", 0.0, True),
        ("own, same place", 0.0, False),
    ],
)
def test_an_update_is_the_mean_over_all_its_tokens(
    kind: str, smoothing: float, shift: bool | None, tmp_path: Path
) -> None:
    """Two accumulated batches with different numbers of labels, against the formula for all of them at once."""
    torch.manual_seed(0)
    ids, labels = torch.randint(0, 12, (4, 6)), torch.randint(0, 5, (4, 6))
    for row, known in enumerate((6, 2, 4, 1)):
        labels[row, known:] = -100
    teacher, student = tokens(kind), tokens(kind)
    Snapshots(tmp_path / "snapshots", 1, trained_only=False).save(1, teacher)
    before = {name: value.clone() for name, value in student.state_dict().items()}

    z, t = student(input_ids=ids)["logits"], teacher(input_ids=ids)["logits"].detach()
    same_place = kind in ("token classes", "own, same place")
    pairs = [(z, t, labels)] if same_place else [(z[:, :-1], t[:, :-1], labels[:, 1:])]
    ((z, t, y),) = [(one[y != -100], other[y != -100], y[y != -100]) for one, other, y in pairs]
    p, q = (t / 2).softmax(1), (z / 2).log_softmax(1)
    kl = (p * (p.log() - q)).sum() / len(y)
    (0.6 * F.cross_entropy(z, y, label_smoothing=smoothing) + 0.4 * kl).backward()
    learning = {name: weight for name, weight in student.named_parameters() if weight.requires_grad}
    expected = {name: before[name] - 0.1 * weight.grad for name, weight in learning.items()}

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
    StudentTrainer(
        student,
        args,
        train_dataset=[{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)],
        optimizers=(torch.optim.SGD(student.parameters(), 0.1), None),
        teacher=SnapshotTeacher(tmp_path / "snapshots", 1, lambda: tokens(kind)),
        label_weight=0.6,
        logit_weight=0.4,
        temperature=2.0,
        shift=shift,
    ).train()
    torch.testing.assert_close(learning, expected, atol=1e-6, rtol=0)


def after_random_tokens(model: Any, folder: Path, **options: Any) -> float:
    """The cross-entropy of the training's last quarter, of tokens that nobody can foresee."""
    Snapshots(folder, 1).save(1, model)
    drawn = torch.randint(0, 50, (960, 8), generator=torch.Generator().manual_seed(0))
    args = TrainingArguments(
        str(folder / "run"),
        num_train_epochs=1,
        per_device_train_batch_size=16,
        save_strategy="no",
        logging_steps=15,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = StudentTrainer(
        model,
        args,
        train_dataset=[{"input_ids": row, "labels": row} for row in drawn],
        optimizers=(torch.optim.Adam(model.parameters(), 0.03), None),
        teacher=SnapshotTeacher(folder, 1, model, total=1),
        label_weight=1.0,
        logit_weight=0.0,
        **options,
    )
    trainer.teacher.teacher_updates.at = lambda step: 1  # type: ignore[method-assign]
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line][-1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [transformers.LlamaForCausalLM, Inherited])
def test_nobody_foresees_random_tokens(kind: Any, tmp_path: Path) -> None:
    """A loss below log(50) = 3.91 would be that of the token the model is shown."""
    torch.manual_seed(0)
    assert after_random_tokens(llama(kind, 50), tmp_path / "next") > 3.9
    assert after_random_tokens(llama(kind, 50), tmp_path / "shown", shift=False) < 3, "the test can tell them apart"


def named_class(name: str, *bases: type) -> Any:
    """An instance of a class of this name that was never set up."""
    made = type(name, bases or (nn.Module,), {})
    model: Any = object.__new__(made)
    nn.Module.__init__(model)
    return model


@pytest.mark.parametrize(
    ("model", "next_token"),
    [
        (named_class("Mine", transformers.GPT2LMHeadModel), True),
        (named_class("Mine", type("Between", (transformers.MistralForCausalLM,), {})), True),
        (named_class("MyForCausalLM"), True),
        (named_class("MineForTokenClassification", transformers.LlamaForCausalLM), False),
        (named_class("Mine", transformers.BertForMaskedLM), False),
        (named_class("Mine"), None),
        (named_class("Mine", transformers.BartForCausalLM), None),
        (named_class("MineForCausalLM", transformers.BartForCausalLM), None),
        (named_class("Mine", transformers.XLNetLMHeadModel), None),
        (named_class("Mine", transformers.LlavaForConditionalGeneration), None),
        (Adapter(Adapter(named_class("Mine", transformers.GPT2LMHeadModel))), True),
        (Adapter(named_class("MineForCausalLM", transformers.BertForMaskedLM)), True),
        (Adapter(named_class("Mine", transformers.BertForMaskedLM)), False),
        (torch.compile(Adapter(named_class("Mine", transformers.GPT2LMHeadModel))), True),
    ],
    ids=lambda value: type(value).__mro__[1].__name__ if isinstance(value, nn.Module) else str(value),
)
def test_who_predicts_the_next_token(model: Any, next_token: bool | None) -> None:
    assert predicts_next_token(model) is next_token


def test_an_encoder_decoder_predicts_the_token_at_its_place() -> None:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 12}
    assert predicts_next_token(transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))) is False


@pytest.mark.parametrize(
    ("shape", "labels", "options", "line"),
    [
        (
            [2, 6, 5],
            [2, 6],
            {},
            r"^Fixed gives logits \[B, L, V\], and its class does not say .* shift=True .* shift=False",
        ),
        (
            [2, 8, 5],
            [2, 6],
            {"shift": True},
            r"^Distillation needs .*Fixed gives logits \[2, 8, 5\] for labels \[2, 6\]",
        ),
        ([2, 5, 6, 6], [2, 6, 6], {}, r"^Distillation needs logits \[B, C\] with labels \[B\], or"),
        (
            [2, 5],
            [2],
            {"shift": True},
            r"^Fixed gives logits \[B, C\], which predict no next token: give .*shift=False",
        ),
        ([2, 5], [2], {"shift": "no"}, r"^shift must be True, False or None, got 'no'.$"),
    ],
)
def test_logits_of_which_nobody_knows_what_they_predict(
    shape: list[int], labels: list[int], options: dict[str, Any], line: str, tmp_path: Path
) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(shape[1:]))

        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            return {"logits": self.logits.expand(shape)}

    Snapshots(tmp_path, 1).save(1, Fixed())
    args = TrainingArguments(
        str(tmp_path / "run"), max_steps=1, per_device_train_batch_size=2, report_to="none", use_cpu=True
    )
    data = [{"input_ids": torch.zeros(6), "labels": torch.zeros(labels[1:], dtype=torch.long)} for _ in range(2)]
    with pytest.raises(UserError, match=line):
        StudentTrainer(
            Fixed(), args, train_dataset=data, teacher=SnapshotTeacher(tmp_path, 1, Fixed), **options
        ).train()


def students_weights(folder: Path, items: int) -> dict[str, Tensor]:
    """A teacher's run and a student's by this process, with so many sentences of its own in a batch."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 12, (16, 6), generator=drawn)
    labels = ids.masked_fill(torch.arange(6) >= 2 + torch.arange(16)[:, None] % 5, -100)  # 2 to 6 in a sentence
    data = [{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)]

    def run(kind: type[Trainer], model: Any, *callbacks: Any, **options: Any) -> Any:
        args = TrainingArguments(
            str(folder / "run"),
            max_steps=4,
            per_device_train_batch_size=items,
            train_sampling_strategy="sequential",
            max_grad_norm=0.0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        optimizers = (torch.optim.SGD(model.parameters(), 0.5), None)
        kind(model, args, train_dataset=data, optimizers=optimizers, callbacks=[*callbacks], **options).train()
        return model

    torch.manual_seed(0)
    run(Trainer, llama(), Spacing(folder / "left", 2).transformers.teacher())
    spacing = Spacing(folder / "left", 2)
    student = spacing.transformers.student()
    return dict(run(StudentTrainer, llama(Inherited), student, teacher=spacing.teacher(llama)).state_dict())


def test_two_processes(tmp_path: Path) -> None:
    """Half of each batch in each, with different numbers of labels: what one process learns, up to rounding."""
    for code, _, errors in finished(started(["-m", __name__, str(tmp_path / "two")], torchrun_variables())):
        assert code == 0, errors
    assert {path.name for path in (tmp_path / "two" / "left").glob("step-*")} == {
        "step-2.safetensors",
        "step-4.safetensors",
    }
    expected = students_weights(tmp_path / "one", 4)
    torch.testing.assert_close(load_file(tmp_path / "two" / "student.safetensors"), expected, atol=1e-6, rtol=0)


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
        "pip install 'spacedkd[transformers]'"
    )


if __name__ == "__main__":  # one of two processes
    weights = {name: value.clone() for name, value in students_weights(Path(sys.argv[1]), 2).items()}
    if os.environ["RANK"] == "0":
        save_file(weights, Path(sys.argv[1]) / "student.safetensors")
