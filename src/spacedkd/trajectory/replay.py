"""Paths that were recorded, or are being recorded now, read in the place of roles that would learn in this run."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.spec import read_spec
from spacedkd.runs import checkpoint, tensor_file
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.journal import check_entries
from spacedkd.runtime.documents import parse_json, read_json, read_lines, read_small_json
from spacedkd.runtime.errors import CannotRead, Damaged, Linked, SnapshotsGone, UserError, first_line
from spacedkd.runtime.files import Folder, write_json
from spacedkd.runtime.locks import is_held
from spacedkd.schedule import Turn
from spacedkd.trajectory.recording import WORDS, Entry, JournalHash, being_written, file_of, path_file, place_of

POLL_SECONDS = 0.1


class RecordedPath:
    """One role's path, in the folder of the run that records it."""

    def __init__(self, run: Path, role: str, recorded: list[int]) -> None:
        self.run, self.role, self.recorded = run, role, recorded
        self.folder = place_of(run, role)
        self._entries: dict[int, list[Entry]] = {}
        self._costs: dict[int, Mapping[str, int]] = {}
        self._read = self._loaded = self.saved = 0
        self._hash = JournalHash()
        """of as much of the journal as was read"""

    def waits_for(self, version: int) -> str | None:
        """What a follower that needs this version waits for; None when it is there."""
        self._read_on()
        file = file_of(self.folder, version)
        if (version in self._costs or version == 0) and Folder(self.run).exists(file):
            return None
        reached = max(self._costs, default=0)
        if reached >= version:
            raise SnapshotsGone(f"{file} is gone: it was recorded, and removed. Train without --teacher-path.")
        what = f"{self.run} to reach update {version} of its {self.role}"
        if is_written(self.run):
            return f"waiting for {what}"
        if (self.run / "result.json").exists():
            raise SnapshotsGone(f"{self.run} is finished and has not recorded update {version} of its {self.role}.")
        return f"waiting for {what}, which is not being trained: go on with spacedkd train --resume {self.run}"

    def load(self, version: int, model: nn.Module) -> None:
        """Make a model what it is after so many updates."""
        file = file_of(self.folder, version)
        try:
            words, whole = tensor_file.read(file, WORDS, within=self.run)
            if [words[name] for name in WORDS] != [self.role, str(version)]:
                raise Damaged(f"{file} is damaged: it says that it is another snapshot.")
        except Damaged as error:
            raise SnapshotsGone(f"{error} Record it again with: spacedkd train --resume {self.run} --restart") from None
        model.load_state_dict(whole)
        self._loaded = version

    def entries(self, step: int) -> list[Entry]:
        """What the role's turn at this step left in the journal; known once a later version is there."""
        return self._entries.get(step, [])

    def passed(self) -> int:
        """Called at every save: when it is written, no checkpoint there is asks for a version before this one."""
        before, self.saved = self.saved, self._loaded
        return before

    def forget(self, version: int) -> None:
        """Remove all versions before this one."""
        forget(self.run, self.role, version)

    def is_cut(self) -> bool:
        """Whether versions that were recorded are gone."""
        self._read_on()
        needed = (file_of(self.folder, version) for version in self._costs if version in self.recorded)
        return not all(map(Folder(self.run).exists, needed))

    def cost(self, version: int) -> Mapping[str, int]:
        """What it took to get so far."""
        self._read_on()
        return self._costs.get(version, {})

    def _read_on(self) -> None:
        journal = self.folder / "journal.jsonl"
        if not Folder(self.run).exists(journal):
            return
        found: list[Entry] = []
        read, lines = self._read, self._hash.copy()
        with _damaged(journal):
            for line in read_lines(journal, within=self.run, start=read):
                read += len(line) + 1
                entry = parse_json(line, str(journal))
                if "version" in entry:
                    lines.check(entry)
                lines.add(line)
                if "version" not in entry:
                    found.append(entry)
                    continue
                self._costs[int(entry["version"])] = {name: int(count) for name, count in entry["cost"].items()}
                [*check_entries(found)]  # which raises where one is not as it must be
                for one in found:
                    self._entries.setdefault(int(one["step"]), []).append({**one, "event": str(one["event"])})
                found, self._read, self._hash = [], read, lines.copy()


