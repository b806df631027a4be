"""User code, named `package.module:Name`: which names may be imported, where modules are found, how errors are shown.

A name that was typed, or written in Python, is imported when it is needed. A name in a file (the spec.json of a
run, for instance) is marked when the file is read, and is never imported unless the user trusts the file. All names are
imported here, and nowhere else.
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
    did_you_mean,
    first_line,
    is_command_line,
    is_out_of_memory,
    set_command_line,
)

NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
SAFE_PATH = "PYTHONSAFEPATH"
_trusted: set[str] = set()
"""names that the user typed, or that were imported because Python code named them"""


class FromFile(str):
    """A name of code that was read from a file: a str, but `load_object` refuses to import it."""

    file: str

    def __new__(cls, name: str, file: str = "") -> "FromFile":
        text = super().__new__(cls, name)
        text.file = file
        return text


def mark_names(value: Any, file: Path, trust_code: bool) -> Any:
    """Return a value that was read from a file, in which every text that could name code is a `FromFile`.

    With `trust_code`, and for names that are trusted already, nothing is marked.
    """
    if trust_code:
        return value
    if isinstance(value, Mapping):
        return {key: mark_names(item, file, False) for key, item in value.items()}
    if isinstance(value, list):
        return [mark_names(item, file, False) for item in value]
    names_code = isinstance(value, str) and NAME.fullmatch(value) and value not in _trusted
    return FromFile(value, str(file)) if names_code else value


def is_user_code(name: str) -> bool:
    """Return whether a name is one of user code, package.module:name; names on a hub have an owner and a slash.

    >>> is_user_code("own:make_network"), is_user_code("resnet18"), is_user_code("owner/photos:small")
    (True, False, False)
    """
    return ":" in name and not any(sign in name for sign in "/\\")


def untrusted_error(name: str) -> UserError:
    """Return the error to raise instead of importing a name that was read from a file."""
    return UserError(
        f"{getattr(name, 'file', 'A file')} names code, {str(name)!r}, and code that a file names is not imported. "
        "If you trust the author of the file, give --trust-code."
    )


def trust(names: Iterable[str]) -> None:
    """Allow the names of code among these texts, which the user typed, to be imported, also where a file has them."""
    _trusted.update(name for name in names if NAME.fullmatch(name))


def check_trusted(names: Iterable[str]) -> None:
    """Refuse names that were read from a file and are not trusted; called before any work is done with them."""
    for name in names:
        if isinstance(name, FromFile) and name not in _trusted:
            raise untrusted_error(name)


def load_object(name: str) -> Any:
    """Import and return the object that `package.module:Name` names; refuse a name from an untrusted file."""
    check_trusted([name])
    module, _, attribute = name.partition(":")
    try:
        if not NAME.fullmatch(name):
            raise ValueError("that is no name of code")
        if _finder is not None:
            _finder.names.add(module.partition(".")[0])
        loaded = getattr(importlib.import_module(module), attribute)
    except UserError:
        raise
    except Exception as error:  # user code runs here
        if (frame := _user_frame(error)) is not None:
            raise UserCodeError(f"{name} cannot be imported: {_describe(error)}{_location(frame)}.") from error
        line = (str(error).splitlines() or [repr(error)])[0]
        raise UserError(f"Cannot load {str(name)!r} ({line}).{_advice(name, error)}") from error
    _trusted.add(str(name))
    return loaded


def _advice(name: str, error: Exception) -> str:
    """Return what to do about a name of code that could not be loaded, with a space before it."""
    module, _, attribute = name.partition(":")
    if NAME.fullmatch(name) and isinstance(error, ModuleNotFoundError):
        where = "on sys.path" if _finder is None else f"in {_finder.folder} and among installed packages"
        return f" Modules are looked for {where}."
    if NAME.fullmatch(name) and isinstance(error, AttributeError):
        return did_you_mean(attribute, vars(sys.modules.get(module, ModuleType(""))))
    return " Write it as package.module:Name."


def find_imported(name: str) -> Any:
    """Return the object of this name, if its module is imported already, or else None; nothing is imported or run."""
    module, _, attribute = name.partition(":")
    return vars(sys.modules.get(module, ModuleType(""))).get(attribute)


_OURS = f"{Path(__file__).parent.parent}{os.sep}"
"""the folder of this package, whose frames are not the user's"""
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in "stdlib platstdlib purelib platlib".split()})


