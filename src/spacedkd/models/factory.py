"""Networks by name: anything timm has, our small-image ResNets, and functions of one's own."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import timm
import torch
from timm.layers import DropPath
from timm.models.pit import PoolingVisionTransformer
from torch import Tensor, nn

from spacedkd.config.serialization import by_signature, qualified_name
from spacedkd.config.spec import NetworkSpec
from spacedkd.data.inputs import DataInfo
from spacedkd.data.transforms import preserve_generators, seed_generators
from spacedkd.models import small_resnet
from spacedkd.models.classifier import eval_mode
from spacedkd.models.preprocessing import (
    Resize,
    add_preprocessing,
    cast_where_needed,
    parse_size,
    patch_misfit,
    preprocess,
)
from spacedkd.models.pretrained import check_network, check_sample, error_sentence, load_weights, weights_only
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.errors import format_value as shown_value
from spacedkd.runtime.user_code import failed, is_user_code, load_object

# First weights that a network's own code does not draw: those of the transformers in the paper's code.

ZERO_HEAD = "zero-head"


def starts_with_zero_head(spec: NetworkSpec) -> bool:
    """Whether a network of timm's is to start with a zero head; our ResNets have an `init` of their own."""
    return not spec.is_ours and spec.options.get("init") == ZERO_HEAD


def init_zero_head(network: nn.Module, spec: NetworkSpec) -> None:
    """Classifiers of zeros, class tokens from a truncated normal (0.02) as positions are; all else stays as drawn.

    timm draws the classifier from that normal, and tokens from one of deviation 1e-6.
    """
    tokens = [token for name in ("cls_token", "dist_token") if (token := getattr(network, name, None)) is not None]
    heads = getattr(network, "get_classifier", lambda: ())()
    heads = heads if isinstance(heads, tuple) else (heads,)
    if not tokens or not heads or not all(isinstance(head, nn.Linear) for head in heads):
        raise UserError(
            f"init {ZERO_HEAD} is for transformers with a class token and a linear classifier, and {spec.name} is "
            "none: leave it out."
        )
    for token in tokens:
        nn.init.trunc_normal_(token, std=0.02)
    for head in heads:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)


# Networks by name: anything timm has, our small-image ResNets, and functions of one's own.

