"""A run is a folder: its spec, its journal, its checkpoint, its student and its result."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from spacedkd.errors import UserError
from spacedkd.files import write_json
from spacedkd.json_form import to_json
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
        self.result = self.path / "result.json"
        self.teacher = self.path / "teacher"
        self.passed = self.path / "passed.json"

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
        if not self.checkpoint.exists():
            raise UserError(f"{self.path} has no checkpoint yet to go on from: start again in a new folder.")
        done = f"{held.engine.processes} until turn {checkpoint.read_position(self.checkpoint).turns}"
        return replace(spec, processes_before=(*held.processes_before, done))

    def discard(self) -> None:
        """Give back a folder in which nothing was learned."""
        for path in (self.spec, self.classes, self.journal, self.path / ".lock"):
            path.unlink(missing_ok=True)
        for folder in (self.path / "path", self.teacher):
            shutil.rmtree(folder, ignore_errors=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def create(self, spec: RunSpec) -> None:
        if spec.engine.pipeline:  # its teacher lies within the folder, wherever that is moved to
            spec = replace(spec, teacher_path=None)
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.spec, to_json(spec))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; a kill releases it too."""
        try:
            with FileLock(self.path / ".lock", blocking=False):
                yield
        except Timeout:
            raise UserError(f"Another process is training in {self.path}. Wait for it or stop it first.") from None

    def finished(self) -> bool:
        return self.result.exists()


def _leftover(path: Path) -> bool:
    """What a kill during the very first write leaves behind."""
    return path.name == ".lock" or path.suffix == ".unfinished"


class Journal(AbstractContextManager["Journal"]):
    """Lines of JSON, one for each thing that happened; nothing in it depends on the clock."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        if (path.stat().st_size if path.exists() else 0) < keep_bytes:
            raise UserError(f"{path} is shorter than its checkpoint says. Start the run again in a new folder.")
        self._file = path.open("ab")
        self._file.truncate(keep_bytes)  # what came after the checkpoint will happen again
        self._file.seek(keep_bytes)

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Force everything to disk; returns its length."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def make_folder(path: Path, flag: str) -> None:
    """Make a place for results before they are worked for, so that a bad one is noticed then."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"There can be no folder {path} ({error.strerror}): give {flag} another name.") from None
