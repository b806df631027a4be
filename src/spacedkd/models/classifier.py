"""Classifiers: a network with its own head, which also returns the features its head reads.

Every model of a run is called with the inputs of a batch and returns one `Prediction` for each of its heads, the
deepest first. A network may be

    timm's                     split between its `forward_features` and `forward_head`
    (logits, features)         a pair, or a mapping of both or of logits alone: taken as they are
    logits alone               features are the input of the linear layer, or 1x1 convolution, that gives the logits
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs, call
from spacedkd.models.preprocessing import preprocess
from spacedkd.runtime.errors import UserError, is_out_of_memory
from spacedkd.runtime.user_code import is_from_user_code, user_code_error


class Prediction(NamedTuple):
    """The output of one head for B items."""

    logits: Tensor  # [B, C]; numbers [B, D] in regression, [B, C, H, W] in a dense task
    features: Tensor  # [B, D] pooled, before the classifier; [B, 0] where the network does not show them
    heat: Tensor | None = None  # [1] theta of a learned temperature (CTKD), where the model has one


class Classifier(nn.Module):
    """A network with its own head, and an adapter that carries its features to the width of a teacher's.

    network               an `nn.Module`, timm's or any other: see the top of this file
    adapter               applied to the features; without one they are the network's own
    distillation_token    let the heads of a DeiT's class token and distillation token learn apart: in train mode there
                          is a prediction of each, the class token's first; in eval mode there is one, their mean

    >>> (prediction,) = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))(torch.zeros(2, 4))
    >>> prediction.logits.shape, prediction.features.shape
    (torch.Size([2, 3]), torch.Size([2, 4]))
    """

    head_names: tuple[str, ...] = ("final",)
    features_name = "pooled features"
    """what the features of a prediction are, for targets that are cached"""

    def __init__(self, network: nn.Module, adapter: nn.Module | None = None, distillation_token: bool = False) -> None:
        super().__init__()
        if distillation_token and not (is_timm(network) and len(_timm_classifiers(network)) == 2):
            raise UserError(
                "distillation_token needs a student with a distillation token and its head, and "
                f"{type(network).__name__} has none: use --network deit_tiny_distilled_patch16_224, or leave it out."
            )
        self.network = network
        self.adapter = adapter
        self.distillation_token = distillation_token

    def forward(self, inputs: Inputs, adapted: bool = True) -> tuple[Prediction, ...]:
        """Return the predictions; not `adapted`, features are the network's own, without the adapter."""
        inputs = preprocess(self.network, inputs)
        if self.distillation_token and self.training:
            predictions = _classify_apart(self.network, self.network.forward_features(inputs))  # type: ignore[operator]
        elif is_timm(self.network):
            predictions = (classify(self.network, self.network.forward_features(inputs)),)  # type: ignore[operator]
        else:
            predictions = (self._predict(inputs),)
        if self.adapter is None or not adapted:
            return predictions
        return tuple(prediction._replace(features=self.adapter(prediction.features)) for prediction in predictions)

    def _predict(self, inputs: Inputs) -> Prediction:
        """Return the prediction of a network that is not timm's."""
        with record_calls(_classifier_layers(self.network, inputs)) as calls:
            logits, features = logits_and_features(self._call(inputs), type(self.network).__name__)
        logits = _with_classes(logits)
        dims, classes = self.network._spacedkd_output_form  # type: ignore[misc]
        if (logits.ndim, logits.shape[1]) != (dims, classes):
            sizes = "".join(f", {name}" for name in ("height", "width", "...")[: dims - 2])
            raise UserError(
                f"Network {type(self.network).__name__} gives logits {[*logits.shape]}, and gave {classes} for "
                f"each item before: logits must always be [B, {classes}{sizes}], in training as in evaluation."
            )
        if features is None:
            features = calls[-1].input if calls else logits.new_empty(len(logits), 0)
        if logits.ndim > 2 and features.ndim == logits.ndim:
            features = features.flatten(2).mean(2)  # of pixels: pooled, as those of a classifier are
        return Prediction(logits, features.flatten(1))

    def _call(self, inputs: Inputs) -> Any:
        try:
            return call(self.network, inputs)
        except Exception as error:
            if isinstance(error, UserError) or is_out_of_memory(error) or is_from_user_code(error):
                raise  # the training loop makes one line of it, with the step
            raise user_code_error(f"Network {type(self.network).__name__}", error, "while it is called") from error


