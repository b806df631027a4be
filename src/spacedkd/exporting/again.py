"""How a student is trained again, from the spec that is exported beside it."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from spacedkd.json_form import to_json
from spacedkd.own_code import NAME
from spacedkd.report.numbers import listed
from spacedkd.run import Run
from spacedkd.spec import RunSpec


def again(run: Run) -> str:
    """The last part of a card."""
    spec = run.spec
    places = listed([f"`{place}`" for place in local_places(spec)] or [""])
    needs = f" It names places on its author's machine, which are others on yours: {places}." if places else ""
    return (
        f"## Train it again\n\n`spec.json` says everything that decides the numbers.\n\n{_command(spec)}\n\n"
        "The same spec gives the same bits on the same hardware, with the same number of threads and the same versions "
        f"of libraries; its fingerprint is {run.fingerprint}.{needs}"
    )


def _command(spec: RunSpec) -> str:
    if spec.objects:
        given = ", ".join(f"{name}=..." for name in spec.objects)
        names = ", ".join(f"`{one['name']}`" for one in spec.objects.values())
        return (
            f"The run was given objects in Python ({names}), which it needs again:\n\n```python\n"
            f'from spacedkd import read_spec, train\n\ntrain(read_spec("spec.json"), "runs/again", {given})\n```'
        )
    words = ["spacedkd train --spec spec.json --out runs/again"]
    if spec.teacher_path is not None:  # its teacher was trained elsewhere, to the same bits
        words.append("--set teacher_path=null")
    if any(NAME.fullmatch(text) for text in _texts(to_json(spec))):
        words.append("--trust-code")
    return f"```\n{' '.join(words)}\n```"


def local_places(spec: RunSpec) -> dict[str, str]:
    """What a spec says of one machine: files or folders that are named by their whole path."""
    leaves = _leaves(to_json(spec))
    return {place: value for place, value in leaves if isinstance(value, str) and PurePath(value).is_absolute()}


def _leaves(plain: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    pairs = plain.items() if isinstance(plain, Mapping) else enumerate(plain) if isinstance(plain, list) else None
    if pairs is None:
        yield above, plain
        return
    for key, value in pairs:
        yield from _leaves(value, f"{above}.{key}" if above else str(key))


def _texts(plain: Any) -> Iterator[str]:
    return (value for _, value in _leaves(plain) if isinstance(value, str))
