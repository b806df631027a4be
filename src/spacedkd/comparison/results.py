"""The results of a comparison: accuracies, paired differences and costs of arms, computed from finished runs.

All accuracies are the student's on the test images. `compare_runs` reads run folders as arms, and returns what
comparison.json holds; `spacing_effects` compares every spaced arm with its unspaced partner; `compare_evaluations`
compares the evaluations of all arms.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from typing import Any

from spacedkd.comparison.document import (
    ArmDocument,
    AverageDocument,
    ComparedEvaluations,
    ComparisonDocument,
    CostRatios,
    DivergedRun,
    FailedRun,
    LostRun,
    MetricDocument,
    SpacingEffect,
)
from spacedkd.comparison.job import read_divergence, read_failure
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec, describe, read_spec
from spacedkd.evaluation.accuracy import pool_reliability
from spacedkd.evaluation.document import INSTRUMENTS, EvaluationDocument, metrics, most_common, read
from spacedkd.evaluation.instrument import Metric
from spacedkd.evaluation.statistics import Difference, confidence_interval, holm, paired_difference
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import Run, read_run
from spacedkd.runs.schema import COST_TOTALS, Estimate
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.schedule import describe_schedule


def compare_runs(
    folders: Sequence[Path], against: str | None = None, unfinished: Sequence[Path] = ()
) -> ComparisonDocument:
    """Return the comparison of finished runs: one arm for each label, in order of first appearance.

    Differences are taken to the arm `against`, the first one unless given. Runs that diverged or failed are among the
    `unfinished` ones, and only listed. Refused are two runs of one arm with the same seed.
    """
    arms = _group_by_arm(folders)
    against = next(iter(arms)) if against is None else against
    if against not in arms:
        raise unknown("arm", against, arms)
    check_metrics({label: runs[0].spec for label, runs in arms.items()})
    documents = [_arm(label, runs, arms[against]) for label, runs in arms.items()]
    comparison: ComparisonDocument = {
        "measured": "student, test images; last = deepest head after the last epoch",
        "best_chosen_on": sorted({run.best_chosen_on for runs in arms.values() for run in runs}),
        "against": against,
        "arms": documents,
        "diverged": [*_diverged(unfinished)],
        "failed": [*_failed(unfinished)],
        "spacing": spacing_effects(arms, documents),
        "evaluation": compare_evaluations(documents, against),
    }
    if (spec := arms[against][0].spec).task != "classification":
        comparison["metric"] = spec.metric_title
    return comparison


def check_metrics(specs: Mapping[str, RunSpec]) -> None:
    """Refuse arms that are judged by different metrics, or with other pixels ignored."""
    (first, spec), *others = specs.items()
    for label, other in others:
        for name in ("task", "metric_title", "ignore_index"):
            ours, theirs = getattr(spec, name), getattr(other, name)
            if ours != theirs:
                raise UserError(
                    f"Arms that are compared must have one {name.removesuffix('_title')}: {first} has {ours}, and "
                    f"{label} has {theirs}."
                )


def _diverged(folders: Iterable[Path]) -> Iterator[DivergedRun]:
    for folder in folders:
        error = read_divergence(folder)
        if error is not None:
            yield {**_identify(folder), "role": error.role, "step": error.step}


def _failed(folders: Iterable[Path]) -> Iterator[FailedRun]:
    for folder in folders:
        line = read_failure(folder)
        if line is not None:
            yield {**_identify(folder), "said": line}


def _identify(folder: Path) -> LostRun:
    """Return arm, seed and folder of a run that is not finished."""
    spec = read_spec(folder)
    return {"label": spec.label or describe(spec), "seed": spec.seed, "folder": str(folder)}


def _group_by_arm(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """Return runs by arm: those that differ in nothing but the seed. Arms of one name get numbers."""
    arms: dict[tuple[str, str], list[Run]] = {}
    for run in map(read_run, folders):
        identity = replace(run.spec, seed=0).fingerprint()
        arms.setdefault((run.label or describe(run.spec), identity), []).append(run)
    names = [label for label, _ in arms]
    numbered: dict[str, list[Run]] = {}
    for index, ((label, _), runs) in enumerate(arms.items()):
        for run, other in combinations(runs, 2):
            if run.seed == other.seed:
                raise UserError(
                    f"Arm {label!r} has seed {run.seed} twice, in {run.folder} and {other.folder}. Leave one out."
                )
        number = 1 + names[:index].count(label)
        numbered[f"{label} ({number})" if names.count(label) > 1 else label] = runs
    return numbered


_test_images = attrgetter(
    "source", "root", "label_column", "class_list", "class_limit", "test_split", "test_part", "test_items"
)


def _difference(
    runs: Sequence[Run], reference: Sequence[Run], accuracy: Callable[[Run], float] = Run.score
) -> Difference | None:
    """Return the paired difference to the reference, if this is another arm that was tested on the same images."""
    if runs is reference or _test_images(runs[0].spec.data) != _test_images(reference[0].spec.data):
        return None
    ours, theirs = ({run.seed: accuracy(run) for run in arm} for arm in (runs, reference))
    return paired_difference(ours, theirs, resolution=reference[0].resolution)


def _average(runs: Sequence[Run], reference: Sequence[Run]) -> AverageDocument | None:
    """Return the comparison of an arm's student averages; None if a run has none."""
    if not all(run.keeps_average for run in runs):
        return None
    students, averages = ({run.seed: accuracy(run) for run in runs} for accuracy in (Run.score, Run.average_score))
    gain = paired_difference(averages, students, resolution=runs[0].resolution)
    comparable = all(run.keeps_average for run in reference)
    return {
        "last": to_json(confidence_interval([*averages.values()])),
        "best": to_json(confidence_interval([run.average_score("best") for run in runs])),
        "gain": to_json(gain),
        "difference": to_json(_difference(runs, reference, Run.average_score)) if comparable else None,
    }


