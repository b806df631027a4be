"""A finished run, as its folder tells it: the spec, what was reached, what it cost.

Training, comparisons, evaluations and reports all read runs here. Roles are known by their place: the first of several
leads, the last is the student.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from spacedkd.config.serialization import to_json
from spacedkd.config.spec import Anew, RunSpec, read_spec, with_extensions
from spacedkd.runs.journal import Curve, Curves, check_result, measured, read_curves
from spacedkd.runtime.documents import read_journal, read_json, read_small_json
from spacedkd.runtime.errors import Linked, UserError, first_line
from spacedkd.runtime.files import Folder
from spacedkd.schedule import Spaced, steps_of

# A finished run, as its folder tells it: the spec, what was reached, what it cost.

# Neither what a run is called, nor its seed, nor where and how often it is measured decides its last accuracy.
# Nor does who trained the teacher.
_IRRELEVANT = (
    *("label", "seed", "engine", "schedule", "evaluate_every", "save_every", "log_every", "log"),
    *("record", "teacher_path"),
)


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    spec: RunSpec
    accuracy: Mapping[str, Any]
    """role (or "average", the student's moving average) -> part of the data -> head -> last, best, best_epoch"""
    best_chosen_on: str
    cost: Mapping[str, Any]
    seconds: float
    plan: Mapping[str, Any]
    """roles, learners, steps_per_epoch, total_steps, test_images"""
    environment: Mapping[str, Any]
    fingerprint: str
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the journal, and of the weights in student/, average/ and best/; runs of earlier versions have none"""

    def student(self, epoch: str = "last", head: str = "final", part: str = "test") -> float:
        """The student's accuracy; of the deepest head after the last epoch on the test images unless told otherwise."""
        return float(self.accuracy[self.roles[-1]][part][head][epoch])

    @property
    def label(self) -> str:
        return self.spec.label

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def roles(self) -> Sequence[str]:
        """From the one that leads to the student."""
        roles: Sequence[str] = self.plan["roles"]
        return roles

    @property
    def computed(self) -> Mapping[str, Any]:
        """What was computed in this run itself: less than it costs, where it followed a recorded path."""
        computed: Mapping[str, Any] = self.plan.get("computed_here", self.cost)
        return computed

    @property
    def leader(self) -> str | None:
        """Who learns first, where there is more than one role."""
        return self.roles[0] if len(self.roles) > 1 else None

    @property
    def shares_one_model(self) -> bool:
        """Whether several roles are one network."""
        learners = self.plan["learners"]
        return len({*learners.values()}) < len(learners)

    @property
    def steps_per_epoch(self) -> int:
        return int(self.plan["steps_per_epoch"])

    @property
    def total_steps(self) -> int:
        return int(self.plan["total_steps"])

    @cached_property
    def journal(self) -> Curves:
        """What the journal says of every role, read once."""
        check_journal(self.folder, self.digests)
        return read_curves(self.folder, self.roles)

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Accuracy of the deepest head on the test images after each evaluated epoch, for each role."""
        return self.journal.accuracy

    @property
    def variant(self) -> str | None:
        """Of the method, where it has variants."""
        variant: str | None = self.spec.method.options.get("variant")
        return variant

    @property
    def interval(self) -> int | None:
        """In steps; 0 where the method's plain variant has one role only, None where there is no one interval."""
        if len(self.roles) == 1 or self.spec.schedule is None:
            return 0 if len(self.roles) == 1 and self.variant == "plain" else None
        asked = (self.spec.schedule, self.spec.extends, self.steps_per_epoch, self.total_steps)
        schedule = with_extensions(*asked)
        parts = schedule.parts if isinstance(schedule, Anew) else (schedule,)
        found = {steps_of(part.interval) if isinstance(part, Spaced) else None for part in parts}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def all_but_spacing(self) -> str:
        """Everything that decides the numbers except the schedule and the variant: equal for runs to be paired."""
        written = to_json(self.spec)
        rest = {key: value for key, value in written.items() if key not in _IRRELEVANT}
        options = {key: value for key, value in written["method"]["options"].items() if key != "variant"}
        rest["method"] = {"name": self.spec.method.name, "options": options}
        rest["teacher"] = written["teacher"] or written["network"]
        rest["processes"] = self.spec.engine.processes
        rest["roles"] = max(2, len(self.roles))  # a chain of three is not two with another interval
        return json.dumps(rest, sort_keys=True)


def read_run(folder: Path | str) -> Run:
    """The finished run of a folder."""
    folder = Path(folder)
    path = folder / "result.json"
    if not path.exists() and not (folder / "spec.json").exists():
        raise UserError(f"There is no run in {folder}: it has no spec.json. Name the folder of one run.")
    if not path.exists():
        raise UserError(f"The run in {folder} is not finished. Go on with: spacedkd train --resume {folder}")
    spec = read_spec(folder)
    known = {"digests": {}, **_read_result(folder)}
    return Run(folder, spec, **{field.name: known[field.name] for field in fields(Run)[2:]})


def _read_result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    try:
        written: dict[str, Any] = read_json(path, within=folder)
        check_result(written)
    except Linked:
        raise
    except (OSError, ValueError) as error:
        why = first_line(error).removesuffix(".")
        raise UserError(
            f"{path} cannot be read as a result: {why}. Delete it, then: spacedkd train --resume {folder}"
        ) from None
    return written


def read_digests(folder: Path) -> Mapping[str, str]:
    """The digests in a run's result.json; none where it has no such file, or one of an earlier version."""
    digests = read_small_json(folder / "result.json", folder).get("digests")
    return digests if isinstance(digests, Mapping) else {}


def fits(folder: Folder, path: Path, digest: str | None) -> bool:
    """Whether a file of a run has this digest; without one any file will do."""
    if digest is None:
        return True
    try:
        return folder.digest(path) == digest
    except FileNotFoundError:
        return False


def check_journal(folder: Path, digests: Mapping[str, str]) -> None:
    """Refuse a journal that is not the one that a finished run ended with."""
    path = folder / "journal.jsonl"
    if not fits(Folder(folder), path, digests.get("journal")):
        raise UserError(
            f"{path} was changed or damaged: it is not the journal that this run ended with. Mend it with: spacedkd "
            f"train --resume {folder}"
        )


def check_weights(file: Path) -> None:
    """Refuse weights in the student/, average/ or best/ of a finished run that are not those it ended with.

    Links are refused, too, in the folder of any run. Weights that lie elsewhere are not looked at.
    """
    place, run = file.parent, file.parent.parent
    if place.name not in ("student", "average", "best") or not (run / "spec.json").exists():
        return
    Folder(run).refuse_links([f"{place.name}/", "result.json"])
    digests = _read_result(run).get("digests") if (run / "result.json").exists() else None
    if not digests or fits(Folder(run), file, digests.get(place.name, "")):
        return
    if place.name == "best":  # no checkpoint has it
        way_out = f"Remove {place} if the last student will do, or train the run again with --restart"
    else:
        way_out = "Make it again with"
    raise UserError(
        f"{file} was changed or damaged: it is not the student that this run ended with. {way_out}: spacedkd train "
        f"--resume {run}{' --restart' if place.name == 'best' else ''}"
    )


def accuracies(folder: Path) -> list[Mapping[str, Any]]:
    """Every line of a run's journal that says how good a role was, each as it must be."""
    path = folder / "journal.jsonl"
    try:
        return [*measured(read_journal(path, within=folder))]
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} cannot be read as a journal: {error}.") from None


