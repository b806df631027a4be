"""The optimizer of a run and its learning rate over the steps: `OptimizerSpec` and `RateSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from spacedkd.config.serialization import (
    changed_fields,
    check_fields,
    with_truth,
)
from spacedkd.runtime.errors import UserError, check_between, same_name, unknown
from spacedkd.schedule import Duration

Options = Mapping[str, Any]
"""further keyword arguments of what a spec names"""
MOST_DECAY = 4.0
"""w <- w - lr wd w alone makes w larger above 2, and with momentum m above 2 (1 + m)"""


@dataclass(frozen=True)
class OptimizerSpec:
    """The optimizer of every role, by name, and its settings.

    >>> OptimizerSpec("sgd", lr=0.1, nesterov=True).momentum
    0.9
    >>> OptimizerSpec("lion", lr=1e-4, options={"betas": [0.9, 0.99]}).weight_decay
    0.0005
    """

    name: str = "sgd"
    """sgd, adamw, any other of timm.optim (lion, lamb, adan ...), or a function of yours as package.module:name"""
    lr: float = 0.01
    """learning rate"""
    momentum: float | None = None
    """of sgd, where None is 0.9, and of those optimizers of timm that have one"""
    weight_decay: float = 5e-4
    """decay of weights; sgd decays all of them, other optimizers leave out biases, norms, tokens and positions"""
    nesterov: bool = False
    """use Nesterov momentum (sgd)"""
    clip: float | None = None
    """clip gradients to this norm"""
    moves_frozen: bool = False
    """in every update, step the other learners too, with zero gradients: decay and momentum still move them"""
    options: Options = field(default_factory=dict)
    """further keyword arguments of the optimizer, for instance {"betas": [0.9, 0.99]}"""

    def __post_init__(self) -> None:
        check_fields(self)
        if ":" not in self.name:
            object.__setattr__(self, "name", same_name(self.name.lower(), (*WITH_MOMENTUM, *WITHOUT_MOMENTUM)))
            object.__setattr__(self, "options", with_truth(self.options))
        check_between("lr", self.lr, 0)
        check_between("weight_decay", self.weight_decay, 0, 1e6)
        if self.clip is not None and not self.clip > 0:
            raise UserError(f"clip must be above 0, got {self.clip:g}.")
        if self.name == "sgd" and self.momentum is None:
            object.__setattr__(self, "momentum", 0.9)
        check_between("momentum", self.momentum, 0, 1)
        if self.name in ("sgd", "adamw") and self.weight_decay > 1 and self.lr * self.weight_decay > MOST_DECAY:
            raise UserError(
                f"weight_decay {self.weight_decay:g} is too large for lr {self.lr:g}: their product must be at most "
                f"{MOST_DECAY:g}, for above it every step makes all weights larger. Lower --weight-decay."
            )
        self._check_name()

    def _check_name(self) -> None:
        """Refuse an optimizer that is not there, and settings that it does not have."""
        if self.nesterov and (self.name != "sgd" or self.momentum == 0):
            raise UserError("nesterov needs sgd with a momentum above 0: --optimizer sgd --set optimizer.momentum=0.9")
        ours = self.name in ("sgd", "adamw") or ":" in self.name
        has_momentum = self.name == "sgd" if ours else _has_momentum(self.name)
        if self.momentum is not None and not has_momentum:
            raise UserError(
                f"momentum does not matter to {self.name}: leave it out, or set what it has instead, for instance "
                "--set optimizer.betas=[0.9,0.99]"
            )


SHAPES = ("constant", "cosine", "multistep")


@dataclass(frozen=True)
class RateSpec:
    """The learning rate as a function of the step: a factor on the optimizer's `lr`.

    >>> RateSpec("cosine", warmup="5ep").warmup
    Duration(amount=5.0, unit='ep')
    >>> RateSpec("multistep", milestones=("60ep", "120ep"), factor=0.2).factor
    0.2
    """

    shape: str = "constant"
    """how the learning rate goes: constant, cosine, multistep, or a function of the step as package.module:name"""
    floor: float = 0.0
    """a cosine rate ends at this part of lr"""
    milestones: tuple[Duration, ...] = ()
    """a multistep rate is multiplied by `factor` at each of these: 60ep 120ep"""
    factor: float = 0.1
    """what a multistep rate is multiplied by"""
    warmup: Duration = Duration(0, "ep")
    """length of a linear warm-up to lr"""
    warmup_start: float = 0.001
    """the warm-up starts at this part of lr"""
    restart_after_warmup: bool = True
    """a cosine rate starts when the warm-up ends; otherwise it starts at step 0, below the warm-up"""
    per_epoch: bool = False
    """change the rate only when an epoch begins"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("floor", self.floor, 0, 1)
        check_between("warmup_start", self.warmup_start, 0, 1)
        check_between("factor", self.factor, 0, 1)
        object.__setattr__(self, "shape", same_name(self.shape, SHAPES))
        if self.shape not in SHAPES and ":" not in self.shape:
            raise unknown("rate", self.shape, SHAPES)
        if self.shape == "multistep" and not self.milestones:
            raise UserError("A multistep rate needs milestones to fall at: --milestones 60ep 120ep")
        self._check_used()

    def _check_used(self) -> None:
        """Refuse what is given and cannot matter."""
        cosine, multistep, warm = self.shape == "cosine", self.shape == "multistep", self.warmup.amount > 0
        used = {
            "floor": cosine,
            "milestones": multistep,
            "factor": multistep,
            "warmup": self.shape in SHAPES,
            "warmup_start": warm,
            "restart_after_warmup": cosine and warm,
            "per_epoch": self.shape in SHAPES,
        }
        for name in changed_fields(self):
            if not used.get(name, True):
                needs = {"floor": "--rate cosine", "milestones": "--rate multistep", "factor": "--rate multistep"}
                way_out = needs.get(name, "a cosine with --warmup" if self.shape in SHAPES else "one of ours")
                raise UserError(f"{name} does not matter to rate {self.shape}: leave it out, or use {way_out}.")


