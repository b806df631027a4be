"""A trained student's folder, config.json and model.safetensors: saved by `save_student`, opened by `load_student`.

Its config.json has the network, its classes and its preprocessing, in a form that timm reads too.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import Tensor, nn

from spacedkd.config.serialization import qualified_name
from spacedkd.config.spec import DataSpec, NetworkSpec
from spacedkd.data.inputs import DataInfo
from spacedkd.data.transforms import get_augmentation
from spacedkd.models.classifier import is_timm
from spacedkd.models.factory import MakeModule, input_shape, make_from_function, seeded, timm_arguments
from spacedkd.models.pretrained import load_weights, read_config, weights_file, weights_only
from spacedkd.runtime.errors import UserError, error_sentence, unknown
from spacedkd.runtime.files import write_json
from spacedkd.runtime.user_code import is_user_code

_NOT_ARCHITECTURE = {
    *("num_classes", "pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")
}
"""arguments of `timm.create_model` that say where weights came from, and are no part of the network"""


def save_student(
    network: nn.Module,
    spec: NetworkSpec,
    info: DataInfo,
    folder: Path,
    *,
    made_by: str | None = None,
    data: DataSpec | None = None,
) -> None:
    """Write a student's weights and description into a folder.

    network    the trained network
    spec       the spec it was built from
    info       classes, normalisation and a sample of its data
    made_by    the name of the user's function that made the network, if it is not the spec's
    data       the resolved spec of the data, so that `timm.data.create_transform` prepares images as evaluation does

    A timm network is written in timm's own form: `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it. One
    with an `input_size` of its own is described by that size, to which timm's preprocessing scales. For any other
    network the description names the function that made it.
    """
    network = deepcopy(network).to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    network.register_state_dict_post_hook(_clone_shared_weights)
    config: dict[str, Any] = {"label_names": [*info.classes]}
    if made_by is not None or is_user_code(spec.name):
        config |= {"made_by": made_by or spec.name, "options": dict(spec.options)}
        if not _timm_can_rebuild(network, info):
            _save_user_network(network, config, info, folder)
            return
        shape, arguments = tuple(info.sample.shape[1:]), {"in_chans": info.sample.shape[1]}  # type: ignore[union-attr]
    else:
        shape = input_shape(spec, info)
        arguments = {k: value for k, value in timm_arguments(spec, info).items() if k not in _NOT_ARCHITECTURE}
    pretrained_cfg = without_published_fields(network.pretrained_cfg)  # type: ignore[arg-type]
    pretrained_cfg |= {"num_classes": len(info.classes), "input_size": shape}
    if info.normalisation is not None:
        pretrained_cfg |= {"mean": info.normalisation[0], "std": info.normalisation[1]}
    if data is not None:
        pretrained_cfg |= timm_preprocessing(data, spec, shape[1:])
    network.pretrained_cfg = pretrained_cfg  # type: ignore[assignment]
    save_for_hf(network, folder, config, arguments, safe_serialization=True)


_PUBLISHED_FIELDS = {
    *("tag", "license", "description", "origin_url", "paper_name", "paper_ids", "notes", "custom_load"),
    *("test_input_size", "test_crop_pct", "test_pool_size"),
}
"""fields of timm's `pretrained_cfg` that describe weights others have published, and how those were tested"""