MakeModule = Callable[..., nn.Module]
_networks_made: WeakSet[nn.Module] = WeakSet()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights drawn inside come from this seed; the surrounding random state is left alone."""
    with preserve_generators():
        seed_generators(seed)
        yield


def network_names(pattern: str = "") -> list[str]:
    """Names of networks, our own first; `pattern` may hold wildcards: 'resnet*'."""
    names: list[str] = timm.list_models(pattern)
    return [*(n for n in small_resnet.NAMES if n in names), *(n for n in names if n not in small_resnet.NAMES)]


def build_network(spec: NetworkSpec, shown: DataInfo, seed: int, make: MakeModule | None = None) -> nn.Module:
    """The network a spec names, for data like what is shown; its weights depend on the seed alone.

    A name is timm's, or `package.module:function`; `make` is such a function itself. A function is called with the
    spec's options. Of the options of a timm network `input_size` is ours: the network scales images to that size before
    it looks at them; and so are `init` when it is "zero-head", and `drop_path_rule`. All others are timm's, with
    `pretrained` and `checkpoint_path` among them. Trained weights replace the seed's.
    """
    if make is not None or is_user_code(spec.name):
        name = spec.name if make is None or is_user_code(spec.name) else qualified_name(make)
        with seeded(seed):  # the first look too: lazy layers draw their weights then
            network = make_from_function(make, name, spec.options)
            check_network(network, name, shown)
        if spec.weights is not None:
            load_weights(network, spec.weights, shown.classes)
            check_network(network, name, shown)
        return network
    return _build_timm(spec, shown, seed)


def make_from_function(make: MakeModule | None, name: str, options: Mapping[str, Any]) -> nn.Module:
    """The module a function makes, given or named."""
    make = load_object(name) if make is None else make
    if isinstance(make, nn.Module):
        raise instance_error("Network", make)
    if not callable(make):
        raise UserError(f"Network {name} must be a function that makes an nn.Module, got {type(make).__name__}.")
    options = by_signature(make, options, f"Network {name}")
    try:
        network = make(**options)
    except UserError:
        raise
    except Exception as error:
        raise failed(f"Network {name}", error, "to be built") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"Network {name} must make an nn.Module, got {type(network).__name__}.")
    if network in _networks_made:
        raise UserError(f"Network {name} gave out the same module twice: it must make a new one whenever it is called.")
    if not any(True for _ in network.parameters()):
        raise UserError(f"Network {name} has no parameters, so there is nothing to train.")
    _networks_made.add(network)
    return network


def with_converted_options(spec: NetworkSpec, make: MakeModule | None = None) -> NetworkSpec:
    """The spec of a network of the user's with its options as the function that makes it wants them.

    Those of timm's networks are checked when one is built: timm knows their class only then.
    """
    texts = any(isinstance(one, str | Mapping) for one in spec.options.values())
    if not texts or not (make is not None or is_user_code(spec.name)):
        return spec
    return replace(spec, options=by_signature(make or load_object(spec.name), spec.options, f"Network {spec.name}"))


def instance_error(what: str, network: nn.Module) -> UserError:
    """Return what to raise for a module that is there already, where new ones have to be made from a seed."""
    name = type(network).__name__
    return UserError(
        f"{what} is a {name} that is made already, and every role needs a new one: give the class or a function that "
        f"makes it, {name} or lambda: {name}(...)."
    )


def _build_timm(spec: NetworkSpec, shown: DataInfo, seed: int) -> nn.Module:
    if not timm.is_model(spec.name):
        raise unknown("network", spec.name, network_names())
    size = input_shape(spec, shown)[1:]
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a misfit that timm warns of ends in an error below
        network = _create_timm(spec, shown)
    if spec.weights is not None:
        load_weights(network, spec.weights, shown.classes)
    if untiled := patch_misfit(network, size):
        raise _misfit_error(spec, shown, untiled)
    if size != tuple(shown.sample.shape[2:]):  # type: ignore[union-attr]
        add_preprocessing(network, Resize(size))
    _check_on_sample(network, spec, shown)
    return network


def input_shape(spec: NetworkSpec, shown: DataInfo) -> tuple[int, int, int]:
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


def _native_size(spec: NetworkSpec) -> tuple[list[int], bool]:
    """The size a network was made for, and whether it must be told of any other."""
    usual = timm.get_pretrained_cfg(spec.name) or timm.models.PretrainedCfg(input_size=(3, 224, 224))
    return [*usual.input_size[1:]], bool(usual.fixed_input_size)


def timm_arguments(spec: NetworkSpec, shown: DataInfo) -> dict[str, Any]:
    """Everything timm is told about the network."""
    for name in ("num_classes", "in_chans"):
        if name in spec.options:
            raise UserError(f"{name} of a network follows from the data: leave it out of the options of {spec.name}.")
    channels, *size = input_shape(spec, shown)
    usual, is_fixed = _native_size(spec)
    img_size = size[0] if size[0] == size[1] else size  # some networks understand squares only
    fixed = {"img_size": img_size} if is_fixed and size != usual else {}
    ours = ["input_size", "drop_path_rule", *(["init"] if starts_with_zero_head(spec) else [])]
    given = {name: value for name, value in spec.options.items() if name not in ours}
    return {"num_classes": len(shown.classes), "in_chans": channels, **fixed, **given}


def _create_timm(spec: NetworkSpec, shown: DataInfo) -> nn.Module:
    try:
        arguments = timm_arguments(spec, shown)
        checkpoint = arguments.pop("checkpoint_path", None)
        with weights_only():
            network: nn.Module = timm.create_model(spec.name, **arguments)
        by_signature(type(network), spec.options, f"Network {spec.name}")
        if starts_with_zero_head(spec) and not spec.options.get("pretrained"):
            init_zero_head(network, spec)
        if "drop_path_rule" in spec.options:
            _spread_drop_path(network, spec)
        if checkpoint:
            load_weights(network, str(checkpoint), shown.classes, averaged=True)  # which timm would prefer too
        return network
    except UserError:
        raise
    except Exception as error:  # the hub, a proxy, a disk: what fetches weights fails in many ways
        _check_options(spec, shown)
        fetched = spec.options.get("pretrained") or spec.options.get("checkpoint_path")
        if not fetched or isinstance(error, TypeError | ValueError | AssertionError):
            raise _misfit_error(spec, shown, error_sentence(error)) from None
        raise UserError(
            f"The weights of {spec.name} cannot be loaded: {error_sentence(error)} Leave them out to start from random "
            "ones, or name a file that is here: --set network.weights=FILE, or --teacher-weights FILE."
        ) from None


def _spread_drop_path(network: nn.Module, spec: NetworkSpec) -> None:
    """Let block i of a PiT's N blocks drop with drop_path_rate * i / N, as in the paper's code.

    timm's block i drops with drop_path_rate * i / (N - 1), so that the last one has the whole rate.
    """
    rule = spec.options["drop_path_rule"]
    if rule != "i/N" or not isinstance(network, PoolingVisionTransformer):
        raise UserError(f"drop_path_rule must be i/N, of a PiT; got {shown_value(rule)} of {spec.name}: leave it out.")
    blocks = [block for stage in network.transformers for block in stage.blocks]
    for number, block in enumerate(blocks):
        for part in block.modules():
            if isinstance(part, DropPath):
                part.drop_prob = spec.options.get("drop_path_rate", 0.0) * number / len(blocks)


def _check_options(spec: NetworkSpec, shown: DataInfo) -> None:
    """Refuse the text or truth value that a network cannot be built with, if its class says that it takes another."""
    doubtful = {name: one for name, one in spec.options.items() if isinstance(one, str | bool) and name != "input_size"}
    others = {name: one for name, one in spec.options.items() if name not in (*doubtful, "checkpoint_path")}
    if not doubtful:
        return
    try:
        made = type(timm.create_model(spec.name, **timm_arguments(replace(spec, options=others), shown)))
    except Exception:  # something else is wrong, and is said
        return
    by_signature(made, doubtful, f"Network {spec.name}")


def _check_on_sample(network: nn.Module, spec: NetworkSpec, shown: DataInfo) -> None:
    """Classify two images, so that a misfit shows before training and not in it."""
    cast_where_needed(network, shown.sample)
    try:
        with eval_mode(network):
            logits = network(preprocess(network, shown.sample))
        if not torch.isfinite(logits).all():
            check_sample(shown.sample)
            raise ValueError("what it says of them is not a number.")
    except UserError:
        raise
    except Exception as error:  # windows and patches that do not fit fail in many ways
        usual, _ = _native_size(spec)
        way_out = f" Let it scale them: --set network.input_size={max(usual)} (teacher. if it is the teacher)."
        if _fails_alike(network, spec, shown, usual, error_sentence(error)):
            way_out = ""
        raise _misfit_error(spec, shown, f"{error_sentence(error)}{way_out}") from None


def _fails_alike(network: nn.Module, spec: NetworkSpec, shown: DataInfo, size: Sequence[int], why: str) -> bool:
    """Whether a network fails for the same reason on images of another size, so that it is not their size."""
    weight = next(network.parameters())
    images = torch.zeros(2, input_shape(spec, shown)[0], *size, dtype=weight.dtype, device=weight.device)
    try:
        with eval_mode(network):
            network(images)
    except Exception as error:
        return error_sentence(error) == why
    return False


def _misfit_error(spec: NetworkSpec, shown: DataInfo, why: str) -> UserError:
    size = "x".join(str(side) for side in input_shape(spec, shown))
    return UserError(f"Network {spec.name} cannot be built for {size} images: {why}")
