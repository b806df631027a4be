"""Errors that a user can fix, each one line with the mistake and a way out.

Messages name flags (`--lr`). Where no command line runs, `str(error)` names Python's arguments (`optimizer.lr`):
`in_python` replaces the flags.
"""

import difflib
import math
import operator
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, SupportsIndex

PYTHON_NAMES: dict[str, str] = {
    "ahead": "schedule",
    "assistant": "method.assistants",
    "average": "average=True",
    "best": "best=True",
    "blocks": "schedule",
    "cache": "cache",
    "extend": "extend",
    "growing": "schedule",
    "interval": "schedule",
    "jobs": "jobs",
    "license": "license",
    "limit": "limit",
    "onnx": "onnx=True",
    "out": "folder",
    "pretrained": "network.pretrained=True",
    "private": "private=True",
    "push": "push",
    "ray": "ray",
    "restart": "if_exists='restart'",
    "resume": "if_exists='resume'",
    "seeds": "seeds",
    "severities": "severities",
    "speed": "schedule.speed",
    "tail": "schedule.tail",
    "teacher": "teacher",
    "teacher-weights": "teacher.weights",
    "to": "to",
    "trust-code": "trust_code=True",
    "unfinished": "unfinished=True",
    "width": "network.width",
    "window": "schedule",
}
"""flag -> its name in Python, with the value of a flag that is on or off; `spacedkd.config.spec` adds its fields"""
_CHOICES = "accelerator augment method on-nonfinite optimizer precision rate strategy".split()
"""flags whose value is a plain word, which would otherwise be taken for the next word of the sentence"""
_FLAG_OR_COMMAND = re.compile(
    r"(?P<command>spacedkd [a-z]+ .*?(?=\. |, or |$))"
    r"|(?<![\w'\"/-])--(?P<flag>[a-z][a-z-]*[a-z])(?:(?P<sign> | ?=)(?P<value>\S*[^\s.,:;()]))?"
)
_command_line = False


@contextmanager
def on_command_line() -> Iterator[None]:
    """Let messages name flags inside of the block."""
    before = set_command_line(True)
    try:
        yield
    finally:
        set_command_line(before)


def set_command_line(runs: bool) -> bool:
    """Set whether messages name flags, also in child processes; return the previous setting."""
    global _command_line
    before, _command_line = _command_line, runs
    return before


def is_command_line() -> bool:
    """Return whether messages name flags."""
    return _command_line


def in_python(line: str) -> str:
    """Return a message with Python's names in place of flags; whole commands stay as they are.

    >>> PYTHON_NAMES.update({"clip": "optimizer.clip", "method": "method"})
    >>> in_python("Use --method kd, --clip 1 or --set method.temperature=4: spacedkd train --resume runs/x --restart")
    "Use method='kd', optimizer.clip=1 or method.temperature=4: spacedkd train --resume runs/x --restart"
    """
    return _FLAG_OR_COMMAND.sub(_python_name, line)


def _python_name(match: re.Match[str]) -> str:
    flag, sign, value = match["flag"], match["sign"] or "", match["value"] or ""
    if flag == "set":
        return value.strip("'")
    if flag not in PYTHON_NAMES:  # also a whole command
        return match[0]
    name = PYTHON_NAMES[flag]
    if flag == "resume":  # it names the run, which train() is given anyway
        return name
    if value in ("True", "False"):
        return f"{name.removesuffix('=True')}={value}"
    if value in ("online", "offline") or (flag in _CHOICES and re.fullmatch(r"[a-z\d][\w.-]*", value)):
        return f"{name}={value!r}"
    return f"{name}={value}" if re.fullmatch(r"[A-Z]+|[\d.]+\w*", value) else f"{name}{sign}{value}"


class UserError(ValueError):
    """A mistake the user can fix. The command line prints it as one line and exits with code 2."""

    def __str__(self) -> str:
        return super().__str__() if _command_line else in_python(super().__str__())


class UserCodeError(UserError):
    """An error of the user's own code (a network, a dataset, a method ...), with the original exception as cause."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Let the cause come along to another process, as the text of its traceback."""
        cause = self.__cause__
        text = "" if cause is None else "".join(traceback.format_exception(cause))
        return _from_another_process, (type(self), self.args, text, self.__dict__)


