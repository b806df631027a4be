"""How a student is trained again, from the spec that is exported beside it."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from spacedkd.json_form import to_json
from spacedkd.own_code import NAME
from spacedkd.report.numbers import listed
from spacedkd.report.reproduced.texts import code, escaped, fenced
from spacedkd.run import Run
from spacedkd.spec import RunSpec


def again(run: Run) -> str:
    """The last part of a card."""
    spec = run.spec
    places = listed([code(place) for place in local_places(spec)] or [""])
    needs = f" It names places on its author's machine, which are others on yours: {places}." if places else ""
    return (
        f"## Train it again\n\n`spec.json` says everything that decides the numbers.\n\n{_command(spec)}\n\n"
        "The same spec gives the same bits on the same hardware, with the same number of threads and the same versions "
        f"of libraries; its fingerprint is {escaped(run.fingerprint)}.{needs}"
    )


def _command(spec: RunSpec) -> str:
    runs = _runs(spec)
    several = ""
    if len(runs) > 1:
        several = (
            "It goes on where shorter runs had ended, or were stopped (`extends` in spec.json says at which turn). "
            "They are trained one after the other.\n\n"
        )
    if spec.objects:
        names = ", ".join(code(one["name"]) for one in spec.objects.values())
        needs = f"The run was given objects in Python ({names}), which it needs again:"
        return f"{several}{needs}\n\n{fenced(_in_python(spec, runs), 'python')}"
    return f"{several}{fenced(_typed(spec, runs))}"


def _runs(spec: RunSpec) -> list[tuple[str, str]]:
    """Folder and epochs of the runs that have to be trained for it, each of which extends the one before.

    What was extended to the bits of a run in one go is trained in one go.
    """
    before = [_plain(one.epochs) for one in spec.extends if one.how != "exact"]
    return [*((f"runs/again-{epochs}ep", epochs) for epochs in before), ("runs/again", _plain(spec.epochs))]


def _plain(epochs: float) -> str:
    return str(epochs).removesuffix(".0")


def _typed(spec: RunSpec, runs: list[tuple[str, str]]) -> str:
    trusted = " --trust-code" if any(NAME.fullmatch(text) for text in _texts(to_json(spec))) else ""
    (folder, epochs), *longer = runs
    first = f"spacedkd train --spec spec.json --out {folder}"
    if spec.teacher_path is not None:  # its teacher was trained elsewhere, to the same bits
        first += " --set teacher_path=null"
    if spec.extends:
        first += " --set 'extends=[]'"
    if longer:
        first += f" --epochs {epochs}"
    lines = [first]
    for (before, _), (folder, epochs) in zip(runs, longer, strict=False):
        lines.append(f"spacedkd train --extend {before} --epochs {epochs} --out {folder}")
    return "\n".join(line + trusted for line in lines)


def _in_python(spec: RunSpec, runs: list[tuple[str, str]]) -> str:
    given = ", ".join(f"{name}=..." for name in spec.objects)
    if not spec.extends:
        return f'from spacedkd import read_spec, train\n\ntrain(read_spec("spec.json"), "runs/again", {given})'
    lines = ["from dataclasses import replace\n", "from spacedkd import read_spec, train\n"]
    lines.append('spec = replace(read_spec("spec.json"), extends=())')
    extend = ""
    for folder, epochs in runs:
        lines.append(f'train(replace(spec, epochs={epochs}), "{folder}", {extend}{given})')
        extend = f'extend="{folder}", '
    return "\n".join(lines)


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
