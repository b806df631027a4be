"""The flags that say what is measured of a trained network, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spacedkd.cli.flag import flag
from spacedkd.errors import UserError
from spacedkd.evaluate import adversarial, corruptions, curvature
from spacedkd.evaluate.adversarial import Attack
from spacedkd.experiments.evaluation import CURVATURE_IMAGES, NOISE_IMAGES, Plan


@dataclass(frozen=True)
class InstrumentFlags:
    all: Annotated[bool, flag("use every instrument", "no")] = False
    calibration: Annotated[bool, flag("print likelihood, calibration error and the reliability diagram", "no")] = False
    corruptions: Annotated[bool, flag("accuracy on noisy, blurred, snowy, ... images", "no")] = False
    severities: Annotated[
        tuple[int, ...] | None, flag("how strong corruptions are, from 1 to 5", "1 3 5", "NUMBER ...")
    ] = None
    only: Annotated[
        tuple[str, ...] | None,
        flag("these corruptions alone, or `paper` for its six", "all nineteen", "NAME ..."),
    ] = None
    cache: Annotated[Path | None, flag("where corrupted images are kept", "~/.cache/spacedkd/corrupted", "FOLDER")] = (
        None
    )
    adversarial: Annotated[bool, flag("accuracy on images changed to deceive the network", "no")] = False
    attacks: Annotated[tuple[str, ...] | None, flag("fgsm, bim or pgd", "all three", "NAME ...")] = None
    epsilon: Annotated[
        tuple[float, ...] | None,
        flag("most any pixel is changed by, of 0 to 255, before normalisation", "1 2 4 8", "NUMBER ..."),
    ] = None
    steps: Annotated[int | None, flag("steps of bim and pgd", adversarial.STEPS, "COUNT")] = None
    step: Annotated[float | None, flag("size of a step of bim and pgd, in pixels", "epsilon / 4", "NUMBER")] = None
    flatness: Annotated[bool, flag("loss and accuracy on training images with noise on the weights", "no")] = False
    draws: Annotated[int, flag("draws of noise at each level", 10, "COUNT")] = 10
    hessian: Annotated[
        bool,
        flag("trace and largest eigenvalue of the Hessian on training images: minutes for a small network", "no"),
    ] = False
    error: Annotated[float, flag("relative standard error of the trace to stop at", 0.05, "PART")] = 0.05
    products: Annotated[
        int,
        flag("most products of the Hessian with a vector for each estimate", curvature.MOST_PRODUCTS, "COUNT"),
    ] = curvature.MOST_PRODUCTS
    limit: Annotated[
        int | None,
        flag("only so many test images for --corruptions and --adversarial, evenly from all classes", "all", "COUNT"),
    ] = None
    train_images: Annotated[
        int | None,
        flag(
            "at most so many training images for --flatness and --hessian",
            f"{NOISE_IMAGES} and {CURVATURE_IMAGES}",
            "COUNT",
        ),
    ] = None

    def plan(self, batch_size: int, workers: int) -> Plan:
        """What these flags ask for; a setting of an instrument that is not used is a mistake."""
        corrupt, attack = self.corruptions or self.all, self.adversarial or self.all
        self._check_used(corrupt, "--corruptions", ("severities", "only", "cache"))
        self._check_used(attack, "--adversarial", ("attacks", "epsilon", "steps", "step"))
        return Plan(
            corruptions=self._corruptions() if corrupt else (),
            severities=corruptions.SEVERITIES if self.severities is None else self.severities,
            cache=self.cache,
            attacks=self._attacks() if attack else (),
            flatness=self.flatness or self.all,
            draws=self.draws,
            hessian=self.hessian or self.all,
            error=self.error,
            most_products=self.products,
            limit=self.limit,
            train_images=self.train_images,
            batch_size=batch_size,
            workers=workers,
        )

    def _check_used(self, used: bool, instrument: str, names: tuple[str, ...]) -> None:
        for name in names:
            if not used and getattr(self, name) is not None:
                raise UserError(f"--{name} belongs to {instrument}: add that flag too.")

    def _corruptions(self) -> tuple[str, ...]:
        if self.only == ("paper",):
            return corruptions.PAPER
        return corruptions.NAMES if self.only is None else self.only

    def _attacks(self) -> tuple[Attack, ...]:
        steps = adversarial.STEPS if self.steps is None else self.steps
        epsilons = adversarial.EPSILONS if self.epsilon is None else tuple(sorted(self.epsilon))
        return tuple(
            adversarial.attack(name, epsilon, steps, self.step)
            for name in (adversarial.NAMES if self.attacks is None else self.attacks)
            for epsilon in epsilons
        )
