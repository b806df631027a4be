"""Comparison of arms: many runs trained at once, over seeds, and their results side by side.

`compare.compare` is the public function, `compare.forecast_comparison` says beforehand what it takes. `scheduler` plans
jobs and trains them in a pool of processes (`pool`) or of a Ray cluster (`ray_pool`); `teacher_sharing` lets arms with
equal teachers train one. `results` computes a comparison from finished runs, `document` is comparison.json.
"""
