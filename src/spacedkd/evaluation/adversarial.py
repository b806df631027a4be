"""How a network stands small changes of an image that are chosen against it.

An attack adds at most epsilon to every pixel, so as to raise the cross-entropy J of the network's deepest head:

    x <- clip(x + step * sign(dJ/dx)),    clip: to within epsilon of the image, and to valid pixels 0 .. 255

    fgsm   one step of epsilon from the image (Goodfellow et al. 2015)
    bim    ten steps of epsilon / 4 from the image (Kurakin et al. 2017; the attack the paper names)
    pgd    the same from a random place within epsilon (Madry et al. 2018), drawn anew for each place in the data

Epsilon and step are in pixel values, 0 .. 255: 8 is what others write as 8/255. They apply before normalisation, so
they mean the same for every data set. Losses are summed, so no image's attack depends on the others in its batch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.evaluation.accuracy import Predict, check_finite, undefined_images
from spacedkd.evaluation.frozen import Advance
from spacedkd.evaluation.settings import HIGHEST, Attack
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.seeds import seed_for

Pixels = tuple[Tensor, Tensor, Tensor]
"""[B, C, H, W] uint8, their labels [B] and their places in the data [B]"""
Normalise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Attacked:
    """The accuracy of the deepest head under one attack."""

    attack: Attack
    accuracy: float


@dataclass(frozen=True)
class Adversarial:
    """The accuracy of the deepest head without and with attacks on its images."""

    images: int
    clean: float
    attacks: tuple[Attacked, ...]
    seed: int
    unit: str = "pixel values 0 .. 255, largest change of any pixel"


def perturb(
    predict: Predict,
    normalise: Normalise,
    pixels: Tensor,
    labels: Tensor,
    attack: Attack,
    indices: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """The images [B, C, H, W] (0 .. 255) after the attack, as floats; `indices` are their places in the data."""
    clean = pixels.float()
    low, high = (clean - attack.epsilon).clamp(min=0), (clean + attack.epsilon).clamp(max=HIGHEST)
    moved = clean
    if attack.random_start:
        places = torch.arange(len(clean)) if indices is None else indices
        moved = (clean + attack.epsilon * _uniform(clean, places, seed)).clamp(low, high)
    for _ in range(attack.steps):
        moved = moved.detach().requires_grad_()
        loss = F.cross_entropy(predict(normalise(moved))[0].logits.float(), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, moved)
        moved = torch.add(moved.detach(), gradient.sign_(), alpha=attack.step).clamp_(low, high)
    return moved


def _uniform(like: Tensor, places: Tensor, seed: int) -> Tensor:
    """Numbers from -1 to 1 that depend on an image's place alone, so that batches can be cut in any way."""
    starts = [torch.Generator().manual_seed(seed_for(seed, "random start", place)) for place in places.tolist()]
    return (2 * torch.stack([torch.rand(like.shape[1:], generator=start) for start in starts]) - 1).to(like)


def passes(attacks: Sequence[Attack]) -> int:
    """How often every image goes through the network."""
    return 1 + sum(one.steps + 1 for one in attacks)


def adversarial(
    predict: Predict,
    normalise: Normalise,
    batches: Iterable[Pixels],
    attacks: Sequence[Attack],
    seed: int = 0,
    advance: Advance = lambda _: None,
) -> Adversarial:
    """Accuracy under every attack, in one pass; `advance` is told how often images went through the network."""
    if not attacks:
        raise UserError("There is no attack to make: name one of fgsm, bim and pgd, and an epsilon, for instance 8.")
    images, right, undefined = 0, [0] * (1 + len(attacks)), [0] * (1 + len(attacks))
    for pixels, labels, indices in batches:
        for place, attack in enumerate((None, *attacks)):
            shown = pixels if attack is None else perturb(predict, normalise, pixels, labels, attack, indices, seed)
            with torch.no_grad():
                logits = predict(normalise(shown))[0].logits
                right[place] += int((logits.argmax(1) == labels).sum())
                undefined[place] += int(undefined_images(logits).sum())
            advance(len(labels) * (1 if attack is None else attack.steps + 1))
        images += len(labels)
    for attack, wrong in zip((None, *attacks), undefined, strict=True):
        under = "images" if attack is None else f"images under {attack.name} with epsilon {attack.epsilon:g}"
        check_finite(["final"], [wrong], images, under)
    clean, *found = (count / images for count in right)
    return Adversarial(images, clean, tuple(map(Attacked, attacks, found)), seed)
