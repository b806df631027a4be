"""Sentences about a comparison: results, costs and settings of its arms, and what spacing did to each method.

Every "better" and "worse" follows from an interval, never from a mean alone (`verdict`).
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from spacedkd.comparison.document import Arm, ArmDocument, SpacingEffect
from spacedkd.config.spec import NetworkSpec, RunSpec
from spacedkd.reporting.formatting import (
    TIMES,
    bounds,
    count,
    duration,
    estimate,
    interval_and_p,
    join_words,
    plural,
    points,
    ratio,
    value_range,
)
from spacedkd.runs.schema import Interval, PairedDifference

SECOND_HALF = (
    "Axes have room for all that comes in the second half of the run; what lies beyond is cut off, and in the numbers."
)


def losses_caption(several: bool) -> str:
    """Return the caption of the pictures of losses, of several seeds or of one."""
    mean = "; of several seeds the mean" if several else ""
    return (
        "Each term as it enters the sum that is minimised, its weight included, on the batch at which it was logged"
        f"{mean}. Where more than a hundred were logged, neighbours give way to their mean. Axes have room for all "
        "that comes after the first quarter of the run; what lies beyond is cut off, and in the numbers."
    )


def verdict(difference: Interval | None) -> str | None:
    """Return `better` or `worse` where the whole interval is on one side of zero; None where there is no interval."""
    if difference is None or not bounds(difference):
        return None
    low, high = bounds(difference)
    if low > 0:
        return "better"
    return "worse" if high < 0 else "no clear difference"


def method_and_schedule(arm: ArmDocument) -> str:
    """Return an arm's method, and its schedule where more than one role learns."""
    return ", ".join(filter(None, (arm["method"], arm["schedule"])))


def leader_name(arms: Sequence[ArmDocument]) -> str:
    """Return the name of the role that leads: its own name where all arms agree."""
    names = {arm["roles"][0] for arm in arms if len(arm["roles"]) > 1}
    return names.pop() if len(names) == 1 else "teacher"


def shared_seeds(arms: Sequence[ArmDocument]) -> str:
    """Return which seeds arms are compared over, where they have different ones; else nothing."""
    seeds = {frozenset(run["seed"] for run in arm["runs"]) for arm in arms}
    return ", over the seeds that both arms have" if len(seeds) > 1 else ""


def finding(pair: str, difference: PairedDifference | None) -> str:
    """Return how far one arm is from another, with everything needed to judge it."""
    if difference is None:
        return f"{pair}: no seed in common, so no difference can be given."
    judged = verdict(difference)
    gain = f"{pair}: {points(difference['mean'])} points"
    if judged is None:
        return f"{gain} on the only seed they share; one seed gives no interval, so this may be chance."
    return f"{gain} (95 % interval {interval_and_p(difference)}, {plural(difference['n'], 'seed')}): {judged}."


def headline(arms: Sequence[Arm], against: str) -> str:
    """Return the outcome in one sentence."""
    judged: dict[str | None, list[str]] = {}
    for arm in arms:
        if arm.label != against:
            judged.setdefault(verdict(arm.numbers["difference"]), []).append(arm.label)
    without_interval = judged.pop(None, [])
    if not judged:
        return f"No interval can be given: no arm shares two seeds with {against}, so none is called better or worse."
    parts = [f"{_few(judged[word])} did {word} than {against}" for word in ("better", "worse") if word in judged]
    unclear = judged.get("no clear difference", [])
    if not parts:
        which = "the" if len(unclear) == 1 else "every"
        parts = [f"No clear difference: {which} interval against {against} includes zero"]
    elif unclear:
        parts.append(f"no clear difference for {_few(unclear)}")
    if without_interval:
        parts.append(f"no interval can be given for {_few(without_interval)}")
    return "; ".join(parts) + "."


def metric(arms: Sequence[Arm]) -> str:
    """Return what the arms are judged by: accuracy, or the metric of another task."""
    return arms[0].first.spec.metric_title


def metric_title(arms: Sequence[Arm]) -> str:
    """Return the same as the beginning of a sentence."""
    return f"{metric(arms)[0].upper()}{metric(arms)[1:]}"


def accuracies_reached(arm: Arm) -> str:
    """Return the accuracies of an arm's student and leader, in a sentence."""
    student, leader, seeds = arm.first.roles[-1], arm.first.leader, len(arm.runs)
    epochs = plural(arm.first.spec.epochs, "epoch")
    mean = f", mean over {seeds} seeds" if seeds > 1 else ""
    reached = f"{estimate(arm.numbers['last'])} %"
    if arm.first.spec.task != "classification":
        reached = f"{metric([arm])} {reached}"
    sentence = f"The {student} reached {reached} on the test images after {epochs}{mean}"
    by_leader = arm.numbers["leader"]
    if leader is None or by_leader is None:
        return f"{sentence}."
    return f"{sentence}; the {leader} {estimate(by_leader)} %."


