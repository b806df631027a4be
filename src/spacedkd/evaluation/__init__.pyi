# ruff: noqa: I001  grouped by what they are for
# What is measured
from .instrument import EvaluationSpec as EvaluationSpec
from .instrument import Instrument as Instrument

# Instruments
from .adversarial import Adversarial as Adversarial
from .adversarial import Attack as Attack
from .confusion import Confusion as Confusion
from .corruptions import Corruptions as Corruptions
from .curvature import Curvature as Curvature
from .weight_noise import WeightNoise as WeightNoise
