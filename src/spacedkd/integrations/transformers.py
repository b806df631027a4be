"""Spaced KD as two runs of Hugging Face's Trainer: the teacher's run saves snapshots, the student's loads them.

    spacing = Spacing("runs/snapshots", every=30)
    Trainer(..., callbacks=[spacing.transformers.teacher()])

    teacher = spacing.teacher(make_network)
    StudentTrainer(..., teacher=teacher, temperature=3.0, callbacks=[spacing.transformers.student()])

Trainers that take a teacher themselves, such as TRL's, need the callback alone. The Trainer's own checkpoints are
snapshots too: after `save_steps=30`, `Spacing("runs/teacher", 30)` reads checkpoint-30, checkpoint-60, ...

Steps are the Trainer's `global_step`, which counts updates, so accumulated gradients and `resume_from_checkpoint` need
nothing more. The order of the batches is a function of `data_seed` and the epoch: give both runs the same.

A language model's logits [B, L, V] at a place are its prediction of a token: of the next one in a causal model, whose
labels are therefore shifted, of the one there in any other. Which it is follows from the model's class, or from
`StudentTrainer(..., shift=True)`; where neither says it, training is refused.
"""

import math
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from spacedkd.data.stream import smooth_labels
from spacedkd.integrations.spacing import Spacing, TrainerRun
from spacedkd.methods.losses import (
    IGNORED,
    LOGIT_LOSSES,
    cross_entropy,
    detach_teacher,
    kl,
    token_cross_entropy,
    token_kl,
)
from spacedkd.runtime.errors import UserError, check_between, format_value, install_command, unknown
from spacedkd.trajectory.snapshot_teacher import SnapshotTeacher

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.models.auto import modeling_auto
except ModuleNotFoundError as error:
    raise UserError(
        f"spacedkd.integrations.transformers needs transformers ({error}): {install_command('transformers')}"
    ) from None

CAUSAL = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
CAUSAL_NAMES = ("ForCausalLM", "LMHeadModel")
"""parts of the names of classes that predict the next token"""
ENCODER_DECODERS = {*modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()}
SAME_PLACE_NAMES = ("ForMaskedLM", "ForTokenClassification")
UNCLEAR = {
    *(f"{name}ForCausalLM" for name in ("Bart", "BigBirdPegasus", "Blenderbot", "BlenderbotSmall", "CpmAnt", "Marian")),
    *(f"{name}ForCausalLM" for name in ("MBart", "Mvp", "Pegasus", "PLBart", "ProphetNet", "TrOCR", "Whisper")),
    *("FlaubertWithLMHeadModel", "XLMWithLMHeadModel", "XLNetLMHeadModel"),
}
"""causal models by their name whose own loss takes labels that are shifted already, or that may learn in another way"""


def _training(args: TrainingArguments, state: TrainerState, loader: Any) -> TrainerRun:
    """Return the length and the batches of a run."""
    accumulate = args.gradient_accumulation_steps
    batches = len(loader) if isinstance(loader, Sized) else None
    epoch = None if batches is None else -(-batches // accumulate)
    return TrainerRun(state.max_steps, epoch, loader, accumulate)


class SnapshotCallback(TrainerCallback):
    """Saves the snapshots of a teacher's run at their interval of updates, and after the last update."""

    def __init__(self, spacing: Spacing) -> None:
        self.spacing = spacing

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, train_dataloader: Any, **_: Any
    ) -> None:
        if spreading := next((name for name in ("deepspeed", "fsdp") if getattr(args, name, None)), None):
            raise UserError(f"{spreading} spreads the weights that a snapshot must hold whole: train with DDP.")
        self.spacing.start_teacher(_training(args, state, train_dataloader), state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any
    ) -> None:
        # The last one is taken here, and not when training ends: by then the model may be the best one.
        snapshots = self.spacing.snapshots
        snapshots.after(state.global_step, model)
        if state.global_step >= state.max_steps and not snapshots.due(state.global_step):
            snapshots.save(state.global_step, model)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.spacing.end_teacher(state.global_step)


