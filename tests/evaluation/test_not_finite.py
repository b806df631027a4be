"""A network whose logits are not finite has no accuracy: every instrument refuses it, and noise counts it as wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd import Diverged, RunSpec, train
from spacedkd.cli import main
from spacedkd.data import Batch
from spacedkd.data.inputs import first_not_finite
from spacedkd.evaluation.adversarial import attack, measure_attacks
from spacedkd.evaluation.corruptions import measure_corruptions
from spacedkd.evaluation.scores import NotFinite, correct, score
from spacedkd.evaluation.weight_noise import measure_weight_noise
from spacedkd.models import Prediction
from tests.conftest import TINY

NAN, INF = float("nan"), float("inf")


def batches(count: int = 40) -> Iterator[Batch]:
    """Images whose only pixel is their number, all of class 0."""
    for rows in torch.arange(count).split(16):
        yield Batch(rows.float().view(-1, 1, 1, 1), torch.zeros(len(rows), dtype=torch.int64), rows)


def broken(value: float, least: int) -> Callable[[Tensor], list[Prediction]]:
    """Class 0 for all images, with a logit that is `value` for those from number `least` on."""

    def predict(images: Tensor) -> list[Prediction]:
        number = images.flatten(1)[:, 0]
        logits = torch.stack([torch.ones_like(number), number.new_zeros(len(number)), 0 * number], 1)
        logits[:, 1] = torch.where(number >= least, value, logits[:, 1])
        return [Prediction(logits, logits)]

    return predict


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_images_without_a_class_are_counted_and_the_network_is_refused(value: float) -> None:
    for instrument in (
        lambda: correct(broken(value, 4), ("final",), batches()),
        lambda: score(broken(value, 4), ("final",), batches(), 3),
        lambda: score(broken(0.0, 0), ("final",), batches(), 3, {"teacher": broken(value, 4)}),
    ):
        with pytest.raises(NotFinite, match="36 of 40 images"):
            instrument()
    assert int(correct(broken(value, 40), ("final",), batches())["final"]) == 40
    assert score(broken(value, 40), ("final",), batches(), 3).heads["final"].top1 == 1.0


def test_a_head_that_is_not_finite_is_named_with_the_ensemble_it_spoils() -> None:
    def two(images: Tensor) -> list[Prediction]:
        return [*broken(0.0, 0)(images), *broken(NAN, 39)(images)]

    with pytest.raises(NotFinite, match="1 of 40 images .*head stage1"):
        correct(two, ("final", "stage1"), batches())


def test_attacks_and_corruptions_say_where() -> None:
    def pixels() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        yield torch.full((2, 1, 1, 1), 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), torch.arange(2)

    def attacked(images: Tensor) -> list[Prediction]:  # finite for whole numbers alone
        number = images.flatten(1)[:, :1]
        logits = torch.cat([number, -number], 1) + torch.where(number == 3, 0.0, NAN)
        return [Prediction(logits, logits)]

    with pytest.raises(NotFinite, match="2 of 2 images under bim"):
        measure_attacks(attacked, lambda images: images.float(), pixels(), [attack("bim", 8)])
    with pytest.raises(NotFinite, match="fog of severity 3: .*4 of 8 images"):
        measure_corruptions(
            broken(NAN, 4), ("final",), batches(4), lambda *_: batches(8), names=["fog"], severities=[3], images=4
        )


def test_noise_that_breaks_a_network_leaves_images_wrong_and_not_of_class_0() -> None:
    class Root(nn.Module):
        """Not a number as soon as its weight is below 0."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.0))

        def forward(self, images: Tensor) -> Tensor:
            return self.weight.sqrt() * torch.ones(len(images), 3)

    model, shown = Root(), [(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))]
    found = measure_weight_noise(model, lambda: shown, absolute=[100.0], relative=[], draws=8, loss=F.cross_entropy)
    (level,) = found.levels
    assert found.accuracy == 1.0
    assert {(loss is None, accuracy) for loss, accuracy in zip(level.losses, level.accuracies, strict=True)} == {
        (True, 0.0),
        (False, 1.0),
    }
    with torch.no_grad():
        model.weight.fill_(-1.0)
    with pytest.raises(NotFinite, match="4 of 4 training images without noise"):
        measure_weight_noise(model, lambda: shown, absolute=[0.1], relative=[], draws=2)


class NoClass(nn.Module):
    """A network that gives NaN for most images once it has learned and is evaluated on more than a few of them."""

    least = 4

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layer(images.flatten(1))
        if not self.training and len(images) > 8 and self.least:
            logits = logits.masked_fill((torch.arange(len(logits)) >= self.least)[:, None], math.nan)
        return logits


def test_a_run_that_cannot_be_evaluated_has_diverged_and_evaluate_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec: RunSpec = replace(TINY, method="none", network=replace(TINY.network, options={}), epochs=1)
    with pytest.raises(Diverged, match="Logits of .* of 898 test images by the student") as stopped:
        train(spec, tmp_path / "run", network=NoClass)
    assert (stopped.value.role, stopped.value.step) == ("student", 4)
    assert not (tmp_path / "run/result.json").exists()
    monkeypatch.setattr(NoClass, "least", 0)
    named = replace(spec, network=replace(spec.network, name=f"{__name__}:NoClass"))
    train(named, tmp_path / "good")
    monkeypatch.setattr(NoClass, "least", 4)
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(tmp_path / "good"), "--calibration", "--trust-code"])
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "student" in line
    assert "898" in line
    assert "not finite" in line


def test_rows_of_inputs_that_are_not_finite() -> None:
    images = torch.zeros(4, 1, 2, 2)
    assert first_not_finite(images) is None
    images[2, 0, 1, 1] = NAN
    assert first_not_finite((torch.ones(4), images)) == 2
    assert first_not_finite({"tokens": torch.arange(4), "log": torch.tensor([1.0, 2.0, 3.0, -INF])}) == 3
    assert first_not_finite(torch.tensor([[0.0, -INF], [0.0, 0.0]])) is None, "an additive mask"
