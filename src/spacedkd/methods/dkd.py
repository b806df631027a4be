"""Decoupled KD (Zhao et al., CVPR 2022): target class and other classes are distilled with weights of their own.

    teacher   CE(z_t, y)
    student   CE(z_s, y) + min(e/20, 1) T^2 [ 1 KL(b_t -> b_s) + 8 KL(q_t -> q_s) ],   T=4

b = (p_y, 1 - p_y) is the target class against all others, q the softmax over the C - 1 others, both at temperature T;
e counts the student's epochs from 1. Plain KD is the sum with weights 1 and 1 - p_t,y. Every method that has
the option compares logits in this way with `--set method.logit_loss=decoupled`. Of a soft label (smoothing, mixup)
the largest share is the target.

    spacedkd train --method dkd --interval 1.5ep
"""

from dataclasses import dataclass

from spacedkd.methods.hinton import Hinton


@dataclass(frozen=True)
class DKD(Hinton):
    """KD with the target class and the other classes weighted apart."""

    paper = "Zhao et al., Decoupled Knowledge Distillation, CVPR 2022"
    weights = "1 CE + 1 T²KL target + 8 T²KL others (T 4)"
    source = "the authors' code"

    label_weight: float = 1.0
    logit_weight: float = 1.0
    logit_loss: str = "decoupled"
    warmup: float = 20.0
