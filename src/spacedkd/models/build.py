"""Networks by name: anything timm has, our small-image ResNets, and functions of one's own; and how they are saved."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any
from weakref import WeakSet

import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import Tensor, nn

from spacedkd.data.augmentations import generators_kept, seed_generators
from spacedkd.data.inputs import Shown
from spacedkd.errors import UserError, unknown
from spacedkd.files import write_json
from spacedkd.json_form import is_own, load_object, qualified_name
from spacedkd.models import small_resnet
from spacedkd.models.heads import is_timm, looking
from spacedkd.models.input_size import Resize, at_own_size, parse_size, show_through, why_untiled
from spacedkd.models.weights import described, load_weights, reason, tried, weights_file
from spacedkd.spec import NetworkSpec

MakeModule = Callable[..., nn.Module]
_given_out: WeakSet[nn.Module] = WeakSet()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights drawn inside come from this seed; the surrounding random state is left alone."""
    with generators_kept():
        seed_generators(seed)
        yield


def available(pattern: str = "") -> list[str]:
    """Names of networks, our own first; `pattern` may hold wildcards: 'resnet*'."""
    names: list[str] = timm.list_models(pattern)
    return [*(n for n in small_resnet.NAMES if n in names), *(n for n in names if n not in small_resnet.NAMES)]


def build(spec: NetworkSpec, shown: Shown, seed: int, make: MakeModule | None = None) -> nn.Module:
    """The network a spec names, for data like what is shown; its weights depend on the seed alone.

    A name is timm's, or `package.module:function`; `make` is such a function itself. A function is called with the
    spec's options. Of the options of a timm network `input_size` is ours: the network scales images to that size before
    it looks at them. All others are timm's, with `pretrained` and `checkpoint_path` among them. Trained weights replace
    the seed's.
    """
    if make is not None or is_own(spec.name):
        name = spec.name if make is None or is_own(spec.name) else qualified_name(make)
        with seeded(seed):  # the first look too: lazy layers draw their weights then
            network = _make(make, name, spec.options)
            tried(network, name, shown)
        if spec.weights is not None:
            load_weights(network, spec.weights, shown.classes)
            tried(network, name, shown)
        return network
    return _build_timm(spec, shown, seed)


