# ruff: noqa: I001  grouped by what they are for
# The choice of instruments, and the base class of one of your own
from .instrument import EvaluationSpec as EvaluationSpec
from .instrument import Instrument as Instrument

# Instruments
from .adversarial import Adversarial as Adversarial
from .adversarial import Attack as Attack
from .confusion import Confusion as Confusion
from .corruptions import Corruptions as Corruptions
from .curvature import Curvature as Curvature
from .weight_noise import WeightNoise as WeightNoise
