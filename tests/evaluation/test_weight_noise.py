"""Weight noise against arithmetic done by hand, and the promise that the weights come back."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from spacedkd import UserError
from spacedkd.config.serialization import to_json
from spacedkd.evaluation.statistics import confidence_interval
from spacedkd.evaluation.weight_noise import WeightNoiseResult, measure_weight_noise, noisy_weights, normal_noise
from spacedkd.runtime.seeds import seed_for

IMAGES = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
LABELS = (IMAGES.sum(1) > 0).long()


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    return zip(IMAGES.split(8), LABELS.split(8), strict=True)


def network() -> nn.Module:
    """With BatchNorm in training mode and one frozen part, so that both could be disturbed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    model(IMAGES)
    model[3].eval()
    return model


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_untouched(model: nn.Module, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [part.training for part in model.modules()] == [True, True, True, True, False]


def measure(model: nn.Module, **options: object) -> WeightNoiseResult:
    return measure_weight_noise(model, batches, **{"absolute": (0.1,), "relative": (0.5,), "draws": 3, **options})


def test_a_level_is_what_adding_the_noise_by_hand_gives() -> None:
    model, found = network(), measure(network())
    model.eval()
    losses = []
    for draw in range(3):
        copy = network().eval()
        with torch.no_grad():
            for name, weight in copy.named_parameters():
                weight.add_(0.1 * normal_noise(weight, seed_for(0, "weight noise", "0.1", draw, name)))
            losses.append(float(nn.functional.cross_entropy(copy(IMAGES), LABELS)))
    absolute, relative = found.levels
    assert absolute.losses == pytest.approx(losses, rel=1e-5)
    assert absolute.loss == confidence_interval(absolute.losses)
    assert found.loss == pytest.approx(nn.functional.cross_entropy(model(IMAGES), LABELS).item(), rel=1e-5)
    assert found.images == 30
    assert relative.kind == "relative"


def test_relative_noise_has_the_level_times_the_norm_of_each_tensor() -> None:
    wide = nn.Linear(400, 400)
    with torch.no_grad():
        wide.bias.zero_()
    before = bits(wide)
    with noisy_weights(wide, "relative", 0.3, seed=0, draw=0):
        ratio = (wide.weight - before["weight"]).norm() / before["weight"].norm()
        assert ratio.item() == pytest.approx(0.3, rel=0.02)
        assert torch.equal(wide.bias, before["bias"])  # nothing is relative to zero


def test_a_draw_depends_on_seed_level_and_draw_alone() -> None:
    alone = measure(network(), absolute=(0.1,), relative=())
    torch.randn(7)  # whatever else was drawn before
    among = measure(network(), absolute=(0.2, 0.1), relative=(0.5,), draws=2)
    assert among.levels[1].losses == alone.levels[0].losses[:2]
    assert measure(network(), seed=1).levels[0].losses != alone.levels[0].losses
    assert len({*alone.levels[0].losses}) == 3


def test_noise_does_harm_and_more_noise_more() -> None:
    found = measure(network(), absolute=(0.01, 1.0, 10.0), relative=(), draws=8)
    small, large, huge = (level.loss.mean for level in found.levels)
    assert abs(small - found.loss) < 0.1 < large - found.loss < huge - found.loss


def test_weights_and_modes_come_back_to_the_bit() -> None:
    model = network()
    before = bits(model)
    measure(model)
    assert_untouched(model, before)


@pytest.mark.parametrize("what", [ValueError, KeyboardInterrupt])
def test_weights_come_back_when_something_happens_inside(what: type[BaseException]) -> None:
    model = network()
    before = bits(model)
    asked: list[bool] = []

    def predict(images: Tensor) -> Tensor:
        moved = not torch.equal(model.state_dict()["0.weight"], before["0.weight"])
        asked.append(moved)
        if moved:
            raise what
        logits: Tensor = model(images)
        return logits

    with pytest.raises(what):
        measure(model, predict=predict)
    assert asked[-1], "the weights were not disturbed when it happened"
    assert_untouched(model, before)


def test_an_interruption_while_the_noise_is_added_restores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    before = bits(model)
    calls: list[int] = []

    def stopping(like: Tensor, seed: int) -> Tensor:
        calls.append(seed)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return torch.ones_like(like)

    monkeypatch.setattr("spacedkd.evaluation.weight_noise.normal_noise", stopping)
    with pytest.raises(KeyboardInterrupt):
        measure(model)
    assert_untouched(model, before)


def test_a_second_interruption_waits_until_the_weights_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    before = bits(model)
    copy = Tensor.copy_
    copied: list[bool] = []

    def interrupted(tensor: Tensor, source: Tensor) -> Tensor:
        copied.append(True)
        if len(copied) == 2:
            signal.raise_signal(signal.SIGINT)
        return copy(tensor, source)

    def failing() -> None:
        with noisy_weights(model, "absolute", 1.0, seed=0, draw=0):
            monkeypatch.setattr(Tensor, "copy_", interrupted)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        failing()
    monkeypatch.undo()
    assert len(copied) == len(before)
    assert_untouched(model, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_loss_that_overflows_is_no_number_but_no_crash_either() -> None:
    def overflowing(logits: Tensor, labels: Tensor) -> Tensor:
        return logits.square().sum() * math.inf

    level = measure(network(), loss=overflowing).levels[0]
    assert level.loss is None
    assert level.losses == (None, None, None)


def test_the_result_is_plain_json() -> None:
    found = json.loads(json.dumps(to_json(measure(network())), allow_nan=False))
    assert found["levels"][0]["accuracy"].keys() == {"mean", "low", "high", "n"}


def test_progress_is_told_to_the_end() -> None:
    told: list[int] = []
    measure(network(), advance=told.append)
    assert told == [1] * 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"absolute": (-0.1,)}, "absolute weight noise must be a number above 0, got -0.1"),
        ({"relative": (math.nan,)}, "relative weight noise must be a number above 0, got nan"),
        ({"absolute": (), "relative": ()}, "at least one level"),
        ({"draws": 0}, "at least one draw of each level, got 0"),
    ],
)
def test_bad_input_is_one_clear_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure(network(), **options)


def test_no_images_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="no images"):
        measure_weight_noise(network(), lambda: iter(()))
