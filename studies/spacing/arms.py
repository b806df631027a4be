"""The arms of every question: a label and a spec each, with the seeds it is trained on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spacedkd import MethodSpec, Offline, OptimizerSpec, RateSpec, RunSpec, Schedule, Spaced
from spacedkd.paper.scales import scale_of

COSINE_RATES = (0.03, 0.1)
"""among which the protocol chooses the peak of the cosine"""
COSINE_RATE: float | None = None
"""the one that was chosen on the seeds of tuning; None while it is not"""
TUNING_SEEDS = (100, 101)
INTERVALS = ("0.5ep", "1.5ep", "4ep", "6ep", "8ep", "16ep")
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


def questions(root: str) -> Iterator[Question]:
    """Yield the questions in the order in which they are run."""
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
