"""Spaced KD in other trainers: `spacing.Spacing` for any loop, and a module each for Lightning and Hugging Face.

A module imports its trainer's library, so it is imported only when it is used.
"""
