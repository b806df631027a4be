"""Networks built from a spec: timm's by name, among them our own, and those of users' functions.

`build_network` is the way in. Every network runs on two items of the data before it is returned, so that a misfit is
found before training. Weights depend on the seed alone, unless trained ones are loaded.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from urllib.error import URLError
from weakref import WeakSet

import timm
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from timm.layers import DropPath
from timm.models.pit import PoolingVisionTransformer
from torch import Tensor, nn

from spacedkd.config.serialization import by_signature, qualified_name
from spacedkd.config.spec import NetworkSpec
from spacedkd.data.generators import preserve_generators, seed_generators
from spacedkd.data.inputs import DataInfo, Inputs, call, first_not_finite, row_count
from spacedkd.models.classifier import Classifier, eval_mode, is_timm, logits_and_features
from spacedkd.models.preprocessing import (
    Resize,
    add_preprocessing,
    cast_where_needed,
    parse_size,
    patch_misfit,
    preprocess,
)
from spacedkd.models.pretrained import load_weights, offline_if_unreachable, weights_only
from spacedkd.models.small_networks import OUR_NAMES
from spacedkd.runtime.errors import UserError, error_sentence, format_value, unknown
from spacedkd.runtime.user_code import is_user_code, load_object, user_code_error

MakeModule = Callable[..., nn.Module]
"""a function, or a class, that makes a network from the options of a spec"""


def build_network(spec: NetworkSpec, info: DataInfo, seed: int, make: MakeModule | None = None) -> nn.Module:
    """Return a new network.

    spec    its name, options and trained weights. A name is timm's, or `package.module:function`
    info    classes and a sample of the data it is built for
    seed    the seed of its first weights; trained weights replace them
    make    a user's function, which is called with the spec's options, in place of a name

    Options of a timm network are arguments of `timm.create_model`, with `pretrained` and `checkpoint_path` among them,
    and three of ours: `input_size`, to which the network scales images; `init: zero-head`; and `drop_path_rule`.
    """
    if make is None and not is_user_code(spec.name):
        return _build_timm(spec, info, seed)
    name = spec.name if make is None or is_user_code(spec.name) else qualified_name(make)
    with seeded(seed):  # the check too: lazy layers draw their weights in the first pass
        network = make_from_function(make, name, spec.options)
        check_network(network, name, info)
    if spec.weights is not None:
        load_weights(network, spec.weights, info.classes)
        check_network(network, name, info)
    return network


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers from this seed within a `with` block, and restore the random state afterwards."""
    with preserve_generators():
        seed_generators(seed)
        yield


def network_names(pattern: str = "") -> list[str]:
    """Return the names of networks, our own first; `pattern` may hold wildcards: 'resnet*'."""
    names: list[str] = timm.list_models(pattern)
    return [*(n for n in OUR_NAMES if n in names), *(n for n in names if n not in OUR_NAMES)]


# Users' functions

_networks_made: WeakSet[nn.Module] = WeakSet()
"""every network a function has returned, to refuse one that comes twice"""


def make_from_function(make: MakeModule | None, name: str, options: Mapping[str, Any]) -> nn.Module:
    """Return the new module that a user's function makes; without `make`, import the function by its name."""
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
        raise user_code_error(f"Network {name}", error, "to be built") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"Network {name} must make an nn.Module, got {type(network).__name__}.")
    if network in _networks_made:
        raise UserError(f"Network {name} returned the same module twice: it must make a new one with every call.")
    if not any(True for _ in network.parameters()):
        raise UserError(f"Network {name} has no parameters, so there is nothing to train.")
    _networks_made.add(network)
    return network