def facts(arm: Arm) -> Iterator[str]:
    """Yield sentences about what was trained, how, and what it took."""
    run, spec, cost = arm.first, arm.first.spec, arm.numbers["cost"]
    yield f"Method: {method_and_schedule(arm.numbers)}."
    if spec.task != "classification":
        yield f"Task: {spec.task}, judged by {spec.metric_title}, which is in percent everywhere."
    if run.leader is not None and run.interval:
        others = join_words([f"the {role}" for role in run.roles[1:]])
        yield f"Turns: the {run.leader} learns {plural(run.interval, 'step')}, then {others} the same ones, and so on."
    if spec.data.label_noise:
        yield (
            f"Labels: {100 * spec.data.label_noise:g} % of the training labels are wrong (seeded, the same for every "
            "run); those to test on are not."
        )
    rate = f"{spec.optimizer.name}, learning rate {spec.optimizer.lr:g} ({spec.rate.shape})"
    yield f"Updates: {rate}, batches of {count(spec.batch_size)}, {plural(run.steps_per_epoch, 'step')} an epoch."
    images = count(cost["forward_images"])
    yield f"Cost: {plural(cost['updates'], 'update')}, {images} images seen, {duration(cost['seconds'])}."


def caution(differences: Sequence[PairedDifference | None]) -> str | None:
    """Return a warning about many comparisons at once: of 95 % intervals around nothing, one in twenty misses it."""
    made = sum(difference is not None and difference["n"] > 1 for difference in differences)
    if made < 2:
        return None
    missing = round(0.05 * made)
    some = "one" if missing < 2 else f"about {missing}"
    return f"Each interval stands for its own comparison; among {made} of them {some} may miss zero by chance."


def setting(arms: Sequence[Arm]) -> str:
    """Return what was compared, in one sentence."""
    specs = [arm.first.spec for arm in arms]
    data = join_words(_distinct([data_name(spec) for spec in specs]))
    networks = join_words(_distinct([_networks(arm) for arm in arms]))
    seeds, epochs = value_range([len(arm.runs) for arm in arms]), value_range([spec.epochs for spec in specs])
    each = f"{'each with' if len(arms) > 1 else 'with'} {seeds} {'seed' if seeds == '1' else 'seeds'}"
    if len(arms) == len(arms[0].runs) == 1:
        each = f"with seed {specs[0].seed}"
    what = f"{plural(len(arms), 'arm')} trained {networks}" if len(arms) > 1 else f"{networks} was trained"
    return f"{what} on {data} for {epochs} {'epoch' if epochs == '1' else 'epochs'}, {each}."


def title(arms: Sequence[Arm]) -> str:
    """Return the title of a page about arms."""
    specs = [arm.first.spec for arm in arms]
    networks = _distinct([spec.network.name for spec in specs])
    data = join_words(_distinct([_source(spec) for spec in specs]))
    subject = networks[0] if len(networks) == 1 else plural(len(networks), "network")
    return f"{subject} on {data}" + (f": {plural(len(arms), 'arm')} compared" if len(arms) > 1 else "")


def data_name(spec: RunSpec) -> str:
    """Return the name of the data set, how much of it is used, and how many of its training labels are wrong."""
    data = spec.data
    limits = {"classes": data.class_limit, "training images": data.train_limit or data.train_items}
    limits["test images"] = data.test_items
    used = [f"{count(limit)} {what}" for what, limit in limits.items() if limit is not None]
    if data.label_noise:
        used.append(f"{100 * data.label_noise:g} % of the training labels wrong")
    return _source(spec) + (f" ({', '.join(used)})" if used else "")


def network_name(network: NetworkSpec) -> str:
    """Return a network with its options."""
    options = ", ".join(f"{key} {value}" for key, value in network.options.items())
    return network.name + (f" ({options})" if options else "")


def best_epoch(chosen_on: Sequence[str]) -> str:
    """Return which images the best epoch was chosen on, and whether that is fair."""
    parts = {
        "test": "on the test images themselves, so it peeks at the test set and looks better than it is",
        "holdout": "on images held out of training",
    }
    return f"The best epoch was chosen {', or for other arms '.join(parts[part] for part in chosen_on)}."


def extra_cost(arms: Sequence[Arm], against: str) -> str:
    """Return which arms took more updates than the reference, which makes an accuracy easier to reach."""
    base = next(arm for arm in arms if arm.label == against).numbers["cost"]["updates"]
    dearer: dict[str, list[str]] = {}
    for arm in arms:
        if arm.numbers["cost"]["updates"] > 1.005 * base:
            dearer.setdefault(ratio(arm.numbers["cost"]["updates"] / base), []).append(arm.label)
    if not dearer:
        return f"No arm took more updates than {against}." if len(arms) > 1 else ""
    took = join_words([f"{_few(labels)} took {times}{TIMES} the updates" for times, labels in dearer.items()])
    return f"{took} of {against}; compare at equal cost with --equal-cost."