@contextmanager
def user_code(when: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn an exception of user code in the block into `UserCodeError`: one line with its name, its file and `when`.

    An exception is the user's if code that is neither ours nor a library's was running when it was raised. All others
    pass unchanged.
    """
    try:
        yield
    except Exception as raised:
        error = raised
        if isinstance(raised, RuntimeError) and isinstance(raised.__cause__, StopIteration):
            error = raised.__cause__  # Python replaced it where it passed a generator of ours
        frame = None if isinstance(error, UserError) or is_out_of_memory(error) else _user_frame(error)
        if frame is None:
            raise
        name, noted_when = _read_note(error) or (frame.tb_frame.f_code.co_qualname, when())
        raise user_code_error(name, error, noted_when) from error


def note_origin(error: Exception, name: str, when: str) -> None:
    """Add to an exception of user code a note of what raised it; a note that is there is kept: it is the nearest."""
    if _read_note(error) is None:
        error.add_note(f"{_NOTE}{name}, {when}")


_NOTE = "Raised for spacedkd by: "


def _read_note(error: Exception) -> tuple[str, str] | None:
    """Return the name and the time that `note_origin` wrote, if it did."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(_NOTE):
            name, _, when = note.removeprefix(_NOTE).rpartition(", ")
            return name, when
    return None


def user_code_error(name: str, error: Exception, when: str = "") -> UserCodeError:
    """Return the error to raise where user code of this name, which we called, raised `error`."""
    frame = _user_frame(error)
    return UserCodeError(f"{name} fails{f' {when}' if when else ''}: {_describe(error)}{_location(frame)}.")


def is_from_user_code(error: BaseException) -> bool:
    """Return whether user code was running when an exception was raised."""
    return _user_frame(error) is not None


def _describe(error: Exception) -> str:
    line = first_line(error).removesuffix(".")
    return line if line == type(error).__name__ else f"{type(error).__name__}: {line}"


def _location(frame: TracebackType | None) -> str:
    """Return file and line of user code, and of a function of ours that it called, if that raised the error."""
    if frame is None:
        return ""
    ours = [inner for inner in _frames(frame) if _file(inner).startswith(_OURS)]
    raised = f", raised in spacedkd/{_file(ours[-1]).removeprefix(_OURS)}:{ours[-1].tb_lineno}" if ours else ""
    path = Path(_file(frame))
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({path}:{frame.tb_lineno}{raised})"


def _user_frame(error: BaseException) -> TracebackType | None:
    """Return the innermost frame of user code that an exception passed; None if there is none.

    A user's optimizer calls our `closure`, which computes the losses. An error inside of the closure is ours, although
    frames of the optimizer are above it.
    """
    innermost = None
    for frame in _frames(error.__traceback__):
        if frame.tb_frame.f_code.co_name == "closure" and _file(frame).startswith(_OURS):
            innermost = None
        if _is_user_file(_file(frame)):
            innermost = frame
    return innermost


def _frames(frame: TracebackType | None) -> Iterator[TracebackType]:
    while frame is not None:
        yield frame
        frame = frame.tb_next


def _file(frame: TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename


def _is_user_file(file: str) -> bool:
    """Return whether a file is neither ours nor a library's; code typed into a console, `<stdin>`, is the user's."""
    library = file.startswith((_OURS, *_LIBRARIES)) or "site-packages" in file or "dist-packages" in file
    return not library and not (file.startswith("<frozen") or file == "<string>")


class Finder(MetaPathFinder):
    """A finder of the modules that the user named, and of those that they import from the same folder.

    The folder is not added to `sys.path`: any library that tries an optional import would find a file there.
    """

    def __init__(self, folder: Path, names: Iterable[str] = (), loaded: Iterable[str] = ()) -> None:
        self.folder = folder
        self.names = {*names}
        """modules that the user named; they may also be libraries, which are found elsewhere"""
        self.loaded = {*loaded}
        """modules that were found here, and whose own imports are therefore looked for here"""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not (fullname in self.names | self.loaded or self._is_imported_from_here()):
            return None
        spec = PathFinder.find_spec(fullname, [str(self.folder)])
        if spec is not None:
            self.loaded.add(fullname)
        return spec

    def _is_imported_from_here(self) -> bool:
        """Return whether the import statement that is running is in a module that was found here."""
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
            frame = frame.f_back
        return str(frame.f_globals.get("__name__")).partition(".")[0] in self.loaded


_finder: Finder | None = None


def set_folder(
    folder: Path | None, names: Iterable[str] = (), loaded: Iterable[str] = (), trusted: Iterable[str] = ()
) -> None:
    """Find modules of the user in this folder from now on, and trust these names and no others."""
    global _finder
    if _finder is not None:
        sys.meta_path.remove(_finder)
        if _finder.folder == folder:  # modules that were found here are still imported, and not searched again
            loaded = {*loaded, *_finder.loaded}
    _finder = None if folder is None else Finder(folder, names, loaded)
    if _finder is not None:
        sys.meta_path.append(_finder)  # at the end: installed libraries come first
        importlib.invalidate_caches()
    _trusted.clear()
    trust(trusted)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Find the user's modules in this folder inside of the block; Python started from it does not search the folder."""
    set_folder(folder)
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH)
        if before is not None:
            os.environ[SAFE_PATH] = before


class Inherited:
    """A message to another process, sent before all others, that makes it find and trust the same names as this one."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        if _finder is None:
            return _begin_child, (is_command_line(), None, (), (), (*_trusted,))
        return _begin_child, (
            is_command_line(),
            _finder.folder,
            (*_finder.names,),
            (*_finder.loaded,),
            (*_trusted,),
        )


def _begin_child(
    command_line: bool, folder: Path | None, names: Iterable[str], loaded: Iterable[str], trusted: Iterable[str]
) -> None:
    set_command_line(command_line)
    set_folder(folder, names, loaded, trusted)
