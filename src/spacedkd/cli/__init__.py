"""The command line: parses words, calls one function for each verb, and says in one line what was wrong."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro

from spacedkd.cli import command_log, listings, status, train
from spacedkd.cli.evaluate import evaluate
from spacedkd.cli.export import export
from spacedkd.cli.flags import flag
from spacedkd.cli.help import DESCRIPTION, helped, wrapped
from spacedkd.cli.progress import console, let_go, say
from spacedkd.cli.reproduce import reproduce
from spacedkd.cli.stops import say_error
from spacedkd.cli.terminal import spell_out
from spacedkd.cli.usage_errors import in_one_line
from spacedkd.runtime import user_code
from spacedkd.runtime.errors import UserCodeError, UserError, is_out_of_memory, on_command_line, out_of_memory, unknown
from spacedkd.runtime.signals import end_with_first_rank

SHELLS = ("bash", "zsh", "fish")
TRACEBACK = "SPACEDKD_TRACEBACK"
"""set to 1 in the environment, an error is shown with its traceback, for whoever mends code of their own"""


def list_(
    what: Annotated[
        tyro.conf.Positional[str], flag("one of these", "what can be listed", "|".join(listings.LISTINGS))
    ] = "",
    folder: Annotated[tyro.conf.Positional[Path | None], flag("where runs are looked for", "runs", "FOLDER")] = None,
    pattern: Annotated[
        str, flag("of networks and runs those that match, with wildcards; of methods all about one", "all", "NAME")
    ] = "",
) -> None:
    """List runs, data sets, networks, methods, recipes and more.

    Example: spacedkd list networks --pattern 'resnet*'
    """
    if what and what not in listings.LISTINGS:
        raise unknown("list", what, listings.LISTINGS)
    if folder is not None and what != "runs":
        raise UserError(f"Only runs lie in a folder: spacedkd list runs {folder}, or spacedkd list {what} alone.")
    if what == "runs":
        say(*listings.runs(pattern, folder or status.RUNS))
    else:
        console.print(listings.LISTINGS[what](pattern) if what else listings.listings())


def completion(
    shell: Annotated[tyro.conf.Positional[str], flag("of which shell", metavar="|".join(SHELLS))],
) -> None:
    """Print a script that completes these commands in a shell.

    Example, for bash: spacedkd completion bash > ~/.local/share/bash-completion/completions/spacedkd
    """
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    try:
        _call(["--tyro-print-completion", shell])
    except SystemExit as end:
        sys.exit(end.code or 0)


VERBS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "compare": train.compare,
    "evaluate": evaluate,
    "report": train.report,
    "export": export,
    "theory": train.theory,
    "reproduce": reproduce,
    "status": status.status,
    "list": list_,
    "completion": completion,
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; what the user can mend ends in one line and exit code 2."""
    with on_command_line():
        _main(sys.argv[1:] if words is None else words)


def _main(words: Sequence[str]) -> None:
    spell_out()
    end_with_first_rank()
    if list(words) == ["--version"]:
        print(f"spacedkd {version('spacedkd')}")
        return
    try:
        _dispatch(words)
    except BrokenPipeError:  # whoever reads the output has seen enough
        sys.exit(1)
    except (UserError, OSError) as error:
        _say(error)
        sys.exit(2)
    except KeyboardInterrupt:
        say_error("Stopped. Go on with: the same command")
        sys.exit(130)
    finally:
        if sys.exception() is not None:  # how it ends is known, whoever hears of it
            let_go()


def _say(error: Exception) -> None:
    """Print an error in one line, and its traceback where that is wanted."""
    wanted = os.environ.get(TRACEBACK, "") not in ("", "0")
    if wanted:
        traceback.print_exception(error)
    hint = f" {TRACEBACK}=1 shows the traceback." if isinstance(error, UserCodeError) and not wanted else ""
    say_error(f"{error}{hint}")


def _dispatch(words: Sequence[str]) -> None:
    with user_code.working_in(Path.cwd()):  # methods and schedules of one's own lie where one works
        try:
            with user_code.user_code():
                _call(words)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(error) from error


def _call(words: Sequence[str]) -> None:
    command_log.WORDS.set(words)
    with wrapped(words), in_one_line(words, VERBS):
        tyro.extras.subcommand_cli_from_dict(
            VERBS,
            args=helped(words, VERBS),
            prog="spacedkd",
            description=DESCRIPTION,
        )
