"""The student of its best epoch, kept beside the last where held-out images choose it; test images never do."""

import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.models import student_io
from spacedkd.runs import checkpoint
from spacedkd.runs.checkpoint import Position
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.journal import Journal, read_accuracies
from spacedkd.runs.result import matches_digest
from spacedkd.runs.tensor_file import gather, system_errors
from spacedkd.runtime.documents import read_small_json
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import Folder, write_json
from spacedkd.schedule import Turn
from spacedkd.training.build import build_models
from spacedkd.training.distributed import uses_fsdp
from spacedkd.training.loop import Callback, Scores
from spacedkd.training.state import TrainingState

# A student's folder, as a run leaves it at its end, or as it is made again when it was lost.


def build_saved_models(plan: ResolvedRun) -> dict[str, nn.Module]:
    """The plan's models, newly built, with the moving average where there is one."""
    models = build_models(plan)
    return models if plan.spec.ema is None else models | {"average": deepcopy(models[plan.student])}


def save_students(plan: ResolvedRun, folder: RunFolder, modules: Mapping[str, nn.Module]) -> None:
    """The student, and beside it its moving average."""
    folders = {plan.student: folder.student} | ({} if plan.spec.ema is None else {"average": folder.average})
    for name, place in folders.items():
        save_student(plan, modules[name].network, place, folder.handle)  # type: ignore[arg-type]


def student_digests(plan: ResolvedRun, folder: RunFolder) -> dict[str, str]:
    """SHA-256 of the weights of the student, and of its moving average, by the names of their folders."""
    places = [folder.student] if plan.spec.ema is None else [folder.student, folder.average]
    return {place.name: folder.handle.digest(place / "model.safetensors") for place in places}


def save_student(plan: ResolvedRun, network: nn.Module, place: Path, within: Folder) -> None:
    """The student's network, as it is at some time of the run."""
    with within.write_folder(place) as unfinished, system_errors():
        student_io.save_student(network, plan.network(plan.roles[-1]), plan.data.info, unfinished, data=plan.spec.data)


def restore_students(plan: ResolvedRun, folder: RunFolder) -> bool:
    """Give a finished run its student again, from a checkpoint of its last turn; whether there is one.

    The journal must be what was written until then; what somebody has added to it is cut off.
    """
    found = checkpoint.newest(folder.checkpoint, folder.journal)
    if found.position.turns != len(plan.timeline):
        return False
    models = build_saved_models(plan)
    exact = torch.float64 if plan.spec.precision == "64-true" else torch.float32
    learned = torch.bfloat16 if plan.spec.precision == "bf16-true" else exact
    for name, model in models.items():
        model.to(exact if name == "average" else learned)
    with folder.lock():
        position = checkpoint.load(found.path, plan.spec.fingerprints(), models, {})
        save_students(plan, folder, models)
        with Journal(folder.journal, position.journal_bytes, position.journal_digest, folder.handle):
            pass
        ended = read_small_json(folder.result, folder.handle)
        if "digests" in ended:  # another version of safetensors may write the same weights in another way
            ended["digests"] |= student_digests(plan, folder)
            write_json(folder.result, ended, folder.handle)
    return True


# The student of its best epoch, kept beside the last where held-out images choose it; test images never do.

JUDGE, HEAD = "holdout", "final"
WEIGHTS = "model.safetensors"