def _arm(label: str, runs: Sequence[Run], reference: Sequence[Run]) -> ArmDocument:
    """Return one arm of a comparison."""
    first = runs[0]
    spec, student = first.spec, first.roles[-1]
    several_heads = "ensemble" in first.accuracies[student]["test"]

    def over_seeds(epoch: str = "last", head: str = "final") -> Any:
        return to_json(confidence_interval([run.score(epoch, head) for run in runs]))

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
        "average": _average(runs, reference),
        "leader": _leader(runs),
        "difference": to_json(_difference(runs, reference)),
        "cost": {
            **{name: sum(run.cost[name] for run in runs) / len(runs) for name in COST_TOTALS},
            "seconds": sum(run.seconds for run in runs) / len(runs),
        },
        "computed": {name: sum(run.computed[name] for run in runs) / len(runs) for name in COST_TOTALS},
        "runs": [
            {
                "seed": run.seed,
                "folder": str(run.folder),
                "heads": run.accuracies[student]["test"],
                "seconds": run.seconds,
            }
            for run in runs
        ],
    }


def _leader(runs: Sequence[Run]) -> Estimate | None:
    """Return the accuracy of the role that learns first, where several roles learn."""
    parts = [run.accuracies.get(run.leader) for run in runs if run.leader is not None]
    return _estimate([part["test"]["final"]["last"] for part in parts if part is not None])


def _estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of values with its interval; None where there are none."""
    estimate: Estimate | None = to_json(confidence_interval(values)) if values else None
    return estimate


def spacing_effects(arms: Mapping[str, Sequence[Run]], documents: Sequence[ArmDocument]) -> list[SpacingEffect]:
    """Return every spaced arm that has an unspaced partner; `documents` are the compared arms.

    The partner is the same arm at interval one step or, where there is none, the method's plain variant: self KD and
    its like have one role unspaced, so there the difference is that of spacing and of the second role together.
    Accuracies are means over the seeds that both have, as the difference is.
    """
    first = {label: runs[0] for label, runs in arms.items()}
    document = dict(zip(arms, documents, strict=True))
    by_seed = {label: {run.seed: run.score() for run in runs} for label, runs in arms.items()}
    pairs = [(label, partner) for label in arms if (partner := _partner(label, first)) is not None]
    differences = [paired_difference(by_seed[a], by_seed[b], first[a].resolution) for a, b in pairs]
    corrected = holm([None if difference is None else difference.p for difference in differences])
    names = _short_names([document[spaced] for spaced, _ in pairs])
    return [
        {
            "name": name,
            "method": document[spaced]["method"],
            "variant": first[spaced].variant,
            "spaced": spaced,
            "unspaced": unspaced,
            "unspaced_form": _form(first[unspaced]),
            "interval": document[spaced]["schedule"],
            "accuracy": {
                "unspaced": _mean_over_shared(by_seed[unspaced], by_seed[spaced]),
                "spaced": _mean_over_shared(by_seed[spaced], by_seed[unspaced]),
            },
            "difference": to_json(difference),
            "p_holm": p,
            "cost_ratio": _cost_ratios(document[spaced], document[unspaced]),
        }
        for name, (spaced, unspaced), difference, p in zip(names, pairs, differences, corrected, strict=True)
    ]


def _mean_over_shared(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the mean over the seeds that both have; None where they share none."""
    return _estimate([mine[seed] for seed in sorted(mine.keys() & theirs.keys())])


def _cost_ratios(spaced: ArmDocument, unspaced: ArmDocument) -> CostRatios:
    ours, theirs = spaced["cost"], unspaced["cost"]
    replays = any(arm["computed"]["updates"] != arm["cost"]["updates"] for arm in (spaced, unspaced))
    return {
        "updates": ours["updates"] / theirs["updates"],
        "forward_images": ours["forward_images"] / theirs["forward_images"],
        "seconds": None if replays else ours["seconds"] / theirs["seconds"],
    }


def _form(run: Run) -> str:
    """Return spaced, online, plain (the method with one role) or other."""
    if run.interval is None:
        return "other"
    if run.interval < 2:
        return ("plain", "online")[run.interval]
    return "spaced" if run.interval < run.total_steps else "other"


