"""Early-stopped KD (Cho and Hariharan, ICCV 2019): a teacher that has not learned too much teaches better.

    teacher   CE(z_t, y), for the first quarter of the run; then it is frozen
    student   0.1 CE(z_s, y) + 0.9 T^2 KL(z_t -> z_s; T=4), and CE(z_s, y) alone once `distil_for` is over

The teacher goes through the whole course of the learning rate in its shorter time, decay included; it is not a long
run cut off. Both lengths are parts of the run (25%) or epochs (35ep). The paper stops the teacher; stopping the
distillation is the other half of it.

    spacedkd train --method eskd --interval 1.5ep --set method.teacher_for=35ep
"""

from dataclasses import dataclass

from spacedkd.data.stream import Batch
from spacedkd.methods.base import Losses, Models, Progress
from spacedkd.methods.hinton import Hinton
from spacedkd.runtime.errors import UserError
from spacedkd.schedule import Duration


@dataclass(frozen=True)
class ESKD(Hinton):
    """KD from a teacher that stops learning early."""

    paper = "Cho and Hariharan, On the Efficacy of Knowledge Distillation, ICCV 2019"
    weights = "0.1 CE + 0.9 T²KL (T 4); teacher stops at 25 %"
    source = "the paper; its lengths are for you to sweep"
    tasks = ("classification", "regression", "dense")

    teacher_for: Duration = Duration(25, "%")
    """how long the teacher learns"""
    distil_for: Duration = Duration(100, "%")
    """how long the student learns from it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher_for.amount == 0:
            raise UserError("teacher_for is 0: the teacher would have nothing to teach. Write 25% or 35ep.")

    @property
    def depends_on_length(self) -> bool:
        return self.distil_for.unit == "%" and self.distil_for.amount < 100

    def learns_for(self, role: str) -> Duration:
        return self.teacher_for if role == self.chain[0] else super().learns_for(role)

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        distils = progress.step < self.distil_for.in_steps(progress.steps_per_epoch, progress.total_steps)
        if role == self.chain[0] or distils:
            return super().losses(role, models, batch, progress)
        (student,) = models[role](batch.inputs)
        label = progress.task.label_loss(student.logits, batch.labels)
        return {"label": label + self.zero_of_unused(student)}
