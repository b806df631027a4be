"""A request to export a run, which is checked before torch is imported."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spacedkd.exporting import model_hub
from spacedkd.runs.result import Run, read_run
from spacedkd.runtime.errors import UserError, install_command

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class ExportRequest:
    """The settings of an export; see `export`."""

    run: Path
    to: Path
    license: str | None = None
    average: bool = False
    best: bool = False
    onnx: bool = False
    push: str | None = None
    private: bool = False

    def check(self) -> Run:
        """Return the run to export; refuse settings that cannot be done."""
        if self.private and self.push is None:
            raise UserError("--private is about --push OWNER/NAME: add it, or leave --private out.")
        if self.average and self.best:
            raise UserError("--average and --best are two students: export one of them.")
        if self.license is not None and not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", self.license):
            raise UserError(
                "--license wants the hub's name of one, such as apache-2.0, mit, cc-by-4.0 or other; "
                f"got {self.license!r}."
            )
        if self.to.exists() and (not self.to.is_dir() or any(self.to.iterdir())):
            upload = f" If it is this export already: hf upload {self.push} {self.to}" if self.push is not None else ""
            raise UserError(f"{self.to} exists, and nothing is overwritten: choose another --to, or remove it.{upload}")
        if self.onnx and (missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]):
            raise UserError(f"--onnx needs {', '.join(missing)}: {install_command('onnx')}")
        run = read_run(self.run)
        if run.spec.task != "classification":
            raise UserError(
                f"export writes classifiers, and the task of {self.run} is {run.spec.task}: its weights are in "
                f"{self.run / 'student'}, which spacedkd.load_student opens."
            )
        if self.average and "average" not in run.accuracy:
            raise UserError(f"{self.run} has no average: it was trained without --average. Leave --average out.")
        if self.best and "best" not in run.plan:
            raise UserError(f"{self.run} has no student of its best epoch: it was trained without --holdout.")
        if self.push is not None:
            model_hub.check_possible(self.push)
        return run
