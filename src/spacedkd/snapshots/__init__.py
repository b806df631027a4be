"""Spaced KD in anybody's trainer: a run leaves snapshots behind, and a student's run looks at the right one."""
