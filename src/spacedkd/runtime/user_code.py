"""Code of somebody's own, named `package.module:Name`: who may have it imported, and where it is found.

A name that was typed, or written in Python, is imported when it is needed. One that merely stands in a file (the
spec.json of a run, say) is marked when the file is read and never imported, unless the user trusts the file. All names
are imported here, and nowhere else.
"""

import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from spacedkd.runtime.errors import (
    UserCodeError,
    UserError,
    first_line,
    is_command_line,
    is_out_of_memory,
    set_command_line,
)

NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
SAFE_PATH = "PYTHONSAFEPATH"
_vouched: set[str] = set()
"""names the user has typed, or that were imported already because Python code named them"""


class FromFile(str):
    """A name of code that stands in a file nobody has vouched for: text like any other, but nothing to import."""

    file: str

    def __new__(cls, name: str, file: str = "") -> "FromFile":
        made = super().__new__(cls, name)
        made.file = file
        return made


def marked(plain: Any, file: Path, trust_code: bool) -> Any:
    """What was read from a file of JSON, with every text in it that could name code marked, unless it is trusted."""
    if trust_code:
        return plain
    if isinstance(plain, Mapping):
        return {key: marked(value, file, False) for key, value in plain.items()}
    if isinstance(plain, list):
        return [marked(value, file, False) for value in plain]
    names_code = isinstance(plain, str) and NAME.fullmatch(plain) and plain not in _vouched
    return FromFile(plain, str(file)) if names_code else plain


def is_user_code(name: str) -> bool:
    """Whether a name is that of somebody's own function or class, package.module:name; on a hub a name has an owner.

    >>> is_user_code("own:make_network"), is_user_code("resnet18"), is_user_code("owner/photos:small")
    (True, False, False)
    """
    return ":" in name and not any(sign in name for sign in "/\\")


def untrusted(name: str) -> UserError:
    """What is said instead of importing what a file names."""
    return UserError(
        f"{getattr(name, 'file', 'A file')} names code, {str(name)!r}, and nothing is imported because a file says so. "
        "If you trust whoever wrote it, say --trust-code."
    )


def trust(names: Iterable[str]) -> None:
    """Take these for typed: whatever among them is a name of code may be imported, also where a file says it."""
    _vouched.update(name for name in names if NAME.fullmatch(name))


def check_trusted(names: Iterable[str]) -> None:
    """Refuse names that will have to be imported, before any work is done."""
    for name in names:
        if isinstance(name, FromFile) and name not in _vouched:
            raise untrusted(name)


def load_object(name: str) -> Any:
    """What `package.module:Name` names."""
    check_trusted([name])
    module, _, attribute = name.partition(":")
    try:
        if not NAME.fullmatch(name):
            raise ValueError("that is no name of code")
        if _finder is not None:
            _finder.named.add(module.partition(".")[0])
        found = getattr(importlib.import_module(module), attribute)
    except UserError:
        raise
    except Exception as error:  # it is somebody else's code that runs here
        if (frame := _user_frame(error)) is not None:
            raise UserCodeError(f"{name} cannot be imported: {_said(error)}{_place(frame)}.") from error
        line = (str(error).splitlines() or [repr(error)])[0]
        raise UserError(f"Cannot load {str(name)!r} ({line}). Write it as package.module:Name.") from error
    _vouched.add(str(name))
    return found


def loaded_already(name: str) -> Any:
    """What a name means in modules that are imported already, or None; nothing is imported or run."""
    module, _, attribute = name.partition(":")
    return vars(sys.modules.get(module, ModuleType(""))).get(attribute)


_OURS = f"{Path(__file__).parent}{os.sep}"
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in "stdlib platstdlib purelib platlib".split()})


