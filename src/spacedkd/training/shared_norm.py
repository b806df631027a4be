"""BatchNorm over the whole batch of all processes.

torch.nn.SyncBatchNorm computes on GPUs only and takes the place of a module, whose activation it then forgets where
timm has fused one. Here the modules stay what they are, under the same names, and learn alike on any device.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, distributed, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from spacedkd.errors import UserError


def share_batch_norm(model: nn.Module) -> None:
    """Let every BatchNorm of a model normalise by the mean and variance of the whole batch, and keep those.

    mean = sum_r sum(x_r) / n,  var = sum_r sum((x_r - mean)^2) / n  over the ranks r, whose parts may differ in size.
    """
    parts = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    if not parts:
        raise UserError("sync_batchnorm does not matter: the network has no BatchNorm. Leave it out.")
    for part in parts:
        if type(part) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d):
            raise UserError(f"sync_batchnorm does not know the network's {type(part).__name__}: leave it out.")
        part.forward = partial(_normalised, part)  # type: ignore[method-assign]


def _normalised(norm: _BatchNorm, x: Tensor) -> Tensor:
    if norm.training or norm.running_mean is None or norm.running_var is None:
        out = _by_whole_batch(norm, x)
    else:
        out = batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    return norm.act(norm.drop(out)) if isinstance(norm, BatchNormAct2d) else out


def _by_whole_batch(norm: _BatchNorm, x: Tensor) -> Tensor:
    over = [place for place in range(x.ndim) if place != 1]
    shape = [-1 if place == 1 else 1 for place in range(x.ndim)]
    exact = x.double() if x.dtype == torch.float64 else x.float()
    here = exact.new_tensor([x.numel() // x.shape[1]])
    total = _sum_of_all(torch.cat([exact.sum(over), here]))
    count = total[-1].detach()
    mean = total[:-1] / count
    centred = exact - mean.view(shape)
    variance = _sum_of_all(centred.square().sum(over)) / count
    if norm.training and norm.track_running_stats:
        _keep(norm, mean.detach(), variance.detach() * count / (count - 1))
    out = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.weight is not None:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    found: Tensor = out.to(x.dtype)
    return found


class _SumOfAll(torch.autograd.Function):
    """The sum over all processes; each of them learns from what the sum does to all losses."""

    @staticmethod
    def forward(context: Any, part: Tensor) -> Tensor:
        total = part.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _SumOfAll.forward(context, gradient)


def _sum_of_all(part: Tensor) -> Tensor:
    total: Tensor = _SumOfAll.apply(part)
    return total


def _keep(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)
