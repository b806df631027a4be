"""The arms of every question: a label and a spec each, with the seeds it is trained on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spacedkd import (
    Ahead,
    DataSpec,
    Duration,
    MethodSpec,
    NetworkSpec,
    Offline,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Spaced,
)
from spacedkd.paper.scales import scale_of
from spacedkd.paper.tables.self_ import self_kd, spaced_self_kd, twice_as_long
from spacedkd.schedule import Schedule

COSINE_RATES = (0.03, 0.1)
"""among which the protocol chooses the peak of the cosine"""
COSINE_RATE = 0.1
"""the one that was chosen on the seeds of tuning: last iterate 67.6 and 67.4 %, the other 61.9 and 63.4 %"""
TUNING_SEEDS = (100, 101)
INTERVALS = ("0.5ep", "1.5ep", "4ep", "6ep", "8ep", "16ep")
CURVE = ("online", *(interval.removesuffix("ep") for interval in INTERVALS), "half", "offline")
"""the arms of a figure of accuracy against interval"""
GENERATED_RATES: dict[str, tuple[float, ...]] = {"constant": (0.005, 0.02, 0.05), "cosine": (0.02, 0.05, 0.15)}
"""among which the protocol chooses the rates for MNIST-1D"""
GENERATED_RATE = {"constant": 0.05, "cosine": 0.15}
"""those that were chosen: last iterate of no KD 93.4 and 96.0 %, the others 73.8, 89.2 and 89.2, 94.4 %"""
USUAL_STRENGTH = {"label_weight": 0.3, "logit_weight": 0.7, "temperature_squared": True}
"""of distillation in most papers; the paper of Spaced KD has 0.7, 0.3 and no T^2"""


@dataclass(frozen=True)
class Question:
    """Arms that are trained on the same seeds and compared with each other."""

    name: str
    arms: Mapping[str, RunSpec]
    seeds: Sequence[int]


def base(root: str, rate: float | None = None, epochs: float = 60) -> RunSpec:
    """Return online KD in the study's setting: at the paper's constant rate, or at a cosine from `rate`."""
    scale = replace(scale_of("cpu", root=root), epochs=epochs, precision="32-true")
    run = replace(scale.run("resnet18", "cifar100"), average="poly:2")
    if rate is None:
        return run
    return replace(run, optimizer=OptimizerSpec(lr=rate), rate=RateSpec("cosine"))


def no_kd(run: RunSpec) -> RunSpec:
    """Return the student of a run trained from the labels alone."""
    return replace(run, method=MethodSpec("none"), schedule=None, teacher=None, same_init=True)


def spaced(run: RunSpec, schedule: Schedule | str) -> RunSpec:
    """Return a run with another schedule, or with another interval."""
    return replace(run, schedule=Spaced(schedule) if isinstance(schedule, str) else schedule)


def interval_arms(run: RunSpec, intervals: Sequence[str] = INTERVALS) -> dict[str, RunSpec]:
    """Return no KD, online and offline KD, and spaced KD by each interval."""
    return {
        "no KD": no_kd(run),
        "online": spaced(run, "1st"),
        **{interval.removesuffix("ep"): spaced(run, interval) for interval in intervals},
        "half": spaced(run, "50%"),
        "offline": spaced(run, Offline()),
    }


def generated(shape: str, rate: float, label_noise: float = 0.0) -> RunSpec:
    """Return online KD on MNIST-1D, at a learning rate of this shape."""
    return RunSpec(
        data=DataSpec("mnist1d", test_items=5_000, label_noise=label_noise),
        network=NetworkSpec("cnn_1d"),
        method=MethodSpec("kd"),
        epochs=20,
        batch_size=128,
        optimizer=OptimizerSpec(lr=rate),
        rate=RateSpec(shape),
        precision="32-true",
        evaluate_every=Duration(2, "ep"),
        save_every=Duration(10, "ep"),
        average="poly:2",
    )


def generated_arms(run: RunSpec) -> dict[str, RunSpec]:
    """Return the arms of Q0."""
    return {
        "no KD": no_kd(run),
        "online": spaced(run, "1st"),
        "1.5": spaced(run, "1.5ep"),
        "6": spaced(run, "6ep"),
        "offline": spaced(run, Offline()),
        "averaged teacher, 1.5": replace(spaced(run, "1.5ep"), teacher_average="poly:2"),
        "averaged teacher, offline": replace(spaced(run, Offline()), teacher_average="poly:2"),
        "speed 2, 1.5": spaced(run, Spaced("1.5ep", speed=2)),
    }


def generated_questions() -> Iterator[Question]:
    """Yield the choice of rates for MNIST-1D, and Q0 at the rates that were chosen."""
    tuning = {
        f"{shape} {rate:g}": no_kd(generated(shape, rate)) for shape, rates in GENERATED_RATES.items() for rate in rates
    }
    yield Question("tuning0", tuning, TUNING_SEEDS)
    regimes = {
        "constant": generated("constant", GENERATED_RATE["constant"]),
        "cosine": generated("cosine", GENERATED_RATE["cosine"]),
        "wrong labels": generated("cosine", GENERATED_RATE["cosine"], label_noise=0.2),
    }
    yield Question("q0", _labelled({name: generated_arms(run) for name, run in regimes.items()}), range(12))


def strengthened(run: RunSpec) -> RunSpec:
    """Return a run with the usual strength of distillation."""
    return replace(run, method=MethodSpec(run.method.name, {**run.method.options, **USUAL_STRENGTH}))


def variant_arms(run: RunSpec) -> dict[str, RunSpec]:
    """Return the arms of Q3: variants of spaced KD, beside those of Q1 that they are compared with."""
    plain = interval_arms(run, ("1.5ep", "6ep"))
    averaged = replace(run, teacher_average="poly:2")
    return {
        **plain,
        **{f"usual strength, {name}": strengthened(plain[name]) for name in ("online", "1.5", "6", "offline")},
        "averaged teacher, 1.5": spaced(averaged, "1.5ep"),
        "averaged teacher, half": spaced(averaged, "50%"),
        "averaged teacher, offline": spaced(averaged, Offline()),
        "speed 2, 1.5": spaced(run, Spaced("1.5ep", speed=2)),
        "speed 4, 1.5": spaced(run, Spaced("1.5ep", speed=4)),
        **{
            f"other first weights, {name}": replace(plain[name], same_init=False)
            for name in ("online", "1.5", "offline")
        },
    }


def condition_arms(run: RunSpec) -> dict[str, RunSpec]:
    """Return the arms of Q4 under each of its conditions, labelled 'condition, arm'."""
    transformer = replace(scale_of("cpu", root=run.data.root).run("deit_tiny", "cifar100"), precision="32-true")
    conditions = {
        "wrong labels": replace(run, data=replace(run.data, label_noise=0.2)),
        "2 500 images": replace(run, data=replace(run.data, train_limit=2_500)),
        "larger teacher": replace(run, teacher=NetworkSpec("resnet18_small", {"width": 32}), same_init=False),
        "transformer": replace(transformer, average="poly:2"),
    }
    return {
        f"{name}, {label}": interval_arms(changed, ("1.5ep", "8ep"))[label]
        for name, changed in conditions.items()
        for label in ("no KD", "online", "1.5", "8", "offline")
    }


def self_kd_arms(root: str, rate: float) -> dict[str, RunSpec]:
    """Return the arms of Q5: self KD, and a teacher that stays ahead of its student by a constant time."""
    scale = replace(scale_of("cpu", root=root), precision="32-true")
    run = replace(
        scale.self_run("resnet18", "cifar100", self_kd),
        average="poly:2",
        optimizer=OptimizerSpec(lr=rate),
        rate=RateSpec("cosine"),
    )
    plain = interval_arms(base(root, rate), ("1.5ep",))
    return {
        "self KD, no KD": plain["no KD"],
        "self KD, plain": run,
        "self KD, spaced": spaced_self_kd(run),
        "self KD, plain, twice as long": twice_as_long(run),
        **{f"constant ahead, {name}": plain[name] for name in ("no KD", "online", "1.5", "offline")},
        "constant ahead, ahead 1.5": spaced(plain["online"], Ahead("1.5ep")),
    }


def larger(root: str) -> RunSpec:
    """Return online KD of Q6: all of CIFAR-100 by the paper's recipe, at a quarter of its width."""
    run = scale_of("paper", root=root).run("resnet18", "cifar100")
    return replace(run, network=NetworkSpec("resnet18_small", {"width": 16}), average="poly:2", precision="32-true")


