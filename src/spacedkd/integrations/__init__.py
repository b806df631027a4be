"""Spaced KD in the trainers that people already have; a module for each, imported only by whoever asks for it."""

from spacedkd.runtime.torchvision_compat import declare_missing

declare_missing()  # before a trainer is imported, which imports torchvision
