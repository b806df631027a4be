"""What is remembered, and the methods of one network that remember: METHODS.md cards 16 (DLB) and 17 (PS-KD)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd import UserError
from spacedkd.data import Batch
from spacedkd.data.stream import View
from spacedkd.methods import Ingredients, Progress
from spacedkd.methods.dlb import DLB
from spacedkd.methods.memory import Bank, LastBatch, check_indices, make_bank
from spacedkd.methods.ps_kd import PSKD
from spacedkd.models.classifier import Prediction
from tests.methods.fakes import copied, says, shown, total
from tests.methods.vectors import FS, FT, START, TE, S, U, Y, at_epoch, close, close_to, gradient

CE_S = 0.7702599809
KD_LOSS = 0.5940061865
"""of card 4: what a student taught by `kd` learns from"""


def test_a_bank_is_kept_by_place_in_the_data_set() -> None:
    bank = Bank(6, 2)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    bank.write(torch.tensor([4, 1]), rows, START)
    bank.write(torch.tensor([1, 0]), 10 * rows, START)
    assert bank.read(torch.tensor([0, 1, 4, 5])).tolist() == [[30, 40], [10, 20], [1, 2], [0, 0]]
    assert bank.count_visits(torch.arange(6)).tolist() == [1, 2, 0, 0, 1, 0]


def test_memory_lets_go_of_the_graph_and_of_precision() -> None:
    bank, last = Bank(2, 3), LastBatch(2, 3)
    row = S.clone().requires_grad_()
    bank.write(torch.arange(2), row, START)
    last.write(torch.arange(2), row, START)
    for kept in (bank.rows, last.logits):
        assert kept.dtype == torch.float32
        assert not kept.requires_grad


def test_memory_holds_what_all_processes_saw() -> None:
    """Each process of two writes its own part of the batch."""
    parts = {"indices": torch.tensor([3, 0, 2]), "rows": torch.tensor([[3.0], [0.5], [2.0]])}

    def gather(mine: Tensor) -> Tensor:
        return parts["rows"] if mine.is_floating_point() else parts["indices"]

    progress = Progress(5, 10, 10, gather)
    bank, last = Bank(4, 1), LastBatch(4, 1)
    for memory in (bank, last):
        memory.write(parts["indices"][:2], parts["rows"][:2], progress)
    assert bank.rows.tolist() == [[0.5], [0], [2], [3]]
    assert bank.visits.tolist() == [1, 0, 1, 1]
    assert last.read(torch.tensor([2, 3])).tolist() == [[2], [3]]


def test_the_last_batch_forgets_the_one_before_whatever_its_size() -> None:
    last = LastBatch(3, 1)
    assert not last.holds(-1)
    last.write(torch.tensor([9, 4, 6]), torch.tensor([[9.0], [4.0], [6.0]]), Progress(0, 2, 4))
    assert last.read(torch.tensor([4, 6, 9])).tolist() == [[4], [6], [9]]
    last.write(torch.tensor([6, 5]), torch.tensor([[-6.0], [-5.0]]), Progress(1, 2, 4))
    assert last.read(torch.tensor([5, 6])).tolist() == [[-5], [-6]]
    assert last.indices.tolist() == [6, 5, -1]
    assert last.holds(1)
    assert not last.holds(0)


@pytest.mark.parametrize("indices", [None, torch.zeros(2), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2).bool()])
def test_a_batch_must_say_which_images_it_holds(indices: Any) -> None:
    with pytest.raises(UserError, match="this batch has none: give Batch"):
        check_indices(indices, "ps-kd")
    for method in (PSKD(), DLB()):
        with pytest.raises(UserError, match="this batch has none: give Batch"):
            method.losses("student", _with_memory(student=says(S)), Batch(torch.zeros(2), Y, indices), START)


def test_mixed_images_have_no_bank() -> None:
    ingredients = Ingredients(lambda role: None, torch.zeros(2, 1, 8, 8), classes=3, images=9)
    assert make_bank(ingredients, "ps-kd").rows.shape == (9, 3)
    with pytest.raises(UserError, match="leave out data.mixup and data.cutmix"):
        make_bank(ingredients._replace(mixed=True), "ps-kd")
    with pytest.raises(UserError, match="how many images and classes"):
        make_bank(ingredients._replace(images=0), "ps-kd")


def _with_memory(images: int = 4, batch_size: int = 2, **models: Any) -> dict[str, Any]:
    """Networks beside empty memories in float64."""
    memory = {"predictions": Bank(images, 3), "last batch": LastBatch(batch_size, 3)}
    return {**models, **{name: model.double() for name, model in memory.items()}}


def ps_kd_loss(z: Tensor, epoch: int, remembered: Tensor | None) -> Tensor:
    """PS-KD's loss where this is remembered of the images."""
    models = _with_memory(student=says(z))
    if remembered is not None:
        models["predictions"].write(torch.tensor([0, 1]), remembered, START)
    return total(PSKD().losses("student", models, shown(), at_epoch(epoch)))


