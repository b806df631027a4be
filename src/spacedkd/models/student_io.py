"""A trained student's folder: how it is written, and opened again."""

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
from spacedkd.models.classifier import is_timm
from spacedkd.models.factory import MakeModule, input_shape, make_from_function, seeded, timm_arguments
from spacedkd.models.pretrained import error_sentence, load_weights, weights_file, weights_only
from spacedkd.models.student_config import _KINDS, read_config, timm_preprocessing, without_published_fields
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.files import write_json
from spacedkd.runtime.user_code import is_user_code

# What a student's folder says of its network: config.json, as we and timm write it.


_KINDS |= dict.fromkeys(("options", "model_args", "pretrained_cfg"), dict) | dict.fromkeys(("mean", "std"), list)


# A trained student's folder: how it is written, and opened again.

# Where weights came from is no part of what the network is.
_ONLY_ONCE = ("num_classes", "pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")


def save_student(
    network: nn.Module,
    spec: NetworkSpec,
    shown: DataInfo,
    folder: Path,
    made_by: str | None = None,
    data: DataSpec | None = None,
) -> None:
    """Weights and description; `load_student` opens them.

    Of a timm network they have timm's own form: `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it. One
    with an `input_size` of its own is described by that size: timm's preparation of images scales to it. With `data`, a
    spec that leaves nothing open, `timm.data.create_transform` prepares images as they are in this run's evaluation. Of
    any other network they say which function made it, `made_by` or the spec's name.
    """
    network = deepcopy(network).to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    network.register_state_dict_post_hook(_clone_shared_weights)
    known: dict[str, Any] = {"label_names": [*shown.classes]}
    if made_by is not None or is_user_code(spec.name):
        known |= {"made_by": made_by or spec.name, "options": dict(spec.options)}
        if not _timm_can_rebuild(network, shown):
            _save_user_network(network, known, shown, folder)
            return
        size, described_by = tuple(shown.sample.shape[1:]), {"in_chans": shown.sample.shape[1]}  # type: ignore[union-attr]
    else:
        size = input_shape(spec, shown)
        described_by = {name: value for name, value in timm_arguments(spec, shown).items() if name not in _ONLY_ONCE}
    about = without_published_fields(network.pretrained_cfg)  # type: ignore[arg-type]
    about |= {"num_classes": len(shown.classes), "input_size": size}
    if shown.normalisation is not None:
        about |= {"mean": shown.normalisation[0], "std": shown.normalisation[1]}
    if data is not None:
        about |= timm_preprocessing(data, spec, size[1:])
    network.pretrained_cfg = about  # type: ignore[assignment]
    save_for_hf(network, folder, known, described_by, safe_serialization=True)


def _clone_shared_weights(network: nn.Module, weights: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Some networks have one weight in two places, which safetensors does not write."""
    weights |= {key: value.clone() for key, value in weights.items()}


def _timm_can_rebuild(network: nn.Module, shown: DataInfo) -> bool:
    """Whether a network that a function made is one that timm makes by its name alone."""
    name = (getattr(network, "pretrained_cfg", None) or {}).get("architecture", "")
    if not is_timm(network) or not timm.is_model(name) or not isinstance(shown.sample, Tensor):
        return False
    try:
        again = timm.create_model(name, num_classes=len(shown.classes), in_chans=shown.sample.shape[1])
    except (TypeError, ValueError, RuntimeError, AssertionError):
        return False
    shapes, theirs = ({key: value.shape for key, value in one.state_dict().items()} for one in (network, again))
    return shapes == theirs


def _save_user_network(network: nn.Module, known: dict[str, Any], shown: DataInfo, folder: Path) -> None:
    mean, std = shown.normalisation or (None, None)
    known = {**known, "mean": mean, "std": std}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", known)


def _open_timm(file: Path) -> nn.Module:
    """The timm network of a student's folder."""
    try:
        with weights_only():
            opened: nn.Module = timm.create_model(f"local-dir:{file.parent}", pretrained=True)
        return opened
    except Exception as error:  # damaged files fail in many ways
        raise UserError(f"The student in {file.parent} cannot be opened: {error_sentence(error)}") from None


STUDENTS = {"last": ".", "average": "average", "best": "best"}
"""the students a run may have, and where they lie in its folder"""


def load_student(
    folder: str | Path, network: MakeModule | None = None, *, which: str = "last", trust_code: bool = False
) -> nn.Module:
    """The trained student of a run, in eval mode; `folder` is the run's, or the student's inside it.

    Of a run it is that of the last epoch, or `which`: its moving "average" where there is one (--ema), or that of the
    "best" epoch where held-out images chose it (--holdout).

    A student that is not timm's is made by `network`, the function it was trained with, or, with `trust_code`, by the
    one its folder names where that can be imported. What it wants to see is what it was trained on, normalised in the
    same way. Weights that were saved in float64 (a run of 64-true) stay in it, and inputs are to be in it, too; all
    others are in the type the network is made in, float32, in which bfloat16 loses nothing.
    """
    if which not in STUDENTS:
        raise unknown("student", which, STUDENTS)
    if not (Path(folder) / STUDENTS[which]).exists() and Path(folder).exists():
        flag = {"average": "with --ema", "best": "where held-out images choose it, with --holdout"}[which]
        raise UserError(f"{folder} has no {which} student; it is kept {flag}.")
    file = weights_file(Path(folder) / STUDENTS[which])
    known = read_config(file.with_name("config.json"), trust_code)
    if not known.keys() & {"architecture", "made_by"}:
        raise UserError(f"{file.with_name('config.json')} does not say which network the weights beside it are.")
    if "made_by" not in known and network is not None:
        raise UserError(f"The student in {folder} is timm's {known.get('architecture')}: leave network= out.")
    if "architecture" in known and network is None:
        opened = _open_timm(file)
        if _is_double(file):
            load_weights(opened.double(), str(file), ())
        return opened.eval()
    try:
        with seeded(0):
            name = known["made_by"] if network is None else qualified_name(network)
            built = make_from_function(network, name, known.get("options") or {})
    except UserError as error:
        way_out = "" if network is not None else " Give the function that makes it: load_student(folder, network=...)."
        raise UserError(f"The student in {folder} cannot be made again. {error}{way_out}") from error
    load_weights(built.double() if _is_double(file) else built, str(file), known.get("label_names") or ())
    return built.eval()


def _is_double(file: Path) -> bool:
    """Whether all floating-point weights in a file are of float64; False of a file that cannot be read."""
    try:
        with safe_open(file, framework="pt") as weights:
            types = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, OSError):
        return False
    return {one for one in types if one.startswith(("F", "BF"))} == {"F64"}
