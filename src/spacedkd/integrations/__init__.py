"""Spaced KD in existing trainers: a module for each, which is imported only if it is used."""

from spacedkd.runtime.torchvision_compat import declare_missing

declare_missing()  # before a trainer is imported, which imports torchvision
