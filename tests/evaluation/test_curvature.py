"""Curvature against dense Hessians, closed forms and matrices of known trace."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from spacedkd import UserError
from spacedkd.config.serialization import to_json
from spacedkd.evaluation.curvature import MOST_PRODUCTS
from spacedkd.evaluation.hessian import ESTIMATORS, CurvatureResult, Hessian, measure_curvature
from spacedkd.evaluation.subject import in_eval_mode

DRAW = torch.Generator().manual_seed(3)
IMAGES = torch.randn(40, 1, 6, 6, generator=DRAW, dtype=torch.float64)
LABELS = torch.randint(0, 3, (40,), generator=DRAW)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    return zip(IMAGES.split(16), LABELS.split(16), strict=True)


def network() -> nn.Module:
    """Convolution, BatchNorm with statistics of its own, a few trained steps: 137 parameters, indefinite Hessian."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.3, 0.9)
    for _ in range(15):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()
    return model


def dense(model: nn.Module) -> Tensor:
    """The Hessian written out, by torch.func and in eval mode, over all images at once."""
    model.eval()
    named = {name: one.detach() for name, one in model.named_parameters()}
    flat = torch.cat([one.reshape(-1) for one in named.values()])

    def mean_loss(vector: Tensor) -> Tensor:
        pieces = vector.split([one.numel() for one in named.values()])
        weights = {name: piece.view(named[name].shape) for name, piece in zip(named, pieces, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, weights, (IMAGES,)), LABELS)

    return torch.autograd.functional.hessian(mean_loss, flat)


DENSE = dense(network())


def measure(**options: object) -> CurvatureResult:
    return measure_curvature(network(), batches, **{"at_once": 16, "estimators": tuple(ESTIMATORS), **options})


