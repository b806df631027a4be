"""What went wrong on the user's side, said in one line with the way out."""

import difflib
import math
import operator
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import SupportsIndex


class UserError(ValueError):
    """A mistake the user can mend. The command line prints it as one line and exits with code 2."""


class CannotWrite(UserError, OSError):
    """A file or folder cannot be written: the disk is full, or read-only. Nothing that was there before is lost."""


class CannotRead(UserError, OSError):
    """A file cannot be read: it is no ordinary file, too large, or not for this user to read."""


class Linked(CannotRead):
    """A file of a run, or a folder that holds it, is a symbolic link; links in a run's folder are not followed."""


class Moved(UserError):
    """A folder was renamed or removed while it was written to; `place` is where it is now, where that is known."""

    def __init__(self, line: str, place: Path | None = None) -> None:
        super().__init__(line)
        self.place = place


class Diverged(UserError):
    """A run's losses or weights are no finite numbers any more; what was saved before is as it was."""

    def __init__(self, line: str, role: str = "", step: int = 0) -> None:
        super().__init__(line)
        self.role, self.step = role, step


class RunFailed(UserError):
    """One run of a comparison has ended by an exception, or with its process; the other runs continue."""

    def __init__(self, line: str, trace: Iterable[str] = ()) -> None:
        """`trace` is the traceback of an exception that nobody expected, by lines."""
        super().__init__(line)
        self.trace = (*trace,)


class SnapshotsGone(UserError):
    """Recorded snapshots that a run needs of its teacher are gone or damaged; training the teacher again mends it."""


def unknown(what: str, name: str, available: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the near and the available ones.

    >>> print(unknown("method", "kdd", ["none", "kd", "self-kd"]))
    Unknown method 'kdd'. Did you mean 'kd'? Available: none, kd, self-kd.
    """
    names = list(dict.fromkeys(available))
    shown = names if len(names) <= 20 else [*names[:6], f"and {len(names) - 6} more"]
    return UserError(f"Unknown {what} {name!r}.{did_you_mean(name, names)} Available: {', '.join(shown)}.")


def did_you_mean(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """A question for somebody who typed a name that does not exist, where there are names like it.

    >>> did_you_mean("--epoch", ["--epochs", "--seed"]), did_you_mean("x", ["a", "b"])
    (" Did you mean '--epochs'?", '')
    """
    names = [*dict.fromkeys(names)]
    near = difflib.get_close_matches(name, names, n=3, cutoff=likeness) or [n for n in names if n.startswith(name)][:3]
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of one of spacedkd's extras.

    It names the libraries, not spacedkd: that is on no package index, and may have been installed from any folder.

    >>> install_command("ray"), install_command("transformers")
    ("pip install 'ray>=2.40'", "pip install 'transformers>=5' 'accelerate>=1.1'")
    """
    from importlib import metadata  # which takes as long as the rest of this file, and is seldom needed

    try:
        required = metadata.requires("spacedkd") or []
    except metadata.PackageNotFoundError:  # it is imported from a checkout that was not installed
        return f"pip install '.[{extra}]' in a checkout"
    pattern = re.compile(rf"(.*?)\s*;\s*extra == ['\"]{re.escape(extra)}['\"]")
    return shlex.join(["pip", "install", *(match[1] for line in required if (match := pattern.fullmatch(line)))])


def check_between(name: str, value: float | None, least: float, most: float = math.inf) -> None:
    """Refuse a number outside its limits; None is none."""
    if value is not None and not (least <= value <= most and value != math.inf):  # written so that NaN fails too
        limit = f"from {least:g} to {most:g}" if math.isfinite(most) else f"at least {least:g} and finite"
        raise UserError(f"{name} must be {limit}, got {shown(value)}.")


def whole_number(name: str, value: SupportsIndex, least: int = 0) -> int:
    """A count as an int, also where numpy or torch counted; anything else is refused."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UserError(f"{name} must be a whole number from {least} up, got {value!r}.")
    return number


def counted(number: float, noun: str) -> str:
    """A number of things in a message.

    >>> counted(1.0, "epoch"), counted(2.5, "epoch"), counted(3_000_000, "update")
    ('1 epoch', '2.5 epochs', '3000000 updates')
    """
    return f"{int(number) if number == int(number) else f'{number:g}'} {noun}{'s' * (number != 1)}"


def shown(value: object) -> str:
    """A value in a message: a number in a few digits, anything long cut.

    >>> shown(2e9), shown("x" * 99), shown(10**400)
    ('2e+09', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...", 'a number of 401 digits')
    """
    try:
        text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
    except (OverflowError, ValueError):
        return f"a number of {int(abs(value).bit_length() * math.log10(2)) + 1} digits"  # type: ignore[arg-type]
    return text if len(text) <= 60 else f"{text[:60]}..."


_NOT_PRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""control characters, line breaks, marks that turn the direction of writing, and halves of characters"""


def printable(text: str) -> str:
    r"""Return text as one line that is safe to print, whatever file or name it comes from.

    What a terminal would obey, and not show, is escaped: line breaks, control sequences that move the cursor or hide
    what stands there, and marks that turn the direction of writing.

    >>> printable("caf\u00e9 \x1b[2J\r\n")
    'caf\xe9 \\x1b[2J\\r\\n'
    """
    return _NOT_PRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def first_line(error: Exception) -> str:
    """What an error says, or what it is called if it says nothing."""
    return (str(error).splitlines() or [""])[0].strip() or type(error).__name__
