"""The arms that tables of the paper are made of, each from a run that is spaced."""

from dataclasses import replace
from typing import Any

from spacedkd.config.spec import MethodSpec, RunSpec
from spacedkd.schedule import Ahead, Duration, Offline, Online, Schedule, Spaced, Window


def no_kd(run: RunSpec) -> RunSpec:
    """Return the run of the student alone."""
    return replace(run, method=MethodSpec("none"), schedule=None, teacher=None)


def teacher_alone(run: RunSpec) -> RunSpec:
    """Return the run of the teacher's network alone."""
    return no_kd(replace(run, network=run.teacher or run.network))


def with_schedule(run: RunSpec, schedule: Schedule) -> RunSpec:
    """Return the run with another schedule."""
    return replace(run, schedule=schedule)


def online(run: RunSpec) -> RunSpec:
    """Return the online run: each step of the teacher is replayed at once."""
    return with_schedule(run, Online())


def spaced(run: RunSpec, epochs: float = 1.5) -> RunSpec:
    """Return the run spaced by an interval in epochs."""
    return with_schedule(run, Spaced(Duration(epochs, "ep")))


def offline(run: RunSpec) -> RunSpec:
    """Return the offline run: the teacher is trained first."""
    return with_schedule(run, Offline())


def ahead(run: RunSpec, epochs: float) -> RunSpec:
    """Return the run of a teacher that stays `epochs` ahead and keeps moving."""
    return with_schedule(run, Ahead(Duration(epochs, "ep")))


def spaced_from(run: RunSpec, start: float, length: float | None = None) -> RunSpec:
    """Return the run spaced from an epoch on, for some epochs or to the end; online before and after."""
    stop = {"stop": Duration(run.epochs, "ep")} if length is None else {"length": Duration(length, "ep")}
    return with_schedule(run, Window(Spaced(Duration(1.5, "ep")), Online(), Duration(start, "ep"), **stop))


def with_method(run: RunSpec, name: str, **options: Any) -> RunSpec:
    """Return the run with another method and its options."""
    return replace(run, method=MethodSpec(name, options))


def with_options(run: RunSpec, **options: Any) -> RunSpec:
    """Return the run with other options of the same method."""
    return replace(run, method=MethodSpec(run.method.name, {**run.method.options, **options}))