def without_published_fields(pretrained_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return timm's `pretrained_cfg` of a network without the fields that describe published weights.

    >>> without_published_fields({"input_size": (3, 224, 224), "tag": "a1_in1k", "license": "apache-2.0"})
    {'input_size': (3, 224, 224)}
    """
    return {name: value for name, value in pretrained_cfg.items() if name not in _PUBLISHED_FIELDS}


def prepares_images(data: DataSpec) -> bool:
    """Return whether this package resizes and normalises the images, and not a user's dataset."""
    return data.augmentation is not None and not is_user_code(data.source)


def timm_preprocessing(data: DataSpec, network: NetworkSpec, size: Sequence[int]) -> dict[str, Any]:
    """Return the resize and crop of evaluation as fields of timm's `pretrained_cfg`; {} for a user's dataset.

    `size` is the height and width of the network's input. A network with an `input_size` gets images after two
    scalings, of which timm makes one. A target that is no square is squashed: timm's centre crop would ignore the
    interpolation there, and all images are of one shape then.

    >>> timm_preprocessing(DataSpec("photos", augmentation="imagenet", image_size=224), NetworkSpec(), (224, 224))
    {'crop_pct': 0.875, 'crop_mode': 'center', 'interpolation': 'bilinear'}
    """
    if not prepares_images(data):
        return {}
    fit = None if data.image_size is None else get_augmentation(data.augmentation or "").fit(data.image_size)
    scales = network.options.get("input_size") is not None and not is_user_code(network.name)
    squashes = size[0] != size[1] or (fit is not None and fit.shorter is None)
    return {
        "crop_pct": 1.0 if fit is None or fit.shorter is None else crop_fraction(fit.size, fit.shorter),
        "crop_mode": "squash" if squashes else "center",
        "interpolation": "bicubic" if scales else "bilinear",
    }


def crop_fraction(size: int, shorter: int) -> float:
    """Return timm's `crop_pct` for a crop of `size` from an image whose shorter side is scaled to `shorter`.

    timm rounds size / crop_pct down, so where size / shorter would end one pixel below, a slightly smaller fraction is
    returned.

    >>> crop_fraction(224, 256)
    0.875
    >>> scaled = {size: round(size * 8 / 7) for size in range(8, 600)}
    >>> all(math.floor(size / crop_fraction(size, shorter)) == shorter for size, shorter in scaled.items())
    True
    """
    fraction = size / shorter
    return fraction if math.floor(size / fraction) == shorter else size / (shorter + 0.5)


def _clone_shared_weights(network: nn.Module, weights: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Clone the tensors of a state dict: safetensors refuses a weight that two modules share."""
    weights |= {key: value.clone() for key, value in weights.items()}


def _timm_can_rebuild(network: nn.Module, info: DataInfo) -> bool:
    """Return whether timm, by the network's name alone, makes one with the same weights as a user's function did."""
    name = (getattr(network, "pretrained_cfg", None) or {}).get("architecture", "")
    if not is_timm(network) or not timm.is_model(name) or not isinstance(info.sample, Tensor):
        return False
    try:
        rebuilt = timm.create_model(name, num_classes=len(info.classes), in_chans=info.sample.shape[1])
    except (TypeError, ValueError, RuntimeError, AssertionError):
        return False
    own, theirs = ({key: value.shape for key, value in n.state_dict().items()} for n in (network, rebuilt))
    return own == theirs


def _save_user_network(network: nn.Module, config: dict[str, Any], info: DataInfo, folder: Path) -> None:
    """Write a network that timm cannot make, with the normalisation of its inputs."""
    mean, std = info.normalisation or (None, None)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", {**config, "mean": mean, "std": std})


def _open_timm(file: Path) -> nn.Module:
    """Return the timm network of a student's folder, with its weights."""
    try:
        _check_described_size(file)
        with weights_only():
            network: nn.Module = timm.create_model(f"local-dir:{file.parent}", pretrained=True)
        return network
    except Exception as error:  # damaged files fail in many ways
        raise UserError(f"The student in {file.parent} cannot be opened: {error_sentence(error)}") from None


def _check_described_size(file: Path) -> None:
    """Refuse a config.json that describes a larger network than its weights hold, before memory is taken for it."""
    with safe_open(file, framework="pt") as weights:
        held = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118, no mapping
    with weights_only(), torch.device("meta"):  # on which tensors have shapes and no memory
        network: nn.Module = timm.create_model(f"local-dir:{file.parent}", pretrained=False)
    described = sum(tensor.numel() for tensor in network.state_dict().values())
    if described > 2 * held:
        raise ValueError(f"config.json describes a network of {described:,} numbers, and its weights hold {held:,}")


STUDENTS = {"last": ".", "average": "average", "best": "best"}
"""the students a run may have, and their folders inside the run's"""


def load_student(
    folder: str | Path, network: MakeModule | None = None, *, which: str = "last", trust_code: bool = False
) -> nn.Module:
    """Return the trained student of a run as a network in eval mode.

    folder        the run's folder, or the student's inside it
    network       the function that made the network, for a student that is not timm's
    which         "last": of the last epoch; "average": the average of weights (--average); "best": of the epoch that
                  held-out images chose (--holdout)
    trust_code    import the function that the folder names, instead of giving `network`

    The network takes inputs as in training, normalised in the same way:

        student = load_student("runs/spaced")
        logits = student(images)  # [B, C]

    Weights of a run in 64-true stay in float64, and inputs must be in float64 too; all others are in float32, which
    holds every bfloat16 exactly.
    """
    if which not in STUDENTS:
        raise unknown("student", which, STUDENTS)
    if not (Path(folder) / STUDENTS[which]).exists() and Path(folder).exists():
        flag = {"average": "with --average", "best": "where held-out images choose it, with --holdout"}[which]
        raise UserError(f"{folder} has no {which} student; it is kept {flag}.")
    file = weights_file(Path(folder) / STUDENTS[which])
    config = read_config(file.with_name("config.json"), trust_code)
    if not config.keys() & {"architecture", "made_by"}:
        raise UserError(f"{file.with_name('config.json')} does not name the network of the weights in its folder.")
    if "made_by" not in config and network is not None:
        raise UserError(f"The student in {folder} is timm's {config.get('architecture')}: leave network= out.")
    if "architecture" in config and network is None:
        student = _open_timm(file)
        if _is_double(file):
            load_weights(student.double(), str(file), ())
        return student.eval()
    try:
        with seeded(0):
            name = config["made_by"] if network is None else qualified_name(network)
            student = make_from_function(network, name, config.get("options") or {})
    except UserError as error:
        way_out = "" if network is not None else " Give the function that makes it: load_student(folder, network=...)."
        raise UserError(f"The student in {folder} cannot be built. {error}{way_out}") from error
    load_weights(student.double() if _is_double(file) else student, str(file), config.get("label_names") or ())
    return student.eval()


def _is_double(file: Path) -> bool:
    """Return whether all floating-point weights in a file are float64; False for a file that cannot be read."""
    try:
        with safe_open(file, framework="pt") as weights:
            types = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, OSError):
        return False
    return {dtype for dtype in types if dtype.startswith(("F", "BF"))} == {"F64"}