def result(
    folder: Path, cost: Mapping[str, Any], seconds: float, plan: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """What result.json says of a run that has ended: its accuracies are read off the journal."""
    spec = read_spec(folder)
    accuracy, judge = summarise(accuracies(folder))
    identity = {"label": spec.label, "seed": spec.seed, "fingerprint": spec.fingerprint()}
    scores = {"accuracy": accuracy, "best_chosen_on": judge}
    return identity | scores | {"cost": cost, "seconds": seconds, "plan": plan, "environment": environment}


def summarise(entries: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], str]:
    """Last and best accuracy of every role, part and head, and the part on which the best epoch was chosen.

    The best epoch of a head is its first with the highest accuracy on the held-out images, or, where none were
    held out, on the test images themselves.
    """
    measured: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["event"] == "accuracy":
            measured.setdefault(entry["role"], []).append(entry)
    judge = "holdout" if any("holdout" in e["accuracy"] for es in measured.values() for e in es) else "test"
    return {role: _summary(found, judge) for role, found in measured.items()}, judge


def _summary(found: Sequence[Mapping[str, Any]], judge: str) -> dict[str, dict[str, dict[str, float]]]:
    last: dict[str, dict[str, float]] = found[-1]["accuracy"]
    best = {head: max(found, key=lambda entry: entry["accuracy"][judge][head]) for head in last[judge]}
    return {
        part: {
            head: {"last": heads[head], "best": one["accuracy"][part][head], "best_epoch": one["epoch"]}
            for head, one in best.items()
        }
        for part, heads in last.items()
    }