def _partner(label: str, first: Mapping[str, Run]) -> str | None:
    """Return the arm that differs from a spaced one in the spacing alone, if there is one."""
    run = first[label]
    if _form(run) != "spaced":
        return None
    alike = {label: other for label, other in first.items() if other.all_but_spacing == run.all_but_spacing}
    online = [label for label, other in alike.items() if _form(other) == "online" and other.variant == run.variant]
    plain = [label for label, other in alike.items() if _form(other) == "plain"]
    return next(iter(online + plain), None)


def _short_names(spaced: Sequence[ArmDocument]) -> list[str]:
    """Return the shortest names that tell pairs apart: the method, with the interval, or the spaced arm's label."""
    choices = [(arm["method"], f"{arm['method']} ({arm['schedule']})", arm["label"]) for arm in spaced]
    every = [name for choice in choices for name in choice[:2]]
    return [next((name for name in choice[:2] if every.count(name) == 1), choice[2]) for choice in choices]


def compare_evaluations(arms: Sequence[ArmDocument], against: str) -> ComparedEvaluations | None:
    """Return every metric that was measured of at least one run, for every arm; None if nothing was measured.

    Only equal settings are compared: those of the arm `against`, or else the most common ones.
    """
    unfinished: list[str] = []
    evaluations = {arm["label"]: _evaluations(arm, unfinished) for arm in arms}
    if not any(evaluations.values()):
        return None
    comparable = {arm["label"] for arm in arms if arm["difference"] is not None}
    numbers = {
        label: {seed: metrics(evaluation) for seed, evaluation in runs.items()} for label, runs in evaluations.items()
    }
    keys = dict.fromkeys(key for runs in numbers.values() for measured in runs.values() for key in measured)
    unlike: list[str] = []
    compared = {key: _metric(key, numbers, against, comparable, unlike) for key in keys}
    reference_first = [evaluations[against], *(runs for label, runs in evaluations.items() if label != against)]
    notes = {
        "Measured before the run was finished, and left out": "; ".join(unfinished),
        "Measured with other settings, and left out there": ", ".join(dict.fromkeys(unlike)),
        "Not evaluated": ", ".join(label for label, runs in evaluations.items() if not runs),
    }
    return {
        "metrics": compared,
        "reliability": {
            label: pool_reliability([evaluation["instruments"]["accuracy"] for evaluation in runs.values()])
            for label, runs in evaluations.items()
            if runs
        },
        "settings": _describe_settings([evaluation for runs in reference_first for evaluation in runs.values()]),
        "notes": [f"{problem}: {labels}." for problem, labels in notes.items() if labels],
    }


def _evaluations(arm: ArmDocument, unfinished: list[str]) -> Mapping[int, EvaluationDocument]:
    """Return the evaluations of an arm's runs after their last epoch, by seed; add all others to the unfinished."""
    every = {run["seed"]: read(Path(run["folder"])) for run in arm["runs"]}
    done = {
        seed: evaluation
        for seed, evaluation in every.items()
        if evaluation and evaluation["origin"].get("epochs") is not None
    }
    others = [seed for seed, evaluation in every.items() if evaluation and seed not in done]
    unfinished += [f"{arm['label']}, seed {seed}" for seed in others]
    return done


Numbers = Mapping[str, Mapping[int, Mapping[str, Metric]]]
"""label -> seed -> key -> metric"""


def _metric(key: str, arms: Numbers, against: str, comparable: set[str], unlike: list[str]) -> MetricDocument:
    """Return one metric of all arms; arms that have it with other settings are added to the unlike."""
    measured = {
        label: {seed: by_key[key] for seed, by_key in runs.items() if key in by_key} for label, runs in arms.items()
    }
    every = [metric for runs in measured.values() for metric in runs.values()]
    sample = most_common([*measured[against].values()] or every)
    values: dict[str, dict[int, float]] = {}
    for label, runs in measured.items():
        values[label] = {seed: metric.value for seed, metric in runs.items() if metric.settings == sample.settings}
        if len(values[label]) < len(runs):
            unlike.append(label)
    differences = {label: paired_difference(values[label], values[against], sample.resolution) for label in comparable}
    return {
        "title": sample.title,
        "unit": sample.unit,
        "better": sample.better,
        "arms": {
            label: {
                "estimate": to_json(confidence_interval([*by_seed.values()])),
                "difference": to_json(differences.get(label)),
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


def find_runs(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return finished and unfinished run folders at or below the paths; refuse paths without a finished run."""
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"There is no folder {path}. Give run folders, or folders that contain some.")
        folders += sorted(spec.parent for spec in path.rglob("spec.json"))
    # A pipeline's teacher is inside of a run. "." has a parent only when it is written out.
    folders = [folder for folder in folders if not (folder.absolute().parent / "spec.json").exists()]
    as_given = {folder.resolve(): folder for folder in folders}
    finished = [folder for folder in as_given if RunFolder(folder).finished()]
    if not finished:
        resume = [f"Resume one with: spacedkd train --resume {shlex.quote(str(run))}" for run in as_given.values()]
        way_out = next(iter(resume), "Train one with: spacedkd train")
        raise UserError(f"No finished run in {', '.join(map(str, paths))}. {way_out}")
    return finished, [folder for folder in as_given if folder not in finished]