def check_network(network: nn.Module, name: str, info: DataInfo) -> None:
    """Run a user's network on two items of the data, so that a misfit shows before training and not in it.

    It must return finite float logits [2, classes], or outputs of the form of another task, and, if any, float features
    [2, width].
    """
    items, shapes = row_count(info.sample), _describe_shapes(info.sample)
    cast_where_needed(network, info.sample)
    try:
        with eval_mode(network):
            output = call(network, preprocess(network, info.sample))
    except Exception as error:
        raise user_code_error(f"Network {name}", error, f"on {shapes}") from error
    logits, features = logits_and_features(output, name)
    if not info.task.fits(logits, items) or not logits.is_floating_point():
        raise UserError(
            f"Network {name} must give float {info.task.form.format(items=items)} for {shapes}, got "
            f"{_describe_shapes(logits)}."
        )
    if features is not None and (features.ndim < 2 or len(features) != items or not features.is_floating_point()):
        raise UserError(f"Network {name} must give float features [{items}, width], got {_describe_shapes(features)}.")
    width = logits.shape[1] if logits.ndim > 1 else 1
    if info.classes and width != len(info.classes) and info.task.softens:
        raise UserError(
            f"Network {name} gives {width} logits, and the data has {len(info.classes)} classes: "
            "let it give one logit for each class."
        )
    if info.classes and width != len(info.classes):
        raise UserError(f"Network {name} gives {width} numbers, and a target of the data has {len(info.classes)}.")
    if not torch.isfinite(logits).all():
        check_sample(info.sample)
        raise UserError(f"Network {name} gives logits that are not finite (NaN or infinity) for {shapes}.")
    _check_timm_interface(network, name, info.sample, logits)


def check_sample(sample: Inputs) -> None:
    """Refuse NaN and infinity in the items a network is checked on, the first test items of a user's dataset."""
    if (row := first_not_finite(sample)) is not None:
        raise UserError(f"Item {row} of the test data holds NaN or infinity: correct it or leave it out.")


def _check_timm_interface(network: nn.Module, name: str, sample: Inputs, logits: Tensor) -> None:
    """Refuse a network that has timm's methods by name, but gives other logits through them.

    Any other network is called here too, in the form that methods call it, but its logits are not compared: they differ
    where it draws random numbers.
    """
    try:
        with eval_mode(network):
            (prediction,) = Classifier(network)(sample)
        same = torch.allclose(prediction.logits, logits, rtol=1e-3, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        same = False
    if not same and is_timm(network):
        raise UserError(
            f"Network {name} has methods called forward_features, forward_head and get_classifier, but not with timm's "
            "meaning: give them other names."
        )


def _describe_shapes(inputs: Inputs) -> str:
    """Return types and shapes of a network's inputs as text.

    >>> _describe_shapes(torch.zeros(2, 5)), _describe_shapes({"tokens": torch.zeros(2, 7).long()})
    ('float32 [2, 5]', 'tokens int64 [2, 7]')
    """
    if isinstance(inputs, Tensor):
        return f"{str(inputs.dtype).removeprefix('torch.')} {[*inputs.shape]}"
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key} {_describe_shapes(value)}" for key, value in inputs.items())
    return ", ".join(_describe_shapes(value) for value in inputs)


def with_converted_options(spec: NetworkSpec, make: MakeModule | None = None) -> NetworkSpec:
    """Return the spec with text options converted to the types that a user's function takes.

    Options of timm's networks are checked when one is built, because timm knows the network's class only then.
    """
    has_text = any(isinstance(value, str | Mapping) for value in spec.options.values())
    if not has_text or not (make is not None or is_user_code(spec.name)):
        return spec
    return replace(spec, options=by_signature(make or load_object(spec.name), spec.options, f"Network {spec.name}"))


def instance_error(what: str, network: nn.Module) -> UserError:
    """Return the error for a module given where a function is needed: every role needs a new one, from a seed."""
    name = type(network).__name__
    return UserError(
        f"{what} is a {name} object, and every role needs a new one: give the class or a function that makes it, "
        f"{name} or lambda: {name}(...)."
    )


# timm's networks