class TeacherCallback(TrainerCallback):
    """Gives the teachers of a student's run the weights of the step before every update.

    An evaluation has the weights of the last step that was learned; before the first step, those of that one.
    """

    def __init__(self, spacing: Spacing) -> None:
        self.spacing = spacing

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, train_dataloader: Any, **_: Any
    ) -> None:
        if not self.spacing.teachers:
            raise UserError("The student's run has no teacher: give its trainer spacing.teacher(make).")
        for teacher in self.spacing.teachers:
            teacher.to(args.device)
        self.spacing.start_student(_training(args, state, train_dataloader), state.global_step)
        self.spacing.seek(max(state.global_step - 1, 0))

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.spacing.seek(state.global_step)


class TransformersCallbacks:
    """The callbacks of a `Spacing` for Hugging Face's Trainer."""

    def __init__(self, spacing: Spacing) -> None:
        self._spacing = spacing

    def teacher(self) -> SnapshotCallback:
        """Return the callback of the teacher's run, which saves its snapshots."""
        return SnapshotCallback(self._spacing)

    def student(self) -> TeacherCallback:
        """Return the callback of the student's run, which keeps the teacher that `spacing.teacher(...)` has made."""
        return TeacherCallback(self._spacing)


class StudentMixin:
    """Makes a Trainer's model learn from a teacher as well: `class MyTrainer(StudentMixin, Trainer)`.

        L = label_weight CE(z_s, y) + logit_weight KL(z_t -> z_s; T)

    It is a mean over all labelled items of an update, those of accumulated batches and of other processes included; an
    item is a sentence, or a token where every token has a label. The teacher is that of the update's step and sees the
    student's inputs. Evaluation measures the label loss alone.
    """

    args: Any
    model: Any
    state: Any
    accelerator: Any

    def __init__(
        self,
        *args: Any,
        teacher: SnapshotTeacher,
        label_weight: float = 0.7,
        logit_weight: float = 0.3,
        temperature: float = 3.0,
        logit_loss: str = "kl",
        shift: bool | None = None,
        **options: Any,
    ) -> None:
        """Take the teacher and the weights of the loss; all other options are the Trainer's.

        `logit_loss` is one of spacedkd.losses.LOGIT_LOSSES. `shift` says of logits [B, L, V] whether they predict the
        next token (True) or the token at their own place (False); None goes by the class of the model.
        """
        if options.pop("compute_loss_func", None) is not None:
            raise UserError("compute_loss_func would take the place of the distillation loss: leave one of them out.")
        check_between("label_weight", label_weight, 0)
        check_between("logit_weight", logit_weight, 0)
        if not 0 < temperature < math.inf:
            raise UserError(f"temperature must be above 0 and finite, got {temperature:g}.")
        if logit_loss not in LOGIT_LOSSES:
            raise unknown("logit loss", logit_loss, LOGIT_LOSSES)
        if shift not in (True, False, None):
            raise UserError(f"shift must be True, False or None, got {format_value(shift)}.")
        # With a loss function the Trainer counts the items of an update, and leaves dividing by them to it.
        super().__init__(*args, compute_loss_func=self._loss, **options)  # type: ignore[call-arg]
        if self.args.n_gpu > 1:
            raise UserError("DataParallel has no place for a teacher: start one process for each GPU, with torchrun.")
        self.teacher = teacher.to(self.args.device)
        self.label_weight, self.logit_weight, self.temperature = label_weight, logit_weight, temperature
        self._apart = LOGIT_LOSSES[logit_loss]
        self._taught: Tensor | None = None
        self._shift = predicts_next_token(self.model) if shift is None else shift
        if self._shift is not None:
            # The Trainer counts the labels of an update by the exact class; a shift leaves out the first of each row.
            self._loss_shifts_labels = self._shift

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """Return the Trainer's loss of a batch that has the teacher's outputs."""
        self._taught = self._ask(inputs) if model.training else None
        return super().compute_loss(model, inputs, *args, **options)  # type: ignore[misc]

    def _ask(self, inputs: Mapping[str, Any]) -> Tensor:
        self.teacher.seek(self.state.global_step)
        with self.accelerator.autocast():
            return _logits(self.teacher(**{name: value for name, value in inputs.items() if name != "labels"}))

    def _loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None or labels.is_floating_point():
            raise UserError("Distillation needs batches with labels, and labels that are classes.")
        student = _logits(outputs)
        labels = self._aligned(labels, student)
        kept = labels != IGNORED
        count = int(kept.sum())
        if not count:
            return 0 * student.sum()  # where the mean of nothing would be no number
        smoothing, of_tokens = self.args.label_smoothing_factor, student.ndim == 3
        if of_tokens:
            loss = token_cross_entropy(student, labels, shift=False, smoothing=smoothing)
        else:
            y = smooth_labels(labels[kept], student.shape[1], smoothing)
            loss = cross_entropy(student[kept].float(), y)
        if self._taught is not None:
            if of_tokens and self._apart is kl:
                apart = token_kl(student, self._taught, labels, shift=False, temperature=self.temperature)
            else:
                _, taught = detach_teacher(student, self._taught, "logits")
                apart = self._apart(student[kept].float(), taught[kept].float(), self.temperature)
            loss = self.label_weight * loss + self.logit_weight * apart
        return loss if num_items_in_batch is None else loss * (count / num_items_in_batch)

    def _aligned(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return the label of each prediction, IGNORED where there is none."""
        if logits.ndim not in (2, 3) or labels.shape != logits.shape[:-1]:
            raise UserError(
                f"Distillation needs logits [B, C] with labels [B], or [B, L, V] with labels [B, L]; "
                f"{type(self.model).__name__} gives logits {[*logits.shape]} for labels {[*labels.shape]}."
            )
        if logits.ndim == 2:
            if self._shift:
                raise UserError(
                    f"{type(self.model).__name__} gives logits [B, C], which predict no next token: give "
                    "StudentTrainer shift=False."
                )
            return labels
        if self._shift is None:
            raise UserError(
                f"{type(self.model).__name__} gives logits [B, L, V], and its class does not say which token they "
                "predict: give StudentTrainer shift=True for the next token (labels are the input_ids), or "
                "shift=False for the token at the same place."
            )
        return F.pad(labels[:, 1:], (0, 1), value=IGNORED) if self._shift else labels


def _logits(answer: Any) -> Tensor:
    """[B, C], or [B, L, C] of tokens."""
    if isinstance(answer, Mapping):
        answer = answer["logits"]
    return answer[0] if isinstance(answer, tuple | list) else answer  # type: ignore[no-any-return]


def predicts_next_token(model: Any) -> bool | None:
    """Return whether the logits [B, L, V] of a model are those of the next token; None if its class does not say it.

    Adapters (PEFT), torch.compile and DDP are looked through, and so are the classes a model's class inherits from.
    """
    for inner in _unwrapped(model):
        model = inner
    names, config = [kind.__name__ for kind in type(model).__mro__], getattr(model, "config", None)
    if not UNCLEAR.isdisjoint(names):
        return None
    for name in names:
        if name in CAUSAL or any(part in name for part in CAUSAL_NAMES):
            return True
        encoder_decoder = name in ENCODER_DECODERS and getattr(config, "is_encoder_decoder", False)
        if encoder_decoder or any(part in name for part in SAME_PLACE_NAMES):
            return False
    return True if getattr(model, "loss_type", None) == "ForCausalLM" else None


def _unwrapped(model: Any) -> Iterator[Any]:
    """Yield the model inside of each wrapper, the innermost last."""
    while True:
        if callable(base := getattr(model, "get_base_model", None)):  # PEFT, which need not be installed
            inner = base()
        else:
            inner = getattr(model, "_orig_mod", None)  # torch.compile
            if inner is None and isinstance(model, DistributedDataParallel):
                inner = model.module
        if inner is None or inner is model:
            return
        yield inner
        model = inner


class StudentTrainer(StudentMixin, Trainer):
    """Hugging Face's Trainer with a teacher."""
