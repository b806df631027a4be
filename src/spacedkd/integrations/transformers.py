"""Spaced KD as two runs of Hugging Face's Trainer: a teacher's that leaves snapshots, a student's that follows them.

    Trainer(..., callbacks=[SnapshotCallback(Snapshots("runs/teacher/snapshots", every=30))])

    teacher = SnapshotTeacher("runs/teacher/snapshots", interval=30, network=make_network, total=600)
    DistillationTrainer(..., teacher=teacher, temperature=3.0)

The Trainer's own checkpoints are snapshots too: with `save_steps=30`, `SnapshotTeacher("runs/teacher", 30, ...)` reads
checkpoint-30, checkpoint-60, ... Steps are the Trainer's `global_step`, which counts updates, so accumulated gradients
and `resume_from_checkpoint` need nothing more. The order of the batches is a function of `data_seed` and the epoch:
give both runs the same.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from spacedkd.data.stream import smoothed
from spacedkd.errors import UserError, check_between, install_command, unknown
from spacedkd.methods.losses import LOGIT_LOSSES, cross_entropy
from spacedkd.snapshots.teacher import SnapshotTeacher
from spacedkd.snapshots.writer import Snapshots

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ModuleNotFoundError as error:
    raise UserError(
        f"spacedkd.integrations.transformers needs transformers ({error}): {install_command('transformers')}"
    ) from None

CAUSAL = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
IGNORED = -100
"""the label of what is not learned, such as padding"""


class SnapshotCallback(TrainerCallback):
    """Leaves the snapshots of a teacher's run: every so many updates, and after the last one."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any
    ) -> None:
        # The last one is taken here, and not when training ends: by then the model may be the best one.
        last = state.global_step >= state.max_steps
        (self.snapshots.save if last else self.snapshots.after)(state.global_step, model)


class DistillationMixin:
    """Makes a Trainer's model learn from a teacher as well: `class MyTrainer(DistillationMixin, Trainer)`.

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
        **options: Any,
    ) -> None:
        """`logit_loss` is one of spacedkd.losses.LOGIT_LOSSES; all other options are the Trainer's."""
        if options.pop("compute_loss_func", None) is not None:
            raise UserError("compute_loss_func would take the place of the distillation loss: leave one of them out.")
        check_between("label_weight", label_weight, 0)
        check_between("logit_weight", logit_weight, 0)
        if not 0 < temperature < math.inf:
            raise UserError(f"temperature must be above 0 and finite, got {temperature:g}.")
        if logit_loss not in LOGIT_LOSSES:
            raise unknown("logit loss", logit_loss, LOGIT_LOSSES)
        # With a loss function the Trainer counts the items of an update, and leaves dividing by them to it.
        super().__init__(*args, compute_loss_func=self._loss, **options)  # type: ignore[call-arg]
        if self.args.n_gpu > 1:
            raise UserError("DataParallel has no place for a teacher: start one process for each GPU, with torchrun.")
        self.teacher = teacher.to(self.args.device)
        self.label_weight, self.logit_weight, self.temperature = label_weight, logit_weight, temperature
        self._apart = LOGIT_LOSSES[logit_loss]
        self._taught: Tensor | None = None

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """The Trainer's, after the teacher has been asked."""
        self._taught = self._ask(inputs) if model.training else None
        return super().compute_loss(model, inputs, *args, **options)  # type: ignore[misc]

    def _ask(self, inputs: Mapping[str, Any]) -> Tensor:
        self.teacher.seek(self.state.global_step)
        with self.accelerator.autocast():
            return _logits(self.teacher(**{name: value for name, value in inputs.items() if name != "labels"}))

    def _loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None or labels.is_floating_point():
            raise UserError("Distillation needs batches with labels, and labels that are classes.")
        student, labels = _logits(outputs), _aligned(labels, self.model)
        kept = labels != IGNORED
        z, y = student[kept].float(), labels[kept]
        if not len(y):
            return 0 * student.sum()  # where the mean of nothing would be no number
        loss = cross_entropy(z, smoothed(y, z.shape[1], self.args.label_smoothing_factor))
        if self._taught is not None:
            apart = self._apart(z, self._taught[kept].float(), self.temperature)
            loss = self.label_weight * loss + self.logit_weight * apart
        return loss if num_items_in_batch is None else loss * (len(y) / num_items_in_batch)


def _logits(answer: Any) -> Tensor:
    """[B, C], or [B, L, C] of tokens."""
    if isinstance(answer, Mapping):
        answer = answer["logits"]
    return answer[0] if isinstance(answer, tuple | list) else answer  # type: ignore[no-any-return]


def _aligned(labels: Tensor, model: Any) -> Tensor:
    """The label of each prediction; a causal language model predicts the token that comes next."""
    next_token = type(model).__name__ in CAUSAL or getattr(model, "loss_type", None) == "ForCausalLM"
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED) if next_token else labels


class DistillationTrainer(DistillationMixin, Trainer):
    """Hugging Face's Trainer with a teacher."""
