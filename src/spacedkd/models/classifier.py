"""What reads a network: its own classifier, and an adapter that carries its features to a teacher's.

Every model of a run is called with the inputs of a batch and answers with one `Prediction` for each of its heads, the
deepest first. A network may be

    timm's                     read between its `forward_features` and `forward_head`
    (logits, features)         or a mapping of both, or of logits alone: taken as it answers
    logits alone               features are what enters the linear layer, or 1x1 convolution, that gives the logits
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from timm.layers import ClassifierHead
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs, call
from spacedkd.models.preprocessing import preprocess
from spacedkd.runtime.errors import UserError, is_out_of_memory
from spacedkd.runtime.user_code import failed, is_users


@dataclass(eq=False)
class LayerCall:
    """One call of a module."""

    module: nn.Module
    entered: Tensor
    """its first argument"""
    left: Any = None
    """what it gave out"""


@contextmanager
def record_calls(
    modules: Iterable[nn.Module], handed_on: Callable[[Tensor], Tensor] | None = None
) -> Iterator[list[LayerCall]]:
    """What passes through the modules while this lasts, in the order in which they are called.

    The modules are given what `handed_on` makes of what enters. Hooks do not outlive this: copies of a network must
    not share them.
    """
    seen: list[LayerCall] = []

    def enter(module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, Any] | None:
        entered = args[0] if args else next(iter(named.values()))
        seen.append(LayerCall(module, entered))
        return None if handed_on is None else ((handed_on(entered), *args[1:]), named)

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        next(one for one in reversed(seen) if one.module is module).left = output

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(leave))
        yield seen


class Prediction(NamedTuple):
    """What one head says of B items."""

    logits: Tensor  # [B, C]
    features: Tensor  # [B, D] pooled, before the classifier; [B, 0] where the network does not show them
    heat: Tensor | None = None  # [1] how soft it wants to be compared, where that is learned


class Classifier(nn.Module):
    """A network with its own head, and an adapter on its features if they are to meet a teacher's.

    With `distillation_token` the heads of its class token and of its distillation token learn apart: in train mode it
    answers with a prediction of each, the class token's first. In eval mode it answers with the mean of both.
    """

    head_names: tuple[str, ...] = ("final",)

    def __init__(self, network: nn.Module, adapter: nn.Module | None = None, distillation_token: bool = False) -> None:
        super().__init__()
        if distillation_token and not (is_timm(network) and len(_classifiers(network)) == 2):
            raise UserError(
                "distillation_token wants a student with a distillation token and its head, and "
                f"{type(network).__name__} has none: use --network deit_tiny_distilled_patch16_224, or leave it out."
            )
        self.network = network
        self.adapter = adapter
        self.distillation_token = distillation_token

    def forward(self, inputs: Inputs, adapted: bool = True) -> tuple[Prediction, ...]:
        """Features come through the adapter, towards the teacher's; not `adapted` they are the network's own."""
        inputs = preprocess(self.network, inputs)
        if self.distillation_token and self.training:
            predictions = _classify_apart(self.network, self.network.forward_features(inputs))  # type: ignore[operator]
        elif is_timm(self.network):
            predictions = (classify(self.network, self.network.forward_features(inputs)),)  # type: ignore[operator]
        else:
            predictions = (self._answer(inputs),)
        adapter = self.adapter if adapted else None
        return tuple(one if adapter is None else one._replace(features=adapter(one.features)) for one in predictions)

    def _answer(self, inputs: Inputs) -> Prediction:
        """What a network that is not timm's says, and the features it gives or shows."""
        with record_calls(_classifier_layers(self.network, inputs)) as seen:
            logits, features = logits_and_features(self._call(inputs), type(self.network).__name__)
        classes = getattr(self.network, "_class_count", None)
        if logits.ndim != 2 or logits.shape[1] != (classes or logits.shape[1]):
            raise UserError(
                f"Network {type(self.network).__name__} gives logits {[*logits.shape]}, and gave {classes or 'C'} for "
                f"each item before: logits must always be [B, {classes or 'C'}], in training as in evaluation."
            )
        if features is None:
            features = seen[-1].entered if seen else logits.new_empty(len(logits), 0)
        return Prediction(logits, features.flatten(1))

    def _call(self, inputs: Inputs) -> Any:
        try:
            return call(self.network, inputs)
        except Exception as error:
            if isinstance(error, UserError) or is_out_of_memory(error) or is_users(error):
                raise  # which whoever knows the step says in one line
            raise failed(f"Network {type(self.network).__name__}", error, "while it is called") from error


def is_timm(network: nn.Module) -> bool:
    """Whether a network can be taken apart the way timm's can."""
    parts = ("forward_features", "forward_head", "get_classifier")
    return all(callable(getattr(network, part, None)) for part in parts)


