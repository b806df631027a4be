"""A run is a folder: its spec, its journal, its checkpoint, its student and its result."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from spacedkd.documents import read_json
from spacedkd.errors import UserError
from spacedkd.files import (
    check_writable,
    is_unfinished,
    make_durable,
    naming,
    remove_leftovers,
    sync_folder,
    write_json,
)
from spacedkd.json_form import to_json
from spacedkd.locks import Held, hold
from spacedkd.run_state import PROGRESS
from spacedkd.spec import RunSpec, read_spec
from spacedkd.training import checkpoint


class RunFolder:
    """Paths of a run's files, and the rules for when they may be written."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.spec = self.path / "spec.json"
        self.classes = self.path / "classes.json"
        self.journal = self.path / "journal.jsonl"
        self.checkpoint = self.path / "checkpoint" / "latest.safetensors"
        self.student = self.path / "student"
        self.average = self.path / "average"
        self.best = self.path / "best"
        self.result = self.path / "result.json"
        self.teacher = self.path / "teacher"
        self.logs = self.path / "logs"
        self.passed = self.path / "passed.json"
        self.failed = self.path / "failed.json"
        """of a run of a comparison that an exception has ended, or the end of its process: what it was"""
        self.begin = self.path / "begin"
        """of a run that extends another: what that one ended with"""
        self.first_checkpoint = self.begin / "checkpoint.safetensors"

    def check_free(self) -> None:
        """Refuse a place that already holds something, so that nothing is written over."""
        if self.spec.exists():
            raise UserError(
                f"{self.path} already holds a run. Continue it with --resume {self.path}, or choose another folder."
            )
        if self.path.exists() and (not self.path.is_dir() or any(not _leftover(p) for p in self.path.iterdir())):
            raise UserError(f"{self.path} is not empty and not a run. Choose another folder.")

    def check_holds(self, spec: RunSpec) -> None:
        """Refuse to continue a run with another spec than the one it was started with."""
        if read_spec(self.path).fingerprint() not in spec.fingerprints():
            raise UserError(f"{self.path} holds another run (its spec.json differs). Choose another folder.")

    def taken_up(self, spec: RunSpec) -> RunSpec:
        """The spec of the run with its number of processes changed to that of `spec`; what it was before is kept."""
        held = read_spec(self.path)
        if held.engine.processes == spec.engine.processes or self.finished():
            return spec
        if not checkpoint.generations(self.checkpoint):
            raise UserError(f"{self.path} has no checkpoint yet to go on from: start again in a new folder.")
        done = f"{held.engine.processes} until turn {checkpoint.newest(self.checkpoint).position.turns}"
        return replace(spec, processes_before=(*held.processes_before, done))

    def discard(self) -> None:
        """Give back a folder in which nothing was learned."""
        for path in (self.spec, self.classes, self.journal, self.failed, self.path / PROGRESS, self.path / ".lock"):
            path.unlink(missing_ok=True)
        for folder in (self.path / "path", self.teacher, self.begin, self.best, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def create(self, spec: RunSpec) -> None:
        if spec.engine.pipeline:  # its teacher lies within the folder, wherever that is moved to
            spec = replace(spec, teacher_path=None)
        self._make()
        write_json(self.spec, to_json(spec))

    def _make(self) -> None:
        with naming(self.path):
            make_durable(self.path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process, without what others have left unfinished in it; a kill releases it too."""
        self._make()
        try:
            with hold(self.path / ".lock"):
                recorded = self.path / "path"
                own = (self.path, self.checkpoint.parent, self.student, self.average, self.best, self.begin, recorded)
                remove_leftovers(*own, *(recorded.iterdir() if recorded.is_dir() else ()), alone=True)
                yield
        except Held as error:
            line = f"Another process is training in {self.path}: {error} Wait for it or stop it first."
            raise UserError(line) from None

    def begin_again(self) -> None:
        """Take a run back to its beginning; the journal so far stays beside the new one."""
        for path in (self.result, self.passed, self.failed, self.path / "diverged.json"):
            path.unlink(missing_ok=True)
        if self.journal.exists():
            taken = {path.name for path in self.path.iterdir()}
            names = (f"journal-before-{number}.jsonl" for number in count(1))
            self.journal.replace(self.path / next(name for name in names if name not in taken))
        for path in checkpoint.generations(self.checkpoint):
            path.unlink()
        for gone in (self.path / "path", self.best, self.logs):
            shutil.rmtree(gone, ignore_errors=True)

    def finished(self) -> bool:
        return self.result.exists()

    def failed_at_once(self) -> bool:
        """Whether a run has failed before it saved anything, so that its folder may be given to another spec."""
        before = (self.begin, self.teacher, self.path / "journal-before-1.jsonl")
        saved = [*checkpoint.generations(self.checkpoint), *(path for path in before if path.exists())]
        return self.failed.exists() and not self.finished() and not saved

    def is_whole(self, spec: RunSpec) -> bool:
        """Whether a finished run has all it needs; its checkpoints may have been removed, but not be damaged.

        If not, it can be taken up once more where there is a checkpoint, and else from the beginning only.
        """
        left = checkpoint.generations(self.checkpoint)
        students = (self.student, self.average) if spec.ema is not None else (self.student,)
        complete = all(_holds_student(folder) for folder in students)
        if complete and not left:
            return True
        if not left:
            raise UserError(
                f"{self.path} is finished, but its student is gone, and so are its checkpoints. Train it again with: "
                f"spacedkd train --resume {self.path} --restart"
            )
        return complete and checkpoint.newest(self.checkpoint).path == self.checkpoint


def _holds_student(folder: Path) -> bool:
    """Whether a network was saved there, as far as can be seen without reading all of it."""
    try:
        with safe_open(folder / "model.safetensors", framework="pt"):
            return isinstance(read_json(folder / "config.json", within=folder), dict)
    except (SafetensorError, OSError, ValueError):
        return False


_NAMES = (".lock", ".lock.heartbeat", PROGRESS, "spec.json", "classes.json", "journal.jsonl", "checkpoint", "path")
"""what a run may have before it has learned anything"""
_BEGIN = ("checkpoint.safetensors", "journal.jsonl", "best")
"""what one that extends another gets first"""


def _leftover(path: Path) -> bool:
    """What a kill during the very first write leaves behind; in a pipeline the teacher is the first to write."""
    if path.name == "teacher" and path.is_dir():
        return _leads(path) or all(one.name in _NAMES or is_unfinished(one) for one in path.iterdir())
    if path.name == "begin" and path.is_dir():
        return all(one.name in _BEGIN or is_unfinished(one) for one in path.iterdir())
    return path.name in _NAMES[:3] or is_unfinished(path)


def _leads(path: Path) -> bool:
    """Whether this is the teacher of a pipeline, which may have come to its end before the student began."""
    try:
        return read_spec(path).only is not None
    except UserError:
        return False


class Journal(AbstractContextManager["Journal"]):
    """Lines of JSON, one for each thing that happened; nothing in it depends on the clock."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        self.path = path
        with naming(path):
            is_new = not path.exists()
            self._file = path.open("ab")
            if is_new:
                sync_folder(path.parent)  # which has its name
            self._file.truncate(keep_bytes)  # what came after the checkpoint will happen again
            self._file.seek(keep_bytes)

    def __exit__(self, *exception: object) -> None:
        with naming(self.path):
            self._file.close()

    def write(self, entry: Mapping[str, Any]) -> None:
        with naming(self.path):
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()

    def length(self) -> int:
        """In bytes, of all that was written."""
        return self._file.tell()

    def sync(self) -> None:
        """Force everything to disk."""
        with naming(self.path):
            os.fsync(self._file.fileno())


def make_folder(path: Path, flag: str) -> None:
    """Make a place for results before they are worked for, so that a bad one is noticed then."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"There can be no folder {path} ({error.strerror}): give {flag} another name.") from None
    check_writable(path)
