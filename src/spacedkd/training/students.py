"""The students a run saves: the last one, its moving average, and the one of the best epoch.

`student/` and `average/` are written at the end. `best/` is written whenever the student's accuracy on held-out images
is the highest so far; test images never choose. Each folder has config.json and model.safetensors.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spacedkd.averages import STUDENT_AVERAGE
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
from spacedkd.trajectory.cached_teacher import teacher_of

WEIGHTS = "model.safetensors"
CHOSEN_ON, HEAD = "holdout", "final"
"""the split and the head whose accuracy chooses the best student"""


def build_saved_models(run: ResolvedRun) -> dict[str, nn.Module]:
    """Return the models that a checkpoint has, newly built: those of the method, and the moving average if there is.

    The teacher of a run that reads cached targets is not in its checkpoints.
    """
    models = build_models(run)
    if run.spec.targets_path is not None:
        del models[teacher_of(run)]
    return models if STUDENT_AVERAGE not in run.averages else models | {"average": deepcopy(models[run.student])}


def save_students(run: ResolvedRun, folder: RunFolder, modules: Mapping[str, nn.Module]) -> None:
    """Save the student, and the average of its weights if there is one."""
    folders = {run.student: folder.student}
    if STUDENT_AVERAGE in run.averages:
        folders[STUDENT_AVERAGE] = folder.average
    for name, path in folders.items():
        save_network(run, modules[name].network, path, folder.handle)  # type: ignore[arg-type]


def save_network(run: ResolvedRun, network: nn.Module, path: Path, within: Folder) -> None:
    """Save a network of the student's architecture in a folder, which is replaced whole."""
    with within.write_folder(path) as unfinished, system_errors():
        student_io.save_student(network, run.network(run.roles[-1]), run.data.info, unfinished, data=run.spec.data)


def student_digests(run: ResolvedRun, folder: RunFolder) -> dict[str, str]:
    """Return the SHA-256 of the weights in `student/`, and in `average/` if there is one, by the folders' names."""
    paths = [folder.student] if STUDENT_AVERAGE not in run.averages else [folder.student, folder.average]
    return {path.name: folder.handle.digest(path / WEIGHTS) for path in paths}


def restore_students(run: ResolvedRun, folder: RunFolder) -> bool:
    """Write a finished run's lost student again; return False if no checkpoint of its last turn is there.

    The journal must begin with what was written until that checkpoint; entries added later are cut off.
    """
    newest = checkpoint.newest(folder.checkpoint, folder.journal)
    if newest.position.turns != len(run.timeline):
        return False
    models = build_saved_models(run)
    full = torch.float64 if run.spec.precision == "64-true" else torch.float32
    trained = torch.bfloat16 if run.spec.precision == "bf16-true" else full
    for name, model in models.items():
        model.to(full if name == "average" else trained)
    with folder.lock():
        position = checkpoint.load(newest.path, run.spec.fingerprints(), models, {})
        save_students(run, folder, models)
        with Journal(folder.journal, position.journal_bytes, position.journal_digest, folder.handle):
            pass  # opening it checks and cuts it
        result = read_small_json(folder.result, folder.handle)
        if "digests" in result:  # another version of safetensors may write the same weights as other bytes
            result["digests"] |= student_digests(run, folder)
            write_json(folder.result, result, folder.handle)
    return True


