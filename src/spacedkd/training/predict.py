"""Prediction: a run's student on new images, which are prepared as its test images were.

    path, PIL image, uint8    decoded to RGB or gray, resized as in evaluation, normalised as in training
    floats                    taken as they are: inputs of the network, [N, ...]

Probabilities are the softmax of the logits of the deepest head. They are not calibrated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from spacedkd.data.folders import ImageFinder
from spacedkd.data.images import BadImage, Fit, decode, normalise, read_encoded, to_bytes, to_image, to_rgb
from spacedkd.data.inputs import Normalisation, cast_floats
from spacedkd.data.transforms import get_augmentation
from spacedkd.models.classifier import logits_and_features
from spacedkd.models.factory import MakeModule
from spacedkd.models.preprocessing import Resize, parse_size
from spacedkd.models.pretrained import read_config, weights_file
from spacedkd.models.student_io import STUDENTS, load_student, prepares_images
from spacedkd.runs.predictions import ImagePrediction, Predictions
from spacedkd.runs.result import Run
from spacedkd.runtime.errors import UserError, check_between
from spacedkd.runtime.processes import available_cores
from spacedkd.training.trained_models import device_for


def open_student(
    run: Run, which: str = "last", network: MakeModule | None = None, trust_code: bool = False
) -> nn.Module:
    """Return a student of a run in eval mode; a network with an `input_size` scales its images, as in training.

    The other arguments are those of `load_student`; without `network` it is the one that the run was given.
    """
    student = load_student(run.folder, network or run.network, which=which, trust_code=trust_code)
    options = run.spec.network.options
    if options.get("input_size") is not None and "made_by" not in _config(run, which):
        scale = Resize(parse_size(options["input_size"]))
        student.register_forward_pre_hook(lambda module, inputs: (scale(inputs[0]), *inputs[1:]))
    return student


def predict(
    run: Run,
    images: Any,
    *,
    top: int = 5,
    which: str = "last",
    batch_size: int = 64,
    accelerator: str = "cpu",
    network: MakeModule | None = None,
    trust_code: bool = False,
) -> Predictions:
    """Return the classes of images, in their order.

    Args:
        run: the finished run whose student predicts.
        images: a path of a file or folder, a PIL image, an array or a tensor, or a list of these. uint8 arrays are
            [H, W], [H, W, C] or [N, H, W, C], uint8 tensors [C, H, W] or [N, C, H, W]. Floats are inputs of the
            network, [N, ...], normalised as in training.
        top: the number of most probable classes that a prediction names.
        which: "last", "average" or "best", as in `load_student`.
        batch_size: the number of images that are computed at once.
        accelerator: cpu, cuda, mps or auto.
        network: the function that made the network, for a student that is not timm's.
        trust_code: import the function that the student's folder names, in place of `network`.
    """
    if run.spec.task != "classification":
        raise UserError(
            f"predict names classes, and the task of {run.folder} is {run.spec.task}: run.student(inputs) gives its "
            "outputs."
        )
    check_between("top", top, 1)
    check_between("batch_size", batch_size, 1)
    config = _config(run, which)
    preparation = make_preparation(run, config)
    named = [*_each_image(images)]
    device = device_for(accelerator)
    kept = which == "last" and network is None and not trust_code
    student = run.student if kept else open_student(run, which, network, trust_code)
    if device.type != "cpu":
        student = deepcopy(student).to(device)
    names = config.get("label_names") or []
    dtype = next(weight.dtype for weight in student.parameters() if weight.is_floating_point())
    predictions = Predictions()
    with ThreadPoolExecutor(available_cores()) as threads, torch.inference_mode():
        for start in range(0, len(named), batch_size):
            some = named[start : start + batch_size]
            inputs = _stack([image.name for image in some], [*threads.map(preparation.prepare, some)])
            output = student(cast_floats(inputs.to(device), dtype))
            logits, _ = logits_and_features(output, type(student).__name__)
            predictions += _most_probable([image.name for image in some], logits, names, top)
    return predictions


def _config(run: Run, which: str) -> dict[str, Any]:
    """Return the description of a student; the folder is checked by `load_student`."""
    folder = run.folder / STUDENTS.get(which, "")
    return read_config(weights_file(folder).with_name("config.json")) if folder.exists() else {}


def _most_probable(images: Sequence[str], logits: Tensor, names: Sequence[str], top: int) -> Iterator[ImagePrediction]:
    """Yield the prediction of each image."""
    highest = logits.double().softmax(1).cpu().topk(min(top, logits.shape[1]))
    for image, probabilities, classes in zip(images, highest.values.tolist(), highest.indices.tolist(), strict=True):
        labels = [names[number] if names else str(number) for number in classes]
        yield ImagePrediction(image, labels[0], probabilities[0], dict(zip(labels, probabilities, strict=True)))


# What a user calls an image


class NamedImage(NamedTuple):
    """An image and its name: a path to open, a PIL image, uint8 [C, H, W], or floats that are an input."""

    name: str
    content: Path | Image.Image | Tensor


def _each_image(images: Any) -> Iterator[NamedImage]:
    """Yield every image; those without a file are named by their position."""
    several = [*images] if isinstance(images, list | tuple) else [images]
    position = 0
    for image in several:
        for name, content in _contents(image):
            yield NamedImage(name or str(position), content)
            position += 1


def _contents(images: Any) -> Iterator[tuple[str, Path | Image.Image | Tensor]]:
    if isinstance(images, str | PathLike):
        path = Path(images)
        if not path.exists():
            raise UserError(f"There is no image or folder {path}.")
        files = ImageFinder(all_files=False).images_below(path) if path.is_dir() else [str(path)]
        if not files:
            raise UserError(f"There is no image in {path}.")
        yield from ((file, Path(file)) for file in files)
    elif isinstance(images, Image.Image):
        yield "", images
    elif isinstance(images, np.ndarray | Tensor):
        yield from (("", row) for row in _rows(images))
    else:
        raise UserError(
            f"Images are paths, PIL images, arrays or tensors, or a list of these; got {type(images).__name__}."
        )


def _rows(array: np.ndarray | Tensor) -> Iterator[Tensor]:
    """Yield the images of an array or tensor: uint8 as [C, H, W], floats as they are."""
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    if tensor.is_floating_point():
        if tensor.ndim < 2:
            raise UserError(f"Floats are inputs of the network, [N, ...]; got shape {[*tensor.shape]}.")
        yield from tensor
        return
    last = isinstance(array, np.ndarray)
    form = "[H, W], [H, W, C] or [N, H, W, C]" if last else "[C, H, W] or [N, C, H, W]"
    if tensor.dtype != torch.uint8 or tensor.ndim not in ((2, 3, 4) if last else (3, 4)):
        raise UserError(f"Images in numbers are uint8 {form}; got {tensor.dtype} {[*tensor.shape]}.")
    if tensor.ndim == 2:
        tensor = tensor[:, :, None]
    images = tensor if tensor.ndim == 4 else tensor[None]
    yield from images.permute(0, 3, 1, 2) if last else images


# How images become inputs


@dataclass(frozen=True)
class ImagePreparation:
    """The way from an image to an input, as in the evaluation of a run."""

    location: str
    normalisation: Normalisation | None
    """None for a run whose inputs were no images of this package: only floats can be predicted"""
    fit: Fit | None = None
    size: tuple[int, int] | None = None
    """the height and width that an image must have where nothing resizes it"""

    def prepare(self, image: NamedImage) -> Tensor:
        """Return the input for one image: float32 [C, H, W], or floats as they were given."""
        if isinstance(image.content, Tensor) and image.content.is_floating_point():
            return image.content
        if self.normalisation is None:
            raise UserError(
                f"{self.location} was trained on data whose transforms are not known here: give tensors of floats, as "
                "its network takes them."
            )
        try:
            pixels = self._pixels(image.content)
        except BadImage as reason:
            raise UserError(f"{image.name} {reason}.") from None
        if self.size is not None and tuple(pixels.shape[1:]) != self.size:
            got, wanted = ("x".join(map(str, reversed(size))) for size in (pixels.shape[1:], self.size))
            raise UserError(f"{image.name} has {got} pixels, and the run's images have {wanted}: resize it first.")
        return normalise(pixels, *self.normalisation)

    def _pixels(self, content: Path | Image.Image | Tensor) -> Tensor:
        """Return uint8 [C, H, W] in the size and with the channels of the network's input."""
        channels = len(self.normalisation[0]) if self.normalisation else 0
        if isinstance(content, Tensor):
            if channels == 3 and len(content) == 1:
                content = content.expand(3, -1, -1)
            if len(content) != channels:
                raise BadImage(f"has {len(content)} channels, and the run's images have {channels}")
            return content if self.fit is None else to_bytes(self.fit(to_image(content)))
        if channels not in (1, 3):
            raise BadImage(f"cannot be predicted: the run's images have {channels} channels, so give uint8 arrays")
        if isinstance(content, Path):
            content = _decode_file(content)
        image = to_rgb(content) if channels == 3 or content.mode != "L" else content
        image = image.convert("L") if channels == 1 else image
        return to_bytes(image if self.fit is None else self.fit(image))


