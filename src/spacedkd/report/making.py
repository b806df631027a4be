"""How the numbers of a page came to be: the commands and when they were given, machines, and every arm's spec."""

import json
from collections.abc import Iterator, Sequence

from spacedkd.json_form import to_json
from spacedkd.report import Arm, words
from spacedkd.report.markup import MANY, Markup, folded, folded_if_many, join, note, tag
from spacedkd.report.numbers import count, counted, plain

Command = tuple[str, str]
"""when it ended, and what was typed"""


def typed_by(commands: Sequence[Command]) -> str:
    """What stands above the title: which program made the page, and when."""
    return f"spacedkd report, {commands[-1][0]}" if commands else "spacedkd report"


def making(arms: Sequence[Arm], measured: str, commands: Sequence[Command]) -> Iterator[str]:
    shown = [_command(one) for one in commands]
    yield from shown[:MANY]
    if shown[MANY:]:
        yield folded(f"{len(shown) - MANY} more commands", *shown[MANY:])
    said = f"Measured: {measured}. "
    if any(len(arm.runs) > 1 for arm in arms):
        said += "Intervals are Student's t over seeds"
        paired = "; differences are paired by seed, over the seeds that both arms have; p is of the paired t-test"
        said += f"{paired if len(arms) > 1 else ''}."
    yield from map(note, (said, *words.environments(arms)))
    yield from folded_if_many(arms, f"The specs of {counted(len(arms), 'arm')}", *map(_spec, arms))


def _command(one: Command) -> Markup:
    date, line = one
    return join(tag("p", date, class_="note date"), tag("pre", tag("code", line), tabindex=0))


def _spec(arm: Arm) -> Markup:
    """Everything that decided the numbers of an arm, folded away."""
    spec = arm.first.spec
    rate = f"{spec.optimizer.name}, lr {spec.optimizer.lr:g} ({spec.rate.shape})"
    network = words.network_name(spec.network)
    essence = f"{network}, {plain(spec.epochs)} epochs, batch {count(spec.batch_size)}, {rate}"
    prints = "; ".join(f"seed {run.seed}: {run.fingerprint}" for run in arm.runs)
    written = json.dumps(to_json(spec), indent=2, ensure_ascii=False)
    return tag(
        "details",
        tag("summary", tag("b", arm.label), tag("small", f"{words.how(arm.numbers)}; {essence}")),
        tag("p", f"Fingerprints: {prints}. Below, the spec of seed {spec.seed}."),
        tag("pre", tag("code", written), tabindex=0),
    )