class Logits(nn.Module):
    """A model's deepest head alone, as other tools expect a network: images to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)[0].logits
        return logits


def make_adapter(student: int, teacher: int) -> nn.Module:
    """Return the paper code's adapter of features: Linear, ReLU, Linear, with the mean of both widths between."""
    hidden = (student + teacher) // 2
    return nn.Sequential(nn.Linear(student, hidden), nn.ReLU(), nn.Linear(hidden, teacher))


def feature_width(network: nn.Module, sample: Inputs) -> int:
    """Return the width of a network's pooled features, from an example; refuse a network that does not show them."""
    width = _predict_example(network, sample).features.shape[1]
    if width == 0:
        raise UserError(
            f"{type(network).__name__} does not show its features: no linear layer of it gives its logits. Let it "
            "return (logits, features), or leave features out: --set method.feature_weight=0."
        )
    return int(width)


def class_count(network: nn.Module, sample: Inputs) -> int:
    """Return the number of a network's logits, from an example."""
    return int(_predict_example(network, sample).logits.shape[1])


def _predict_example(network: nn.Module, sample: Inputs) -> Prediction:
    prediction: Prediction
    with eval_mode(network):
        (prediction,) = Classifier(network)(sample)
    return prediction


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode without gradients, and restore its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


# Inputs and outputs of layers


@dataclass(eq=False)
class LayerCall:
    """One call of a module."""

    module: nn.Module
    input: Tensor
    """its first argument"""
    output: Any = None


@contextmanager
def record_calls(
    modules: Iterable[nn.Module], replace_input: Callable[[Tensor], Tensor] | None = None
) -> Iterator[list[LayerCall]]:
    """Record the calls of modules within a `with` block, in the order in which they are called.

    With `replace_input` a module gets that function of its input instead. Hooks are removed at the end of the block: a
    copy of a network must not share them with the original.
    """
    calls: list[LayerCall] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
        first = args[0] if args else next(iter(kwargs.values()))
        calls.append(LayerCall(module, first))
        return None if replace_input is None else ((replace_input(first), *args[1:]), kwargs)

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        next(layer_call for layer_call in reversed(calls) if layer_call.module is module).output = output

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(after))
        yield calls


# timm's networks


def is_timm(network: nn.Module) -> bool:
    """Return whether a network has the methods that timm's networks are split by."""
    parts = ("forward_features", "forward_head", "get_classifier")
    return all(callable(getattr(network, part, None)) for part in parts)


def is_timm_part(part: nn.Module, module: str, name: str) -> bool:
    """Return whether a part of a network has a class of timm's; without importing timm, as no instance does either."""
    library = sys.modules.get(module)
    return library is not None and isinstance(part, getattr(library, name))


def classify(network: nn.Module, maps: Tensor) -> Prediction:
    """Return the prediction of a timm network's own head for its last maps; features are its classifier's input.

    They are recorded by hooks: networks with two classifiers, or with layers between pooling and classifier, have no
    common method that returns them.
    """
    with record_calls(_timm_classifiers(network)) as calls:
        logits = network.forward_head(maps)  # type: ignore[operator]
    if not calls:
        raise UserError(f"{type(network).__name__} does not show the features before its classifier: no KD with it.")
    features = [layer_call.input.flatten(1) for layer_call in calls]
    same_width = len({f.shape[1] for f in features}) == 1
    return Prediction(logits, torch.stack(features).mean(0) if same_width else torch.cat(features, 1))


