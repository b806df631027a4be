"""Spaced KD in existing trainers: a module for each, which is imported only if it is used."""
