"""Experimental tools for studies, which have not been shown to help; each docstring has the verdict so far.

`timing` has rules that read off a recorded trajectory when a teacher hands over to its student, and their controls:
functions that return `Blocks`, which any run takes as its schedule. Names and arguments here may change.
"""

from spacedkd.experimental.timing import Probe, drift, even, probe_of, proven_better, shuffled, yoked

__all__ = ["Probe", "drift", "even", "probe_of", "proven_better", "shuffled", "yoked"]
