"""A run is a folder: its spec, its journal, its checkpoint, its student and its result."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from safetensors import SafetensorError, safe_open

from spacedkd.config.registry import LOGGERS
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec, read_spec
from spacedkd.runs import checkpoint
from spacedkd.runs.result import matches_digest, read_digests
from spacedkd.runs.status import PROGRESS
from spacedkd.runtime.documents import read_small_json
from spacedkd.runtime.errors import Moved, UserError
from spacedkd.runtime.files import Folder, check_writable, is_unfinished, make_durable, naming, write_json
from spacedkd.runtime.locks import LockHeld, hold


class RunFolder:
    """Paths of a run's files, and the rules for when they may be written."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.handle = Folder(self.path)
        """through which all its files are written, and read"""
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
        if not self.path.is_dir():
            return
        for path in (self.spec, self.classes, self.journal, self.failed, self.path / PROGRESS, self.path / ".lock"):
            self.handle.remove(path)
        for folder in (self.path / "path", self.teacher, self.begin, self.best, self.logs):
            self.handle.remove_tree(folder)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def create(self, spec: RunSpec) -> None:
        if spec.engine.pipeline:  # its teacher lies within the folder, wherever that is moved to
            spec = replace(spec, teacher_path=None)
        self._make()
        write_json(self.spec, to_json(spec), self.handle)

    def _make(self) -> None:
        with naming(self.path):
            make_durable(self.path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process, without what others have left unfinished in it; a kill releases it too."""
        self._make()
        self.check_links()
        try:
            with self.handle.held(), hold(self.path / ".lock", within=self.handle):
                recorded = self.path / "path"
                own = (self.path, self.checkpoint.parent, self.student, self.average, self.best, self.begin, recorded)
                for folder in (*own, *(recorded / name for name in self.handle.names(recorded))):
                    self.handle.remove_leftovers(folder)
                yield
        except Moved as error:
            way_on = "" if error.place is None else f" Go on with: spacedkd train --resume {error.place}"
            raise Moved(f"{error}{way_on}", error.place) from None
        except LockHeld as error:
            line = f"Another process is training in {self.path}: {error} Wait for it or stop it first."
            raise UserError(line) from None

    def check_links(self) -> None:
        """Refuse a run of whose files or folders one is a symbolic link; its folder itself may be reached by links."""
        if self.path.is_dir():
            logs = [f"{self.logs.name}/{name}" for name in LOGGERS]  # what is in theirs is the loggers' own
            files = [f"{folder}/{name}" for folder in logs for name in ("run.json", "metrics.csv")]
            self.handle.refuse_links((*_FILES, *_FOLDERS, *logs, *files))

    def begin_again(self) -> None:
        """Take a run back to its beginning; the journal so far stays beside the new one."""
        for path in (self.result, self.passed, self.failed, self.path / "diverged.json"):
            self.handle.remove(path)
        if self.handle.exists(self.journal):
            taken = {*self.handle.names()}
            names = (f"journal-before-{number}.jsonl" for number in count(1))
            self.handle.rename(self.journal, self.path / next(name for name in names if name not in taken))
        for path in checkpoint.generations(self.checkpoint):
            self.handle.remove(path)
        for gone in (self.path / "path", self.best, self.logs):
            self.handle.remove_tree(gone)

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
        digests = read_digests(self.path)
        damaged = [folder.name for folder in students if not self._holds_student(folder, digests.get(folder.name))]
        if not matches_digest(self.handle, self.journal, digests.get("journal")):
            damaged.append("journal")
        if not left and damaged:
            raise UserError(
                f"{self.path} is finished, but its {damaged[0]} is gone or damaged, and its checkpoints are gone. "
                f"Train it again with: spacedkd train --resume {self.path} --restart"
            )
        return not damaged and (not left or checkpoint.newest(self.checkpoint, self.journal).path == self.checkpoint)

    def _holds_student(self, folder: Path, digest: str | None) -> bool:
        """Whether the network is there that was saved, as far as a file without a digest shows it."""
        try:
            with self.handle.reading(folder / "model.safetensors") as file:
                safe_open(f"/dev/fd/{file.fileno()}", framework="pt")
            described = read_small_json(folder / "config.json", self.handle)
            return bool(described) and matches_digest(self.handle, folder / "model.safetensors", digest)
        except (SafetensorError, OSError, ValueError):
            return False


_FILES = (
    *("spec.json", "classes.json", "journal.jsonl", "result.json", "evaluation.json", "commands.jsonl"),
    *("passed.json", "diverged.json", "failed.json", PROGRESS, f"{PROGRESS}.unfinished", ".lock", ".lock.heartbeat"),
    *("teacher", "logs"),
)
_FOLDERS = ("checkpoint/", "student/", "average/", "best/", "begin/", "path/")
"""what a run's folder holds, in which no link is followed; a pipeline's teacher is a run of its own"""
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


def make_folder(path: Path, flag: str) -> None:
    """Make a place for results before they are worked for, so that a bad one is noticed then."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"There can be no folder {path} ({error.strerror}): give {flag} another name.") from None
    check_writable(path)