def _make(make: MakeModule | None, name: str, options: Mapping[str, Any]) -> nn.Module:
    """The module a function makes, given or named."""
    make = load_object(name) if make is None else make
    if not callable(make):
        raise UserError(f"Network {name} must be a function that makes an nn.Module, got {type(make).__name__}.")
    try:
        network = make(**options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"Network {name} cannot be built: {reason(error)}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"Network {name} must make an nn.Module, got {type(network).__name__}.")
    if network in _given_out:
        raise UserError(f"Network {name} gave out the same module twice: it must make a new one whenever it is called.")
    if not any(True for _ in network.parameters()):
        raise UserError(f"Network {name} has no parameters, so there is nothing to train.")
    _given_out.add(network)
    return network


def _build_timm(spec: NetworkSpec, shown: Shown, seed: int) -> nn.Module:
    if not timm.is_model(spec.name):
        raise unknown("network", spec.name, available())
    size = _seen(spec, shown)[1:]
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a misfit that timm warns of ends in an error below
        network = _created(spec, shown)
    if spec.weights is not None:
        load_weights(network, spec.weights, shown.classes)
    if untiled := why_untiled(network, size):
        raise _misfit(spec, shown, untiled)
    if size != tuple(shown.sample.shape[2:]):  # type: ignore[union-attr]
        show_through(network, Resize(size))
    _try(network, spec, shown)
    return network


def _seen(spec: NetworkSpec, shown: Shown) -> tuple[int, int, int]:
    """Channels, height and width of images when the network sees them."""
    if not isinstance(shown.sample, Tensor) or shown.sample.ndim != 4:
        raise UserError(
            f"Network {spec.name} is timm's and looks at images [N, channels, height, width], and the data shows "
            "something else: give a function that makes a network for it, as package.module:function or network=."
        )
    if not shown.classes:
        raise UserError(
            f"The data does not say how many classes there are, and network {spec.name} must know: give the dataset an "
            "attribute `classes`, or a function that makes the network, as package.module:function or network=."
        )
    asked = spec.options.get("input_size")
    channels, height, width = shown.sample.shape[1:]
    return channels, *((height, width) if asked is None else parse_size(asked))


def _usual_size(spec: NetworkSpec) -> tuple[list[int], bool]:
    """The size a network was made for, and whether it must be told of any other."""
    usual = timm.get_pretrained_cfg(spec.name) or timm.models.PretrainedCfg(input_size=(3, 224, 224))
    return [*usual.input_size[1:]], bool(usual.fixed_input_size)


def _arguments(spec: NetworkSpec, shown: Shown) -> dict[str, Any]:
    """Everything timm is told about the network."""
    for name in ("num_classes", "in_chans"):
        if name in spec.options:
            raise UserError(f"{name} of a network follows from the data: leave it out of the options of {spec.name}.")
    channels, *size = _seen(spec, shown)
    usual, is_fixed = _usual_size(spec)
    img_size = size[0] if size[0] == size[1] else size  # some networks understand squares only
    fixed = {"img_size": img_size} if is_fixed and size != usual else {}
    given = {name: value for name, value in spec.options.items() if name != "input_size"}
    return {"num_classes": len(shown.classes), "in_chans": channels, **fixed, **given}


def _created(spec: NetworkSpec, shown: Shown) -> nn.Module:
    try:
        network: nn.Module = timm.create_model(spec.name, **_arguments(spec, shown))
        return network
    except UserError:
        raise
    except Exception as error:  # the hub, a proxy, a disk: what fetches weights fails in many ways
        fetched = spec.options.get("pretrained") or spec.options.get("checkpoint_path")
        if not fetched or isinstance(error, TypeError | ValueError | AssertionError):
            raise _misfit(spec, shown, reason(error)) from None
        raise UserError(
            f"The weights of {spec.name} cannot be loaded: {reason(error)} Leave them out to start from random "
            "ones, or name a file that is here: --set network.weights=FILE, or --teacher-weights FILE."
        ) from None


def _try(network: nn.Module, spec: NetworkSpec, shown: Shown) -> None:
    """Classify two images, so that a misfit shows before training and not in it."""
    try:
        with looking(network):
            logits = network(at_own_size(network, shown.sample))
        if not torch.isfinite(logits).all():
            raise ValueError("what it says of them is not a number.")
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        usual, _ = _usual_size(spec)
        way_out = f"Let it scale them: --set network.input_size={max(usual)} (teacher. if it is the teacher)."
        raise _misfit(spec, shown, f"{reason(error)} {way_out}") from None


def _misfit(spec: NetworkSpec, shown: Shown, why: str) -> UserError:
    size = "x".join(str(side) for side in _seen(spec, shown))
    return UserError(f"Network {spec.name} cannot be built for {size} images: {why}")


# Where weights came from is no part of what the network is.
_ONLY_ONCE = ("num_classes", "pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")


def save(network: nn.Module, spec: NetworkSpec, shown: Shown, folder: Path, made_by: str | None = None) -> None:
    """Weights and description; `load_student` opens them.

    Of a timm network they have timm's own form: `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it. One
    with an `input_size` of its own is described by that size: timm's preparation of images scales to it. Of any other
    network they say which function made it, `made_by` or the spec's name.
    """
    network = deepcopy(network).to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    known: dict[str, Any] = {"label_names": [*shown.classes]}
    if made_by is not None or is_own(spec.name):
        known |= {"made_by": made_by or spec.name, "options": dict(spec.options)}
        if not _is_rebuilt_by_timm(network, shown):
            _save_own(network, known, shown, folder)
            return
        size, arguments = tuple(shown.sample.shape[1:]), {"in_chans": shown.sample.shape[1]}  # type: ignore[union-attr]
    else:
        size = _seen(spec, shown)
        arguments = {name: value for name, value in _arguments(spec, shown).items() if name not in _ONLY_ONCE}
    described: dict[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    described |= {"num_classes": len(shown.classes), "input_size": size}
    if shown.normalisation is not None:
        described |= {"mean": shown.normalisation[0], "std": shown.normalisation[1]}
    save_for_hf(network, folder, known, arguments, safe_serialization=True)


def _is_rebuilt_by_timm(network: nn.Module, shown: Shown) -> bool:
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


def _save_own(network: nn.Module, known: dict[str, Any], shown: Shown, folder: Path) -> None:
    mean, std = shown.normalisation or (None, None)
    known = {**known, "mean": mean, "std": std}
    folder.mkdir(parents=True, exist_ok=True)
    # Cloned, because some networks have one weight in two places.
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", known)


def load_student(folder: str | Path, network: MakeModule | None = None) -> nn.Module:
    """The trained student of a run, in eval mode; `folder` is the run's, or the student's inside it.

    A student that is not timm's is made by `network`, the function it was trained with, or by the one its folder names
    where that can be imported. What it wants to see is what it was trained on, normalised in the same way.
    """
    file = weights_file(Path(folder))
    known = described(file.with_name("config.json"))
    if "made_by" not in known and network is not None:
        raise UserError(f"The student in {folder} is timm's {known.get('architecture')}: leave network= out.")
    if "architecture" in known and network is None:
        opened: nn.Module = timm.create_model(f"local-dir:{file.parent}", pretrained=True)
        return opened.eval()
    try:
        with seeded(0):
            built = _make(network, known["made_by"] if network is None else qualified_name(network), known["options"])
    except UserError as error:
        way_out = "" if network is not None else " Give the function that makes it: load_student(folder, network=...)."
        raise UserError(f"The student in {folder} cannot be made again. {error}{way_out}") from error
    load_weights(built, str(file), known["label_names"])
    return built.eval()
