"""The command `export`: a trained student for others."""

from pathlib import Path
from typing import Annotated

import tyro

from spacedkd.cli.console import say
from spacedkd.cli.flags import flag
from spacedkd.runtime.errors import UserError


def export(
    run: Annotated[tyro.conf.Positional[Path], flag("a finished run", metavar="RUN")],
    *,
    to: Annotated[Path | None, flag("a new folder for the student", metavar="FOLDER")] = None,
    license: Annotated[
        str | None, flag("the hub's name of its licence: apache-2.0, mit, cc-by-4.0, ...", "none is named", "NAME")
    ] = None,
    average: Annotated[bool, flag("export the average of the student's weights (train --average)")] = False,
    best: Annotated[bool, flag("export the student of the best epoch on held-out images (--holdout)")] = False,
    onnx: Annotated[
        bool,
        flag("also write model.onnx, and check it against torch; needs the extra onnx (README, Install)"),
    ] = False,
    push: Annotated[
        str | None,
        flag("also upload the folder to the Hugging Face hub (log in with `hf auth login`)", "", "OWNER/NAME"),
    ] = None,
    private: Annotated[bool, flag("make the repository of --push private")] = False,
    trust_code: Annotated[
        bool,
        flag("import the user code that config.json names, which --onnx needs to build such a network"),
    ] = False,
) -> None:
    """Export a student for the Hugging Face hub, timm and ONNX.

    Writes model.safetensors and config.json in timm's format, the spec to train it again, and README.md, a model card
    with the numbers.

    Example: spacedkd export runs/mine --to exported/mine --license apache-2.0 --onnx
    """
    if to is None:
        raise UserError("export needs a folder to write to: --to exported/mine.")

    from spacedkd.exporting.request import ExportRequest

    request = ExportRequest(run, to, license=license, average=average, best=best, onnx=onnx, push=push, private=private)
    about = request.check()

    from spacedkd.exporting.export import write

    exported = write(request, about, trust_code=trust_code)
    say(f"Exported to {exported.folder}: {', '.join(exported.files)}")
    if exported.onnx_difference is not None:
        difference = f"{exported.onnx_difference:.1g}"
        say(f"ONNX and torch agree on random images: the largest difference of their logits is {difference}")
    for path, value in exported.local_places.items():
        say(f"Mind that spec.json names a place on this machine: {path} is {value}")
    say(
        f"On the hub: {exported.address}" if exported.address else f"To the hub: hf upload OWNER/NAME {exported.folder}"
    )
