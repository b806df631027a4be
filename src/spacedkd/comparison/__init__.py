"""Comparison of arms: many runs trained at once, over seeds, and what they reached side by side.

`compare` (comparison.compare) is the public function. `results` reads finished runs as arms and makes comparison.json;
`scheduler` plans jobs and trains them in a pool of processes (`local_pool`) or of a Ray cluster (`ray_pool`);
`teacher_sharing` lets arms with equal teachers train one; `forecast` says beforehand what a comparison will take.
"""
