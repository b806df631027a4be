"""Logit standardisation (Sun et al., CVPR 2024): only the shape of a logit vector is distilled.

    teacher   CE(z_t, y)
    student   0.1 CE(z_s, y) + 9 T^2 KL(Z(z_t) -> Z(z_s); T=2),   Z(z) = (z - mean z) / (1e-7 + std z)

mean and std (with one degree of freedom taken off) are over the classes of one image, so the term does not change when
either side's logits [B, C] are shifted or stretched. The weight of 9 is part of the method. Every method that has
the option compares standardised logits with `--set method.standardise=true`.

    spacedkd train --method lskd --interval 1.5ep
"""

from dataclasses import dataclass

from spacedkd.methods.hinton import Hinton


@dataclass(frozen=True)
class LSKD(Hinton):
    """KD whose logits are brought to mean 0 and deviation 1 before they are compared."""

    paper = "Sun et al., Logit Standardization in Knowledge Distillation, CVPR 2024"
    weights = "0.1 CE + 9 T²KL (T 2)"
    source = "the authors' code"

    logit_weight: float = 9.0
    temperature: float = 2.0
    standardise: bool = True
