"""The student of its best epoch, kept beside the last where held-out images choose it; test images never do."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from spacedkd.documents import read_small_json
from spacedkd.errors import UserError
from spacedkd.files import write_json
from spacedkd.run import accuracies, fits
from spacedkd.training.checkpoint import Position
from spacedkd.training.folder import RunFolder
from spacedkd.training.mending import saved_models, write_student
from spacedkd.training.setup import Scores, Setup
from spacedkd.training.sharding import is_sharding, whole

JUDGE, HEAD = "holdout", "final"
WEIGHTS = "model.safetensors"


class Best:
    """Whether an epoch of the student is the best so far. The journal alone decides it, so a resumed run does the same.

    It is written before anything that says the run is further than its epoch: whoever is taken back to before comes to
    it once more.
    """

    def __init__(self, setup: Setup, folder: RunFolder) -> None:
        self._setup, self._folder = setup, folder
        self._measured = folder.best / "measured.json"
        self._score = -math.inf
        self.digest = ""
        """of the weights in `best/`, where there is one"""
        self._due: dict[str, Any] | None = None

    def go_on(self, position: Position) -> None:
        """Take up what was the best when the run was left; all processes hear it from the first, whose journal is.

        A `best/` that is not the one of the checkpoint is refused, unless the run will write it again.
        """
        found = self._line() if self._setup.fabric.is_global_zero else None
        if found is not None:
            self._check(found, position)
        score = -math.inf if found is None else found["accuracy"][JUDGE][HEAD]
        self._score = float(self._setup.fabric.broadcast(score))

    def _check(self, line: Mapping[str, Any], position: Position) -> None:
        """Refuse a `best/` that the run did not write: until the checkpoint it is that of this line of the journal."""
        weights, measured = self._folder.best / WEIGHTS, read_measured(self._folder) or {}
        kept = is_kept(self._folder, line)
        self.digest = self._folder.handle.digest(weights) if kept else ""
        turn = measured.get("turn", math.inf)
        written_later = isinstance(turn, int | float) and turn > position.turns  # it is about to be written again
        if position.best_digest and not written_later and self.digest != position.best_digest:
            raise UserError(
                f"{weights} was changed or damaged: it is not the best student of this run. Remove {self._folder.best} "
                f"to go on without it, or begin again with: spacedkd train --resume {self._folder.path} --restart"
            )

    def _line(self) -> Mapping[str, Any] | None:
        if JUDGE not in self._setup.data.evaluated():
            return None
        return best_line(self._folder.path, self._setup.plan.roles[-1])

    def note(self, role: str, turns: int, epoch: float, scores: Scores) -> None:
        """How good a role was after so many turns; only the student on held-out images counts."""
        if role == self._setup.plan.roles[-1] and JUDGE in scores and scores[JUDGE][HEAD] > self._score:
            self._score = scores[JUDGE][HEAD]
            self._due = {"chosen_on": JUDGE, "turn": turns, "epoch": epoch, "accuracy": _deepest(scores)}

    @property
    def is_due(self) -> bool:
        """Whether the student as it is now is to be kept; all processes say the same."""
        return self._due is not None

    def keep(self) -> None:
        """Keep it, if it is due; while it is being written nothing says whose weights these are."""
        if self._due is None:
            return
        network, due, self._due = self._network(), self._due, None
        if self._setup.fabric.is_global_zero:
            self._folder.handle.remove(self._measured, durable=True)
            write_student(self._setup.plan, network, self._folder.best, self._folder.handle)
            self.digest = self._folder.handle.digest(self._folder.best / WEIGHTS)
            write_json(self._measured, due, self._folder.handle)

    def _network(self) -> nn.Module:
        """The student as one process can have it."""
        plan, fabric = self._setup.plan, self._setup.fabric
        module = self._setup.modules()[plan.student]
        if is_sharding(fabric):
            kind = next(module.parameters()).dtype
            state = {name: whole(one, keep=fabric.is_global_zero) for name, one in module.state_dict().items()}
            if fabric.is_global_zero:
                module = saved_models(plan)[plan.student].to(kind)
                module.load_state_dict(state)
        return module.network  # type: ignore[return-value]

    def kept(self) -> dict[str, Any]:
        """For the result: what lies in `best/`, if it is what the journal says is the best."""
        found = self._line()
        if found is None or not is_kept(self._folder, found):
            return {}
        if not fits(self._folder.handle, self._folder.best / WEIGHTS, self.digest):
            raise UserError(
                f"{self._folder.best / WEIGHTS} was changed while the run was trained. Remove {self._folder.best}, "
                f"then go on without it: spacedkd train --resume {self._folder.path}"
            )
        return {"best": read_measured(self._folder)}


def _deepest(scores: Scores) -> dict[str, float]:
    return {part: heads[HEAD] for part, heads in scores.items()}


def best_line(folder: Path, student: str) -> Mapping[str, Any] | None:
    """Of the journal in a folder: the first line with the student's highest accuracy on held-out images, if any."""
    lines = (line for line in accuracies(folder) if line["role"] == student and JUDGE in line["accuracy"])
    return max(lines, key=lambda line: line["accuracy"][JUDGE][HEAD], default=None)


def read_measured(folder: RunFolder) -> dict[str, Any] | None:
    """What `best/` says of itself; None where it is not there whole."""
    return read_small_json(folder.best / "measured.json", folder.handle) or None


def is_kept(folder: RunFolder, line: Mapping[str, Any]) -> bool:
    """Whether `best/` has the weights of this line of the journal."""
    found = read_measured(folder)
    if found is None or not folder.handle.exists(folder.best / WEIGHTS):
        return False
    return found.get("turn") == line.get("turn")