def _build_timm(spec: NetworkSpec, info: DataInfo, seed: int) -> nn.Module:
    if not timm.is_model(spec.name):
        raise unknown("network", spec.name, network_names())
    size = input_shape(spec, info)[1:]
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a misfit that timm warns of ends in an error below
        network = _create_timm(spec, info)
    if spec.weights is not None:
        load_weights(network, spec.weights, info.classes)
    if misfit := patch_misfit(network, size):
        raise _misfit_error(spec, info, misfit)
    if size != tuple(info.sample.shape[2:]):  # type: ignore[union-attr]
        add_preprocessing(network, Resize(size))
    _check_on_sample(network, spec, info)
    return network


def _create_timm(spec: NetworkSpec, info: DataInfo) -> nn.Module:
    """Return timm's network with its first weights; any failure is a `UserError`."""
    try:
        arguments = timm_arguments(spec, info)
        checkpoint = arguments.pop("checkpoint_path", None)
        with weights_only(), offline_if_unreachable() if arguments.get("pretrained") else nullcontext():
            network: nn.Module = timm.create_model(spec.name, **arguments)
        by_signature(type(network), spec.options, f"Network {spec.name}")
        if starts_with_zero_head(spec) and not spec.options.get("pretrained"):
            init_zero_head(network, spec)
        if "drop_path_rule" in spec.options:
            _spread_drop_path(network, spec)
        if checkpoint:  # timm would load a moving average rather than the weights, too
            load_weights(network, str(checkpoint), info.classes, averaged=True)
        return network
    except UserError:
        raise
    except Exception as error:  # the hub, a proxy, a disk: downloads fail in many ways
        _check_options(spec, info)
        downloads = spec.options.get("pretrained") or spec.options.get("checkpoint_path")
        if not downloads or isinstance(error, TypeError | ValueError | AssertionError):
            raise _misfit_error(spec, info, error_sentence(error)) from None
        unreachable = isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled | URLError)
        why = "they are not on this machine, and the hub cannot be reached." if unreachable else error_sentence(error)
        raise UserError(
            f"The weights of {spec.name} cannot be loaded: {why} Leave them out to start from random ones, or name a "
            "file: --weights FILE, or --teacher-weights FILE."
        ) from None


def timm_arguments(spec: NetworkSpec, info: DataInfo) -> dict[str, Any]:
    """Return the arguments of `timm.create_model`: the spec's options, and what follows from the data."""
    for name in ("num_classes", "in_chans"):
        if name in spec.options:
            raise UserError(f"{name} of a network follows from the data: leave it out of the options of {spec.name}.")
    channels, *size = input_shape(spec, info)
    native_size, is_fixed = _native_size(spec)
    img_size = size[0] if size[0] == size[1] else size  # some networks understand squares only
    size_argument = {"img_size": img_size} if is_fixed and size != native_size else {}
    ours = ["input_size", "drop_path_rule", *(["init"] if starts_with_zero_head(spec) else [])]
    options = {name: value for name, value in spec.options.items() if name not in ours}
    return {"num_classes": len(info.classes), "in_chans": channels, **size_argument, **options}


def input_shape(spec: NetworkSpec, info: DataInfo) -> tuple[int, int, int]:
    """Return channels, height and width of a timm network's input, after its own scaling; refuse other data."""
    if not isinstance(info.sample, Tensor) or info.sample.ndim != 4:
        raise UserError(
            f"Network {spec.name} is timm's and takes images [N, channels, height, width], and the data has something "
            "else: give a function that makes a network for it, as package.module:function or network=."
        )
    if not info.classes:
        raise UserError(
            f"The data does not say how many classes there are, and network {spec.name} must know: give the dataset an "
            "attribute `classes`, or a function that makes the network, as package.module:function or network=."
        )
    input_size = spec.options.get("input_size")
    channels, height, width = info.sample.shape[1:]
    return channels, *((height, width) if input_size is None else parse_size(input_size))


