"""The verb that gives a trained student to others."""

from pathlib import Path
from typing import Annotated

import tyro

from spacedkd.cli.flags import flag
from spacedkd.cli.progress import say
from spacedkd.runtime.errors import UserError


def export(
    run: Annotated[tyro.conf.Positional[Path], flag("a finished run", metavar="RUN")],
    to: Annotated[Path | None, flag("a new folder for the student", metavar="FOLDER")] = None,
    license: Annotated[
        str | None, flag("the hub's name of its licence: apache-2.0, mit, cc-by-4.0, ...", "none is named", "NAME")
    ] = None,
    average: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], flag("take the moving average of the student's weights (--ema)")
    ] = False,
    best: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], flag("take the student of the epoch that held-out images chose (--holdout)")
    ] = False,
    onnx: Annotated[
        tyro.conf.FlagCreatePairsOff[bool],
        flag("add model.onnx, compared with torch; needs the extra onnx (README, Install)"),
    ] = False,
    push: Annotated[
        str | None,
        flag("also upload the folder to the Hugging Face hub (log in with `hf auth login`)", "", "OWNER/NAME"),
    ] = None,
    private: Annotated[tyro.conf.FlagCreatePairsOff[bool], flag("--push makes a private repository")] = False,
    trust_code: Annotated[
        tyro.conf.FlagCreatePairsOff[bool],
        flag("import the function that config.json names, where --onnx has to make a network of one's own"),
    ] = False,
) -> None:
    """Export a student for the Hugging Face hub, timm and ONNX.

    Writes model.safetensors and config.json in timm's form, the spec that trains it again, and README.md, a model card
    with the numbers.

    Example: spacedkd export runs/mine --to exported/mine --license apache-2.0 --onnx
    """
    if to is None:
        raise UserError("export needs a folder to write to: --to exported/mine.")

    from spacedkd.exporting.request import ExportRequest

    asked = ExportRequest(run, to, license, average, best, onnx, push, private)
    about = asked.checked()

    from spacedkd.exporting.export import write

    found = write(asked, about, trust_code=trust_code)
    say(f"Exported to {found.folder}: {', '.join(found.files)}")
    if found.onnx_difference is not None:
        difference = f"{found.onnx_difference:.1g}"
        say(f"ONNX and torch agree on random images: the largest difference of their logits is {difference}")
    for place, value in found.local_places.items():
        say(f"Mind that spec.json names a place on this machine: {place} is {value}")
    say(f"On the hub: {found.address}" if found.address else f"To the hub: hf upload OWNER/NAME {found.folder}")