def forget(run: Path, role: str, version: int) -> None:
    """Remove all versions of a recorded role before this one."""
    folder, place = Folder(run), place_of(run, role)
    for file in (place / name for name in folder.names(place) if name.endswith(".safetensors")):
        if file < file_of(place, version):
            folder.remove(file)


def read_paths(run: Path) -> dict[str, dict[str, Any]]:
    """Return, by role, the settings that decide the weights of each path a run records, and its versions."""
    file = path_file(run)
    with _damaged(file):
        paths: dict[str, dict[str, Any]] = read_json(file, within=run)
        if not paths:
            raise ValueError("it names no role")
        return {
            role: {"settings": dict(path["settings"]), "versions": [int(version) for version in path["versions"]]}
            for role, path in paths.items()
        }


@contextmanager
def _damaged(file: Path) -> Iterator[None]:
    """Turn whatever is wrong with the contents of a path's file into one line."""
    try:
        yield
    except (CannotRead, Linked) as error:
        raise SnapshotsGone(str(error)) from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        why = first_line(error).removesuffix(".")
        raise SnapshotsGone(f"{file} is damaged ({why}). Record the path again in a new folder.") from None


def is_written(run: Path) -> bool:
    """Whether a process is recording a run's path now: it holds a lock, which a kill releases."""
    return path_file(run).exists() and is_held(being_written(run))


class Following:
    """The roles that learn elsewhere: their turns pass by here, and their paths are read when somebody needs them."""

    def __init__(
        self,
        plan: ResolvedRun,
        models: Mapping[str, nn.Module],
        paths: Mapping[str, RecordedPath],
        keep: Callable[[Entry], None],
    ) -> None:
        """`keep` writes into the journal of the run that follows."""
        self.plan, self.models, self.paths, self._keep = plan, models, paths, keep
        self._passed: list[tuple[int, Turn]] = []
        self.accuracy: dict[str, float] = {}
        """each role's last, of its deepest head on the test images"""

    def pass_by(self, number: int, turn: Turn) -> None:
        """A turn of a role that learns elsewhere, by its number among all turns."""
        self._passed.append((number, turn))

    def catch_up(self, all_there: Callable[[bool], bool]) -> Iterator[str]:
        """Bring every role to where its turns have got it; yields what is waited for, again and again.

        Of several processes each says whether it sees a version, and is told whether all do.
        """
        reached = {turn.role: turn.step + 1 for _, turn in self._passed}
        for role, version in reached.items():
            while not all_there((waiting := self.paths[role].waits_for(version)) is None):
                yield waiting or f"waiting for all processes to see update {version} of the {role}"
                time.sleep(POLL_SECONDS)
            self.paths[role].load(version, self.models[self.plan.method.learners[role]])
        for number, turn in self._passed:
            for entry in self.paths[turn.role].entries(turn.step):
                measured, logged = entry["event"] == "accuracy", entry["event"] == "loss"
                if (not measured or self.plan.evaluates(turn)) and (not logged or self.plan.logs(turn)):
                    self._keep({**entry, "turn": number, "role": turn.role})
                    if measured:
                        self.accuracy[turn.role] = entry["accuracy"]["test"]["final"]
        self._passed.clear()

    def passed(self) -> dict[str, int]:
        """At a save: the versions before which this run will ask for none once it is written, by recorded role."""
        return {path.role: path.passed() for path in self.paths.values()}

    def tell_passed(self, passed: Mapping[str, int], file: Path, within: Folder) -> None:
        """Say so in a file, to whoever knows all that follow; nobody else follows the teacher of a pipeline."""
        engine = self.plan.spec.engine
        if passed and not engine.pipeline:
            write_json(file, _passed_record(passed, self.plan.spec.fingerprint()), within)
        elif not engine.keep_path:
            for path in self.paths.values():
                path.forget(passed[path.role])

    def go_on(self, folder: RunFolder) -> None:
        """Take up what a run had passed when it was left."""
        passed = read_passed(folder)
        for path in self.paths.values():
            path.saved = passed.get(path.role, 0)  # without it less is removed, and nothing else

    def check_there(self, run: Path) -> None:
        """Refuse to begin a run again when part of what it follows was removed."""
        for path in self.paths.values():
            if path.is_cut():
                raise UserError(
                    f"{path.run} is followed, and part of what it recorded was removed as {run} passed. Delete {run} "
                    "and give the command that made it again."
                )

    def wait_for_costs(self) -> Iterator[str]:
        """Wait until all that is followed has got to its end, so that its whole cost is known."""
        for role, path in self.paths.items():
            while not path.cost(self.plan.stops[role]) and (waiting := path.waits_for(self.plan.stops[role])):
                yield waiting
                time.sleep(POLL_SECONDS)

    def costs(self) -> Iterator[Mapping[str, int]]:
        """What the roles' own turns cost, wherever they were taken."""
        for role, path in self.paths.items():
            counts = path.cost(self.plan.stops[role])
            yield {re.sub(rf"^{re.escape(path.role)}(?= )", role, name): count for name, count in counts.items()}


