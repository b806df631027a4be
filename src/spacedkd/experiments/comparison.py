"""Finished run folders read as arms of a comparison: accuracies, paired differences and costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spacedkd.duration import Duration
from spacedkd.errors import UserError, unknown
from spacedkd.evaluation.confidence import confidence_interval
from spacedkd.experiments.robustness import compare_evaluations
from spacedkd.experiments.spacing_effect import spacing_effects
from spacedkd.experiments.statistics import Difference, difference
from spacedkd.json_form import to_json
from spacedkd.schedule import Ahead, Schedule, Spaced, Window
from spacedkd.spec import RunSpec, read_spec
from spacedkd.training.folder import RunFolder
from spacedkd.training.result import Result, read_result

COSTS = ("updates", "forward_passes", "backward_passes", "forward_images", "backward_images")


def as_before(path: Path, folders: Sequence[Path], against: str | None) -> tuple[list[Path], str | None]:
    """Runs in the order of the comparison that lies at this path, if one does, and the arm it was made against."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        arms = {Path(run["folder"]).resolve(): arm["label"] for arm in found["arms"] for run in arm["runs"]}
        reference = found["against"]
    except (OSError, ValueError, KeyError, TypeError):
        return [*folders], against
    place = {folder: number for number, folder in enumerate(arms)}
    if against is None and any(arms.get(folder) == reference for folder in folders):
        against = reference
    return sorted(folders, key=lambda folder: place.get(folder, len(place))), against