class RemoteTraceback(Exception):
    """The traceback of user code in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _from_another_process(kind: type[UserError], arguments: Iterable[Any], text: str, attributes: Any) -> UserError:
    error = kind(*arguments)
    error.__dict__.update(attributes)
    error.__cause__ = RemoteTraceback(text) if text else None
    return error


class OutOfMemory(UserError):
    """A device, or the machine, has less memory than a run needs."""


def out_of_memory(error: Exception, when: str = "", batch_size: int | None = None) -> OutOfMemory:
    """Return the error for a failed allocation; `when` names the turn, `batch_size` is the size to lower."""
    size = "" if batch_size is None else f" ({batch_size})"
    line = first_line(error).removesuffix(".")
    return OutOfMemory(
        f"Out of memory{f' {when}' if when else ''}: {line}. Lower --batch-size{size}, or compute each batch in parts: "
        "--accumulate 2."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory is full; for a CPU torch raises a plain RuntimeError."""
    on_cpu = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return on_cpu or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


class CannotWrite(UserError, OSError):
    """A file or folder cannot be written: the disk is full, or read-only. Nothing that was there before is lost."""


class CannotRead(UserError, OSError):
    """A file cannot be read: it is no ordinary file, too large, or not for this user to read."""


class Damaged(UserError):
    """A file's contents are not what was written: they cannot be parsed, lack a key, or differ from their checksum."""


class Linked(UserError):
    """A file of a run, or a folder that holds it, is a symbolic link; links in a run's folder are not followed.

    It is neither an OSError nor `Damaged`, so that code that does without a damaged file still refuses a link.
    """


class Moved(UserError):
    """A folder was renamed or removed while it was written to; `path` is where it is now, if that is known."""

    def __init__(self, line: str, path: Path | None = None) -> None:
        super().__init__(line)
        self.path = path


class Diverged(UserError):
    """A run's losses or weights are not finite any more; files that were saved before are unchanged."""

    def __init__(self, line: str, role: str = "", step: int = 0) -> None:
        super().__init__(line)
        self.role, self.step = role, step


class RunFailed(UserError):
    """One run of a comparison has ended by an exception, or with its process; the other runs continue."""

    def __init__(self, line: str, trace: Iterable[str] = ()) -> None:
        """`trace` is the traceback of an unexpected exception, by lines."""
        super().__init__(line)
        self.trace = (*trace,)


class SnapshotsGone(UserError):
    """Recorded snapshots that a run needs are gone or damaged; training the teacher again restores them."""


class TargetsGone(UserError):
    """Cached targets that a student needs are missing or damaged; the teacher itself can take their place."""


def unknown(what: str, name: str, available: Iterable[str]) -> UserError:
    """Return an error for a name that does not exist, with similar and available names.

    >>> print(unknown("method", "kdd", ["none", "kd", "self-kd"]))
    Unknown method 'kdd'. Did you mean 'kd'? Available: none, kd, self-kd.
    """
    names = list(dict.fromkeys(available))
    listed = names if len(names) <= 20 else [*names[:6], f"and {len(names) - 6} more"]
    return UserError(f"Unknown {what} {name!r}.{did_you_mean(name, names)} Available: {', '.join(listed)}.")


def same_name(name: str, names: Iterable[str]) -> str:
    """Return the matching name, ignoring case, hyphens and underscores; `name` itself if there is none.

    >>> same_name("Self_KD", ["kd", "self-kd"]), same_name("CIFAR-100", ["cifar10", "cifar100"]), same_name("x", ["y"])
    ('self-kd', 'cifar100', 'x')
    """
    names = [*names]
    meant = [other for other in names if _letters(other) == _letters(name)]
    return name if name in names or len(meant) != 1 else meant[0]


@lru_cache(maxsize=1024)
def _letters(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).casefold()


