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
from spacedkd.methods.taught import Taught
from spacedkd.models import small_resnet
from spacedkd.models.weights import described
from spacedkd.spec import NetworkSpec, read_spec

PUBLISHED = "timm"
_FROM_DATA = ("num_classes", "in_chans")


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
    ours = plain["network"]["name"] in small_resnet.NAMES
    if flags.width is not None and (ours or flags.teacher not in small_resnet.NAMES):
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
        network = plain["teacher"] or _trained_network(Path(place), plain)
        plain["teacher"] = {**network, "weights": str(Path(place).resolve())}
    method = plain["method"]
    if method["name"] not in METHODS:
        return  # a method of one's own knows what to do with its teacher
    made = METHODS[method["name"]]
    if issubclass(made, Taught) or "teacher_learns" not in {field.name for field in fields(made)}:
        raise UserError(f"--teacher-weights: method {method['name']} has no teacher that could be trained already.")
    method["options"].setdefault("teacher_learns", False)


def _trained_network(place: Path, plain: dict[str, Any]) -> Any:
    """A run knows its network, and so does a student's folder; a file's weights are taken for the student's own."""
    if (place / "spec.json").exists():
        return to_json(read_spec(place).network)
    if (place / "config.json").exists():
        known = described(place / "config.json")
        given = {key: value for key, value in known.get("model_args", {}).items() if key not in _FROM_DATA}
        return {"name": known.get("architecture"), "options": given}
    return plain["network"]
