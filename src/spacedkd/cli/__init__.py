"""The command line: parses words, calls one function for each verb."""

from spacedkd.cli.main import main

__all__ = ["main"]
