"""The list of instruments: an entry here is all that a new one needs beside its file."""

from spacedkd.evaluation.accuracy import Accuracy
from spacedkd.evaluation.adversarial import Adversarial
from spacedkd.evaluation.corruptions import Corruptions
from spacedkd.evaluation.curvature import Curvature
from spacedkd.evaluation.instrument import Instrument
from spacedkd.evaluation.weight_noise import WeightNoise

INSTRUMENTS: list[type[Instrument]] = [Accuracy, Corruptions, Adversarial, WeightNoise, Curvature]
"""in the order in which they are used, listed and shown"""
