"""FitNets (Romero et al., ICLR 2015): a middle layer of the student is pulled towards the teacher's.

    teacher   CE(z_t, y)
    student   CE(z_s, y) + 100 mean((r(F_s) - F_t)^2)

F are the maps [B, C, H, W] behind the second of four stages, or the class tokens [B, D] behind a ViT's middle block;
`hint` and `teacher_hint` name others, counted from 1. The regressor r belongs to the student: a convolution of the
stride or size that fits, BatchNorm and ReLU for maps, Linear and LayerNorm for tokens (`models/feature_hooks.py`), so
that the two may be different architectures. This is the one-stage form of benchmarks; the paper first trains the
student up to the hint alone. `feature_loss` names other distances, and a `logit_weight` adds KD.

    spacedkd train --method fitnet --interval 1.5ep
"""

from dataclasses import dataclass
from typing import cast

from torch import nn

from spacedkd.methods.base import Ingredients
from spacedkd.methods.kd import KD
from spacedkd.models.feature_hooks import find_hint, make_hinted_pair


@dataclass(frozen=True)
class FitNet(KD):
    """A middle layer of the student is pulled towards the teacher's, through a regressor."""

    paper = "Romero et al., FitNets: Hints for Thin Deep Nets, ICLR 2015"
    weights = "1 CE + 100 MSE of maps"
    source = "benchmark code (mdistiller); for ViTs ours"

    label_weight: float = 1.0
    logit_weight: float = 0.0
    feature_weight: float = 100.0
    feature_loss: str = "mse"
    hint: int | None = None
    """the student's stage or block, counted from 1; the middle one if not given"""
    teacher_hint: int | None = None
    """the teacher's, where it is not `hint`"""

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        models = super().models(ingredients)
        if not self.feature_weight:
            return models
        teacher, student = (cast(nn.Module, models[role].network) for role in self.chain)
        teacher_hint = find_hint(
            teacher, ingredients.sample, self.hint if self.teacher_hint is None else self.teacher_hint
        )
        student_hint = find_hint(student, ingredients.sample, self.hint)
        teacher, student = make_hinted_pair(teacher, teacher_hint, student, student_hint)
        return {self.chain[0]: teacher, self.chain[1]: self.with_learned_temperature(student)}
