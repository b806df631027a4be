"""The arms of a comparison: written one by one, or a method at a time, unspaced and spaced."""

import shlex
from collections.abc import Sequence

from spacedkd.cli.flags import Given, parse
from spacedkd.cli.overrides import SCHEDULE_FLAGS, to_spec
from spacedkd.config.registry import METHODS
from spacedkd.config.spec import RunSpec
from spacedkd.runtime.errors import UserError, same_name, unknown

ALL = "all"


def make_arms(written: Sequence[str], methods: Sequence[str], base: Given) -> dict[str, RunSpec]:
    """Every arm by its name: those written as 'NAME: FLAGS', then those of the methods."""
    arms = dict(parse_arm(text, base) for text in written)
    if len(arms) < len(written):
        raise UserError("Two arms have the same name; give each its own.")
    if methods and base.get("interval") in (None, "online", "offline"):
        raise UserError("--methods compares each method unspaced and spaced: say how far, --interval 1.5ep.")
    methods = [same_name(name, (*METHODS, ALL)) for name in methods]
    for name in methods:
        if name not in (*METHODS, ALL):
            raise unknown("method", name, [*METHODS, ALL])
    for name in METHODS if ALL in methods else methods:
        own = _arms_of(name, base)
        for label in own.keys() & arms.keys():
            raise UserError(f"--methods would add an arm called {label!r}, but there is one. Give yours another name.")
        arms |= own
    if not arms:
        raise UserError(
            "compare needs arms: --arm 'online: --method kd' --arm 'spaced: --method kd --interval 1.5ep', "
            "or --methods kd dkd --interval 1.5ep."
        )
    return arms


def parse_arm(text: str, base: Given) -> tuple[str, RunSpec]:
    """An arm of a comparison from 'NAME: FLAGS', the flags it adds to the base's.

    >>> name, spec = parse_arm("spaced: --method kd --interval 1.5ep", {"epochs": 30.0})
    >>> name, spec.epochs, spec.schedule.interval
    ('spaced', 30.0, Duration(amount=1.5, unit='ep'))
    """
    name, colon, typed = text.partition(":")
    if not colon or not name.strip():
        raise UserError(f"--arm wants 'NAME: FLAGS', for instance --arm 'spaced: --interval 1.5ep'; got {text!r}.")
    try:
        own = parse(shlex.split(typed))
    except ValueError as error:  # a UserError too
        raise UserError(f"--arm {text!r} cannot be read: {error}") from None
    if "seed" in own:
        raise UserError(f"Arm {name.strip()!r} cannot have a seed of its own: all arms get the same seeds (--seeds).")
    # Where both say something the arm's own wins, except that these are gathered; a chain of assistants is one thing.
    gathered = {key: base.get(key, ()) + own.get(key, ()) for key in ("set", "without") if key in base or key in own}
    return name.strip(), to_spec({**base, **own, **gathered})


def _arms_of(name: str, base: Given) -> dict[str, RunSpec]:
    """A method unspaced and spaced; where spacing brings in a student of its own, also with that student online.

    >>> [*_arms_of("dkd", {"interval": "2ep"})]
    ['dkd', 'dkd spaced']
    """
    from spacedkd.config.resolve import resolve_method

    sets = tuple(one for one in base.get("set", ()) if not one.startswith("schedule"))
    never = {key: value for key, value in base.items() if key not in SCHEDULE_FLAGS}
    never["set"] = (*sets, "schedule=null")  # nor does a recipe or a spec space it
    unspaced = dict([parse_arm(f"{name}: --method {name}", never)])
    if name == "none":
        return unspaced
    spaced = dict([parse_arm(f"{name} spaced: --method {name}", base)])
    alone, _ = resolve_method(unspaced[name])
    together, _ = resolve_method(spaced[f"{name} spaced"])
    if len(alone.roles) == 1 and len({*together.learners.values()}) > 1:
        unspaced |= dict([parse_arm(f"{name} online: --method {name} --interval online", {**never, "set": sets})])
    return unspaced | spaced
