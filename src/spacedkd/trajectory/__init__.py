"""A teacher's trajectory: its weights after each update, recorded once and replayed by any number of students.

`store` holds the snapshots: one format and one reader for all. `record` and `replay` are the two sides of a run (with
--record and --teacher-path), `pipeline` is both at once in two processes, and `identity` says when a recorded
trajectory is the one that a run's own teacher would take. `snapshot_teacher` does the same for any training loop:
`Snapshots` saves the teacher, `SnapshotTeacher` is the frozen teacher of a student's run. Which update of the teacher a
step sees is decided in `spacedkd.timeline` alone.
"""