def test_products_are_those_of_the_dense_hessian() -> None:
    vectors = torch.randn(3, len(DENSE), generator=DRAW, dtype=torch.float64)
    model = network()
    with in_eval_mode(model):
        found = Hessian(model, batches, at_once=7) @ vectors
    assert torch.allclose(found, vectors @ DENSE, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_traces_lie_within_their_reported_error(name: str) -> None:
    """Over many seeds errors divided by standard errors are about one: neither bold nor timid."""
    truth = float(DENSE.trace())
    found = [measure(estimators=(name,), seed=seed).traces[name] for seed in range(12)]
    ratios = torch.tensor([(one.value - truth) / one.standard_error for one in found])
    assert all(one.standard_error <= 0.05 * abs(one.value) for one in found if one.stopped == "error reached")
    assert float(ratios.abs().max()) < 5
    assert 0.5 < float(ratios.square().mean().sqrt()) < 1.7


def test_the_largest_eigenvalue_is_that_of_the_dense_hessian() -> None:
    truth = float(torch.linalg.eigvalsh(DENSE)[-1])
    found = measure(error=1e-6, estimators=()).largest
    assert abs(found.value - truth) <= found.residual + 1e-12
    assert found.residual <= 1e-6 * truth
    assert found.products < 80


def test_linear_regression_has_a_closed_form() -> None:
    """Of (w.x - y)^2 / 2 the Hessian is the mean of x x', whatever w and y are."""
    shown, targets = IMAGES.flatten(1)[:, :5], torch.randn(40, generator=DRAW, dtype=torch.float64)
    model = nn.Linear(5, 1, bias=False).double()

    def half_square(said: Tensor, wanted: Tensor) -> Tensor:
        return (said[:, 0] - wanted).square().mean() / 2

    found = measure_curvature(
        model,
        lambda: zip(shown.split(9), targets.split(9), strict=True),
        loss=half_square,
        estimators=tuple(ESTIMATORS),
        error=0.01,
        at_once=4,
    )
    trace = float(shown.square().sum(1).mean())
    assert found.traces["hutch++"].value == pytest.approx(trace, rel=1e-9)  # five directions are all there are
    assert found.traces["hutch++"].stopped == "whole space"
    assert abs(found.traces["hutchinson"].value - trace) < 4 * found.traces["hutchinson"].standard_error
    assert abs(found.traces["hutchinson by part"].value - trace) < 4 * found.trace.standard_error + 0.04 * trace
    largest = float(torch.linalg.eigvalsh(shown.T @ shown / 40)[-1])
    assert found.largest.value == pytest.approx(largest, rel=1e-6)
    assert (found.images, found.parameters) == (40, 5)


def test_parameters_and_gradients_that_play_no_part_have_no_curvature() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(36, 3), nn.Linear(36, 3)

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.used(images.flatten(1))
            return logits

    model = Half().double()
    product = Hessian(model, batches) @ torch.ones(1, 222, dtype=torch.float64)
    assert product[0, :111].abs().sum() > 0
    assert product[0, 111:].abs().sum() == 0
    linear = Hessian(model, batches, loss=lambda logits, labels: logits.mean())
    assert float((linear @ torch.ones(1, 222, dtype=torch.float64)).abs().sum()) == 0


def test_it_stops_at_the_error_or_at_the_most_products_and_says_which() -> None:
    sloppy, strict = measure(error=0.5), measure(error=1e-9, most_products=20)
    assert {one.stopped for one in sloppy.traces.values()} == {"error reached"}
    assert {one.stopped for one in strict.traces.values()} == {"most products"}
    assert strict.largest.products == 20
    assert strict.largest.stopped == "most products"
    assert all(one.products <= 20 for one in strict.traces.values())


def test_equal_seeds_give_equal_results_and_batch_sizes_do_not_matter() -> None:
    one = measure(estimators=("hutchinson",))
    assert one == measure(estimators=("hutchinson",))
    other = measure_curvature(network(), lambda: iter([(IMAGES, LABELS)]), estimators=("hutchinson",), at_once=40)
    assert other.trace.value == pytest.approx(one.trace.value, rel=1e-9)
    assert measure(estimators=("hutchinson",), seed=1).trace.value != one.trace.value


def test_no_more_images_are_looked_at_together_than_asked_for() -> None:
    """So that memory does not grow with the number of images."""
    model, seen = network(), []

    def predict(images: Tensor) -> Tensor:
        seen.append(len(images))
        logits: Tensor = model(images)
        return logits

    measure_curvature(model, batches, predict=predict, at_once=5, most_products=8)
    assert max(seen) == 5


def test_the_network_is_left_as_it_was() -> None:
    model = network().train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    found = measure_curvature(model, batches, most_products=8)
    assert model.training
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None or not one.grad.isnan().any() for one in model.parameters())
    assert found.batchnorm == "running statistics (eval mode)"


def test_batchnorm_counts_with_its_running_statistics() -> None:
    """One image alone would have no variance to be normalised by."""
    alone = measure(estimators=("hutchinson",), at_once=1, most_products=8).trace
    together = measure(estimators=("hutchinson",), at_once=40, most_products=8).trace
    assert alone.value == pytest.approx(together.value, rel=1e-9)


def test_the_result_is_plain_json_and_progress_is_told() -> None:
    told: list[int] = []
    found = measure(error=0.3, advance=told.append)
    plain = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert plain["traces"]["hutch++"].keys() == {"method", "value", "standard_error", "products", "stopped"}
    products = [*(one.products for one in found.traces.values()), found.largest.products]
    assert len(products) == len(ESTIMATORS) + 1
    assert all(0 < done <= MOST_PRODUCTS for done in products)
    assert sum(told) == sum(products)
    assert min(told) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"error": 0}, "between 0 and 1, got 0"),
        ({"most_products": 3}, "at least 8 products of Hessian and vector, got 3"),
        ({"at_once": 0}, "at least one image"),
        ({"estimators": ("xtrace",)}, "Unknown estimator of the trace 'xtrace'"),
        ({"loss": lambda logits, labels: logits.sum() * math.inf}, "no curvature to measure"),
    ],
)
def test_bad_input_is_one_clear_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure(**options)


def test_a_network_without_parameters_or_images_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="no parameters that can be trained"):
        measure_curvature(nn.Flatten(), batches)
    with pytest.raises(UserError, match="no images"):
        measure_curvature(network(), lambda: iter(()))
