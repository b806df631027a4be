"""A distillation method of your own, with one option. Run in this folder, the command line finds it by name:

spacedkd train --method own_method:Confidence --interval 1.5ep --set method.strength=0.8 --width 8 --epochs 20
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import spacedkd
from spacedkd.data import Batch
from spacedkd.methods import Ingredients, Method, Models, Progress
from spacedkd.models import Classifier


@dataclass(frozen=True)
class Confidence(Method):
    """The less sure the teacher is of a batch, the more the student's labels are smoothed.

    teacher   CE(z_t, y)
    student   CE(z_s, y smoothed by strength * (1 - mean over the batch of max softmax(z_t)))
    """

    roles = ("teacher", "student")
    strength: float = 0.5
    """how much of the teacher's doubt becomes smoothing"""

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        return {role: Classifier(ingredients.network(role)) for role in self.roles}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        (own,) = models[role](batch.inputs)
        if role == "teacher":
            return {"label": nn.functional.cross_entropy(own.logits, batch.labels)}
        with torch.no_grad():
            (teacher,) = models["teacher"](batch.inputs)
        doubt = 1 - teacher.logits.softmax(1).amax(1).mean().item()
        smoothed = nn.functional.cross_entropy(own.logits, batch.labels, label_smoothing=self.strength * doubt)
        return {"smoothed label": smoothed}


if __name__ == "__main__":
    spec = spacedkd.RunSpec(network=spacedkd.NetworkSpec("resnet18_small", {"width": 8}), epochs=20)
    print(spacedkd.train(spec, "runs/own", method=Confidence()).accuracy)