class BestStudent(Callback):
    """Whether an epoch of the student is the best so far. The journal alone decides it, so a resumed run does the same.

    It is written before anything that says the run is further than its epoch: whoever is taken back to before comes to
    it once more.
    """

    def __init__(self, state: TrainingState, folder: RunFolder, position: Position) -> None:
        self._state, self._folder, self._position = state, folder, position
        self._measured = folder.best / "measured.json"
        self._score = -math.inf
        self.digest = ""
        """of the weights in `best/`, where there is one"""
        self._pending: dict[str, Any] | None = None

    def resume(self) -> None:
        """Take up what was the best when the run was left; all processes hear it from the first, whose journal is.

        A `best/` that is not the one of the checkpoint is refused, unless the run will write it again.
        """
        found = self._line() if self._state.fabric.is_global_zero else None
        if found is not None:
            self._check(found)
        score = -math.inf if found is None else found["accuracy"][JUDGE][HEAD]
        self._score = float(self._state.fabric.broadcast(score))

    def _check(self, line: Mapping[str, Any]) -> None:
        """Refuse a `best/` that the run did not write: until the checkpoint it is that of this line of the journal."""
        weights, measured = self._folder.best / WEIGHTS, read_best_measurement(self._folder) or {}
        kept = best_is_saved(self._folder, line)
        self.digest = self._folder.handle.digest(weights) if kept else ""
        turn = measured.get("turn", math.inf)
        written_later = isinstance(turn, int | float) and turn > self._position.turns  # it is about to be written again
        if self._position.best_digest and not written_later and self.digest != self._position.best_digest:
            raise UserError(
                f"{weights} was changed or damaged: it is not the best student of this run. Remove {self._folder.best} "
                f"to go on without it, or begin again with: spacedkd train --resume {self._folder.path} --restart"
            )

    def _line(self) -> Mapping[str, Any] | None:
        if JUDGE not in self._state.data.evaluated_splits():
            return None
        return best_journal_entry(self._folder.path, self._state.run.roles[-1])

    def on_evaluate(self, turn: Turn, model: str, scores: Scores) -> None:
        """Compare the student's accuracy on held-out images with the best so far; nothing else counts."""
        run = self._state.run
        if model == run.roles[-1] and JUDGE in scores and scores[JUDGE][HEAD] > self._score:
            self._score = scores[JUDGE][HEAD]
            self._pending = {
                "chosen_on": JUDGE,
                "turn": self._position.turns,
                "epoch": (turn.step + 1) / run.steps_per_epoch,
                "accuracy": _deepest(scores),
            }

    def writes_weights(self, turn: Turn) -> bool:
        """Return whether the student as it is now is the best so far."""
        return self._pending is not None

    def on_turn_end(self, turn: Turn) -> None:
        """Write the student if it is the best so far; while it is written, no file says which epoch it is of."""
        if self._pending is None:
            return
        network, due, self._pending = self._network(), self._pending, None
        if self._state.fabric.is_global_zero:
            self._folder.handle.remove(self._measured, durable=True)
            save_student(self._state.run, network, self._folder.best, self._folder.handle)
            self.digest = self._folder.handle.digest(self._folder.best / WEIGHTS)
            write_json(self._measured, due, self._folder.handle)

    def _network(self) -> nn.Module:
        """The student as one process can have it."""
        plan, fabric = self._state.run, self._state.fabric
        module = self._state.modules()[plan.student]
        if uses_fsdp(fabric):
            kind = next(module.parameters()).dtype
            state = {name: gather(one, keep=fabric.is_global_zero) for name, one in module.state_dict().items()}
            if fabric.is_global_zero:
                module = build_saved_models(plan)[plan.student].to(kind)
                module.load_state_dict(state)
        return module.network  # type: ignore[return-value]

    def summary(self) -> dict[str, Any]:
        """For the result: what lies in `best/`, if it is what the journal says is the best."""
        found = self._line()
        if found is None or not best_is_saved(self._folder, found):
            return {}
        if not matches_digest(self._folder.handle, self._folder.best / WEIGHTS, self.digest):
            raise UserError(
                f"{self._folder.best / WEIGHTS} was changed while the run was trained. Remove {self._folder.best}, "
                f"then go on without it: spacedkd train --resume {self._folder.path}"
            )
        return {"best": read_best_measurement(self._folder)}


def _deepest(scores: Scores) -> dict[str, float]:
    return {part: heads[HEAD] for part, heads in scores.items()}


def best_journal_entry(folder: Path, student: str) -> Mapping[str, Any] | None:
    """Of the journal in a folder: the first line with the student's highest accuracy on held-out images, if any."""
    lines = (line for line in read_accuracies(folder) if line["role"] == student and JUDGE in line["accuracy"])
    return max(lines, key=lambda line: line["accuracy"][JUDGE][HEAD], default=None)


def read_best_measurement(folder: RunFolder) -> dict[str, Any] | None:
    """What `best/` says of itself; None where it is not there whole."""
    return read_small_json(folder.best / "measured.json", folder.handle) or None


def best_is_saved(folder: RunFolder, line: Mapping[str, Any]) -> bool:
    """Whether `best/` has the weights of this line of the journal."""
    found = read_best_measurement(folder)
    if found is None or not folder.handle.exists(folder.best / WEIGHTS):
        return False
    return found.get("turn") == line.get("turn")
