"""The flags that say which networks learn and teach."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from spacedkd.cli.data_flags import DataFlags
from spacedkd.cli.flag import flag
from spacedkd.errors import UserError
from spacedkd.json_form import to_json
from spacedkd.methods import METHODS
from spacedkd.models import small_resnet
from spacedkd.spec import NetworkSpec, read_spec

PUBLISHED = "timm"


@dataclass(frozen=True)
class NetworkFlags(DataFlags):
    network: Annotated[str | None, flag("the student: any timm name, or one of ours", NetworkSpec().name, "NAME")] = (
        None
    )
    teacher: Annotated[str | None, flag("the teacher's network", "the student's", "NAME")] = None
    teacher_weights: Annotated[
        str | None,
        flag(
            "a teacher that is trained already and stays as it is: a run folder, a file of weights, or 'timm' for the "
            "published ones of --teacher",
            "it learns too",
            "PLACE",
        ),
    ] = None
    assistant: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flag("a network between teacher and student of --method takd; repeat for more, largest first", metavar="NAME"),
    ] = ()
    width: Annotated[
        int | None, flag("first-stage channels of our small-image ResNets, whoever has one", 64, "CHANNELS")
    ] = None


def put_networks(plain: dict[str, Any], flags: NetworkFlags) -> None:
    """Write the networks into a spec's JSON."""
    if flags.network is not None and flags.network != plain["network"]["name"]:
        plain["network"] = {"name": flags.network, "options": {}, "weights": None}
    if flags.width is not None:
        plain["network"]["options"]["width"] = flags.width
    if flags.teacher is not None:
        plain["teacher"] = _network(flags.teacher, flags.width)
    if flags.teacher_weights is not None:
        _put_weights(plain, flags.teacher_weights)
    if flags.assistant:
        if plain["method"]["name"] != "takd":
            raise UserError("--assistant names a network between teacher and student: use it with --method takd.")
        plain["method"]["options"]["assistants"] = [_network(name, flags.width) for name in flags.assistant]


def _network(name: str, width: int | None) -> dict[str, Any]:
    ours = width is not None and name in small_resnet.NAMES
    return {"name": name, "options": {"width": width} if ours else {}}


def _put_weights(plain: dict[str, Any], place: str) -> None:
    """The trained teacher; a method whose teacher would learn is told that it does not."""
    if place == PUBLISHED:
        if plain["teacher"] is None:
            raise UserError("--teacher-weights timm takes the published weights of a network: name it with --teacher.")
        plain["teacher"]["options"]["pretrained"] = True
    else:
        plain["teacher"] = {**(plain["teacher"] or _trained_network(Path(place), plain)), "weights": place}
    method = METHODS.get(plain["method"]["name"])
    if method is not None and "teacher_learns" in {field.name for field in fields(method)}:
        plain["method"]["options"].setdefault("teacher_learns", False)


def _trained_network(place: Path, plain: dict[str, Any]) -> Any:
    """A run knows its network; the weights in a file are taken for the student's own."""
    known = read_spec(place).network if (place / "spec.json").exists() else None
    return plain["network"] if known is None else to_json(known)
