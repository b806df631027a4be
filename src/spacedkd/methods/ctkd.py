"""Curriculum temperature (Li et al., AAAI 2023): the temperature learns to make distillation hard.

    teacher   CE(z_t, y)
    student   0.1 CE(z_s, y) + 0.9 T^2 KL(z_t -> z_s; T),   T = 1 + 20 sigmoid(theta)

The scalar theta belongs to the student's optimizer, but its gradient is turned round: it climbs the loss, and the climb
steepens over the first 10 epochs (`methods/distillation.py`). T is part of the graph everywhere, in both softmaxes
and in T^2. theta moves in the student's turns alone. Every method that has the option `curriculum` learns its
temperature in this way with `--set method.curriculum=10`. The authors' second version, one temperature for every
image, is not here.

    spacedkd train --method ctkd --interval 1.5ep
"""

from dataclasses import dataclass

from spacedkd.methods.hinton import Hinton


@dataclass(frozen=True)
class CTKD(Hinton):
    """KD whose temperature is learned against the student, more and more so."""

    paper = "Li et al., Curriculum Temperature for Knowledge Distillation, AAAI 2023"
    weights = "0.1 CE + 0.9 T²KL (T learned, 1 to 21)"
    source = "the authors' code"

    curriculum: float = 10.0
