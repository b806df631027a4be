"""The command line: one file a command, whose function is in `COMMANDS`.

Flags are made from the fields of the specs (`flags`) and change them (`overrides`). An error that the user can fix is
printed in one line, and the exit code is 2.
"""

import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro

from spacedkd.cli import (
    compare,
    evaluate,
    export,
    listings,
    predict,
    report,
    reproduce,
    status,
    theory,
    train,
)
from spacedkd.cli.console import WORDS, drop_unwritten, say_error, write_ascii_where_needed
from spacedkd.cli.flags import SWITCHES, flag, spelled_out
from spacedkd.cli.usage import DESCRIPTION, helped, in_one_line, wrapped
from spacedkd.runtime import user_code
from spacedkd.runtime.errors import UserCodeError, UserError, is_out_of_memory, on_command_line, out_of_memory, unknown
from spacedkd.runtime.signals import end_with_first_rank

SHELLS = ("bash", "zsh", "fish")
TRACEBACK = "SPACEDKD_TRACEBACK"
"""set to 1 in the environment, an error is printed with its traceback, for the authors of user code"""


def completion(
    shell: Annotated[tyro.conf.Positional[str], flag("the shell", metavar="|".join(SHELLS))],
) -> None:
    """Print a completion script for a shell.

    Example, for bash: spacedkd completion bash > ~/.local/share/bash-completion/completions/spacedkd
    """
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    try:
        _call(["--tyro-print-completion", shell])
    except SystemExit as end:
        sys.exit(end.code or 0)


COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "compare": compare.compare,
    "evaluate": evaluate.evaluate,
    "predict": predict.predict,
    "report": report.report,
    "export": export.export,
    "theory": theory.theory,
    "reproduce": reproduce.reproduce,
    "status": status.status,
    "list": listings.list_,
    "completion": completion,
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; an error that the user can fix ends in one line and exit code 2."""
    with on_command_line():
        _main(sys.argv[1:] if words is None else words)


def _main(words: Sequence[str]) -> None:
    write_ascii_where_needed()
    end_with_first_rank()
    if list(words) == ["--version"]:
        versions = [f"{package} {version(package)}" for package in ("spacedkd", "torch")]
        print(", ".join([*versions, f"Python {platform.python_version()}"]))
        return
    try:
        _dispatch(words)
    except BrokenPipeError:  # the reader of the output has closed it
        sys.exit(1)
    except (UserError, OSError) as error:
        _print_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        say_error("Stopped. Resume with: the same command")
        sys.exit(130)
    finally:
        if sys.exception() is not None:  # the exit code is decided, whether output can be written or not
            drop_unwritten()


def _print_error(error: Exception) -> None:
    """Print an error in one line, and its traceback where the environment asks for it."""
    wanted = os.environ.get(TRACEBACK, "") not in ("", "0")
    if wanted:
        traceback.print_exception(error)
    hint = f" {TRACEBACK}=1 shows the traceback." if isinstance(error, UserCodeError) and not wanted else ""
    say_error(f"{error}{hint}")


def _dispatch(words: Sequence[str]) -> None:
    with user_code.working_in(Path.cwd()):  # user code is imported from the current folder
        try:
            with user_code.user_code():
                _call(words)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(error) from error


def _call(words: Sequence[str]) -> None:
    WORDS.set(words)
    with wrapped(words), in_one_line(words, COMMANDS):
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            args=spelled_out(helped(words, COMMANDS)),
            prog="spacedkd",
            description=DESCRIPTION,
            config=SWITCHES,
        )
