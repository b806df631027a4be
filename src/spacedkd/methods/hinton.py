"""Distilling the knowledge in a neural network (Hinton et al. 2015), with the weights benchmarks use.

    teacher   CE(z_t, y)
    student   0.1 CE(z_s, y) + 0.9 T^2 KL(z_t -> z_s; T=4)

T^2 keeps the soft gradient as large as at T = 1. Logits z are [B, C]; the KL is a mean over the batch.

    spacedkd train --method hinton --interval 1.5ep
    spacedkd train --method hinton --teacher-weights runs/teacher      # the teacher is trained already
"""

from dataclasses import dataclass

from spacedkd.methods.kd import KD


@dataclass(frozen=True)
class Hinton(KD):
    """A teacher network teaches a student network by its softened logits."""

    paper = "Hinton et al., Distilling the Knowledge in a Neural Network, 2015"
    weights = "0.1 CE + 0.9 T²KL (T 4)"
    source = "benchmark code (mdistiller, RepDistiller)"
    tasks = ("classification", "regression", "dense")

    label_weight: float = 0.1
    logit_weight: float = 0.9
    feature_weight: float = 0.0
    temperature: float = 4.0
    temperature_squared: bool = True
