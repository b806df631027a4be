"""Networks whose parts torch differentiates once only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import UserError
from spacedkd.evaluation.hessian import Hessian, measure_curvature
from tests.evaluation.test_curvature import IMAGES, LABELS, batches

SMALL_VIT = {"img_size": 6, "patch_size": 3, "in_chans": 1, "embed_dim": 12, "num_heads": 3, "depth": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda: timm.create_model("vit_tiny_patch16_224", num_classes=3, **SMALL_VIT),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Hardsigmoid(), nn.Linear(8, 3)),
    ],
    ids=["fused attention", "hard sigmoid"],
)
def test_what_torch_differentiates_once_only_has_curvature_too(make: Callable[[], nn.Module]) -> None:
    """The truth is how the gradient changes along a direction."""
    torch.manual_seed(0)
    model = make().double().eval()
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = torch.randn(len(weights), dtype=torch.float64)

    def gradient(moved: float) -> Tensor:
        nn.utils.vector_to_parameters(weights + moved * direction, model.parameters())
        loss = nn.functional.cross_entropy(model(IMAGES), LABELS)
        return nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))

    change = (gradient(1e-6) - gradient(-1e-6)) / 2e-6
    nn.utils.vector_to_parameters(weights, model.parameters())
    found = (Hessian(model, batches) @ direction[None])[0]
    assert torch.allclose(found, change, rtol=1e-4, atol=1e-7)


class Once(torch.autograd.Function):
    """A square whose derivative has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ops.aten.hardsigmoid_backward(gradient, ctx.saved_tensors[0])


def test_a_network_without_a_second_derivative_is_one_clear_line() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    with pytest.raises(UserError, match="curvature cannot be measured, torch says: .*hardsigmoid_backward"):
        measure_curvature(model, batches, predict=lambda images: Once.apply(model(images)))