@pytest.mark.parametrize(("epoch", "value"), [(1, 0.7710835811), (150, 0.8324417985), (299, 0.8938000158)])
def test_labels_softened_by_remembered_predictions(epoch: int, value: float) -> None:
    assert ps_kd_loss(S, epoch, TE.softmax(1)).item() == close(value)


def test_the_first_epoch_has_only_labels_to_remember() -> None:
    assert ps_kd_loss(S, 0, None).item() == close(CE_S)
    assert ps_kd_loss(S, 0, F.one_hot(Y, 3).double()).item() == close(CE_S)


def test_gradient_of_softened_labels() -> None:
    of_logits = gradient(lambda z: ps_kd_loss(z, 150, TE.softmax(1)), S)
    assert of_logits.numpy() == close_to(
        [[-0.31573361, 0.26545602, 0.05027759], [0.01953881, -0.01073524, -0.00880357]]
    )


def test_the_bank_is_read_before_it_is_written() -> None:
    """The first visit meets the label, the second what was said at the first, though other images stand beside it."""
    models = _with_memory(student=says(TE))
    first = total(PSKD().losses("student", models, shown(indices=(3, 1)), at_epoch(0)))
    assert first.item() == close(0.2829793541)
    torch.testing.assert_close(models["predictions"].rows[[3, 1]], TE.softmax(1))
    models["student"] = says(S[[1, 0]])
    turned = shown(labels=Y.flip(0), indices=(1, 3))
    assert total(PSKD().losses("student", models, turned, at_epoch(150))).item() == close(0.8324417985)
    torch.testing.assert_close(models["predictions"].rows[[3, 1]], S.softmax(1))
    assert models["predictions"].visits.tolist() == [0, 2, 0, 2]


def test_soft_labels_are_softened_like_hard_ones() -> None:
    soft = torch.full((2, 3), 0.1 / 3, dtype=torch.float64) + 0.9 * F.one_hot(Y, 3)
    models = _with_memory(student=says(S))
    first = total(PSKD().losses("student", models, shown(labels=soft), at_epoch(150)))
    assert first.item() == close(F.cross_entropy(S, soft).item())
    share = 0.8 * 151 / 300
    target = (1 - share) * soft + share * S.softmax(1)
    again = total(PSKD().losses("student", models, shown(labels=soft), at_epoch(150)))
    assert again.item() == close(F.cross_entropy(S, target).item())


def test_dlb_looks_at_the_last_batch_again() -> None:
    assert [*DLB().views("student", 0)] == [View(0)]
    assert [*DLB().views("student", 5)] == [View(5), View(4, view=1)]
    taught = DLB(variant="taught")
    assert [*taught.views("teacher", 5)] == [View(5), View(4, view=1)]
    assert [*taught.views("student", 5)] == [View(5)]


def seeing_twice(out: Tensor, again: Tensor) -> Any:
    """A network that says `again` of images marked 1."""
    return lambda images: (Prediction(again if (images == 1).all() else out, FS),)


