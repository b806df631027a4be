"""What is to be measured of a trained network, and how; decided and checked before torch is imported."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from spacedkd.runtime.errors import UserError, unknown

FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "spatter"),
    "digital": ("brightness", "contrast", "saturate", "elastic_transform", "pixelate", "jpeg_compression"),
}
CORRUPTIONS = tuple(name for names in FAMILIES.values() for name in names)
PAPER = ("impulse_noise", "zoom_blur", "snow", "frost", "jpeg_compression", "brightness")
"""the six corruptions of the paper's table"""
SEVERITIES = (1, 3, 5)

AttackName = Literal["fgsm", "bim", "pgd"]
ATTACKS: tuple[AttackName, ...] = get_args(AttackName)
EPSILONS = (1.0, 2.0, 4.0, 8.0)
STEPS = 10
HIGHEST = 255.0

NoiseKind = Literal["absolute", "relative"]
ABSOLUTE_LEVELS = (0.001, 0.002, 0.005, 0.01, 0.02)
RELATIVE_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.5)
NOISE_IMAGES = 2000

MOST_PRODUCTS = 50
CURVATURE_IMAGES = 250
"""fewer than for noise: a product with the Hessian takes as long as five passes or more, and a trace needs dozens"""


def check_corruptions(names: Sequence[str], severities: Sequence[int]) -> None:
    for name in names:
        if name not in CORRUPTIONS:
            raise unknown("corruption", name, CORRUPTIONS)
    for severity in severities:
        if severity not in range(1, 6):
            raise UserError(f"A corruption's severity must be from 1 to 5, got {severity}.")
    if not names or not severities:
        raise UserError("There is nothing to corrupt with: name at least one corruption and one severity.")


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
    """An attack by name; its step is epsilon / 4 unless given, and all of epsilon for fgsm.

    >>> attack("bim", 8)
    Attack(name='bim', epsilon=8, step=2.0, steps=10, random_start=False)
    """
    if name == "fgsm":
        return Attack("fgsm", epsilon, epsilon, 1, False)
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    size = epsilon / 4 if step is None else step
    return Attack("bim" if name == "bim" else "pgd", epsilon, size, steps, name == "pgd")


def noise_levels(absolute: Sequence[float], relative: Sequence[float], draws: int) -> list[tuple[NoiseKind, float]]:
    """The kinds and levels of weight noise in turn; anything that is no level is refused."""
    plan: list[tuple[NoiseKind, float]] = [("absolute", level) for level in absolute]
    plan += [("relative", level) for level in relative]
    for kind, level in plan:
        if not (math.isfinite(level) and level > 0):
            raise UserError(f"A level of {kind} weight noise must be a number above 0, got {level}.")
    if not plan:
        raise UserError("Weight noise needs at least one level, for instance 0.01.")
    if draws < 1:
        raise UserError(f"Weight noise needs at least one draw of each level, got {draws}.")
    return plan


@dataclass(frozen=True)
class EvaluationSpec:
    """Which instruments are used, and how."""

    severities: tuple[int, ...] = SEVERITIES
    corruptions: tuple[str, ...] = ()
    cache: Path | None = None
    attacks: tuple[Attack, ...] = ()
    flatness: bool = False
    noise: tuple[float, ...] = ABSOLUTE_LEVELS
    relative_noise: tuple[float, ...] = RELATIVE_LEVELS
    draws: int = 10
    hessian: bool = False
    error: float = 0.05
    """relative standard error of the curvature at which to stop"""
    most_products: int = MOST_PRODUCTS
    """of the Hessian with a vector, for each estimate"""
    limit: int | None = None
    """only so many test images for corruptions and attacks"""
    train_images: int | None = None
    """so many training images at most for flatness and curvature; None takes 2000 for the one and 250 for the other"""
    batch_size: int = 256
    workers: int = 0

    def __post_init__(self) -> None:
        if self.corruptions:
            check_corruptions(self.corruptions, self.severities)
        if self.flatness:
            noise_levels(self.noise, self.relative_noise, self.draws)
        for name, least in {"batch_size": 1, "workers": 0, "train_images": 1, "most_products": 8, "limit": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name.removeprefix('most_')} must be at least {least}, got {value}.")
        if not 0 < self.error < 1:
            raise UserError(f"error must be a part between 0 and 1, for instance 0.05; got {self.error:g}.")
