"""The arms of every question: a label and a spec each, with the seeds it is trained on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spacedkd import (
    DataSpec,
    Duration,
    MethodSpec,
    NetworkSpec,
    Offline,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Schedule,
    Spaced,
)
from spacedkd.paper.scales import scale_of

COSINE_RATES = (0.03, 0.1)
"""among which the protocol chooses the peak of the cosine"""
COSINE_RATE: float | None = None
"""the one that was chosen on the seeds of tuning; None while it is not"""
TUNING_SEEDS = (100, 101)
INTERVALS = ("0.5ep", "1.5ep", "4ep", "6ep", "8ep", "16ep")
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
    return replace(run, method=MethodSpec("none"), schedule=None)


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
    arms = {f"{name}, {label}": spec for name, run in regimes.items() for label, spec in generated_arms(run).items()}
    yield Question("q0", arms, range(12))


def questions(root: str) -> Iterator[Question]:
    """Yield the questions in the order in which they are run."""
    yield from generated_questions()
    tuning = {f"cosine {rate:g}": no_kd(base(root, rate)) for rate in COSINE_RATES}
    yield Question("tuning", tuning, TUNING_SEEDS)
    rates = {"constant": None} | ({} if COSINE_RATE is None else {"cosine": COSINE_RATE})
    yield Question(
        "q1",
        {
            f"{name}, {label}": spec
            for name, rate in rates.items()
            for label, spec in interval_arms(base(root, rate)).items()
        },
        range(6),
    )
    few = ("no KD", "online", "1.5", "offline")
    yield Question(
        "q2",
        {
            f"{name}, {label}": interval_arms(base(root, rate, 180))[label]
            for name, rate in rates.items()
            for label in few
        },
        range(3),
    )
