"""A run's folder and its files, each read and written in one place.

`folder.RunFolder` has the paths and the rules, `schema` the types of the JSON files and the reader that checks them,
`journal.Journal` and `journal.read_journal` the events, `result.Run` and `result.read_run` a finished run,
`status.state_of` the state of any run, `checkpoint` and `tensor_file` what a run is resumed from.
"""
