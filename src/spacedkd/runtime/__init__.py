"""The process and its machine: errors, files, locks, signals, seeds. Knows nothing of training, imports no torch.

`errors.UserError` is what a user can fix, `files.Folder` opens files of a run without following links, `documents`
reads JSON, YAML and TOML, `locks.hold` holds a folder, `user_code.load_object` imports what the user named.
"""