def environments(arms: Sequence[Arm]) -> list[str]:
    """Return where the runs were computed: one sentence where it was the same for all of them."""
    labels_of: dict[str, list[str]] = {}
    for arm in arms:
        for run in arm.runs:
            environment = ", ".join(f"{name} {value}" for name, value in run.environment.items())
            labels_of.setdefault(environment, []).append(arm.label)
    if len(labels_of) == 1:
        return [f"Environment of every run: {next(iter(labels_of))}."]
    return [f"Environment of {join_words(_distinct(labels))}: {words}." for words, labels in labels_of.items()]


def spacing_headline(pairs: Sequence[SpacingEffect]) -> str:
    """Return how many methods did better, worse, or neither when spaced."""
    if len(pairs) == 1:
        return _headline_of_one(pairs[0])
    better, worse, unclear, without_interval = (
        _names(pairs, word) for word in ("better", "worse", "no clear difference", None)
    )
    several = len({pair["method"] for pair in pairs}) == len(pairs)
    of = f"Of {plural(len(pairs), 'method' if several else 'spaced arm')}"
    if len(without_interval) == len(pairs):
        return f"{of}, none shares two seeds with its unspaced form, so none is called better or worse."
    if len(unclear) == len(pairs):
        return f"{of}, none did better or worse spaced than unspaced: every interval includes zero."
    parts = [
        f"{of}, {_count_and_names(better, 'did better spaced than unspaced')}",
        _count_and_names(worse, "did worse"),
    ]
    if unclear:
        parts.append(f"{len(unclear)} showed no clear difference")
    if without_interval:
        parts.append(f"no interval can be given for {join_words(without_interval)}")
    return "; ".join(parts) + "."


def _headline_of_one(pair: SpacingEffect) -> str:
    judged, name = verdict(pair["difference"]), pair["name"]
    if judged is None:
        return f"No interval can be given for {name} spaced against unspaced: they do not share two seeds."
    if judged == "no clear difference":
        return f"No clear difference between {name} spaced and unspaced: the interval includes zero."
    return f"{name} did {judged} spaced than unspaced."


def spacing_cost(pairs: Sequence[SpacingEffect]) -> str:
    """Return how many updates the spaced runs took, in groups of as many."""
    by_ratio: dict[str, list[str]] = {}
    for pair in pairs:
        by_ratio.setdefault(ratio(pair["cost_ratio"]["updates"]), []).append(pair["name"])
    same = by_ratio.pop("1.0", [])
    parts = [f"{join_words(same) if len(same) < 4 else len(same)} took as many"] if same else []
    parts += [f"{join_words(names)} took {times}{TIMES} as many" for times, names in by_ratio.items()]
    parts[0] += " updates as unspaced"
    return f"Spaced, {'; '.join(parts)}."


def single_role_caution(pairs: Sequence[SpacingEffect]) -> str | None:
    """Return which pairs differ in a second role too, besides spacing; None where there are none."""
    names = [pair["name"] for pair in pairs if pair["unspaced_form"] == "plain"]
    if not names:
        return None
    have = "has" if len(names) == 1 else "have"
    return (
        f"Unspaced, {join_words(names)} {have} one role only: there the difference is that of spacing and of the "
        "second role together."
    )


def spacing_caution(pairs: Sequence[SpacingEffect]) -> str | None:
    """Return a warning about many comparisons at once, and which differences remain after Holm's correction."""
    warning = caution([pair["difference"] for pair in pairs])
    if warning is None or not (_names(pairs, "better") or _names(pairs, "worse")):
        return warning
    clear = [pair["name"] for pair in pairs if pair["p_holm"] is not None and pair["p_holm"] < 0.05]
    for_whom = join_words(clear) if clear else "none"
    return f"{warning} Corrected for all of them at once (Holm), p stays below 0.05 for {for_whom}."


def _names(pairs: Sequence[SpacingEffect], judged: str | None) -> list[str]:
    return [pair["name"] for pair in pairs if verdict(pair["difference"]) == judged]


def _count_and_names(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what} ({join_words(names)})" if names else f"none {what}"


def _few(labels: Sequence[str]) -> str:
    """Return names while they can be read in one breath, else their number; a list below the headline has them all."""
    return join_words(labels) if len(labels) < 4 else plural(len(labels), "arm")


def _networks(arm: Arm) -> str:
    """Return the student's network, and the teacher's where it is another one that really took part."""
    spec = arm.first.spec
    student = network_name(spec.network)
    if spec.teacher is None or spec.teacher == spec.network or arm.first.leader is None:
        return student
    return f"{student} under {network_name(spec.teacher)}"


def _source(spec: RunSpec) -> str:
    """Return the name of the data; a file is known by its name, not by its folder."""
    return PurePath(spec.data.source).name if spec.data.source.endswith(".npz") else spec.data.source


def _distinct(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(words))
