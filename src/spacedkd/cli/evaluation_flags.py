"""The flags that say what is measured of a trained network, and how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spacedkd.cli.flags import Flag, Given, flag, flag_class, given
from spacedkd.errors import UserError
from spacedkd.evaluation import plan as planning
from spacedkd.evaluation.plan import CURVATURE_IMAGES, NOISE_IMAGES, STEPS, Attack, Plan

USUAL = Plan()
_WHOLE, _NUMBERS, _NAMES = tuple[int, ...], tuple[float, ...], tuple[str, ...]
_METAVARS = {int: "COUNT", float: "NUMBER", _WHOLE: "NUMBER ...", _NUMBERS: "NUMBER ...", _NAMES: "NAME ..."}
_METAVARS |= {str: "NAME", Path: "FOLDER"}

_HESSIAN = "trace and largest eigenvalue of the Hessian on training images: minutes for a small network"
_LIMIT = "only so many test images for --corruptions and --adversarial, evenly from all classes"
_TRAIN_IMAGES = "at most so many training images for --flatness and --hessian"
_INSTRUMENTS = {
    "": [
        Flag("grid", Path, "also draw the corruptions of one test image into this picture", metavar="FILE.png"),
        Flag("unfinished", bool, "measure the last checkpoint of runs that are not finished"),
        Flag("trust_code", bool, "import what a run's files name as package.module:name; typed names always are"),
        Flag("batch_size", int, "images looked at together", USUAL.batch_size),
        Flag("workers", int, "processes that decode images ahead", USUAL.workers),
        Flag("accelerator", str, "cpu, cuda, mps or auto", "the run's"),
        Flag("threads", int, "CPU threads", "the run's"),
        Flag("all", bool, "use every instrument"),
        Flag("calibration", bool, "print likelihood, calibration error and the reliability diagram"),
    ],
    "corruptions": [
        Flag("corruptions", bool, "accuracy on noisy, blurred, snowy, ... images"),
        Flag("severities", _WHOLE, "how strong corruptions are, from 1 to 5", USUAL.severities),
        Flag("only", _NAMES, "these corruptions alone, or `paper` for its six", "all nineteen"),
        Flag("cache", Path, "where corrupted images are kept", "~/.cache/spacedkd/corrupted"),
    ],
    "adversarial": [
        Flag("adversarial", bool, "accuracy on images perturbed against the network"),
        Flag("attacks", _NAMES, "fgsm, bim or pgd", "all three"),
        Flag("epsilon", _NUMBERS, "most any pixel is changed by, of 0 to 255, before normalisation", planning.EPSILONS),
        Flag("steps", int, "steps of bim and pgd", STEPS),
        Flag("step", float, "size of a step of bim and pgd, in pixels", "epsilon / 4"),
    ],
    "flatness": [
        Flag("flatness", bool, "loss and accuracy on training images with noise on the weights"),
        Flag("noise", _NUMBERS, "levels of absolute noise", USUAL.noise),
        Flag("relative_noise", _NUMBERS, "levels of noise relative to each tensor", USUAL.relative_noise),
        Flag("draws", int, "draws of noise at each level", USUAL.draws),
    ],
    "hessian": [
        Flag("hessian", bool, _HESSIAN),
        Flag("error", float, "relative standard error of the trace to stop at", USUAL.error, "PART"),
        Flag("products", int, "most products of the Hessian with a vector for each estimate", USUAL.most_products),
    ],
    "corruptions or --adversarial": [Flag("limit", int, _LIMIT, "all")],
    "flatness or --hessian": [Flag("train_images", int, _TRAIN_IMAGES, f"{NOISE_IMAGES} and {CURVATURE_IMAGES}")],
}
"""those of all; then the flags of each instrument: the one that asks for it, and its settings"""
_NETWORK = [
    Flag("network", str, "a timm network, measured on --data; beside runs, the function they were given"),
    Flag("width", int, "of --network, if it is one of ours", 64, "CHANNELS"),
    Flag("weights", str, "of --network: a .safetensors or torch file, or a run folder", "timm's own", "FILE"),
    Flag("set", tuple, "anything else about --network: network.input_size=224, ... (may be repeated)", "", "KEY=VALUE"),
    Flag("out", Path, "where the evaluation of --network goes", "evaluations/NAME"),
]
_OBJECTS = [
    Flag("teacher", str, "makes the teacher's network"),
    Flag("collate", str, "makes a batch of items"),
    Flag("method", str, "the method"),
]
_ABOUT_OBJECTS = (
    "Runs that were given functions in Python need the same ones again, each as package.module:name; "
    "--network and --data are among them."
)


def _field(one: Flag) -> tuple[str, Any, Any]:
    """A flag as a dataclass field; None, no or an empty tuple is what it has when it is not given."""
    if one.kind is tuple:
        return one.field()
    if one.kind is bool:
        return one.name, Annotated[bool, flag(one.about, "no")], False
    default = " ".join(f"{level:g}" for level in one.default) if isinstance(one.default, tuple) else one.default
    return one.name, Annotated[one.kind | None, flag(one.about, default, one.metavar or _METAVARS[one.kind])], None


if TYPE_CHECKING:
    InstrumentFlags = Any
    OtherNetworkFlags = Any
    ObjectFlags = Any
else:
    InstrumentFlags = flag_class(_field(one) for flags in _INSTRUMENTS.values() for one in flags)
    OtherNetworkFlags = flag_class(map(_field, _NETWORK), "A network that is no run's, measured instead of runs.")
    ObjectFlags = flag_class(map(_field, _OBJECTS), _ABOUT_OBJECTS)


def make_plan(flags: Any) -> Plan:
    """What these flags ask for; a setting of an instrument that is not used is a mistake."""
    typed = {name: value for name, value in given(flags).items() if value is not False}
    for instruments, own in _INSTRUMENTS.items():
        used = instruments == "" or any(one in typed for one in ("all", *instruments.split(" or --")))
        for name in (one.name for one in own if one.name in typed and not used):
            raise UserError(f"--{name.replace('_', '-')} belongs to --{instruments}: add that flag too.")
    if {*typed.get("attacks", ())} == {"fgsm"} and ("steps" in typed or "step" in typed):
        raise UserError("--steps and --step are of bim and pgd: fgsm takes one step of epsilon.")

    def ordered(name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted({*typed.get(name, usual)}))

    same = ("cache", "draws", "error", "limit", "train_images", "batch_size", "workers")
    return replace(
        USUAL,
        **{name: typed[name] for name in same if name in typed},
        severities=tuple(dict.fromkeys(typed.get("severities", USUAL.severities))),
        corruptions=_corruptions(typed.get("only", planning.CORRUPTIONS)) if flags.corruptions or flags.all else (),
        attacks=_attacks(typed, ordered("epsilon", planning.EPSILONS)) if flags.adversarial or flags.all else (),
        flatness=flags.flatness or flags.all,
        noise=ordered("noise", USUAL.noise),
        relative_noise=ordered("relative_noise", USUAL.relative_noise),
        hessian=flags.hessian or flags.all,
        most_products=typed.get("products", USUAL.most_products),
    )


def _corruptions(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for name in names for one in (planning.PAPER if name == "paper" else (name,))))


def _attacks(typed: Given, epsilons: Iterable[float]) -> tuple[Attack, ...]:
    steps, step = typed.get("steps", STEPS), typed.get("step")
    names = dict.fromkeys(typed.get("attacks", planning.ATTACKS))
    return tuple(planning.attack(name, epsilon, steps, step) for name in names for epsilon in epsilons)
