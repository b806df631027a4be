"""Spaced KD in existing trainers: `Spacing` for both runs, and a module for each trainer, imported if it is used."""
