"""A teacher's trajectory: its weights after each update, recorded once and replayed by any number of students.

`store` reads and writes snapshots; there is one format. `record` is used by a run with --record, `replay` by one with
--teacher-path, and `pipeline` runs both at once in two processes. `identity` decides whether a recorded trajectory is
the one that a run's own teacher would take. `snapshot_teacher` is for any training loop: `Snapshots` saves the teacher,
`SnapshotTeacher` is the frozen teacher of a student's run, and `spacedkd.Spacing` has both. `targets` has files of a
teacher's outputs at each step of a student, for any training loop, and `cached_teacher` the modules that write and read
them in a run. `spacedkd.timeline` alone decides which update of the teacher a step sees.
"""
