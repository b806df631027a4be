"""A run's student as a folder that others can use: weights, description, card and spec."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from spacedkd.config.spec import RunSpec, check_folder
from spacedkd.data import sources
from spacedkd.exporting import model_hub
from spacedkd.exporting import onnx as onnx_file
from spacedkd.exporting.card import Subject, local_places, model_card
from spacedkd.exporting.request import ExportRequest
from spacedkd.models.factory import MakeModule
from spacedkd.models.student_config import prepares_images, read_config, timm_preprocessing, without_published_fields
from spacedkd.models.student_io import load_student
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import Run, check_weights
from spacedkd.runs.schema import ClassesDocument, read_checked
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import make_durable, write_errors, write_json, write_new_folder, write_text

# What somebody asks to be exported, refused before anything heavy is imported where it cannot be.


# What a model card speaks of, and what its data is called.


# A run's student as a folder that others can use: weights, description, card and spec.


@dataclass(frozen=True)
class Exported:
    """What was exported."""

    folder: Path
    files: tuple[str, ...]
    onnx_difference: float | None
    """the largest difference between the logits of the ONNX file and torch's, where there is one"""
    address: str | None
    """where it lies on the hub, if it was pushed"""
    local_places: Mapping[str, str]
    """what spec.json says of this machine: places that are named by their whole path"""


def export(
    run: str | PathLike[str],
    to: str | PathLike[str],
    *,
    license: str | None = None,
    average: bool = False,
    best: bool = False,
    onnx: bool = False,
    push: str | None = None,
    private: bool = False,
    network: MakeModule | None = None,
    trust_code: bool = False,
) -> Exported:
    """Write a finished run's student into a new folder that is ready for the Hugging Face hub.

    `average` takes the moving average of the student's weights, `best` the student of the epoch that held-out images
    chose. `onnx` adds model.onnx, and `push` uploads the folder to OWNER/NAME. A network of one's own is made, for
    ONNX, by `network` or, with `trust_code`, by the function that its config.json names; without ONNX nothing of it is
    imported.
    """
    for what, path in {"The run": run, "The folder to export to": to}.items():
        check_folder(what, path)
    asked = ExportRequest(Path(run), Path(to), license, average, best, onnx, push, private)
    return write(asked, asked.checked(), network, trust_code)


def write(asked: ExportRequest, run: Run, network: MakeModule | None = None, trust_code: bool = False) -> Exported:
    """Do what was asked for and found possible."""
    folder = RunFolder(asked.run)
    folder.check_links()
    source = folder.average if asked.average else folder.best if asked.best else folder.student
    known = _known(source, run.spec, asked.license, trust_code)
    with write_errors(asked.to):
        make_durable(asked.to.parent)
    with write_new_folder(asked.to) as unfinished:
        _copy(folder, source / "model.safetensors", unfinished)
        _copy(folder, folder.spec, unfinished)
        write_json(unfinished / "config.json", known)
        made = _made(unfinished, known, network, trust_code, asked.onnx)
        difference = _with_onnx(made, run.spec, known, unfinished) if asked.onnx and made is not None else None
        subject = Subject(
            run=run,
            known=known,
            role="average" if asked.average else run.roles[-1],
            best=run.plan["best"] if asked.best else None,
            training_images=_training_images(folder.classes),
            parameters=None if made is None else sum(one.numel() for one in made.parameters()),
            license=asked.license,
            repository=asked.push,
            onnx=difference,
        )
        write_text(unfinished / "README.md", model_card(subject))
        files = tuple(sorted(path.name for path in unfinished.iterdir()))
    address = None if asked.push is None else model_hub.push(asked.to, asked.push, asked.private)
    return Exported(asked.to, files, difference, address, local_places(run.spec))


def _known(source: Path, spec: RunSpec, license: str | None, trust_code: bool) -> dict[str, Any]:
    """The student's description; timm's says how images are prepared, too."""
    if not (source / "model.safetensors").is_file():
        raise UserError(f"There is no student in {source}. Make it again with: spacedkd train --resume {source.parent}")
    check_weights(source / "model.safetensors")
    known = read_config(source / "config.json", trust_code)
    if "architecture" in known:
        about = without_published_fields(known.get("pretrained_cfg", {}))
        licensed = {} if license is None else {"license": license}
        _, *size = about.get("input_size") or (3, 224, 224)  # which timm takes where a description has none
        known["pretrained_cfg"] = {**about, **timm_preprocessing(spec.data, spec.network, size), **licensed}
    return known


def _copy(run: RunFolder, file: Path, folder: Path) -> None:
    try:
        with run.handle.reading(file) as theirs, (folder / file.name).open("xb") as ours:
            shutil.copyfileobj(theirs, ours)
    except FileNotFoundError:
        raise UserError(f"There is no {file}.") from None


def _made(
    folder: Path, known: Mapping[str, Any], network: MakeModule | None, trust_code: bool, needed: bool
) -> nn.Module | None:
    """The network as it is opened from the folder; one that is not timm's is made only where it is needed."""
    if "architecture" in known or needed:
        return load_student(folder, network, trust_code=trust_code)
    try:
        with safe_open(folder / "model.safetensors", framework="pt"):
            return None
    except (SafetensorError, OSError) as error:
        raise UserError(f"The student's weights cannot be read: {error}.") from None


def _with_onnx(network: nn.Module, spec: RunSpec, known: Mapping[str, Any], folder: Path) -> float:
    about = known.get("pretrained_cfg") or known
    said = {
        "labels": known.get("label_names") or [],
        "input": "images [batch, channels, height, width], float32, normalised: (pixels in 0..1 - mean) / std"
        if prepares_images(spec.data)
        else "what the dataset of the run's author gave",
        "mean": about.get("mean") or [],
        "std": about.get("std") or [],
        "output": "logits [batch, classes]",
    }
    return onnx_file.write_onnx(network, _shape(spec, about), folder / onnx_file.NAME, said)


def _shape(spec: RunSpec, about: Mapping[str, Any]) -> tuple[int, ...]:
    """Of one input: as timm's description says it, else as the data shows it."""
    if about.get("input_size"):
        return tuple(about["input_size"])
    sample = sources.load(spec.data).info.sample if prepares_images(spec.data) else None
    if not isinstance(sample, Tensor):
        raise UserError(
            "--onnx must know the shape of what the network is shown, which neither config.json nor the data says."
        )
    return tuple(sample.shape[1:])


def _training_images(classes: Path) -> int | None:
    """How many images the student learned from, where the run has written it down."""
    if not classes.exists():
        return None
    way_out = "Remove it to export without the number of training images."
    return read_checked(classes, ClassesDocument, within=classes.parent, way_out=way_out)["items"].get("train")
