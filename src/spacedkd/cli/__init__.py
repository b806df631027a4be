"""The command line: parses words, calls one function for each verb."""

from spacedkd.cli.command_line import main

__all__ = ["main"]
