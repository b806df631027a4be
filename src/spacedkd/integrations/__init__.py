"""Spaced KD in existing trainers: `Spacing` for both runs, and a module for each trainer, imported if it is used."""

from spacedkd.runtime.torchvision_compat import declare_missing

declare_missing()  # before a trainer is imported, which imports torchvision