class BestStudent(Callback):
    """A callback that saves the student in `best/` whenever it is the best so far on held-out images.

    The best epoch depends on the journal alone, so a resumed run chooses the same. `best/` is written before the next
    checkpoint: a run that is resumed from an earlier checkpoint reaches that epoch again.
    """

    def __init__(self, state: TrainingState, folder: RunFolder, position: Position) -> None:
        self._state, self._folder, self._position = state, folder, position
        self._measurement = folder.best / "measured.json"
        self._score = -math.inf
        self.digest = ""
        """SHA-256 of the weights in `best/`; empty while there are none"""
        self._pending: dict[str, Any] | None = None
        """the measurement of a student that is the best so far and not saved yet"""

    def resume(self) -> None:
        """Read the best score so far from the journal; all ranks get the first rank's.

        A `best/` that is not the checkpoint's is refused, unless the run will write it again.
        """
        entry = self._best_entry() if self._state.fabric.is_global_zero else None
        if entry is not None:
            self._check_weights(entry)
        score = -math.inf if entry is None else entry["accuracy"][CHOSEN_ON][HEAD]
        self._score = float(self._state.fabric.broadcast(score))

    def _check_weights(self, entry: Mapping[str, Any]) -> None:
        """Refuse weights in `best/` that this run did not write; `entry` is the best in the journal."""
        weights, measurement = self._folder.best / WEIGHTS, read_best_measurement(self._folder) or {}
        self.digest = self._folder.handle.digest(weights) if best_is_saved(self._folder, entry) else ""
        turn = measurement.get("turn", math.inf)
        # Weights written after the checkpoint: the run reaches that turn again, and writes them again.
        is_later = isinstance(turn, int | float) and turn > self._position.turns
        if self._position.best_digest and not is_later and self.digest != self._position.best_digest:
            raise UserError(
                f"{weights} was changed or damaged: it is not the best student of this run. Remove {self._folder.best} "
                f"to continue without it, or restart with: spacedkd train --resume {self._folder.path} --restart"
            )

    def _best_entry(self) -> Mapping[str, Any] | None:
        if CHOSEN_ON not in self._state.data.evaluated_splits():
            return None
        return best_journal_entry(self._folder.path, self._state.run.roles[-1])

    def on_evaluate(self, turn: Turn, model: str, scores: Scores) -> None:
        """Compare the student's accuracy on held-out images with the best so far; nothing else counts."""
        run = self._state.run
        if model == run.roles[-1] and CHOSEN_ON in scores and scores[CHOSEN_ON][HEAD] > self._score:
            self._score = scores[CHOSEN_ON][HEAD]
            self._pending = {
                "chosen_on": CHOSEN_ON,
                "turn": self._position.turns,
                "epoch": (turn.step + 1) / run.steps_per_epoch,
                "accuracy": {split: heads[HEAD] for split, heads in scores.items()},
            }

    def writes_weights(self, turn: Turn) -> bool:
        """Return whether the student as it is now is the best so far."""
        return self._pending is not None

    def on_turn_end(self, turn: Turn) -> None:
        """Save the student if it is the best so far; while it is written, no file says which epoch it is of."""
        if self._pending is None:
            return
        network, measurement, self._pending = self._network(), self._pending, None
        if self._state.fabric.is_global_zero:
            self._folder.handle.remove(self._measurement, durable=True)
            save_network(self._state.run, network, self._folder.best, self._folder.handle)
            self.digest = self._folder.handle.digest(self._folder.best / WEIGHTS)
            write_json(self._measurement, measurement, self._folder.handle)

    def _network(self) -> nn.Module:
        """Return the student's network, on the first rank with whole weights; all ranks must call this."""
        run, fabric = self._state.run, self._state.fabric
        module = self._state.modules()[run.student]
        if uses_fsdp(fabric):
            dtype = next(module.parameters()).dtype
            weights = {name: gather(shard, keep=fabric.is_global_zero) for name, shard in module.state_dict().items()}
            if fabric.is_global_zero:
                module = build_saved_models(run)[run.student].to(dtype)
                module.load_state_dict(weights)
        return module.network  # type: ignore[return-value]

    def summary(self) -> dict[str, Any]:
        """Return result.json's entry `best`, if `best/` is the journal's best; refuse weights that were changed."""
        entry = self._best_entry()
        if entry is None or not best_is_saved(self._folder, entry):
            return {}
        if not matches_digest(self._folder.handle, self._folder.best / WEIGHTS, self.digest):
            raise UserError(
                f"{self._folder.best / WEIGHTS} was changed while the run was trained. Remove {self._folder.best}, "
                f"then resume with: spacedkd train --resume {self._folder.path}"
            )
        return {"best": read_best_measurement(self._folder)}


def best_journal_entry(folder: Path, student: str) -> Mapping[str, Any] | None:
    """Return the first journal entry with the student's highest accuracy on held-out images, if there is one."""
    entries = (entry for entry in read_accuracies(folder) if entry["role"] == student)
    held_out = (entry for entry in entries if CHOSEN_ON in entry["accuracy"])
    return max(held_out, key=lambda entry: entry["accuracy"][CHOSEN_ON][HEAD], default=None)


def read_best_measurement(folder: RunFolder) -> dict[str, Any] | None:
    """Return the turn, epoch and accuracy of the student in `best/`; None if it is not there, or not whole."""
    return read_small_json(folder.best / "measured.json", folder.handle) or None


def best_is_saved(folder: RunFolder, entry: Mapping[str, Any]) -> bool:
    """Return whether `best/` has the weights of this journal entry."""
    measurement = read_best_measurement(folder)
    if measurement is None or not folder.handle.exists(folder.best / WEIGHTS):
        return False
    return measurement.get("turn") == entry.get("turn")