def _classify_apart(network: nn.Module, maps: Tensor) -> tuple[Prediction, ...]:
    """Return a prediction for each of a timm network's classifiers."""
    with record_calls(_timm_classifiers(network)) as calls:
        network.forward_head(maps)  # type: ignore[operator]
    return tuple(Prediction(layer_call.output, layer_call.input.flatten(1)) for layer_call in calls)


def _timm_classifiers(network: nn.Module) -> Sequence[Any]:
    classifier = network.get_classifier()  # type: ignore[operator]
    classifiers = classifier if isinstance(classifier, tuple | list | nn.ModuleList) else [classifier]
    return [head.fc if is_timm_part(head, "timm.layers", "ClassifierHead") else head for head in classifiers]


# Networks that are not timm's


def logits_and_features(output: Any, name: str) -> tuple[Tensor, Tensor | None]:
    """Return logits, and features or None, from the output of network `name` in any accepted form."""
    pair: tuple[Any, ...] = (output, None)
    if isinstance(output, tuple) and "logits" in getattr(output, "_fields", ()):
        output = output._asdict()  # type: ignore[attr-defined]
    if isinstance(output, Mapping):
        pair = (output.get("logits"), output.get("features"))
    elif isinstance(output, tuple | list):
        pair = tuple(output) if len(output) == 2 else (None, None)
    if not isinstance(pair[0], Tensor) or not isinstance(pair[1], Tensor | None):
        raise UserError(
            f"Network {name} returns {_describe_output(output)}: it must return logits [B, C], a pair "
            '(logits, features), or a mapping with "logits".'
        )
    return pair[0], pair[1]


def _with_classes(logits: Tensor) -> Tensor:
    """Return one number for each item, [B], as [B, 1]; other logits as they are."""
    return logits[:, None] if logits.ndim == 1 else logits


def _describe_output(output: Any) -> str:
    if isinstance(output, tuple | list):
        return f"{len(output)} of {', '.join(type(value).__name__ for value in output[:3])}"
    if isinstance(output, Mapping):
        return f"a mapping of {', '.join(str(key) for key in [*output][:5]) or 'nothing'}"
    return type(output).__name__


def _classifier_layers(network: nn.Module, inputs: Inputs) -> list[nn.Module]:
    """Return the layer that gives a network's logits, in a list that is empty if there is none.

    It is searched once, in a pass of its own, and stored on the network by name, so that a copy uses its own layer. A
    search during training would change the run's bits: some layers compute in another way while they have hooks
    (`nn.TransformerEncoder` does).
    """
    names: tuple[str, ...] | None = getattr(network, "_spacedkd_classifier_names", None)
    if names is None:
        with eval_mode(network), record_calls(filter(_is_linear, network.modules())) as calls:
            logits, features = logits_and_features(call(network, inputs), type(network).__name__)
        names = () if features is not None else _find_classifier(logits, calls, network)
        network._spacedkd_classifier_names = names  # type: ignore[assignment]
        logits = _with_classes(logits)
        network._spacedkd_output_form = (logits.ndim, logits.shape[1])  # type: ignore[assignment]
    return [network.get_submodule(name) for name in names]


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1))


def _find_classifier(logits: Tensor, calls: Sequence[LayerCall], network: nn.Module) -> tuple[str, ...]:
    """Return the name of the last linear layer whose output is the logits, or else has their size; () if none."""
    names = {module: name for name, module in network.named_modules()}

    def fits(layer_call: LayerCall) -> bool:
        output = layer_call.output
        has_size = isinstance(output, Tensor) and output.numel() == logits.numel()
        return has_size and len(layer_call.input) == len(logits)

    of_size = [layer_call for layer_call in reversed(calls) if fits(layer_call)]
    equal = [c for c in of_size if torch.equal(c.output.reshape(logits.shape).to(logits.dtype), logits)]
    return tuple(names[layer_call.module] for layer_call in (equal or of_size)[:1])
