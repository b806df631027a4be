"""The command line: parses words, calls one function for each verb, and says in one line what was wrong."""

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro

from spacedkd import own_code
from spacedkd.cli import commands, listing, verbs
from spacedkd.cli.evaluation import evaluate
from spacedkd.cli.flags import flag
from spacedkd.cli.plain import spell_out
from spacedkd.cli.progress import console, let_go
from spacedkd.cli.reproduction import reproduce
from spacedkd.cli.stops import say_error
from spacedkd.errors import UserError, unknown
from spacedkd.stopping import end_with_first_rank


def list_(
    what: Annotated[
        tyro.conf.Positional[str], flag("one of these", "what can be listed", "|".join(listing.LISTINGS))
    ] = "",
    pattern: Annotated[
        str, flag("of networks those that match, with wildcards; of methods all about one", "all", "NAME")
    ] = "",
) -> None:
    """List the data sets, augmentations, networks, methods, schedules or recipes there are."""
    if what and what not in listing.LISTINGS:
        raise unknown("list", what, listing.LISTINGS)
    console.print(listing.LISTINGS[what](pattern) if what else listing.listings())


VERBS: dict[str, Callable[..., None]] = {
    "train": verbs.train,
    "compare": verbs.compare,
    "evaluate": evaluate,
    "report": verbs.report,
    "theory": verbs.theory,
    "reproduce": reproduce,
    "list": list_,
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; what the user can mend ends in one line and exit code 2."""
    words = sys.argv[1:] if words is None else words
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
        say_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        say_error("Stopped. Go on with: the same command")
        sys.exit(130)
    finally:
        if sys.exception() is not None:  # how it ends is known, whoever hears of it
            let_go()


def _dispatch(words: Sequence[str]) -> None:
    with own_code.working_in(Path.cwd()):  # methods and schedules of one's own lie where one works
        _call(words)


def _call(words: Sequence[str]) -> None:
    commands.WORDS.set(words)
    tyro.extras.subcommand_cli_from_dict(
        VERBS,
        args=words,
        prog="spacedkd",
        description="Train image classifiers with a teacher that learns ahead of them in time (Spaced KD).",
    )