def _passed_record(versions: Mapping[str, int], fingerprint: str) -> dict[str, Any]:
    text = json.dumps([versions, fingerprint], sort_keys=True)
    return {"versions": versions, "fingerprint": fingerprint, "checksum": hashlib.sha256(text.encode()).hexdigest()}


def read_passed(run: RunFolder) -> Mapping[str, int]:
    """Return the versions of each recorded role before which a run needs none, from whichever checkpoint it resumes.

    A file that is damaged, of another run, or says more than the run's checkpoints can, counts for nothing: whoever
    believed it would remove snapshots that are still needed. No role makes more updates than the run has turns.
    """
    try:
        known = read_small_json(run.passed, within=run.path)
        versions, fingerprint = known["versions"], known["fingerprint"]
        saved = checkpoint.positions(run.checkpoint)
        whole = known == _passed_record(versions, fingerprint) and {one for one, _ in saved} == {fingerprint}
        most = min((turns for _, turns in saved), default=0)
        possible = all(type(version) is int and 0 <= version <= most for version in versions.values())
    except (LookupError, TypeError, AttributeError, Damaged):
        return {}
    return versions if whole and possible else {}


def wait_for_begin(plan: ResolvedRun) -> Iterator[str]:
    """What a run that follows another waits for until that one has begun; it must be there, and record."""
    if plan.spec.teacher_path is None:
        return
    run = Path(plan.spec.teacher_path)
    while not path_file(run).exists():
        if (run / "spec.json").exists() or not plan.spec.engine.pipeline:
            check_recorded(run)
        yield f"waiting for {run} to begin; if nobody trains it, go on with spacedkd train --resume {run}"
        time.sleep(POLL_SECONDS)


def check_recorded(run: Path) -> None:
    """Refuse a run that does not record, or whose record is gone."""
    if path_file(run).exists():
        return
    if not (run / "spec.json").exists():
        raise UserError(f"--teacher-path: there is no run {run}. Train it with: spacedkd train --record ...")
    if not read_spec(run).record:
        raise UserError(f"--teacher-path: {run} records no path. Train it with --record and this run's interval.")
    if (run / "result.json").exists():
        line = f"--teacher-path: {run} is finished, and what it recorded is gone. Train without it, in a new folder."
        raise SnapshotsGone(line)
