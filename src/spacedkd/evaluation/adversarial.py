"""Accuracy on adversarial images: small changes of an image that are chosen against the network.

An attack adds at most epsilon to every pixel, so as to raise the cross-entropy J of the network's deepest head:

    x <- clip(x + step * sign(dJ/dx)),    clip: to within epsilon of the image, and to valid pixels 0 .. 255

    fgsm   one step of epsilon from the image (Goodfellow et al. 2015)
    bim    ten steps of epsilon / 4 from the image (Kurakin et al. 2017; the attack the paper names)
    pgd    the same from a random point within epsilon (Madry et al. 2018), drawn for each index in the data

Epsilon and step are in pixel values, 0 .. 255: 8 is what others write as 8/255. They apply before normalisation, so
they mean the same for every data set. Losses are summed, so no image's attack depends on the others in its batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from spacedkd.evaluation.instrument import (
    Advance,
    Entry,
    Headline,
    Instrument,
    LevelChart,
    Metric,
    MetricTable,
    PageItem,
    ResultTable,
    Value,
    check_at_least,
)
from spacedkd.runs.schema import Count, PositiveCount
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.seeds import seed_for

if TYPE_CHECKING:
    from torch import Tensor

    from spacedkd.evaluation.scores import Predict
    from spacedkd.evaluation.subject import Subject

    Pixels = tuple[Tensor, Tensor, Tensor]
    """[B, C, H, W] uint8, their labels [B] and their indices in the data [B]"""
    Normalise = Callable[[Tensor], Tensor]

AttackName = Literal["fgsm", "bim", "pgd"]
ATTACKS: tuple[AttackName, ...] = get_args(AttackName)
EPSILONS = (1.0, 2.0, 4.0, 8.0)
STEPS = 10
HIGHEST = 255.0


@dataclass(frozen=True)
class Attack:
    """An attack with everything that decides how strong it is."""

    name: AttackName
    epsilon: float
    step: float
    steps: int
    random_start: bool

    def __post_init__(self) -> None:
        for what, value in (("epsilon", self.epsilon), ("The step of an attack", self.step)):
            if not 0 < value <= HIGHEST:  # written so that NaN fails too
                raise UserError(f"{what} must be above 0 and at most 255 (pixel values, 8 is 8/255), got {value:g}.")
        if self.steps < 1:
            raise UserError(f"An attack needs at least one step, got {self.steps}.")


def attack(name: str, epsilon: float, steps: int = STEPS, step: float | None = None) -> Attack:
    """Return an attack by name; its step is epsilon / 4 unless given, and all of epsilon for fgsm.

    >>> attack("bim", 8)
    Attack(name='bim', epsilon=8, step=2.0, steps=10, random_start=False)
    """
    if name == "fgsm":
        return Attack("fgsm", epsilon, epsilon, 1, False)
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    size = epsilon / 4 if step is None else step
    return Attack("bim" if name == "bim" else "pgd", epsilon, size, steps, name == "pgd")


class AttackSettings(TypedDict):
    """An `Attack` in evaluation.json."""

    name: str
    epsilon: float
    step: float
    steps: Count
    random_start: bool


class AttackEntry(TypedDict):
    """The accuracy under one attack."""

    attack: AttackSettings
    accuracy: float


class AdversarialEntry(Entry):
    """The entry of attacks in evaluation.json."""

    images: PositiveCount
    seed: Count
    clean: float
    attacks: list[AttackEntry]


@dataclass(frozen=True)
class Adversarial(Instrument):
    """Accuracy of the deepest head under attacks on its images."""

    name = "adversarial"
    flag = "adversarial"
    about = "accuracy on images perturbed against the network"
    title = "Adversarial images"
    entry_type = AdversarialEntry
    headlines = (Headline("mean", "attacked"),)
    headline_note = "attacked: mean accuracy over all attacks, percent"

    attacks: tuple[str | Attack, ...] = ATTACKS
    """fgsm, bim or pgd"""
    epsilon: tuple[float, ...] = EPSILONS
    """largest change of a pixel value, which is 0 to 255 before normalisation"""
    steps: int | None = None
    """steps of bim and pgd; None takes 10"""
    step: float | None = None
    """size of a step of bim and pgd, in pixels; None takes epsilon / 4"""
    limit: int | None = None
    """maximum number of test images, evenly from all classes; None takes all"""

    def __post_init__(self) -> None:
        if {*self.attacks} == {"fgsm"} and (self.steps is not None or self.step is not None):
            raise UserError("steps and step are of bim and pgd: fgsm takes one step of epsilon.")
        if not self.all_attacks:
            raise _no_attack()
        check_at_least(self, limit=1)

    @property
    def all_attacks(self) -> tuple[Attack, ...]:
        """Every named attack with every epsilon; an `Attack` stands for itself."""
        attacks: list[Attack] = []
        for kind in self.attacks:
            if isinstance(kind, Attack):
                attacks.append(kind)
            else:
                steps = STEPS if self.steps is None else self.steps
                attacks += [attack(kind, epsilon, steps, self.step) for epsilon in self.epsilon]
        return tuple(attacks)

    def check_subject(self, subject: Subject) -> None:
        """Refuse a user's dataset, whose items need not be images."""
        subject.test_pixels(self.limit, "Attacks")

    def measure(self, subject: Subject) -> AdversarialResult:
        """Return the accuracy without attack and under each of them."""
        import torch

        networks, test = subject.networks, subject.test_pixels(self.limit, "Attacks")
        layout = torch.channels_last if networks.channels_last else torch.contiguous_format

        def batches() -> Iterator[Pixels]:
            for rows in torch.arange(len(test.labels)).split(subject.batch_size):
                pixels = test.resized(rows).to(networks.device, memory_format=layout)
                yield pixels, test.labels[rows].to(networks.device), rows

        attacks = self.all_attacks
        with subject.progress("adversarial", forward_passes(attacks) * len(test.labels)) as advance:
            return measure_attacks(networks.predict_deepest(), test.normalise, batches(), attacks, advance=advance)

    @classmethod
    def metrics(cls, entry: AdversarialEntry) -> Iterator[tuple[str, Metric]]:
        """Yield accuracies: clean, the mean over attacks, and under each attack."""
        images, attacks = entry["images"], entry["attacks"]
        yield "clean", Metric("Without attack", entry["clean"], 1 / images, f"{images} images")
        mean = sum(each["accuracy"] for each in attacks) / len(attacks)
        every = json.dumps([each["attack"] for each in attacks])
        yield "mean", Metric("Mean over attacks", mean, 1 / images / len(attacks), f"{images}, {every}")
        for each in attacks:
            name, epsilon = each["attack"]["name"], each["attack"]["epsilon"]
            settings = f"{images} images, seed {entry['seed']}, {json.dumps(each['attack'])}"
            title = f"{name.upper()}, epsilon {epsilon:g}"
            yield f"{name}/{epsilon:.12g}", Metric(title, each["accuracy"], 1 / images, settings)

    @classmethod
    def describe(cls, entries: Sequence[AdversarialEntry]) -> str:
        """Return how many images were attacked, and with which steps."""

        def steps(settings: AttackSettings) -> str:
            count = "1 step" if settings["steps"] == 1 else f"{settings['steps']} steps"
            start = ", random start" if settings["random_start"] else ""
            size = settings["step"] / settings["epsilon"]
            return f"{settings['name'].upper()}: {count} of {size:g} epsilon{start}"

        kinds = "; ".join(dict.fromkeys(steps(each["attack"]) for each in entries[0]["attacks"]))
        images = entries[0]["images"]
        return f"{images} test images; epsilon in pixel values 0 to 255, before normalisation. {kinds}."

    @classmethod
    def tables(cls, entry: AdversarialEntry, detailed: bool) -> Iterator[ResultTable]:
        """Yield a row for each kind of attack and a column for each epsilon."""
        epsilons = sorted({each["attack"]["epsilon"] for each in entry["attacks"]})
        rows: list[list[Value]] = []
        for name in dict.fromkeys(each["attack"]["name"] for each in entry["attacks"]):
            by_epsilon = {
                each["attack"]["epsilon"]: each for each in entry["attacks"] if each["attack"]["name"] == name
            }
            values = [by_epsilon[epsilon]["accuracy"] if epsilon in by_epsilon else None for epsilon in epsilons]
            rows.append([_row_title([each["attack"] for each in by_epsilon.values()]), entry["clean"], *values])
        yield ResultTable(
            "accuracy under attack, percent",
            ("attack", "0", *(f"{epsilon:g}" for epsilon in epsilons)),
            rows,
            "columns: epsilon, the most any pixel is changed by, of 0 to 255; deepest head",
        )

    @classmethod
    def page(cls, keys: Collection[str]) -> Iterator[PageItem]:
        """Yield how accuracy falls with epsilon (of BIM, or else of the first attack), and all accuracies."""
        names = [key.partition("/")[0] for key in keys if "/" in key]
        drawn = "bim" if "bim" in names else names[0]
        levels = {float(key.partition("/")[2]): key for key in keys if key.startswith(f"{drawn}/")}
        yield LevelChart({0.0: "clean", **levels}, "epsilon, pixel values", f"Accuracy under {drawn.upper()}.")
        yield MetricTable("Accuracy under attack", [*keys])


