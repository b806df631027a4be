"""BatchNorm's statistics of weights that were not trained with them, such as an average of weights.

The mean of several networks' running statistics is not what BatchNorm sees in their average. So the statistics are
computed again from training batches (Izmailov et al., 2018, section 3.2).
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spacedkd.data.inputs import Inputs


def has_running_statistics(model: nn.Module) -> bool:
    """Return whether a part of the model keeps running statistics of its batches."""
    return any(True for _ in _norms(model))


def _norms(model: nn.Module) -> Iterable[_BatchNorm]:
    return (part for part in model.modules() if isinstance(part, _BatchNorm) and part.running_mean is not None)


@torch.no_grad()
def recompute_batch_norm(
    model: Callable[[Inputs], object],
    module: nn.Module,
    batches: Iterable[Inputs],
    mean_over_processes: Callable[[Tensor], Tensor] = lambda value: value,
) -> None:
    """Replace BatchNorm's running statistics by the means over these batches, each batch counting equally.

    All else in the network is as in evaluation: dropout does nothing, and no weight changes.

    Args:
        model: what is called with the inputs of a batch.
        module: the module in it, in evaluation mode, without what devices and precision wrap around it.
        batches: inputs of training batches.
        mean_over_processes: the mean of a statistic over all processes, each of which has its part of every batch.

    >>> norm = nn.BatchNorm1d(1).eval()
    >>> recompute_batch_norm(norm, norm, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0]])])
    >>> norm.running_mean.item(), norm.running_var.item()  # variances 2 and 0
    (3.5, 1.0)
    """
    norms = [*_norms(module)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch then takes the cumulative mean
        norm.train()
    try:
        for inputs in batches:
            model(inputs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
    for norm in norms:
        for statistic in (norm.running_mean, norm.running_var):
            assert statistic is not None
            statistic.copy_(mean_over_processes(statistic))