def questions(root: str) -> Iterator[Question]:
    """Yield the questions in the order in which they are run."""
    yield from generated_questions()
    tuning = {f"cosine {rate:g}": no_kd(base(root, rate)) for rate in COSINE_RATES}
    yield Question("tuning", tuning, TUNING_SEEDS)
    rates = {"constant": None, "cosine": COSINE_RATE}
    few = ("no KD", "online", "1.5", "offline")
    of_q1 = {name: interval_arms(base(root, rate)) for name, rate in rates.items()}
    yield Question("q1", _labelled(of_q1), range(6))
    longer = {name: interval_arms(base(root, rate, 180)) for name, rate in rates.items()}
    yield Question(
        "q2", _labelled({name: {label: arms[label] for label in few} for name, arms in longer.items()}), range(3)
    )
    at_cosine = base(root, COSINE_RATE)
    yield Question("q3", _labelled({"cosine": variant_arms(at_cosine)}), range(3))
    yield Question("q4", condition_arms(at_cosine), range(3))
    yield Question("q5", self_kd_arms(root, COSINE_RATE), range(3))
    arms = interval_arms(larger(root), ("1.5ep",))
    yield Question("q6", {f"paper's recipe, {label}": arms[label] for label in few}, range(2))


def _labelled(by_regime: Mapping[str, Mapping[str, RunSpec]]) -> dict[str, RunSpec]:
    """Return the arms of all regimes, labelled 'regime, arm'."""
    return {f"{regime}, {label}": spec for regime, arms in by_regime.items() for label, spec in arms.items()}
