"""A run's folder: the paths of its files, and the rules for when they may be written.

All files are opened from a handle of the folder (`RunFolder.handle`), so that no link in it is followed and nothing is
written to a folder that was moved. A process that trains a run holds its lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from safetensors import SafetensorError, safe_open

from spacedkd.config.serialization import to_json
from spacedkd.config.spec import LOGGERS, RunSpec, read_spec
from spacedkd.runs import checkpoint
from spacedkd.runs.result import matches_digest, read_digests
from spacedkd.runs.status import PROGRESS
from spacedkd.runtime.documents import read_small_json
from spacedkd.runtime.errors import Moved, UserError
from spacedkd.runtime.files import Folder, check_writable, is_unfinished, make_durable, write_errors, write_json
from spacedkd.runtime.locks import LockHeld, hold


class RunFolder:
    """The folder of a run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.handle = Folder(self.path)
        """handle of the folder: all files are read and written with it"""
        self.spec = self.path / "spec.json"
        self.classes = self.path / "classes.json"
        self.journal = self.path / "journal.jsonl"
        self.checkpoint = self.path / "checkpoint" / "latest.safetensors"
        self.student = self.path / "student"
        self.average = self.path / "average"
        """average/: moving average of the student's weights"""
        self.best = self.path / "best"
        """best/: student of the best epoch on held-out images"""
        self.result = self.path / "result.json"
        self.teacher = self.path / "teacher"
        """teacher/: run that trains the teacher of a pipeline, or a lost recorder's teacher alone"""
        self.targets = self.path / "targets"
        """targets/: the outputs of the student's teacher at each step, of a run with --cache-targets"""
        self.logs = self.path / "logs"
        self.passed = self.path / "passed.json"
        """passed.json: oldest update of each replayed role that is still needed"""
        self.failed = self.path / "failed.json"
        """failed.json: error of a run of a comparison, or that its process died"""
        self.begin = self.path / "begin"
        """begin/: files copied from the run that this one extends"""
        self.first_checkpoint = self.begin / "checkpoint.safetensors"

    # Who may use the folder.

    def check_free(self) -> None:
        """Refuse a folder that already holds something, so that nothing is overwritten."""
        if self.spec.exists():
            raise UserError(
                f"{self.path} already holds a run. Continue it with --resume {self.path}, or choose another folder."
            )
        if self.path.exists() and (not self.path.is_dir() or any(not _is_leftover(p) for p in self.path.iterdir())):
            raise UserError(f"{self.path} is not empty and not a run. Choose another folder.")

    def check_holds(self, spec: RunSpec) -> None:
        """Refuse to continue a run with another spec than the one it was started with."""
        if read_spec(self.path).fingerprint() not in spec.fingerprints():
            raise UserError(f"{self.path} holds another run (its spec.json differs). Choose another folder.")

    def check_links(self) -> None:
        """Refuse a run in which a file or folder is a symbolic link; the run's folder itself may be one."""
        if self.path.is_dir():
            logs = [f"{self.logs.name}/{name}" for name in LOGGERS]  # the other files in there are the loggers' own
            files = [f"{folder}/{name}" for folder in logs for name in ("run.json", "metrics.csv")]
            self.handle.refuse_links((*_FILES, *_FOLDERS, *logs, *files))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process, and remove unfinished files of killed ones; a kill releases the lock."""
        self._make()
        self.check_links()
        try:
            with self.handle.held_open(), hold(self.path / ".lock", within=self.handle):
                recorded = self.path / "path"
                own = (self.path, self.checkpoint.parent, self.student, self.average, self.best, self.begin)
                with_folders = (recorded, self.targets)
                below = (path / name for path in with_folders for name in self.handle.names(path))
                for folder in (*own, *with_folders, *below):
                    self.handle.remove_leftovers(folder)
                yield
        except Moved as error:
            way_out = "" if error.path is None else f" Resume with: spacedkd train --resume {error.path}"
            raise Moved(f"{error}{way_out}", error.path) from None
        except LockHeld as error:
            line = f"Another process is training in {self.path}: {error} Wait for it or stop it first."
            raise UserError(line) from None

    # Creating, restarting and discarding a run.

    def create(self, spec: RunSpec) -> None:
        """Make the folder, and write its spec.json."""
        if spec.engine.pipeline:  # its teacher is inside of the folder and moves with it
            spec = replace(spec, teacher_path=None)
        self._make()
        write_json(self.spec, to_json(spec), self.handle)

    def _make(self) -> None:
        with write_errors(self.path):
            make_durable(self.path)

    def spec_to_resume(self, spec: RunSpec) -> RunSpec:
        """Return the spec; if the number of processes has changed, it also has the earlier numbers."""
        started = read_spec(self.path)
        if started.engine.processes == spec.engine.processes or self.finished():
            return spec
        if not checkpoint.generations(self.checkpoint):
            raise UserError(f"{self.path} has no checkpoint yet to continue from: start again in a new folder.")
        done = f"{started.engine.processes} until turn {checkpoint.newest(self.checkpoint).position.turns}"
        return replace(spec, processes_before=(*started.processes_before, done))

    def restart(self) -> None:
        """Reset the run to its first turn; its journal so far is kept as journal-before-N.jsonl."""
        for path in (self.result, self.passed, self.failed, self.path / "diverged.json"):
            self.handle.remove(path)
        if self.handle.exists(self.journal):
            taken = {*self.handle.names()}
            names = (f"journal-before-{number}.jsonl" for number in count(1))
            self.handle.rename(self.journal, self.path / next(name for name in names if name not in taken))
        for path in checkpoint.generations(self.checkpoint):
            self.handle.remove(path)
        for folder in (self.path / "path", self.targets, self.best, self.logs):
            self.handle.remove_tree(folder)

    def discard(self) -> None:
        """Remove a run that has made no update, and its folder if nothing else is in it."""
        if not self.path.is_dir():
            return
        for path in (self.spec, self.classes, self.journal, self.failed, self.path / PROGRESS, self.path / ".lock"):
            self.handle.remove(path)
        for folder in (self.path / "path", self.targets, self.teacher, self.begin, self.best, self.logs):
            self.handle.remove_tree(folder)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    # The state of a run.

    def finished(self) -> bool:
        """Return whether the run has a result."""
        return self.result.exists()

    def failed_at_once(self) -> bool:
        """Return whether the run failed before its first save, so that its folder may be given to another spec."""
        before = (self.begin, self.teacher, self.path / "journal-before-1.jsonl")
        saved = [*checkpoint.generations(self.checkpoint), *(path for path in before if path.exists())]
        return self.failed.exists() and not self.finished() and not saved

    def is_whole(self, spec: RunSpec) -> bool:
        """Return whether a finished run has all its files; its checkpoints may have been removed, but not be damaged.

        A run that is not whole is repaired from its checkpoint. Without one it is refused: it can only be restarted.
        """
        checkpoints = checkpoint.generations(self.checkpoint)
        students = (self.student, self.average) if spec.student_average is not None else (self.student,)
        digests = read_digests(self.path)
        damaged = [folder.name for folder in students if not self._holds_student(folder, digests.get(folder.name))]
        if not matches_digest(self.handle, self.journal, digests.get("journal")):
            damaged.append("journal")
        if not checkpoints and damaged:
            raise UserError(
                f"{self.path} is finished, but its {damaged[0]} is gone or damaged, and its checkpoints are gone. "
                f"Train it again with: spacedkd train --resume {self.path} --restart"
            )
        return not damaged and (
            not checkpoints or checkpoint.newest(self.checkpoint, self.journal).path == self.checkpoint
        )

    def _holds_student(self, folder: Path, digest: str | None) -> bool:
        """Return whether a folder has a network with this SHA-256; without a digest, one that can be opened."""
        try:
            with self.handle.reading(folder / "model.safetensors") as file:
                safe_open(f"/dev/fd/{file.fileno()}", framework="pt")
            config = read_small_json(folder / "config.json", self.handle)
            return bool(config) and matches_digest(self.handle, folder / "model.safetensors", digest)
        except (SafetensorError, OSError, ValueError):
            return False


_FILES = (
    *("spec.json", "classes.json", "journal.jsonl", "result.json", "evaluation.json", "commands.jsonl"),
    *("passed.json", "diverged.json", "failed.json", PROGRESS, f"{PROGRESS}.unfinished", ".lock", ".lock.heartbeat"),
    *("teacher", "logs"),
)
_FOLDERS = ("checkpoint/", "student/", "average/", "best/", "begin/", "path/", "targets/")
"""folders in which no link is followed at any depth; `teacher`, in a pipeline, is a run with rules of its own"""
_LOCK_FILES = (".lock", ".lock.heartbeat", PROGRESS)
_FIRST_FILES = (*_LOCK_FILES, "spec.json", "classes.json", "journal.jsonl", "checkpoint", "path", "targets")
"""files that a run may have before its first update"""
_EXTENSION_FILES = ("checkpoint.safetensors", "journal.jsonl", "best")
"""files that `begin/` may have before spec.json is written"""


def _is_leftover(path: Path) -> bool:
    """Return whether a process that was killed during its first writes, or a pipeline's teacher, left this file."""
    if path.name == "teacher" and path.is_dir():
        return _is_pipeline_teacher(path) or all(p.name in _FIRST_FILES or is_unfinished(p) for p in path.iterdir())
    if path.name == "begin" and path.is_dir():
        return all(p.name in _EXTENSION_FILES or is_unfinished(p) for p in path.iterdir())
    return path.name in _LOCK_FILES or is_unfinished(path)


def _is_pipeline_teacher(path: Path) -> bool:
    """Return whether a run trains one role only; it may have finished before the student began."""
    try:
        return read_spec(path).only is not None
    except UserError:
        return False


def make_folder(path: Path, flag: str) -> None:
    """Make a folder for results, or refuse it, before the work begins; the error names the flag."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"There can be no folder {path} ({error.strerror}): give {flag} another name.") from None
    check_writable(path)