def did_you_mean(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return a question with names similar to one that does not exist; empty text where there are none.

    >>> did_you_mean("--epoch", ["--epochs", "--seed"]), did_you_mean("x", ["a", "b"])
    (" Did you mean '--epochs'?", '')
    """
    names = [*dict.fromkeys(names)]
    near = difflib.get_close_matches(name, names, n=3, cutoff=likeness) or [n for n in names if n.startswith(name)][:3]
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def install_command(extra: str) -> str:
    """Return the command that adds one of spacedkd's extras to the spacedkd that is installed, wherever that came from.

    >>> install_command("train")
    "pip install 'spacedkd[train]'"
    """
    from importlib import metadata  # slow to import, and seldom needed

    try:
        metadata.version("spacedkd")
    except metadata.PackageNotFoundError:  # it is imported from a checkout that was not installed
        return f"pip install '.[{extra}]' in a checkout"
    return f"pip install 'spacedkd[{extra}]'"


TRAIN_MODULES = (
    "torchvision timm datasets pyarrow PIL lightning_fabric filelock scipy sklearn imagecorruptions huggingface_hub "
    "yaml tyro rich cloudpickle"
).split()
"""what the libraries of the extra `train` are imported as"""


class NotInstalled(UserError, ImportError):
    """A library of an extra is missing."""


def not_installed(what: str, error: ModuleNotFoundError) -> NotInstalled | None:
    """Return the error for a library that `what` needs; None for a module that belongs to no extra."""
    library = (error.name or "").partition(".")[0]
    if library not in TRAIN_MODULES:
        return None
    return NotInstalled(f"{what} needs {library}, which is not installed: {install_command('train')}")


def with_way_out(get: Callable[[str], Any], package: str) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that says how to install what a name needs."""

    def get_with_way_out(name: str) -> Any:
        try:
            return get(name)
        except ModuleNotFoundError as error:
            explained = not_installed(f"{package}.{name}", error)
            if explained is None:
                raise
            raise explained from None

    return get_with_way_out


def check_between(name: str, value: float | None, least: float, most: float = math.inf) -> None:
    """Refuse a number outside its limits; None is allowed."""
    if value is not None and not (least <= value <= most and value != math.inf):  # written so that NaN fails too
        limit = f"from {least:g} to {most:g}" if math.isfinite(most) else f"at least {least:g} and finite"
        raise UserError(f"{name} must be {limit}, got {format_value(value)}.")


def whole_number(name: str, value: SupportsIndex, least: int = 0) -> int:
    """Return a count as an int, also one of numpy or torch; anything else is refused."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UserError(f"{name} must be a whole number from {least} up, got {value!r}.")
    return number


def pluralize(number: float, noun: str) -> str:
    """Return a number with its noun, for a message.

    >>> pluralize(1.0, "epoch"), pluralize(2.5, "epoch"), pluralize(3_000_000, "update")
    ('1 epoch', '2.5 epochs', '3000000 updates')
    """
    return f"{int(number) if number == int(number) else f'{number:g}'} {noun}{'s' * (number != 1)}"


def format_value(value: object) -> str:
    """Return a value for a message: a number in a few digits, a long text cut off.

    >>> format_value(2e9), format_value("x" * 99), format_value(10**400)
    ('2e+09', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...", 'a number of 401 digits')
    """
    try:
        text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
    except (OverflowError, ValueError):
        return f"a number of {int(abs(value).bit_length() * math.log10(2)) + 1} digits"  # type: ignore[arg-type]
    return text if len(text) <= 60 else f"{text[:60]}..."


_NOT_PRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""control characters, line breaks, marks that change the direction of writing, and lone surrogates"""


def printable(text: str) -> str:
    r"""Return text from any source as one line that is safe to print.

    Characters that a terminal obeys instead of showing are escaped: line breaks, control sequences that move the cursor
    or hide text, and marks that change the direction of writing.

    >>> printable("caf\u00e9 \x1b[2J\r\n")
    'caf\xe9 \\x1b[2J\\r\\n'
    """
    return _NOT_PRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class where it has none."""
    return (str(error).splitlines() or [""])[0].strip() or type(error).__name__


def error_sentence(error: Exception) -> str:
    """Return the first line of an error as a sentence."""
    return first_line(error).removesuffix(".") + "."
