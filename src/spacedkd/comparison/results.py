"""Finished run folders read as arms of a comparison: accuracies, paired differences and costs."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from typing import Any

from spacedkd.comparison.teacher_sharing import read_diverged, read_failed
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import describe, read_spec
from spacedkd.evaluation.accuracy import pool_reliability
from spacedkd.evaluation.document import EvaluationDocument, metrics, most_common, read
from spacedkd.evaluation.instrument import Metric
from spacedkd.evaluation.registry import INSTRUMENTS
from spacedkd.evaluation.statistics import Difference, confidence_interval, holm, paired_difference
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import Run, read_run
from spacedkd.runs.schema import COST_TOTALS
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Linked, UserError, unknown
from spacedkd.runtime.files import remove_leftovers, resolve_links, write_json
from spacedkd.schedule import describe_schedule

# What spacing did: every spaced arm beside the arm that differs from it in nothing but the spacing.

RATIOS = ("updates", "forward_images", "seconds")
"""the costs that are given as multiples of the partner's"""


def spacing_effects(arms: Mapping[str, Sequence[Run]], numbers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every spaced arm that has an unspaced partner, as plain JSON; `numbers` is what the comparison says of the arms.

    The partner is the same arm at interval one step or, where there is none, the method's plain variant: self KD and
    its like have one role unspaced, so there the difference is that of spacing and of the second role together.
    Accuracies are means over the seeds that both have, as the difference is.
    """
    first = {label: runs[0] for label, runs in arms.items()}
    said = dict(zip(arms, numbers, strict=True))
    by_seed = {label: {run.seed: run.student() for run in runs} for label, runs in arms.items()}
    pairs = [(label, partner) for label in arms if (partner := _partner(label, first)) is not None]
    gains = [paired_difference(by_seed[a], by_seed[b], 1 / first[a].plan["test_images"]) for a, b in pairs]
    corrected = holm([None if gain is None else gain.p for gain in gains])
    names = _names([said[spaced] for spaced, _ in pairs])
    return [
        {
            "name": name,
            "method": said[spaced]["method"],
            "variant": first[spaced].variant,
            "spaced": spaced,
            "unspaced": unspaced,
            "unspaced_form": _kind(first[unspaced]),
            "interval": said[spaced]["schedule"],
            "accuracy": {
                "unspaced": _over(by_seed[unspaced], by_seed[spaced]),
                "spaced": _over(by_seed[spaced], by_seed[unspaced]),
            },
            "difference": to_json(gain),
            "p_holm": p,
            "cost_ratio": _ratios(said[spaced], said[unspaced]),
        }
        for name, (spaced, unspaced), gain, p in zip(names, pairs, gains, corrected, strict=True)
    ]


def _over(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Any:
    """The mean over the seeds that both have; None where they share none."""
    shared = [mine[seed] for seed in sorted(mine.keys() & theirs.keys())]
    return to_json(confidence_interval(shared)) if shared else None


def _ratios(spaced: Mapping[str, Any], unspaced: Mapping[str, Any]) -> dict[str, float | None]:
    """Costs as multiples of the partner's; of seconds there is none where one of them did not train its teacher."""
    ratios: dict[str, float | None] = {name: spaced["cost"][name] / unspaced["cost"][name] for name in RATIOS}
    if any(arm["computed"]["updates"] != arm["cost"]["updates"] for arm in (spaced, unspaced)):
        ratios["seconds"] = None
    return ratios


def _kind(run: Run) -> str:
    """spaced, online, plain (the method with one role) or other."""
    if run.interval is None:
        return "other"
    if run.interval < 2:
        return ("plain", "online")[run.interval]
    return "spaced" if run.interval < run.total_steps else "other"


def _partner(label: str, first: Mapping[str, Run]) -> str | None:
    run = first[label]
    if _kind(run) != "spaced":
        return None
    alike = {other: found for other, found in first.items() if found.all_but_spacing == run.all_but_spacing}
    online = [other for other, found in alike.items() if _kind(found) == "online" and found.variant == run.variant]
    plain = [other for other, found in alike.items() if _kind(found) == "plain"]
    return next(iter(online + plain), None)


def _names(spaced: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the pairs apart, as short as can be: the method, with the interval, or the spaced arm's label."""
    choices = [(arm["method"], f"{arm['method']} ({arm['schedule']})", arm["label"]) for arm in spaced]
    every = [name for choice in choices for name in choice[:2]]
    return [next((name for name in choice[:2] if every.count(name) == 1), choice[2]) for choice in choices]


# The evaluations of a comparison's runs side by side: means over seeds, and differences paired by seed.


def compare_evaluations(comparison: Mapping[str, Any]) -> dict[str, Any] | None:
    """Every number that was measured of at least one run, for every arm; None where nothing was measured.

    Only equal settings are compared: those of the arm that differences are taken to, or else the most common ones.
    """
    stale: list[str] = []
    arms = {arm["label"]: _evaluated(arm, stale) for arm in comparison["arms"]}
    if not any(arms.values()):
        return None
    against = comparison["against"]
    comparable = {arm["label"] for arm in comparison["arms"] if arm["difference"] is not None}
    numbers = {label: {seed: metrics(found) for seed, found in runs.items()} for label, runs in arms.items()}
    keys = dict.fromkeys(key for runs in numbers.values() for one in runs.values() for key in one)
    other: list[str] = []
    reference_first = [arms[against], *(runs for label, runs in arms.items() if label != against)]
    compared = {
        "metrics": {key: _metric(key, numbers, against, comparable, other) for key in keys},
        "reliability": {
            label: pool_reliability([evaluation["instruments"]["accuracy"] for evaluation in runs.values()])
            for label, runs in arms.items()
            if runs
        },
        "settings": _describe_settings([found for runs in reference_first for found in runs.values()]),
    }
    notes = {
        "Measured before the run was finished, and left out": "; ".join(stale),
        "Measured with other settings, and left out there": ", ".join(dict.fromkeys(other)),
        "Not evaluated": ", ".join(label for label, runs in arms.items() if not runs),
    }
    return {**compared, "notes": [f"{what}: {whom}." for what, whom in notes.items() if whom]}


def _evaluated(arm: Mapping[str, Any], stale: list[str]) -> Mapping[int, EvaluationDocument]:
    """What was measured of the arm's runs as they are now, after their last epoch, by seed."""
    every = {run["seed"]: read(Path(run["folder"])) for run in arm["runs"]}
    done = {seed: found for seed, found in every.items() if found and found["origin"].get("epochs") is not None}
    stale += [f"{arm['label']}, seed {seed}" for seed, found in every.items() if found and seed not in done]
    return done


Numbers = Mapping[str, Mapping[int, Mapping[str, Metric]]]
"""of every arm, by seed and name"""


def _metric(key: str, arms: Numbers, against: str, comparable: set[str], other: list[str]) -> dict[str, Any]:
    measured = {label: {seed: one[key] for seed, one in runs.items() if key in one} for label, runs in arms.items()}
    every = [metric for runs in measured.values() for metric in runs.values()]
    sample = most_common([*measured[against].values()] or every)
    values: dict[str, dict[int, float]] = {}
    for label, found in measured.items():
        values[label] = {seed: one.value for seed, one in found.items() if one.settings == sample.settings}
        if len(values[label]) < len(found):
            other.append(label)
    gains = {label: paired_difference(values[label], values[against], sample.resolution) for label in comparable}
    return {
        "title": sample.title,
        "unit": sample.unit,
        "better": sample.better,
        "arms": {
            label: {
                "estimate": to_json(confidence_interval([*by_seed.values()])),
                "difference": to_json(gains.get(label)),
                "by_seed": {str(seed): value for seed, value in by_seed.items()},
            }
            for label, by_seed in values.items()
            if by_seed
        },
    }


def _describe_settings(evaluations: Sequence[EvaluationDocument]) -> dict[str, str]:
    """Return how each instrument was set, in a sentence, as the first run that used it has it."""
    entries = {
        instrument: [
            evaluation["instruments"][instrument.name]
            for evaluation in evaluations
            if instrument.name in evaluation["instruments"]
        ]
        for instrument in INSTRUMENTS
    }
    return {instrument.name: instrument.describe(used) for instrument, used in entries.items() if used}


# Finished run folders read as arms of a comparison: accuracies, paired differences and costs.


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
    return resolve_links(next((copy for copy in copies if copy.exists()), path.parent / folder))


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
    return paired_difference(ours, theirs, resolution=1 / reference[0].plan["test_images"])


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
            **{name: sum(run.cost[name] for run in runs) / len(runs) for name in COST_TOTALS},
            "seconds": sum(run.seconds for run in runs) / len(runs),
        },
        "computed": {name: sum(run.computed[name] for run in runs) / len(runs) for name in COST_TOTALS},
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
