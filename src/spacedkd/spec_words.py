"""A spec in a few words."""

from spacedkd.duration import Duration
from spacedkd.schedule import Ahead, NamedSchedule, Schedule, Spaced, Window
from spacedkd.spec import RunSpec


def describe(spec: RunSpec) -> str:
    """A name for a run that was given none: its method and schedule.

    >>> describe(RunSpec(schedule=Spaced("1.5ep")))
    'kd, spaced 1.5ep'
    """
    variant = spec.method.options.get("variant")
    alone = spec.method.name == "none" or variant == "plain"
    parts = (spec.method.name, variant, None if alone else describe_schedule(spec.schedule))
    return ", ".join(part for part in parts if part)


def describe_schedule(schedule: Schedule | None) -> str | None:
    """A schedule in a few words; None where nobody leads.

    >>> describe_schedule(Window(Spaced("1.5ep"), Spaced("1st"), "20ep", length="10ep"))
    'spaced 1.5ep from 20ep for 10ep, else online'
    """
    if schedule is None:
        return None
    if isinstance(schedule, Ahead):
        return f"constantly {schedule.lead} ahead"
    if isinstance(schedule, Window):
        end = f"to {schedule.stop}" if schedule.stop is not None else f"for {schedule.length}"
        inside, outside = describe_schedule(schedule.inside), describe_schedule(schedule.outside)
        return f"{inside} from {schedule.start} {end}, else {outside}"
    if isinstance(schedule, NamedSchedule):
        return schedule.kind.partition(":")[2]
    if not isinstance(schedule, Spaced):
        return type(schedule).__name__
    names = {Duration(1, "st"): "online", Duration(100, "%"): "offline"}
    tail = "" if schedule.tail == "teach" else ", tail dropped"
    return names.get(Duration.parse(schedule.interval), f"spaced {schedule.interval}") + tail