def _native_size(spec: NetworkSpec) -> tuple[list[int], bool]:
    """Return the height and width a network was made for, and whether it must be built for any other size."""
    config = timm.get_pretrained_cfg(spec.name) or timm.models.PretrainedCfg(input_size=(3, 224, 224))
    return [*config.input_size[1:]], bool(config.fixed_input_size)


def _check_options(spec: NetworkSpec, info: DataInfo) -> None:
    """Refuse the text or truth value that made a network fail, if its class takes another type there.

    The class is known only from a network, so one is built without those options.
    """
    doubtful = {k: value for k, value in spec.options.items() if isinstance(value, str | bool) and k != "input_size"}
    others = {k: value for k, value in spec.options.items() if k not in (*doubtful, "checkpoint_path")}
    if not doubtful:
        return
    try:
        network = timm.create_model(spec.name, **timm_arguments(replace(spec, options=others), info))
    except Exception:  # something else is wrong, and the caller reports it
        return
    by_signature(type(network), doubtful, f"Network {spec.name}")


def _check_on_sample(network: nn.Module, spec: NetworkSpec, info: DataInfo) -> None:
    """Classify two images, so that a misfit shows before training and not in it."""
    cast_where_needed(network, info.sample)
    try:
        with eval_mode(network):
            logits = network(preprocess(network, info.sample))
        if not torch.isfinite(logits).all():
            check_sample(info.sample)
            raise ValueError("its logits are not finite.")
    except UserError:
        raise
    except Exception as error:  # windows and patches that do not fit fail in many ways
        native_size, _ = _native_size(spec)
        way_out = f" Let it scale them: --set network.input_size={max(native_size)} (teacher. if it is the teacher)."
        if _fails_alike(network, spec, info, native_size, error_sentence(error)):
            way_out = ""
        raise _misfit_error(spec, info, f"{error_sentence(error)}{way_out}") from None


def _fails_alike(network: nn.Module, spec: NetworkSpec, info: DataInfo, size: Sequence[int], why: str) -> bool:
    """Return whether a network fails for the same reason on images of another size: then scaling is no way out."""
    weight = next(network.parameters())
    images = torch.zeros(2, input_shape(spec, info)[0], *size, dtype=weight.dtype, device=weight.device)
    try:
        with eval_mode(network):
            network(images)
    except Exception as error:
        return error_sentence(error) == why
    return False


def _misfit_error(spec: NetworkSpec, info: DataInfo, why: str) -> UserError:
    size = "x".join(str(side) for side in input_shape(spec, info))
    return UserError(f"Network {spec.name} cannot be built for {size} images: {why}")


# First weights and drop-path rates of the paper's code, where timm has others

ZERO_HEAD = "zero-head"


def starts_with_zero_head(spec: NetworkSpec) -> bool:
    """Return whether a timm network starts with a zero head; `init` of our own networks is theirs."""
    return not spec.is_ours and spec.options.get("init") == ZERO_HEAD


def init_zero_head(network: nn.Module, spec: NetworkSpec) -> None:
    """Set classifiers to zero and draw class tokens from a truncated normal (0.02), as positions are.

    timm draws the classifier from that normal, and tokens from one of deviation 1e-6. All other weights stay.
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


def _spread_drop_path(network: nn.Module, spec: NetworkSpec) -> None:
    """Set the drop-path rate of block i of a PiT's N blocks to drop_path_rate * i / N, as in the paper's code.

    timm's block i has drop_path_rate * i / (N - 1), so that the last one has the whole rate.
    """
    rule = spec.options["drop_path_rule"]
    if rule != "i/N" or not isinstance(network, PoolingVisionTransformer):
        raise UserError(f"drop_path_rule must be i/N, of a PiT; got {format_value(rule)} of {spec.name}: leave it out.")
    blocks = [block for stage in network.transformers for block in stage.blocks]
    for number, block in enumerate(blocks):
        for module in block.modules():
            if isinstance(module, DropPath):
                module.drop_prob = spec.options.get("drop_path_rate", 0.0) * number / len(blocks)