def dlb_loss(method: DLB, out: Tensor, again: Tensor, held: int = 0, order: tuple[int, ...] = (0, 1)) -> Tensor:
    """The loss of step 1 where TE was said of the last batch, if it is what is remembered."""
    models = _with_memory(student=seeing_twice(out, again))
    rows = torch.tensor(order)
    models["last batch"].write(rows, TE[rows], at_epoch(held))
    batch = shown(0, indices=(2, 3))._replace(others=(shown(1, indices=(0, 1)),))
    return total(method.losses("student", models, batch, at_epoch(1)))


@pytest.mark.parametrize(("alpha", "value"), [(1.0, 1.9614911448), (0.5, 1.5252120587), (0.0, 1.0889329727)])
def test_the_last_batch_pulls(alpha: float, value: float) -> None:
    assert dlb_loss(DLB(alpha=alpha), S, U).item() == close(value)
    assert dlb_loss(DLB(alpha=alpha), S, U, order=(1, 0)).item() == close(value)


def test_gradients_of_the_last_batch() -> None:
    of_logits = gradient(lambda z: dlb_loss(DLB(), S, z), U)
    assert of_logits.numpy() == close_to(
        [[-0.37428755, 0.36072088, 0.01356667], [0.54039794, -0.02195576, -0.51844218]]
    )
    of_logits = gradient(lambda z: dlb_loss(DLB(), z, U), S)
    assert of_logits.numpy() == close_to([[-0.19219403, 0.15713293, 0.03506110], [0.01408781, 0.00424317, -0.01833097]])


def test_only_the_batch_just_before_pulls() -> None:
    assert dlb_loss(DLB(), S, U, held=-3).item() == close(1.0889329727)


def test_the_first_batch_has_none_before_it_and_is_remembered() -> None:
    models = _with_memory(student=says(S.clone().requires_grad_()))
    assert total(DLB().losses("student", models, shown(indices=(3, 1)), START)).item() == close(CE_S)
    last = models["last batch"]
    assert last.holds(0)
    assert torch.equal(last.read(torch.tensor([1, 3])), S[[1, 0]])


def test_batches_of_different_sizes_meet_where_epochs_do() -> None:
    """The cross-entropy is a mean over all three images, the KL over the one of the last batch."""
    models = _with_memory(student=seeing_twice(S, U[:1]))
    models["last batch"].write(torch.tensor([0]), TE[:1], at_epoch(0))
    batch = shown(0, indices=(2, 3))._replace(others=(shown(1, Y[:1], indices=(0,)),))
    of_logits = DLB().losses("student", models, batch, at_epoch(1))
    assert of_logits["label"].item() == close(F.cross_entropy(torch.cat([U[:1], S]), torch.tensor([0, 0, 2])).item())
    kl = F.kl_div((U[:1] / 3).log_softmax(1), (TE[:1] / 3).softmax(1), reduction="batchmean")
    assert of_logits["last batch"].item() == close(9 * kl.item())


@pytest.mark.parametrize("method", [DLB(variant="taught"), PSKD(variant="taught")], ids=["dlb", "ps-kd"])
def test_a_taught_student_learns_as_in_kd_and_leaves_the_memory_alone(method: Any) -> None:
    teacher = lambda images, adapted: (Prediction(TE, FT),)  # noqa: E731
    models = _with_memory(teacher=teacher, student=says(S))
    before = {name: copied(models[name]) for name in ("predictions", "last batch")}
    assert method.roles == ("teacher", "student")
    assert total(method.losses("student", models, shown(), START)).item() == close(KD_LOSS)
    for name, state in before.items():
        assert all(torch.equal(value, state[key]) for key, value in copied(models[name]).items())


@pytest.mark.parametrize("make", [DLB, PSKD])
def test_bad_options_are_explained(make: Any) -> None:
    for options, message in [
        ({"variant": "tought"}, "Did you mean 'taught'"),
        ({"temperature": 0}, "temperature must be above 0 and finite, got 0"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"alpha": float("nan")}, "alpha must be"),
        ({"teacher_learns": False}, "frozen teacher use method='kd'"),
    ]:
        with pytest.raises(UserError, match=message):
            make(**options)
