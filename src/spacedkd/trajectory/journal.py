"""The journal of a recorded role, `path/ROLE/journal.jsonl` in the folder of the run that records it.

It has the lines that the role's turns leave in the run's own journal. Behind those that lead up to a snapshot comes a
line with its number of updates (`version`), what they cost, and a digest of all lines so far.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spacedkd.runs.journal import check_entries
from spacedkd.runtime.documents import parse_json, read_lines
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.files import Folder
from spacedkd.trajectory.store import refuse_damage

Entry = Mapping[str, Any]
"""a line of a journal"""


class JournalHash:
    """A running SHA-256 of the lines of a journal."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, line: bytes) -> None:
        self._hash.update(line + b"\n")

    def copy(self) -> "JournalHash":
        copy = JournalHash()
        copy._hash = self._hash.copy()
        return copy

    def digest(self, entry: Entry) -> str:
        """Return the digest of all lines so far and of a snapshot's entry, except for the entry's own digest."""
        digest = self._hash.copy()
        digest.update(json.dumps({name: value for name, value in entry.items() if name != "digest"}).encode())
        return digest.hexdigest()

    def check(self, entry: Entry) -> None:
        """Refuse a snapshot's entry whose digest is wrong; those of earlier versions of spacedkd have none."""
        if "digest" in entry and entry["digest"] != self.digest(entry):
            raise ValueError(f"what it says up to update {entry['version']} was changed")


class JournalWriter:
    """Writes the journal of a role, a snapshot at a time."""

    def __init__(self, run: Folder, file: Path) -> None:
        self.run, self.file = run, file
        self.reached = 0
        """the update of the last snapshot in the journal"""
        self._hash = JournalHash()

    def open(self) -> None:
        """Go on behind the last snapshot: cut off what a kill has left behind it."""
        read = end = 0
        lines = JournalHash()
        if not self.run.exists(self.file):
            return
        for line in read_lines(self.file, within=self.run):
            read += len(line) + 1
            is_snapshot = line.startswith(b'{"version"')
            if is_snapshot:
                self.reached, end = self._check(line, lines), read
            lines.add(line)
            self._hash = lines.copy() if is_snapshot else self._hash
        with os.fdopen(self.run.open(self.file, os.O_RDWR), "r+b") as file:
            file.truncate(end)

    def _check(self, line: bytes, before: JournalHash) -> int:
        """Return the update of a snapshot's line; one that was changed is refused."""
        try:
            entry = parse_json(line, f"A line of {self.file}")
            if type(entry["version"]) is not int:
                raise ValueError("a version is no whole number")
            before.check(entry)
        except (ValueError, LookupError, TypeError) as error:
            reason = first_line(error).removesuffix(".")
            way_out = f"Record it again with: spacedkd train --resume {self.run.path} --restart"
            raise UserError(f"{self.file} is damaged ({reason}). {way_out}") from None
        update: int = entry["version"]
        return update

    def append(self, entries: Iterable[Entry], update: int, cost: Mapping[str, int]) -> None:
        """Add the entries that lead up to a snapshot, and the snapshot's own, safe from a power cut."""
        lines = [json.dumps(entry).encode() for entry in entries]
        for line in lines:
            self._hash.add(line)
        snapshot = {"version": update, "cost": cost}
        lines.append(json.dumps({**snapshot, "digest": self._hash.digest(snapshot)}).encode())
        self._hash.add(lines[-1])
        with self.run.append(self.file) as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        self.reached = update


class JournalReader:
    """Reads the journal of a role, also while it is written."""

    def __init__(self, run: Folder, file: Path) -> None:
        self.run, self.file = run, file
        self.entries: dict[int, list[Entry]] = {}
        """by step, of all turns before the last snapshot in the journal"""
        self.costs: dict[int, Mapping[str, int]] = {}
        """by the update of each snapshot"""
        self._read, self._hash = 0, JournalHash()

    @property
    def reached(self) -> int:
        """The update of the last snapshot in the journal."""
        return max(self.costs, default=0)

    def refresh(self) -> None:
        """Read what was added, up to the last snapshot; whatever was changed raises `SnapshotsGone`."""
        if not self.run.exists(self.file):
            return
        entries: list[Entry] = []
        read, lines = self._read, self._hash.copy()
        with refuse_damage(self.file):
            for line in read_lines(self.file, within=self.run, start=read):
                read += len(line) + 1
                entry = parse_json(line, str(self.file))
                if "version" in entry:
                    lines.check(entry)
                lines.add(line)
                if "version" not in entry:
                    entries.append(entry)
                    continue
                self.costs[int(entry["version"])] = {name: int(count) for name, count in entry["cost"].items()}
                [*check_entries(entries)]  # which raises where an entry is not as it must be
                for turn_entry in entries:
                    step_entries = self.entries.setdefault(int(turn_entry["step"]), [])
                    step_entries.append({**turn_entry, "event": str(turn_entry["event"])})
                entries, self._read, self._hash = [], read, lines.copy()
