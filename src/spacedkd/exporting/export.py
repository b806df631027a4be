"""Export of a run's student as a folder that others can use: weights, config.json, model card and spec."""

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
from spacedkd.exporting import onnx as onnx_file
from spacedkd.exporting.card import Subject, local_places, model_card
from spacedkd.exporting.request import ExportRequest, upload
from spacedkd.models.factory import MakeModule
from spacedkd.models.pretrained import read_config
from spacedkd.models.student_io import load_student, prepares_images, timm_preprocessing, without_published_fields
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import Run, check_weights
from spacedkd.runs.schema import ClassesDocument, read_checked
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import make_durable, write_errors, write_json, write_new_folder, write_text


@dataclass(frozen=True)
class Exported:
    """The files that an export wrote, and where they are."""

    folder: Path
    files: tuple[str, ...]
    onnx_difference: float | None
    """the largest difference between the logits of the ONNX file and torch's, where there is one"""
    address: str | None
    """its address on the hub, if it was pushed"""
    local_places: Mapping[str, str]
    """field of spec.json -> absolute path that it names on this machine"""


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
    chose. `onnx` adds model.onnx, and `push` uploads the folder to OWNER/NAME. A network that is user code is built,
    for ONNX, by `network` or, with `trust_code`, by the function that its config.json names; without ONNX no user code
    is imported.
    """
    for what, path in {"The run": run, "The folder to export to": to}.items():
        check_folder(what, path)
    request = ExportRequest(
        Path(run), Path(to), license=license, average=average, best=best, onnx=onnx, push=push, private=private
    )
    return write(request, request.check(), network, trust_code)


def write(request: ExportRequest, run: Run, network: MakeModule | None = None, trust_code: bool = False) -> Exported:
    """Export a run by a request that was checked."""
    folder = RunFolder(request.run)
    folder.check_links()
    source = folder.average if request.average else folder.best if request.best else folder.student
    config = _read_config(source, run.spec, request.license, trust_code)
    with write_errors(request.to):
        make_durable(request.to.parent)
    with write_new_folder(request.to) as unfinished:
        _copy(folder, source / "model.safetensors", unfinished)
        _copy(folder, folder.spec, unfinished)
        write_json(unfinished / "config.json", config)
        module = _open_network(unfinished, config, network, trust_code, request.onnx)
        difference = _write_onnx(module, run.spec, config, unfinished) if request.onnx and module is not None else None
        subject = Subject(
            run=run,
            config=config,
            role="average" if request.average else run.roles[-1],
            best=run.plan["best"] if request.best else None,
            training_images=_training_images(folder.classes),
            parameters=None if module is None else sum(parameter.numel() for parameter in module.parameters()),
            license=request.license,
            repository=request.push,
            onnx=difference,
        )
        write_text(unfinished / "README.md", model_card(subject))
        files = tuple(sorted(path.name for path in unfinished.iterdir()))
    address = None if request.push is None else upload(request.to, request.push, request.private)
    return Exported(request.to, files, difference, address, local_places(run.spec))


def _read_config(source: Path, spec: RunSpec, license: str | None, trust_code: bool) -> dict[str, Any]:
    """Return the student's config.json; for a network of timm with how images are preprocessed."""
    if not (source / "model.safetensors").is_file():
        raise UserError(f"There is no student in {source}. Write it with: spacedkd train --resume {source.parent}")
    check_weights(source / "model.safetensors")
    config = read_config(source / "config.json", trust_code)
    if "architecture" in config:
        about = without_published_fields(config.get("pretrained_cfg", {}))
        licensed = {} if license is None else {"license": license}
        _, *size = about.get("input_size") or (3, 224, 224)  # the default of timm
        config["pretrained_cfg"] = {**about, **timm_preprocessing(spec.data, spec.network, size), **licensed}
    return config


def _copy(run: RunFolder, file: Path, folder: Path) -> None:
    try:
        with run.handle.reading(file) as theirs, (folder / file.name).open("xb") as ours:
            shutil.copyfileobj(theirs, ours)
    except FileNotFoundError:
        raise UserError(f"There is no {file}.") from None


def _open_network(
    folder: Path, config: Mapping[str, Any], network: MakeModule | None, trust_code: bool, needed: bool
) -> nn.Module | None:
    """Return the network that the folder holds; user code is called only where the network is `needed`."""
    if "architecture" in config or needed:
        return load_student(folder, network, trust_code=trust_code)
    try:
        with safe_open(folder / "model.safetensors", framework="pt"):
            return None
    except (SafetensorError, OSError) as error:
        raise UserError(f"The student's weights cannot be read: {error}.") from None


def _write_onnx(network: nn.Module, spec: RunSpec, config: Mapping[str, Any], folder: Path) -> float:
    about = config.get("pretrained_cfg") or config
    metadata = {
        "labels": config.get("label_names") or [],
        "input": "images [batch, channels, height, width], float32, normalised: (pixels in 0..1 - mean) / std"
        if prepares_images(spec.data)
        else "what the dataset of the run's author gave",
        "mean": about.get("mean") or [],
        "std": about.get("std") or [],
        "output": "logits [batch, classes]",
    }
    return onnx_file.write_onnx(network, _shape(spec, about), folder / onnx_file.NAME, metadata)


def _shape(spec: RunSpec, about: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of one input, from timm's config or else from the data."""
    if about.get("input_size"):
        return tuple(about["input_size"])
    sample = sources.load(spec.data).info.sample if prepares_images(spec.data) else None
    if not isinstance(sample, Tensor):
        raise UserError("--onnx needs the shape of the network's input, which neither config.json nor the data has.")
    return tuple(sample.shape[1:])


def _training_images(classes: Path) -> int | None:
    """Return the number of training images; None where the run did not write it."""
    if not classes.exists():
        return None
    way_out = "Remove it to export without the number of training images."
    return read_checked(classes, ClassesDocument, within=classes.parent, way_out=way_out)["items"].get("train")
