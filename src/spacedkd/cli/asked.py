"""Which run --out, --resume, --restart and --extend ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spacedkd.cli.changes import folder_name, to_spec
from spacedkd.cli.progress import say
from spacedkd.errors import UserError, counted
from spacedkd.spec import RunSpec, read_spec

if TYPE_CHECKING:
    from spacedkd.data.sources import Library

HOW = {
    "exact": "the bits are those of {epochs} in one go.",
    "warm": "so far what depends on the length of a run, such as its learning rate, was that of {before}; from "
    "here on it is that of {epochs}. No run in one go has these bits.",
    "anew": "its schedule had come to an end that a run of {epochs} does not have there, and begins anew. No run in "
    "one go has these bits.",
}
"""how a run goes on where another ended"""


class Asked(NamedTuple):
    """A run, where it lies, and what it goes on from."""

    spec: RunSpec
    folder: Path | None
    """None where the run's own spec names it"""
    resume: Path | None
    extend: Path | None

    def place(self) -> Path:
        return self.folder or Path("runs") / folder_name(self.spec)


def asked(typed: dict[str, Any], out: Path | None, resume: Path | None, restart: bool, extend: Path | None) -> Asked:
    """What these flags mean together; of --resume, flags that may not be given with it are refused."""
    resume, extend = (one.parent if one is not None and one.name == "spec.json" else one for one in (resume, extend))
    if restart and resume is None:
        raise UserError("--restart begins a run that is there again: name it with --resume RUN.")
    if out is not None and not out.name:
        raise UserError("--out needs the name of a folder, for instance runs/mine.")
    if extend is not None:
        return _longer(typed, out, resume, extend)
    if resume is None:
        return Asked(to_spec(typed), out, None, None)
    trust_code = typed.pop("trust_code", False)
    if out is not None or {*typed} - {"devices", "nodes", "strategy", "log"}:
        raise UserError(
            "--resume takes everything from the run's spec.json: leave out the other flags. Only --devices, --nodes, "
            "--strategy and --log may change."
        )
    return Asked(read_spec(resume, trust_code), resume, resume, None)


def _longer(typed: dict[str, Any], out: Path | None, resume: Path | None, extend: Path) -> Asked:
    """The run's own spec with more epochs, in a folder beside it."""
    if resume is not None:
        raise UserError("--extend begins a new run, --resume goes on with one: give one of them.")
    if "epochs" not in typed or {*typed} - {"epochs", "trust_code"}:
        raise UserError(
            "--extend takes everything but the epochs from the run's spec.json: give --epochs, more than it had, and "
            "leave out the other flags."
        )
    held = read_spec(extend, typed.get("trust_code", False))
    spec = replace(held, epochs=typed["epochs"], extends=(), record=())
    named = extend if extend.name else extend.resolve()
    return Asked(spec, out or named.with_name(f"{named.name}-{spec.epochs:g}ep"), None, extend)


def extended(spec: RunSpec, run: Path, library: Library) -> RunSpec:
    """The spec with where it goes on; one line says whether a run in one go would have the same bits."""
    from spacedkd.training import extension

    spec = extension.extended(spec, run, library=library)
    last = spec.extends[-1]
    epochs, before = counted(spec.epochs, "epoch"), counted(last.epochs, "epoch")
    say(f"Goes on from turn {last.turn} of {run}: {HOW[last.how].format(epochs=epochs, before=before)}")
    return spec
