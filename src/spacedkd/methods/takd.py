"""Teacher assistants (Mirzadeh et al., AAAI 2020): networks of medium size bridge the way from a large one to a small.

    teacher                  CE(z, y)
    assistants, student      0.5 CE(z, y) + 0.5 T^2 KL(z_ahead -> z; T=5) / C

Every network is taught by the one before it in the chain. The authors' KL is divided by the number of classes C as well
as by the batch, PyTorch's default; `--set method.logit_loss=kl` is the usual one. `assistants` names the networks in
between, largest first; without it there is one, with the student's architecture. The authors train one network after
the other, which is `--interval offline`, and let the best epoch of each teach the next; here it is the last.

    spacedkd train --method takd --interval 1.5ep --teacher resnet50_small --assistant resnet34_small
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from spacedkd.config.spec import NetworkSpec
from spacedkd.methods.base import Card, Ingredients
from spacedkd.methods.kd import KD


@dataclass(frozen=True)
class TAKD(KD):
    """A chain of networks that get smaller, each taught by the one before."""

    card = Card("chain")
    paper = "Mirzadeh et al., Improved Knowledge Distillation via Teacher Assistant, AAAI 2020"
    weights = "0.5 CE + 0.5 T²KL/C (T 5), 1 assistant"
    source = "the authors' code"
    tasks = ("classification", "regression", "dense")

    label_weight: float = 0.5
    logit_weight: float = 0.5
    feature_weight: float = 0.0
    temperature: float = 5.0
    temperature_squared: bool = True
    logit_loss: str = "kl-over-classes"
    assistants: tuple[NetworkSpec, ...] = ()
    """networks between teacher and student, largest first; if empty there is one, like the student's"""

    @property
    def chain(self) -> Sequence[str]:
        count = max(1, len(self.assistants))
        return ("teacher", *("assistant" if k == 1 else f"assistant {k}" for k in range(1, count + 1)), "student")

    def network(self, role: str, ingredients: Ingredients) -> nn.Module:
        if role in (self.chain[0], self.chain[-1]):
            return super().network(role, ingredients)
        if not self.assistants:
            return ingredients.network(role, like=self.chain[-1])
        return ingredients.network(role, spec=self.assistants[self.chain.index(role) - 1])