def _row_title(attacks: Sequence[AttackSettings]) -> str:
    first = attacks[0]
    sizes = {settings["step"] / settings["epsilon"] for settings in attacks}
    size = f"epsilon x {sizes.pop():g}" if len(sizes) == 1 else f"{first['step']:g}"
    start = ", random start" if first["random_start"] else ""
    return f"{first['name']} ({first['steps']} x {size}{start})"


@dataclass(frozen=True)
class AttackAccuracy:
    """The accuracy of the deepest head under one attack."""

    attack: Attack
    accuracy: float


@dataclass(frozen=True)
class AdversarialResult:
    """The accuracy of the deepest head without and with attacks on its images."""

    images: int
    clean: float
    attacks: tuple[AttackAccuracy, ...]
    seed: int
    unit: str = "pixel values 0 .. 255, largest change of any pixel"


def perturb(
    predict: Predict,
    normalise: Normalise,
    pixels: Tensor,
    labels: Tensor,
    attack: Attack,
    *,
    indices: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Return the images [B, C, H, W] (0 .. 255) after the attack, as floats; `indices` are theirs in the data."""
    import torch
    from torch.nn import functional as F

    clean = pixels.float()
    low, high = (clean - attack.epsilon).clamp(min=0), (clean + attack.epsilon).clamp(max=HIGHEST)
    perturbed = clean
    if attack.random_start:
        indices = torch.arange(len(clean)) if indices is None else indices
        perturbed = (clean + attack.epsilon * _uniform(clean, indices, seed)).clamp(low, high)
    for _ in range(attack.steps):
        perturbed = perturbed.detach().requires_grad_()
        loss = F.cross_entropy(predict(normalise(perturbed))[0].logits.float(), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, perturbed)
        perturbed = torch.add(perturbed.detach(), gradient.sign_(), alpha=attack.step).clamp_(low, high)
    return perturbed


def _uniform(like: Tensor, indices: Tensor, seed: int) -> Tensor:
    """Return numbers from -1 to 1 that depend on an image's index alone, so that batches can be cut in any way."""
    import torch

    starts = [torch.Generator().manual_seed(seed_for(seed, "random start", index)) for index in indices.tolist()]
    return (2 * torch.stack([torch.rand(like.shape[1:], generator=start) for start in starts]) - 1).to(like)


def forward_passes(attacks: Sequence[Attack]) -> int:
    """Return how often every image goes through the network."""
    return 1 + sum(each.steps + 1 for each in attacks)


def _no_attack() -> UserError:
    return UserError("There is no attack to make: name one of fgsm, bim and pgd, and an epsilon, for instance 8.")


def measure_attacks(
    predict: Predict,
    normalise: Normalise,
    batches: Iterable[Pixels],
    attacks: Sequence[Attack],
    *,
    seed: int = 0,
    advance: Advance = lambda _: None,
) -> AdversarialResult:
    """Return the accuracy under every attack, in one pass over the images.

    `advance` is called with the number of images that went through the network. Logits that are not finite are refused.
    """
    import torch

    from spacedkd.evaluation.scores import check_finite, undefined_images

    if not attacks:
        raise _no_attack()
    with_clean = (None, *attacks)
    images, right, undefined = 0, [0] * len(with_clean), [0] * len(with_clean)
    for pixels, labels, indices in batches:
        for number, attack in enumerate(with_clean):
            shown = pixels
            if attack is not None:
                shown = perturb(predict, normalise, pixels, labels, attack, indices=indices, seed=seed)
            with torch.no_grad():
                logits = predict(normalise(shown))[0].logits
                right[number] += int((logits.argmax(1) == labels).sum())
                undefined[number] += int(undefined_images(logits).sum())
            advance(len(labels) * (1 if attack is None else attack.steps + 1))
        images += len(labels)
    for attack, count in zip(with_clean, undefined, strict=True):
        under = "images" if attack is None else f"images under {attack.name} with epsilon {attack.epsilon:g}"
        check_finite(["final"], [count], images, under)
    clean, *accuracies = (count / images for count in right)
    return AdversarialResult(images, clean, tuple(map(AttackAccuracy, attacks, accuracies)), seed)
