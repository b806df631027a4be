"""Evaluation of trained networks: accuracy, calibration, robustness and flatness, and statistics over seeds.

`evaluate` (evaluation.evaluate) measures a run with instruments (evaluation.instrument, one file each, listed in
evaluation.registry), and `document` reads and writes its evaluation.json. `statistics` has means, intervals and paired
differences for everything that compares arms. `scores` counts accuracy, in training as well.
"""