def find_runs(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Finished and unfinished run folders at or below the paths."""
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"There is no folder {path}. Give run folders, or folders that contain some.")
        folders += sorted(spec.parent for spec in path.rglob("spec.json"))
    folders = list(dict.fromkeys(folder.resolve() for folder in folders))
    finished = [folder for folder in folders if RunFolder(folder).finished()]
    if not finished:
        raise UserError(f"No finished run in {', '.join(str(p) for p in paths)}. Train one with: spacedkd train")
    return finished, [folder for folder in folders if folder not in finished]


def compare(folders: Sequence[Path], against: str | None = None) -> dict[str, Any]:
    """The comparison of finished runs as plain JSON: one arm for each label, in order of first appearance.

    All accuracies are the student's on the test images. `last` is the deepest head after the last epoch, which
    differences are taken of; `best` is at the best epoch, `ensemble` the mean of all heads after the last epoch.
    `spacing` has every spaced arm beside its unspaced partner.
    """
    arms = _arms(folders)
    against = next(iter(arms)) if against is None else against
    if against not in arms:
        raise unknown("arm", against, arms)
    numbers = [_arm(label, runs, arms[against]) for label, runs in arms.items()]
    found = {
        "measured": "student, test images; last = deepest head after the last epoch",
        "best_chosen_on": sorted({result.best_chosen_on for runs in arms.values() for _, result in runs}),
        "against": against,
        "arms": numbers,
        "spacing": spacing_effects(arms, numbers),
    }
    return found | {"evaluation": compare_evaluations(found)}


Runs = list[tuple[RunSpec, Result]]


def _arms(folders: Sequence[Path]) -> dict[str, Runs]:
    """Runs that differ in nothing but the seed are an arm; arms of one name get numbers."""
    arms: dict[tuple[str, str], Runs] = {}
    for folder in folders:
        spec = read_spec(folder)
        what = replace(spec, seed=0).fingerprint()
        arms.setdefault((spec.label or describe(spec), what), []).append((spec, read_result(RunFolder(folder))))
    names = [label for label, _ in arms]
    numbered: dict[str, Runs] = {}
    for place, ((label, _), runs) in enumerate(arms.items()):
        _check_seeds(label, runs)
        number = 1 + names[:place].count(label)
        numbered[f"{label} ({number})" if names.count(label) > 1 else label] = runs
    return numbered


def _check_seeds(label: str, runs: Runs) -> None:
    seen: dict[int, Path] = {}
    for spec, result in runs:
        if spec.seed in seen:
            raise UserError(
                f"Arm {label!r} has seed {spec.seed} twice, in {seen[spec.seed]} and {result.folder}. Leave one out."
            )
        seen[spec.seed] = result.folder


def _by_seed(runs: Runs) -> dict[int, float]:
    return {spec.seed: result.student() for spec, result in runs}


def _gain(runs: Runs, reference: Runs) -> Difference | None:
    """The paired difference to the reference, if this is another arm that was tested on the same images."""
    if runs is reference or _tested_on(runs) != _tested_on(reference):
        return None
    resolution = 1 / reference[0][1].plan["test_images"]
    return difference(_by_seed(runs), _by_seed(reference), resolution)


def _tested_on(runs: Runs) -> tuple[Any, ...]:
    data = runs[0][0].data
    return (data.source, data.root, data.label_column, data.class_list, data.test_split, data.test_part)


def _arm(label: str, runs: Runs, reference: Runs) -> dict[str, Any]:
    specs, results = zip(*runs, strict=True)
    spec: RunSpec = specs[0]
    student = results[0].plan["roles"][-1]
    several_heads = "ensemble" in results[0].accuracy[student]["test"]

    def over_seeds(epoch: str = "last", head: str = "final") -> Any:
        return to_json(confidence_interval([result.student(epoch, head) for result in results]))

    return {
        "label": label,
        "method": spec.method.name,
        "schedule": describe_schedule(spec.schedule) if len(results[0].plan["roles"]) > 1 else None,
        "epochs": spec.epochs,
        "network": spec.network.name,
        "last": over_seeds(),
        "best": over_seeds("best"),
        "ensemble": over_seeds("last", "ensemble") if several_heads else None,
        "ensemble_best": over_seeds("best", "ensemble") if several_heads else None,
        "teacher": _teacher(results),
        "difference": to_json(_gain(runs, reference)),
        "cost": _cost(results),
        "runs": [_run(one, result) for one, result in runs],
    }


def _teacher(results: Sequence[Result]) -> dict[str, Any] | None:
    """The leading role's accuracy, where there is one."""
    leaders = [r.accuracy["teacher"]["test"]["final"]["last"] for r in results if "teacher" in r.accuracy]
    return to_json(confidence_interval(leaders)) if leaders else None


def _cost(results: Sequence[Result]) -> dict[str, float]:
    total = {name: sum(result.cost[name] for result in results) / len(results) for name in COSTS}
    return total | {"seconds": sum(result.seconds for result in results) / len(results)}


def _run(spec: RunSpec, result: Result) -> dict[str, Any]:
    scores = result.accuracy[result.plan["roles"][-1]]["test"]
    return {"seed": spec.seed, "folder": str(result.folder), "heads": scores, "seconds": result.seconds}


def describe(spec: RunSpec) -> str:
    """A name for a run that was given none: its method and schedule.

    >>> describe(RunSpec(schedule=Spaced("1.5ep")))
    'kd, spaced 1.5ep'
    """
    variant = spec.method.options.get("variant")
    alone = spec.method.name == "none" or variant == "plain"
    parts = (spec.method.name, variant, None if alone else describe_schedule(spec.schedule))
    return ", ".join(part for part in parts if part)


def describe_schedule(schedule: Schedule) -> str:
    """A schedule in a few words.

    >>> describe_schedule(Window(Spaced("1.5ep"), Spaced("1st"), "20ep", length="10ep"))
    'spaced 1.5ep from 20ep for 10ep, else online'
    """
    if isinstance(schedule, Ahead):
        return f"constantly {schedule.lead} ahead"
    if isinstance(schedule, Window):
        end = f"to {schedule.stop}" if schedule.stop is not None else f"for {schedule.length}"
        inside, outside = describe_schedule(schedule.inside), describe_schedule(schedule.outside)
        return f"{inside} from {schedule.start} {end}, else {outside}"
    if not isinstance(schedule, Spaced):
        return type(schedule).__name__
    names = {Duration(1, "st"): "online", Duration(100, "%"): "offline"}
    tail = "" if schedule.tail == "teach" else ", tail dropped"
    return names.get(Duration.parse(schedule.interval), f"spaced {schedule.interval}") + tail