def logits_and_features(answer: Any, name: str) -> tuple[Tensor, Tensor | None]:
    """Logits, and features if there are any, from whatever form a network answers in."""
    found: tuple[Any, ...] = (answer, None)
    if isinstance(answer, tuple) and "logits" in getattr(answer, "_fields", ()):
        answer = answer._asdict()  # type: ignore[attr-defined]
    if isinstance(answer, Mapping):
        found = (answer.get("logits"), answer.get("features"))
    elif isinstance(answer, tuple | list):
        found = tuple(answer) if len(answer) == 2 else (None, None)
    if not isinstance(found[0], Tensor) or not isinstance(found[1], Tensor | None):
        raise UserError(
            f"Network {name} returns {_describe_output(answer)}: it must return logits [B, C], a pair "
            '(logits, features), or a mapping with "logits".'
        )
    return found[0], found[1]


def _describe_output(answer: Any) -> str:
    if isinstance(answer, tuple | list):
        return f"{len(answer)} of {', '.join(type(one).__name__ for one in answer[:3])}"
    if isinstance(answer, Mapping):
        return f"a mapping of {', '.join(str(key) for key in [*answer][:5]) or 'nothing'}"
    return type(answer).__name__


def _classifier_layers(network: nn.Module, inputs: Inputs) -> list[nn.Module]:
    """The layer that gives out a network's logits, if there is one; looked for once, in a pass of its own.

    It is remembered by name, so that copies stay apart, and by the network: a search in the middle of a training would
    change its bits, because some layers compute in another way while they are watched (nn.TransformerEncoder does).
    """
    names: tuple[str, ...] | None = getattr(network, "_classifying", None)
    if names is None:
        with eval_mode(network), record_calls(filter(_is_linear, network.modules())) as seen:
            logits, features = logits_and_features(call(network, inputs), type(network).__name__)
        names = () if features is not None else _layers_that_give(logits, seen, network)
        network._classifying = names  # type: ignore[assignment]
        network._class_count = logits.shape[1] if logits.ndim == 2 else None  # type: ignore[assignment]
    return [network.get_submodule(name) for name in names]


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1))


def _layers_that_give(logits: Tensor, seen: Sequence[LayerCall], network: nn.Module) -> tuple[str, ...]:
    """The last linear layer that gave out these logits, in any shape, or else as many numbers; nothing if none did."""
    names = {module: name for name, module in network.named_modules()}

    def fits(one: LayerCall) -> bool:
        return isinstance(one.left, Tensor) and one.left.numel() == logits.numel() and len(one.entered) == len(logits)

    last = [one for one in reversed(seen) if fits(one)]
    same = [one for one in last if torch.equal(one.left.reshape(logits.shape).to(logits.dtype), logits)]
    return tuple(names[one.module] for one in (same or last)[:1])


def classify(network: nn.Module, maps: Tensor) -> Prediction:
    """What a timm network's own head says of its last maps; the features are what enters its classifier.

    They are watched on their way in: networks with two classifiers, or with layers between pooling and classifier,
    have no common way to be asked for them.
    """
    with record_calls(_classifiers(network)) as seen:
        logits = network.forward_head(maps)  # type: ignore[operator]
    if not seen:
        raise UserError(f"{type(network).__name__} does not show the features before its classifier: no KD with it.")
    features = [one.entered.flatten(1) for one in seen]
    same_width = len({f.shape[1] for f in features}) == 1
    return Prediction(logits, torch.stack(features).mean(0) if same_width else torch.cat(features, 1))


def _classify_apart(network: nn.Module, maps: Tensor) -> tuple[Prediction, ...]:
    """Return what each of a timm network's classifiers says of its last maps, and what enters it."""
    with record_calls(_classifiers(network)) as seen:
        network.forward_head(maps)  # type: ignore[operator]
    return tuple(Prediction(one.left, one.entered.flatten(1)) for one in seen)


def _classifiers(network: nn.Module) -> Sequence[nn.Module]:
    found = network.get_classifier()  # type: ignore[operator]
    several = found if isinstance(found, tuple | list | nn.ModuleList) else [found]
    return [part.fc if isinstance(part, ClassifierHead) else part for part in several]


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """For a look at what a model says while it is built: nothing is learned, and its mode is given back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _predict_example(network: nn.Module, sample: Inputs) -> Prediction:
    prediction: Prediction
    with eval_mode(network):
        (prediction,) = Classifier(network)(sample)
    return prediction


def feature_width(network: nn.Module, sample: Inputs) -> int:
    """How many numbers a network's pooled features have, seen on an example."""
    width = _predict_example(network, sample).features.shape[1]
    if width == 0:
        raise UserError(
            f"{type(network).__name__} does not show its features: no linear layer of it gives out its logits. Let it "
            "answer with (logits, features), or leave features out: --set method.feature_weight=0."
        )
    return int(width)


def class_count(network: nn.Module, sample: Inputs) -> int:
    """How many classes a network tells apart, seen on an example."""
    return int(_predict_example(network, sample).logits.shape[1])


def make_adapter(student: int, teacher: int) -> nn.Module:
    """The paper code's adapter from student to teacher features: Linear, ReLU, Linear with the mean width between."""
    hidden = (student + teacher) // 2
    return nn.Sequential(nn.Linear(student, hidden), nn.ReLU(), nn.Linear(hidden, teacher))