def _decode_file(path: Path) -> Image.Image:
    try:
        return decode(read_encoded(path))
    except OSError as error:
        raise BadImage(f"cannot be read: {error.strerror}") from None


def make_preparation(run: Run, config: dict[str, Any]) -> ImagePreparation:
    about, data = config.get("pretrained_cfg") or config, run.spec.data
    mean, std = about.get("mean"), about.get("std")
    if not prepares_images(data) or not mean or not std:
        return ImagePreparation(str(run.folder), None)
    normalisation = tuple(map(float, mean)), tuple(map(float, std))
    if data.image_size is not None:
        fit = get_augmentation(data.augmentation or "").fit(data.image_size)
        return ImagePreparation(str(run.folder), normalisation, fit)
    scales = run.spec.network.options.get("input_size") is not None
    size = about.get("input_size")
    return ImagePreparation(str(run.folder), normalisation, size=None if scales or size is None else (size[1], size[2]))


def _stack(names: Sequence[str], inputs: Sequence[Tensor]) -> Tensor:
    """Return inputs as one batch; refuse inputs of different shapes by the first two that differ."""
    for name, tensor in zip(names, inputs, strict=True):
        if tensor.shape != inputs[0].shape:
            raise UserError(
                f"{names[0]} and {name} have different shapes, {[*inputs[0].shape]} and {[*tensor.shape]}: predict "
                "them one by one."
            )
    return torch.stack([*inputs])