@contextmanager
def user_code(when: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn an exception of user code into one line with its name, its place, and `when` it was raised.

    An exception is the user's where code that is neither ours nor a library's was running when it was raised. All
    others are left as they are.
    """
    try:
        yield
    except Exception as raised:
        error = raised
        if isinstance(raised, RuntimeError) and isinstance(raised.__cause__, StopIteration):
            error = raised.__cause__  # which Python has replaced where it came through a generator of ours
        frame = None if isinstance(error, UserError) or is_out_of_memory(error) else _user_frame(error)
        if frame is None:
            raise
        name, noted = _noted(error) or (frame.tb_frame.f_code.co_qualname, when())
        raise failed(name, error, noted) from error


def note_place(error: Exception, name: str, when: str) -> None:
    """Write down on an exception of user code what has raised it; the first to do so knows best."""
    if _noted(error) is None:
        error.add_note(f"{_NOTE}{name}, {when}")


_NOTE = "Raised for spacedkd by: "


def _noted(error: Exception) -> tuple[str, str] | None:
    """What `note_place` has written: the name, and when it was called."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(_NOTE):
            name, _, when = note.removeprefix(_NOTE).rpartition(", ")
            return name, when
    return None


def failed(name: str, error: Exception, when: str = "") -> UserCodeError:
    """Return what to raise where something of the user's, called here by us, has raised `error`."""
    frame = _user_frame(error)
    return UserCodeError(f"{name} fails{f' {when}' if when else ''}: {_said(error)}{_place(frame)}.")


def is_users(error: BaseException) -> bool:
    """Whether user code was running when an exception was raised."""
    return _user_frame(error) is not None


def _said(error: Exception) -> str:
    line = first_line(error).removesuffix(".")
    return line if line == type(error).__name__ else f"{type(error).__name__}: {line}"


def _place(frame: TracebackType | None) -> str:
    """The file and the line of user code, and where a function of ours that it called has raised."""
    if frame is None:
        return ""
    inside = [one for one in _frames(frame) if _file(one).startswith(_OURS)]
    raised = f", raised in spacedkd/{_file(inside[-1]).removeprefix(_OURS)}:{inside[-1].tb_lineno}" if inside else ""
    path = Path(_file(frame))
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({shown}:{frame.tb_lineno}{raised})"


def _user_frame(error: BaseException) -> TracebackType | None:
    """The innermost frame of user code among those an exception came through; None if there is none.

    What an optimizer of the user's asks of us through its closure is ours, however deep it lies within the optimizer.
    """
    found = None
    for frame in _frames(error.__traceback__):
        if frame.tb_frame.f_code.co_name == "closure" and _file(frame).startswith(_OURS):
            found = None
        if _is_users(_file(frame)):
            found = frame
    return found


def _frames(frame: TracebackType | None) -> Iterator[TracebackType]:
    while frame is not None:
        yield frame
        frame = frame.tb_next


def _file(frame: TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename


def _is_users(file: str) -> bool:
    """Whether a file is neither ours nor of a library; code that was typed into a console has no file."""
    library = file.startswith((_OURS, *_LIBRARIES)) or "site-packages" in file or "dist-packages" in file
    return not library and not (file.startswith("<frozen") or file == "<string>")


class Finder(MetaPathFinder):
    """Finds modules the user has named, and what those import beside themselves, in the folder where one works.

    The folder does not join `sys.path`, where any library that asks for something optional would find it.
    """

    def __init__(self, folder: Path, named: Iterable[str] = (), found: Iterable[str] = ()) -> None:
        self.folder = folder
        self.named = {*named}
        """what may be found here; it may also be a library that lies elsewhere"""
        self.found = {*found}
        """what was, and may therefore look here itself"""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not (fullname in self.named | self.found or self._asks()):
            return None
        found = PathFinder.find_spec(fullname, [str(self.folder)])
        if found is not None:
            self.found.add(fullname)
        return found

    def _asks(self) -> bool:
        """Whether it is a module that was found here that imports something."""
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
            frame = frame.f_back
        return str(frame.f_globals.get("__name__")).partition(".")[0] in self.found


_finder: Finder | None = None


def begin(
    folder: Path | None, named: Iterable[str] = (), found: Iterable[str] = (), vouched: Iterable[str] = ()
) -> None:
    """Look for modules of one's own in this folder from now on, and vouch for these names, and nothing else."""
    global _finder
    if _finder is not None:
        sys.meta_path.remove(_finder)
        if _finder.folder == folder:  # what was found here before is still imported, and not looked for again
            found = {*found, *_finder.found}
    _finder = None if folder is None else Finder(folder, named, found)
    if _finder is not None:
        sys.meta_path.append(_finder)  # the last to be asked
        importlib.invalidate_caches()
    _vouched.clear()
    trust(vouched)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """What a command does: modules of one's own are found in this folder, which processes begun by it do not search."""
    begin(folder)
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH)
        if before is not None:
            os.environ[SAFE_PATH] = before


class Inherited:
    """Given to another process, in front of whatever else it is given, lets it find the same modules as this one."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        if _finder is None:
            return _begin_child, (is_command_line(), None, (), (), (*_vouched,))
        return _begin_child, (
            is_command_line(),
            _finder.folder,
            (*_finder.named,),
            (*_finder.found,),
            (*_vouched,),
        )


def _begin_child(command_line: bool, *given: Any) -> None:
    set_command_line(command_line)
    begin(*given)
