"""Progressive self-distillation (PS-KD, Kim et al., ICCV 2021): labels are softened by last epoch's predictions.

    q_i = (1 - a_e) y_i + a_e M[i],    L = -1/B sum_i q_i . log softmax(z_i),    a_e = 0.8 (e + 1) / E

`M[i]` [C] is the network's prediction for training image i an epoch ago, softmax(z_i) of its training pass, without
temperature; for an image it has not had yet it is the label, so epoch 0 is plain training. a_e grows with epoch
e, counted from 0, of the E epochs of the run. Labels may be soft themselves [B, C].

The memory has a row for each image's index in the dataset; a turn reads it before it writes. `variant` is
plain, the method itself, or taught: the teacher learns by PS-KD, and a student learns from it as in `kd` and leaves
the memory alone; label_weight, logit_weight, feature_weight and temperature are the student's options.

    spacedkd train --method ps-kd
    spacedkd train --method ps-kd --interval 1.5ep        # variant taught
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from spacedkd.data.stream import Batch
from spacedkd.methods.base import Ingredients, Losses, Models, Progress
from spacedkd.methods.losses import cross_entropy, soft_label
from spacedkd.methods.memory import Bank, check_indices, make_bank
from spacedkd.methods.one_network import SelfTrainedTeacher
from spacedkd.runtime.errors import check_between

MEMORY = "predictions"


@dataclass(frozen=True)
class PSKD(SelfTrainedTeacher):
    """A network's labels are mixed, more and more, with its own predictions of an epoch ago."""

    paper = "Kim et al., Self-Knowledge Distillation with Progressive Refinement of Targets, ICCV 2021"
    weights = "1 CE to labels mixed with up to 0.8 of the predictions; a taught student as kd"
    source = "the authors' code"

    alpha: float = 0.8
    """the share of its predictions in the labels of the last epoch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("alpha", self.alpha, 0, 1)

    @property
    def depends_on_length(self) -> bool:
        return True

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        return {**super().models(ingredients), MEMORY: make_bank(ingredients, "ps-kd")}

    def leader_losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        check_indices(batch.indices, "ps-kd")
        bank = cast(Bank, models[MEMORY])
        (own,) = models[role](batch.inputs)
        target = softened(batch.labels, bank, batch.indices, share(self.alpha, progress))
        bank.write(batch.indices, own.logits.softmax(1), progress)
        return {"label": cross_entropy(own.logits, target.to(own.logits.dtype))}


def share(last: float, progress: Progress) -> float:
    """Return a_e = a (e + 1) / E, the share of the prediction in a target: a/E in the first epoch, a in the last.

    >>> [round(share(0.8, Progress(step, 10, 30)), 4) for step in (0, 9, 10, 29)]
    [0.2667, 0.2667, 0.5333, 0.8]
    """
    epochs = -(-progress.total_steps // progress.steps_per_epoch)
    return last * (progress.epoch + 1) / epochs


def softened(labels: Tensor, bank: Bank, indices: Tensor, share: float) -> Tensor:
    """Return the targets (1 - a) y + a M [B, C]; the label alone for an image without a prediction."""
    remembered = bank.read(indices)
    y = soft_label(labels, remembered.shape[1]).to(remembered)
    return torch.where(bank.count_visits(indices)[:, None] > 0, torch.lerp(y, remembered, share), y)
