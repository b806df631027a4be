"""The flags that say what is measured of a trained network, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from spacedkd.cli.flags import flag
from spacedkd.errors import UserError
from spacedkd.evaluation import plan as planning
from spacedkd.evaluation.plan import CURVATURE_IMAGES, NOISE_IMAGES, STEPS, Attack, Plan

USUAL = Plan()
_SETTINGS = {
    **dict.fromkeys(("severities", "only", "cache"), ("corruptions",)),
    **dict.fromkeys(("attacks", "epsilon", "steps", "step"), ("adversarial",)),
    **dict.fromkeys(("noise", "relative_noise", "draws"), ("flatness",)),
    **dict.fromkeys(("error", "products"), ("hessian",)),
    "limit": ("corruptions", "adversarial"),
    "train_images": ("flatness", "hessian"),
}
"""the instruments a flag is for"""


def _listed(levels: Sequence[float]) -> str:
    return " ".join(f"{level:g}" for level in levels)


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
    adversarial: Annotated[bool, flag("accuracy on images perturbed against the network", "no")] = False
    attacks: Annotated[tuple[str, ...] | None, flag("fgsm, bim or pgd", "all three", "NAME ...")] = None
    epsilon: Annotated[
        tuple[float, ...] | None,
        flag("most any pixel is changed by, of 0 to 255, before normalisation", "1 2 4 8", "NUMBER ..."),
    ] = None
    steps: Annotated[int | None, flag("steps of bim and pgd", STEPS, "COUNT")] = None
    step: Annotated[float | None, flag("size of a step of bim and pgd, in pixels", "epsilon / 4", "NUMBER")] = None
    flatness: Annotated[bool, flag("loss and accuracy on training images with noise on the weights", "no")] = False
    noise: Annotated[tuple[float, ...] | None, flag("levels of absolute noise", _listed(USUAL.noise), "NUMBER ...")] = (
        None
    )
    relative_noise: Annotated[
        tuple[float, ...] | None,
        flag("levels of noise relative to each tensor", _listed(USUAL.relative_noise), "NUMBER ..."),
    ] = None
    draws: Annotated[int | None, flag("draws of noise at each level", USUAL.draws, "COUNT")] = None
    hessian: Annotated[
        bool,
        flag("trace and largest eigenvalue of the Hessian on training images: minutes for a small network", "no"),
    ] = False
    error: Annotated[float | None, flag("relative standard error of the trace to stop at", USUAL.error, "PART")] = None
    products: Annotated[
        int | None,
        flag("most products of the Hessian with a vector for each estimate", USUAL.most_products, "COUNT"),
    ] = None
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
        self._check_used()
        given: dict[str, Any] = {
            "severities": None if self.severities is None else tuple(dict.fromkeys(self.severities)),
            "noise": None if self.noise is None else tuple(sorted({*self.noise})),
            "relative_noise": None if self.relative_noise is None else tuple(sorted({*self.relative_noise})),
            "draws": self.draws,
            "error": self.error,
            "most_products": self.products,
        }
        return replace(
            USUAL,
            **{name: value for name, value in given.items() if value is not None},
            corruptions=self._corruptions() if self.corruptions or self.all else (),
            cache=self.cache,
            attacks=self._attacks() if self.adversarial or self.all else (),
            flatness=self.flatness or self.all,
            hessian=self.hessian or self.all,
            limit=self.limit,
            train_images=self.train_images,
            batch_size=batch_size,
            workers=workers,
        )

    def _check_used(self) -> None:
        for name, instruments in _SETTINGS.items():
            given = getattr(self, name)
            if given == ():
                raise UserError(f"--{name.replace('_', '-')} needs at least one value.")
            if given is not None and not self.all and not any(getattr(self, one) for one in instruments):
                which = " or ".join(f"--{one}" for one in instruments)
                raise UserError(f"--{name.replace('_', '-')} belongs to {which}: add that flag too.")
        if (
            self.attacks is not None
            and {*self.attacks} == {"fgsm"}
            and (self.steps is not None or self.step is not None)
        ):
            raise UserError("--steps and --step are of bim and pgd: fgsm takes one step of epsilon.")

    def _corruptions(self) -> tuple[str, ...]:
        if self.only is None:
            return planning.CORRUPTIONS
        return tuple(
            dict.fromkeys(one for name in self.only for one in (planning.PAPER if name == "paper" else (name,)))
        )

    def _attacks(self) -> tuple[Attack, ...]:
        steps = STEPS if self.steps is None else self.steps
        epsilons = planning.EPSILONS if self.epsilon is None else sorted({*self.epsilon})
        return tuple(
            planning.attack(name, epsilon, steps, self.step)
            for name in (planning.ATTACKS if self.attacks is None else dict.fromkeys(self.attacks))
            for epsilon in epsilons
        )


@dataclass(frozen=True)
class OtherNetworkFlags:
    """A network that is no run's, measured instead of runs."""

    network: Annotated[
        str | None, flag("a timm network, measured on --data; beside runs, the function they were given", "", "NAME")
    ] = None
    width: Annotated[int | None, flag("of --network, if it is one of ours", 64, "CHANNELS")] = None
    weights: Annotated[
        str | None, flag("of --network: a .safetensors or torch file, or a run folder", "timm's own", "FILE")
    ] = None
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flag("anything else about --network: network.input_size=224, ... (may be repeated)", metavar="KEY=VALUE"),
    ] = ()
    out: Annotated[Path | None, flag("where the evaluation of --network goes", "evaluations/NAME", "FOLDER")] = None


@dataclass(frozen=True)
class ObjectFlags:
    """Runs that were given functions in Python need the same ones again, each as package.module:name; --network and
    --data are among them."""

    teacher: Annotated[str | None, flag("makes the teacher's network", metavar="NAME")] = None
    collate: Annotated[str | None, flag("makes a batch of items", metavar="NAME")] = None
    method: Annotated[str | None, flag("the method", metavar="NAME")] = None
