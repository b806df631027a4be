"""The path of a role: its weights after v updates, computed once and followed by any number of runs.

Whoever learns from labels, or from roles before it, has weights that are a pure function of its own settings and the
seed; a student that finds them recorded learns the same bits as one whose teacher learns beside it.

    RUN/path/path.json                          what decides each role's weights, and which versions are recorded
    RUN/path/ROLE/journal.jsonl                 what its turns left in the journal, up to each version, with a digest
    RUN/path/ROLE/000000586.safetensors         the model after 586 updates
"""

import hashlib
import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.serialization import to_json
from spacedkd.data.inputs import Inputs
from spacedkd.runs import tensor_file
from spacedkd.runs.tensor_file import digest
from spacedkd.runtime.documents import parse_json, read_lines
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.files import Folder, write_json
from spacedkd.runtime.locks import hold
from spacedkd.schedule import Turn, in_steps
from spacedkd.timeline import dropout_key, timeline_turns, updates_seen

Settings = Mapping[str, Any]
Entry = Mapping[str, Any]
"""a line of a journal"""
WORDS = ("role", "version")
"""in the file of every version"""


def check_path(plan: ResolvedRun, role: str) -> None:
    """Refuse a role whose weights depend on more than its own settings."""
    method, spec = plan.method, plan.spec
    others = [model for other, model in method.learners.items() if other != role]
    if method.determined_by(role) is None or method.learners[role] in others:
        raise UserError(
            f"The {role} of {spec.method.name} learns from those that learn from it, so it has no path of its own: "
            "leave out --record and --teacher-path."
        )
    if spec.frozen_mode == "train" or spec.optimizer.moves_frozen:
        quirk = "frozen_mode=train" if spec.frozen_mode == "train" else "moves_frozen"
        raise UserError(
            f"With {quirk} the {role} moves while others learn, so it has no path of its own: leave one of them out."
        )
    if spec.engine.strategy == "fsdp":
        raise UserError("A path is of whole networks, which --strategy fsdp does not keep: leave one of them out.")
    steps = [turn.step for turn in plan.timeline.after(0) if turn.role == role]
    if steps != [*range(plan.stops[role])]:
        raise UserError(f"In this schedule the {role} does not learn every step in order, so its path is no other's.")


def leaders(plan: ResolvedRun) -> Sequence[str]:
    """The roles whose path a run records or follows: all before the last, or all it has."""
    if not plan.spec.record and plan.spec.teacher_path is None:
        return ()
    if len(plan.roles) == 1 or (plan.spec.teacher_path is None and plan.spec.only is not None):
        return plan.roles  # a run without distillation can have the teacher's own path
    return plan.roles[:-1]