# The optimizers of timm 1.0.30. timm itself, and with it torch, is imported only to ask about any other name.
WITH_MOMENTUM = """
    adamuon bnbsgd bnbsgd8bit crmsproptf csgdc csgdp csgdw fusedsgd kron kronc kronw larc lars madgrad madgradw
    momentum muon nadamuon nesterov nesterovw nlarc nlars nmuon rmsprop rmsproptf rmsproptfc sgd sgdc sgdp sgdw
""".split()


WITHOUT_MOMENTUM = """
    adabelief adadelta adafactor adafactorbv adafactorbvc adagrad adam adamax adamc adamp adamw adamwlegacy adan adanw
    adopt adoptc adoptw bnbadam bnbadam8bit bnbadamw bnbadamw8bit bnbademamix bnbademamix8bit bnblion bnblion8bit
    cadafactor cadafactorbv cadafactorbvc cadamc cadamp cadamw cadan cadanw cadopt cadoptc cadoptw clamb clambw
    claprop clion clionc cmars cnadamc cnadamw fusedadam fusedadamw fusedlamb fusednovograd lamb lambc lambcd lambcw
    lambw laprop lapropc lion lionc mars nadam nadamc nadamlegacy nadamw novograd radabelief radam radamlegacy radamw
""".split()


def _has_momentum(name: str) -> bool:
    """Return whether timm's optimizer of that name has a momentum to set; a name timm does not know is refused.

    >>> _has_momentum("lion"), _has_momentum("lookahead_rmsproptf")
    (False, True)
    """
    own = name.lower().removeprefix("lookahead_")  # timm's way to write it inside Lookahead
    if own in (*WITH_MOMENTUM, *WITHOUT_MOMENTUM):
        return own in WITH_MOMENTUM
    optim = import_module("timm.optim")
    try:
        info = optim.get_optimizer_info(own)
    except ValueError:
        raise unknown("optimizer", name, ["sgd", "adamw", *optim.list_optimizers()]) from None
    if info.second_order:
        raise UserError(f"Optimizer {name} wants second derivatives, which are not computed here: choose another.")
    return bool(info.has_momentum)
