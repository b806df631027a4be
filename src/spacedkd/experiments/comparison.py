"""Finished run folders read as arms of a comparison: accuracies, paired differences and costs."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from typing import Any

from spacedkd.documents import read_json
from spacedkd.errors import Linked, UserError, unknown
from spacedkd.evaluation.confidence import Difference, confidence_interval, difference
from spacedkd.experiments.robustness import compare_evaluations
from spacedkd.experiments.sharing import read_diverged, read_failed
from spacedkd.experiments.spacing_effect import spacing_effects
from spacedkd.files import remove_leftovers, resolved, write_json
from spacedkd.json_form import to_json
from spacedkd.result_form import COUNTED
from spacedkd.run import Run, read_run
from spacedkd.spec import read_spec
from spacedkd.spec_words import describe, describe_schedule
from spacedkd.training.folder import RunFolder


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Keep a comparison; the folders of its runs are written as they are seen from its own, so that all may move."""

    def seen(run: Mapping[str, Any]) -> dict[str, Any]:
        return {**run, "folder": Path(os.path.relpath(run["folder"], path.parent)).as_posix()}

    arms = [{**arm, "runs": [*map(seen, arm["runs"])]} for arm in found["arms"]]
    remove_leftovers(path.parent)
    lost = {name: [*map(seen, found.get(name, ()))] for name in ("diverged", "failed")}
    write_json(path, {**found, "arms": arms, **lost}, path.parent)


def as_before(path: Path, folders: Sequence[Path], against: str | None) -> tuple[list[Path], str | None]:
    """Runs in the order of the comparison that lies at this path, if one does, and the arm it was made against."""
    try:
        found = read_json(path, within=path.parent)
        arms = {_place(path, run["folder"]): str(arm["label"]) for arm in found["arms"] for run in arm["runs"]}
        reference = found["against"]
    except Linked:
        raise
    except (OSError, ValueError, LookupError, TypeError):
        return [*folders], against
    place = {folder: number for number, folder in enumerate(arms)}
    if against is None and any(arms.get(folder) == reference for folder in folders):
        against = reference
    return sorted(folders, key=lambda folder: place.get(folder, len(place))), against


def _place(path: Path, folder: str) -> Path:
    """Where a run of a comparison lies; one that was written with its whole path may have been copied with the rest."""
    parts = Path(folder).parts if Path(folder).is_absolute() else ()
    copies = (path.parent.joinpath(*parts[-last:]) for last in range(len(parts) - 1, 0, -1))
    return resolved(next((copy for copy in copies if copy.exists()), path.parent / folder))