def settings(plan: ResolvedRun, role: str, models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Everything that decides a role's weights after any number of updates, by the words of a refusal."""
    check_path(plan, role)
    spec, roles, learners, network = plan.spec, plan.method.roles, plan.method.learners, plan.network(role)
    own = "teacher" if network is spec.teacher else "network"
    listens, (masks, _) = plan.method.determined_by(role) == "method", dropout_key(Turn(role, 0), spec.frozen_mode)
    found = {
        "network": to_json(network.untrained()),
        "data": to_json(spec.data),
        "seed": spec.seed,
        "batch size": spec.batch_size,
        "epochs": spec.epochs,
        "steps to learn": plan.stops[role],
        "optimizer": to_json(spec.optimizer),
        "learning rate": to_json(spec.rate),
        "label smoothing": spec.label_smoothing,
        "precision": spec.precision,
        "memory layout": spec.channels_last,
        "compiler": spec.engine.compile,
        "number of processes": [spec.engine.processes, *spec.processes_before],
        "shared BatchNorm": spec.sync_batchnorm,
        "objects": [spec.objects.get(name) for name in (own, "data", "collate", "optimizer", "lr")],
        "method": to_json(spec.method) if listens else None,
        "first weights": [digest(models[learners[one]].state_dict()) for one in roles[: roles.index(role) + 1]],
        "trained teacher": [digest(models[name].state_dict()) for name in plan.method.frozen] if listens else None,
        "updates left out": spec.on_nonfinite if spec.on_nonfinite != "stop" else None,
        "parts of a batch": spec.accumulate if spec.accumulate > 1 else None,
        "dropout masks": masks if draws(models[learners[role]], plan.data.info.sample) else None,
    }
    if role != roles[0]:  # those before it decide, too
        found["schedule"] = [to_json(spec.schedule), spec.follower_first, spec.redraw_replay, *plan.led]
    return found


def draws(model: nn.Module, sample: Inputs) -> bool:
    """Whether a model draws random numbers when it learns; they are seeded by the name of its role."""

    def states() -> tuple[Any, ...]:
        kind, keys, *rest = np.random.get_state(legacy=True)
        return torch.random.get_rng_state().tolist(), random.getstate(), (kind, *keys, *rest)

    tried, before = deepcopy(model).train(), states()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tried(sample)
        return states() != before


def to_record(plan: ResolvedRun, role: str) -> list[int]:
    """The versions of a role that students of the schedules to be recorded meet, and the last one."""
    roles = (*plan.method.roles, "follower")
    if role != plan.method.roles[-1]:
        roles = plan.method.roles  # type: ignore[assignment]
    found = {plan.stops[role]}
    for schedule in plan.spec.record:
        written = in_steps(schedule, plan.steps_per_epoch, plan.total_steps)
        turns = timeline_turns(written, roles, plan.spec.follower_first, plan.stops, plan.total_steps)
        found |= updates_seen(turns, role, by=roles[roles.index(role) + 1])
    return sorted(found)


def path_file(run: Path) -> Path:
    """What decides each role's weights, and the versions that are, or will be, recorded."""
    return run / "path" / "path.json"


def being_written(run: Path) -> Path:
    """The lock of whoever records a run's paths."""
    return run / "path" / ".writing"


def place_of(run: Path, role: str) -> Path:
    return run / "path" / role


def file_of(folder: Path, version: int) -> Path:
    return folder / f"{version:09d}.safetensors"


class Recording:
    """The paths a run leaves behind; most leave none."""

    def __init__(
        self, run: Folder, plan: ResolvedRun, models: Mapping[str, nn.Module], settings: Mapping[str, Settings]
    ) -> None:
        self.folder, self.run, self.settings = run, run.path, settings
        learners = plan.method.learners
        self._paths = {
            role: PathWriter(run, role, models[learners[role]], to_record(plan, role)) for role in self.settings
        }

    @contextmanager
    def opened(self, done: Mapping[str, int], journal: Iterable[Entry]) -> Iterator[None]:
        """Go on where the paths end; `done` are the updates each role has made, `journal` what they left behind."""
        if not self._paths:
            yield
            return
        self.folder.make(path_file(self.run).parent)
        left = [*journal]
        # Followers take it for a moment, to see who writes.
        with hold(being_written(self.run), seconds=60, within=self.folder):
            for role, path in self._paths.items():
                path.open(done[role], left)
            known = {
                role: {"settings": self.settings[role], "versions": sorted(path.due)}
                for role, path in self._paths.items()
            }
            write_json(path_file(self.run), known, self.folder)
            yield

    def note(self, entry: Entry) -> None:
        if entry["role"] in self._paths:
            self._paths[entry["role"]].note(entry)

    def wants(self, turn: Turn) -> bool:
        """Whether others may meet the role as it is after a turn; all processes say the same."""
        return turn.role in self._paths and turn.step + 1 in self._paths[turn.role].asked

    def reached(self, turn: Turn, cost: Mapping[str, int]) -> None:
        if turn.role in self._paths:
            self._paths[turn.role].write(turn.step + 1, cost)


class PathWriter:
    """Leaves a role's path behind as it learns."""

    def __init__(self, run: Folder, role: str, model: nn.Module, due: Iterable[int]) -> None:
        self.run, self.folder, self.role, self.model = run, place_of(run.path, role), role, model
        self.asked = frozenset(due)
        self.due = {*self.asked}
        self.reached, self._hash = 0, JournalHash()
        self._entries: list[Entry] = []

    def open(self, done: int, journal: Iterable[Entry]) -> None:
        """Go on behind the last version that is there whole, when the role has made `done` updates already.

        What lies between them was learned before anything was recorded, or is learned once more, to the same bits.
        """
        self.run.make(self.folder)
        self.reached, self._hash = _cut(self.run, self.folder / "journal.jsonl")
        self.due -= {*range(self.reached + 1, done + 1)}
        self._entries = [entry for entry in journal if entry["role"] == self.role and entry["step"] >= self.reached]
        first = file_of(self.folder, 0)
        if 0 in self.due and done == 0 and not self.run.exists(first):  # later it may have been removed
            self._save(0)

    def note(self, entry: Entry) -> None:
        """What one of the role's turns leaves in the run's journal."""
        if entry["step"] >= self.reached:
            self._entries.append(entry)

    def write(self, version: int, cost: Mapping[str, int]) -> None:
        """Keep the model as it is after so many updates, if anybody will ask for it."""
        if version not in self.due or version <= self.reached:
            return
        self._save(version)
        lines = [json.dumps(entry).encode() for entry in self._entries]
        for line in lines:
            self._hash.add(line)
        found = {"version": version, "cost": cost}
        lines.append(json.dumps({**found, "digest": self._hash.with_version(found)}).encode())
        self._hash.add(lines[-1])
        with self.run.append(self.folder / "journal.jsonl") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        self.reached, self._entries = version, []

    def _save(self, version: int) -> None:
        words = dict(zip(WORDS, (self.role, str(version)), strict=True))
        tensors = tensor_file.on_host(self.model.state_dict())
        tensor_file.write(file_of(self.folder, version), tensors, words, within=self.run)


class JournalHash:
    """A running SHA-256 of the lines of a path's journal, which every line with a version has a digest of."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, line: bytes) -> None:
        self._hash.update(line + b"\n")

    def copy(self) -> "JournalHash":
        copied = JournalHash()
        copied._hash = self._hash.copy()
        return copied

    def with_version(self, entry: Entry) -> str:
        """Return the digest of all lines so far and of this entry, which has a version, except for its own digest."""
        found = self._hash.copy()
        found.update(json.dumps({name: value for name, value in entry.items() if name != "digest"}).encode())
        return found.hexdigest()

    def check(self, entry: Entry) -> None:
        """Refuse an entry with a version whose digest is another; those of earlier versions of spacedkd have none."""
        if "digest" in entry and entry["digest"] != self.with_version(entry):
            raise ValueError(f"what it says up to update {entry['version']} was changed")


def _cut(run: Folder, journal: Path) -> tuple[int, JournalHash]:
    """Cut off what lies behind the last whole version; says which version that is, with the hash until there."""
    read = whole = version = 0
    lines, until = JournalHash(), JournalHash()
    if run.exists(journal):
        for line in read_lines(journal, within=run):
            read += len(line) + 1
            if line.startswith(b'{"version"'):
                whole, version = read, _version(line, journal, lines)
            lines.add(line)
            until = lines.copy() if whole == read else until
        with os.fdopen(run.open(journal, os.O_RDWR), "r+b") as file:
            file.truncate(whole)
    return version, until


def _version(line: bytes, journal: Path, before: JournalHash) -> int:
    try:
        found = parse_json(line, f"A line of {journal}")
        if type(found["version"]) is not int:
            raise ValueError("a version is no whole number")
        before.check(found)
    except (ValueError, LookupError, TypeError) as error:
        why = first_line(error).removesuffix(".")
        way_out = f"Record it again with: spacedkd train --resume {run_of(journal)} --restart"
        raise UserError(f"{journal} is damaged ({why}). {way_out}") from None
    version: int = found["version"]
    return version


def run_of(journal: Path) -> Path:
    """The folder of the run whose path has its journal here."""
    return journal.parents[2]
