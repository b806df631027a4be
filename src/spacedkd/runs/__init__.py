"""A run's folder: its journal, result, status and checkpoint, each read and written in one place."""