def find_runs(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Finished and unfinished run folders at or below the paths."""
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"There is no folder {path}. Give run folders, or folders that contain some.")
        folders += sorted(spec.parent for spec in path.rglob("spec.json"))
    # A pipeline's teacher lies in a run. "." has a parent only when it is written out.
    folders = [folder for folder in folders if not (folder.absolute().parent / "spec.json").exists()]
    as_given = {folder.resolve(): folder for folder in folders}
    finished = [folder for folder in as_given if RunFolder(folder).finished()]
    if not finished:
        go_on = [f"Go on with: spacedkd train --resume {shlex.quote(str(folder))}" for folder in as_given.values()]
        way = next(iter(go_on), "Train one with: spacedkd train")
        raise UserError(f"No finished run in {', '.join(str(p) for p in paths)}. {way}")
    return finished, [folder for folder in as_given if folder not in finished]


def compare(folders: Sequence[Path], against: str | None = None, unfinished: Sequence[Path] = ()) -> dict[str, Any]:
    """The comparison of finished runs as plain JSON: one arm for each label, in order of first appearance.

    All accuracies are the student's on the test images. `last` is the deepest head after the last epoch, which
    differences are taken of; `best` is at the best epoch, `ensemble` the mean of all heads after the last epoch.
    `leader` is the same as `last` of the role that learns first. `spacing` has every spaced arm beside its unspaced
    partner. Runs that diverged or failed are among the unfinished ones, and only listed.
    """
    arms = _arms(folders)
    against = next(iter(arms)) if against is None else against
    if against not in arms:
        raise unknown("arm", against, arms)
    numbers = [_arm(label, runs, arms[against]) for label, runs in arms.items()]
    found = {
        "measured": "student, test images; last = deepest head after the last epoch",
        "best_chosen_on": sorted({run.best_chosen_on for runs in arms.values() for run in runs}),
        "against": against,
        "arms": numbers,
        "diverged": [*_diverged(unfinished)],
        "failed": [*_failed(unfinished)],
        "spacing": spacing_effects(arms, numbers),
    }
    return found | {"evaluation": compare_evaluations(found)}


def _diverged(folders: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        error = read_diverged(folder)
        if error is not None:
            yield {**_who(folder), "role": error.role, "step": error.step}


def _failed(folders: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        line = read_failed(folder)
        if line is not None:
            yield {**_who(folder), "said": line}


def _who(folder: Path) -> dict[str, Any]:
    """Return how a run that is not finished is listed: its arm, its seed and its folder."""
    spec = read_spec(folder)
    return {"label": spec.label or describe(spec), "seed": spec.seed, "folder": str(folder)}


def _arms(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but the seed are an arm; arms of one name get numbers."""
    arms: dict[tuple[str, str], list[Run]] = {}
    for run in map(read_run, folders):
        what = replace(run.spec, seed=0).fingerprint()
        arms.setdefault((run.label or describe(run.spec), what), []).append(run)
    names = [label for label, _ in arms]
    numbered: dict[str, list[Run]] = {}
    for place, ((label, _), runs) in enumerate(arms.items()):
        for one, other in combinations(runs, 2):
            if one.seed == other.seed:
                raise UserError(
                    f"Arm {label!r} has seed {one.seed} twice, in {one.folder} and {other.folder}. Leave one out."
                )
        number = 1 + names[:place].count(label)
        numbered[f"{label} ({number})" if names.count(label) > 1 else label] = runs
    return numbered


_tested_on = attrgetter("source", "root", "label_column", "class_list", "class_limit", "test_split", "test_part")


def _gain(runs: Sequence[Run], reference: Sequence[Run]) -> Difference | None:
    """The paired difference to the reference, if this is another arm that was tested on the same images."""
    if runs is reference or _tested_on(runs[0].spec.data) != _tested_on(reference[0].spec.data):
        return None
    ours, theirs = ({run.seed: run.student() for run in arm} for arm in (runs, reference))
    return difference(ours, theirs, resolution=1 / reference[0].plan["test_images"])


def _arm(label: str, runs: Sequence[Run], reference: Sequence[Run]) -> dict[str, Any]:
    first = runs[0]
    spec, student = first.spec, first.roles[-1]
    several_heads = "ensemble" in first.accuracy[student]["test"]

    def over_seeds(epoch: str = "last", head: str = "final") -> Any:
        return to_json(confidence_interval([run.student(epoch, head) for run in runs]))

    return {
        "label": label,
        "method": spec.method.name,
        "schedule": None if first.leader is None else describe_schedule(spec.schedule),
        "roles": [*first.roles],
        "epochs": spec.epochs,
        "network": spec.network.name,
        "last": over_seeds(),
        "best": over_seeds("best"),
        "ensemble": over_seeds("last", "ensemble") if several_heads else None,
        "ensemble_best": over_seeds("best", "ensemble") if several_heads else None,
        "leader": _leader(runs),
        "difference": to_json(_gain(runs, reference)),
        "cost": {
            **{name: sum(run.cost[name] for run in runs) / len(runs) for name in COUNTED},
            "seconds": sum(run.seconds for run in runs) / len(runs),
        },
        "computed": {name: sum(run.computed[name] for run in runs) / len(runs) for name in COUNTED},
        "runs": [
            {
                "seed": run.seed,
                "folder": str(run.folder),
                "heads": run.accuracy[student]["test"],
                "seconds": run.seconds,
            }
            for run in runs
        ],
    }


def _leader(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The leading role's accuracy, where there is one."""
    led = [run.accuracy.get(run.leader) for run in runs if run.leader is not None]
    scores = [found["test"]["final"]["last"] for found in led if found is not None]
    return to_json(confidence_interval(scores)) if scores else None
