"""The process and its machine: errors, files, locks, signals, seeds. Knows nothing of training, imports no torch."""
