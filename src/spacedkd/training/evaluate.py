"""Accuracy of a run's models on its test and held-out images, while it trains."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from spacedkd.data.dataset import Items
from spacedkd.data.images import Encoded, Images
from spacedkd.data.stream import evaluation_batches
from spacedkd.evaluation.scores import NotFinite, check_finite, count
from spacedkd.training import device
from spacedkd.training.loop import Scores
from spacedkd.training.state import TrainingState


def evaluate_role(state: TrainingState, role: str, at_end: bool) -> Iterator[tuple[str, Scores]]:
    """Yield the accuracy of a role's model after its turn, and of what else is evaluated then, by name.

    After the student's turn that is its moving average; after the last one of the run the student, if that turn was
    another role's and may have moved it: what is reported are the weights that are saved.
    """
    learner, student = state.learner(role), state.run.roles[-1]
    scores = evaluate_model(state, learner.frozen, learner.module, role)
    yield role, scores
    if state.average is not None and role == student:
        yield "average", evaluate_model(state, state.average, state.average, "average")
    if at_end and state.moves_student(role):
        saved = state.learner(student)
        yield student, scores if saved is learner else evaluate_model(state, saved.frozen, saved.module, student)


def evaluate_model(state: TrainingState, model: nn.Module, module: nn.Module, name: str | None = None) -> Scores:
    """Accuracy of every head of a model on every part of the data that is not trained on; its mode is given back.

    `module` is the model without what devices and precision wrap around it, and knows its heads. With a `name`, which
    the message has, logits that are not finite are refused: `NotFinite`, in all processes.
    """
    fabric, spec = state.fabric, state.run.spec
    was_training = module.training
    module.eval()
    if fabric.world_size > 1:
        device.broadcast_buffers(module)
    heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
    scores, wrong = {}, {}
    for part, items in state.data.evaluated_splits().items():
        rows = torch.arange(fabric.global_rank, len(items), fabric.world_size)
        mine = items if fabric.world_size == 1 else items.subset(rows)
        shown = evaluation_batches(
            mine, _batch_size(spec.batch_size, len(items), fabric.world_size), spec.engine.workers
        )
        moved = (batch.to(fabric.device, state.channels_last) for batch in shown)
        names, counts = count(model, heads, moved)
        right, undefined = fabric.all_reduce(counts, reduce_op="sum").tolist()  # type: ignore[union-attr]
        scores[part] = {head: total / len(items) for head, total in zip(names, right, strict=True)}
        wrong[part] = dict(zip(names, undefined, strict=True))
    module.train(was_training)
    if name is not None:
        for part, undefined in wrong.items():
            _check_defined(state.data.evaluated_splits()[part], part, undefined, name)
    return scores


def _check_defined(items: Images | Encoded | Items, part: str, undefined: Mapping[str, int], name: str) -> None:
    """Refuse logits that are not finite; where an input is the cause, name it."""
    try:
        check_finite(undefined, [*undefined.values()], len(items), f"{part} images by the {name}")
    except NotFinite as error:
        row = items.first_not_finite() if isinstance(items, Items) else None
        source = "training" if part == "holdout" else part  # of which an item is held out under the number it has there
        cause = (
            ""
            if row is None
            else f" Item {row} of the {source} data holds NaN or infinity: correct it or leave it out."
        )
        raise NotFinite(f"{error}{cause}", row) from None


def _batch_size(trained_with: int, items: int, ranks: int) -> int:
    """Return a batch size with which all ranks need equally many batches, though some have one item more."""
    size, fewest, most = max(256, trained_with), items // ranks, math.ceil(items / ranks)
    while fewest and math.ceil(fewest / size) != math.ceil(most / size):
        size += 1
    return size
