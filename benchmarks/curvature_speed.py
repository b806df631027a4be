"""How fast curvature is measured, as ratios measured side by side in one run.

    python -m benchmarks.curvature_speed

1. the trace of a trained width-16 ResNet-18 on 2 000 32x32 images to 5 % standard error: is it under five minutes;
2. one product of Hessian and vector: ours against a graph for each vector, and against curvlinops;
3. the products each estimator needs for the same standard error, on fewer images.
"""

from __future__ import annotations

import math
import time

import spacedkd.models  # noqa: F401, before timm: makes torchvision importable next to a CPU build of torch

# isort: split
import timm
import torch
from curvlinops import HessianLinearOperator
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import fastest
from spacedkd.evaluation.hessian import AT_ONCE, ESTIMATORS, Hessian, Trace, largest_eigenvalue
from spacedkd.evaluation.subject import Batches

VECTORS = 4
MOST = 40


def images(count: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Smooth patterns, one for each class, moved about under noise."""
    draw = torch.Generator().manual_seed(0)
    patterns = F.interpolate(torch.randn(classes, 3, 6, 6, generator=draw), size=32, mode="bicubic")
    labels = torch.arange(count) % classes
    shifts = torch.randint(-4, 5, (count, 2), generator=draw).tolist()
    moved = [patterns[label].roll(shift, (1, 2)) for label, shift in zip(labels.tolist(), shifts, strict=True)]
    return torch.stack(moved) + torch.randn(count, 3, 32, 32, generator=draw), labels


def trained(shown: Tensor, labels: Tensor, steps: int = 60) -> nn.Module:
    """A network that has learned these images fairly well: curvature of a random one says little."""
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("resnet18_small", width=16, num_classes=int(labels.max()) + 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, 0.9, weight_decay=5e-4)
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randperm(len(labels), generator=draw)[:64]
        optimizer.zero_grad()
        F.cross_entropy(network(shown[rows]), labels[rows]).backward()
        optimizer.step()
    return network.eval()


def in_batches(shown: Tensor, labels: Tensor, size: int = 500) -> Batches:
    return lambda: zip(shown.split(size), labels.split(size), strict=True)


def silent(more: int) -> None:
    return


def estimate(network: nn.Module, name: str, shown: Tensor, labels: Tensor, most: int) -> Trace:
    hessian = Hessian(network, in_batches(shown, labels))
    return ESTIMATORS[name](hessian, next(network.parameters()).detach(), error=0.05, most=most, seed=0, advance=silent)


def whole_task(network: nn.Module, shown: Tensor, labels: Tensor) -> None:
    start, worked = time.perf_counter(), time.process_time()
    found = estimate(network, "hutch++", shown, labels, 100)
    took, worked = time.perf_counter() - start, time.process_time() - worked
    print(
        f"trace on {len(labels)} images: {found.value:.4g} -+ {found.standard_error:.2g} "
        f"({100 * found.standard_error / abs(found.value):.1f} %), {found.products} products in {took:.0f} s "
        f"({'under' if took < 300 else 'NOT under'} five minutes; {worked:.0f} s of one core's time)"
    )


def one_product(network: nn.Module, shown: Tensor, labels: Tensor) -> None:
    hessian = Hessian(network, in_batches(shown, labels))
    vectors = torch.randn(VECTORS, hessian.size)
    data = [
        (x, y) for a, b in in_batches(shown, labels)() for x, y in zip(a.split(AT_ONCE), b.split(AT_ONCE), strict=True)
    ]
    operator = HessianLinearOperator(
        network, nn.CrossEntropyLoss(), list(network.parameters()), data, check_deterministic=False
    )
    gradient, ours, naive, theirs = fastest(
        lambda: [_gradient(network, x, y) for x, y in data],
        lambda: hessian @ vectors,
        lambda: hessian @ vectors[:1],
        lambda: operator @ vectors.T,
        repeats=2,
    )
    ours, theirs = ours / VECTORS, theirs / VECTORS
    print(f"one product, {VECTORS} vectors at once: {ours / gradient:.1f} times a gradient")
    print(f"  a graph for each vector takes {naive / ours:.2f} times as long, curvlinops {theirs / ours:.2f} times")


def _gradient(network: nn.Module, shown: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(F.cross_entropy(network(shown), labels), list(network.parameters()))


def products_needed(network: nn.Module, shown: Tensor, labels: Tensor) -> None:
    print(f"products for a standard error of 5 %, {len(labels)} images, at most {MOST}:")
    for name in ESTIMATORS:
        found = estimate(network, name, shown, labels, MOST)
        error = 100 * found.standard_error / abs(found.value)
        needed = math.ceil(found.products * max(1.0, error / 5) ** 2)  # the error falls with the root of the products
        about = "" if found.stopped == "error reached" else f", so about {needed} for 5 %"
        print(f"  {name}: {found.products} products, {found.value:.4g} -+ {error:.1f} %{about}")
    hessian = Hessian(network, in_batches(shown, labels))
    top = largest_eigenvalue(
        hessian, next(network.parameters()).detach(), error=0.05, most=MOST, seed=0, advance=silent
    )
    print(f"  largest eigenvalue: {top.value:.4g} -+ {top.residual:.2g}, {top.products} products")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    every_image, every_label = images(2000)
    net = trained(every_image, every_label)
    whole_task(net, every_image, every_label)
    one_product(net, every_image[:200], every_label[:200])
    products_needed(net, every_image[:100], every_label[:100])
