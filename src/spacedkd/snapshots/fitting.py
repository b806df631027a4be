"""Weights from a file into a network that somebody else built: what fits, and what is said when it does not."""

import difflib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from spacedkd.errors import UserError


def load(network: nn.Module, found: Mapping[str, Tensor], prefix: str, file: Path) -> None:
    """Give a network the weights and statistics of a file, of which the names that begin with `prefix` are its own.

    A tensor that the network has under two names may stand in the file under one of them.
    """
    expected = network.state_dict()
    own = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    missing = [name for name in expected if name not in own]
    for name in [*missing]:
        twin = next((other for other in own if other in expected and _is_same(expected[name], expected[other])), None)
        if twin is not None:
            own[name] = own[twin]
            missing.remove(name)
    unknown = [name for name in own if name not in expected]
    shapes = [name for name in own if name in expected and own[name].shape != expected[name].shape]
    if missing or unknown:
        raise UserError(f"{_misfit(network, file)}{_names(missing, unknown, expected, found, prefix)}")
    if shapes:
        theirs, ours = own[shapes[0]].shape, expected[shapes[0]].shape
        raise UserError(f"{_misfit(network, file)}{shapes[0]!r} is {[*theirs]} there and {[*ours]} in the network.")
    network.load_state_dict(own)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.numel() > 0 and one.data_ptr() == other.data_ptr() and one.shape == other.shape


def _misfit(network: nn.Module, file: Path) -> str:
    return f"The weights in {file} are not those of the network given ({type(network).__name__}): "


def _names(
    missing: list[str], unknown: list[str], expected: Mapping[str, Tensor], found: Mapping[str, Tensor], prefix: str
) -> str:
    """Which names do not fit, which are near, and which prefix would make them fit."""
    said = []
    if missing:
        near = [name for name in found if name.endswith(f".{missing[0]}")]
        near = near or difflib.get_close_matches(missing[0], found, n=2, cutoff=0.4)
        instead = f", near it is {' or '.join(map(repr, near[:2]))}" if near else ""
        said.append(f"{missing[0]!r} is missing in the file ({_count(missing)}){instead}")
    if unknown:
        near = difflib.get_close_matches(unknown[0], expected, n=1, cutoff=0.4)
        instead = f", which has {near[0]!r}" if near else ""
        said.append(f"{prefix + unknown[0]!r} is unknown to the network ({_count(unknown)}){instead}")
    way_out = "Give the network that was trained, or prefix= if its names begin with something more"
    first = next(iter(expected), "")
    for name in found:
        more = name.removesuffix(first)
        if more != prefix and name.endswith(first) and all(more + one in found for one in expected):
            way_out = f"Give prefix={more!r}" if more else "Leave prefix= out"
            break
    return f"{'; '.join(said)}. {way_out}."


def _count(names: list[str]) -> str:
    return f"{len(names)} name{'s' * (len(names) > 1)} in all"
