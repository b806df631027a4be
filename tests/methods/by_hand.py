"""Losses written out probability by probability, with nothing of the library in them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEARNED = 1 + 20 / (1 + math.exp(-1))
"""CTKD's temperature as it begins, theta = 1"""


def standard(z: Tensor) -> Tensor:
    """Logits at mean 0 and deviation 1 over the classes (LSKD)."""
    centred = z - z.mean(1, keepdim=True)
    return centred / (1e-7 + (centred.square().sum(1, keepdim=True) / (z.shape[1] - 1)).sqrt())


def probabilities(z: Tensor, temperature: float) -> Tensor:
    raised = (z / temperature).exp()
    return raised / raised.sum(1, keepdim=True)


def kl(student: Tensor, teacher: Tensor, temperature: float, padding: float = 0.0) -> float:
    p, q = probabilities(student, temperature), probabilities(teacher, temperature) + padding
    return float((q * (q / p).log()).sum() / len(p))


def decoupled(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> float:
    """DKD with its weights 1 and 8, image by image."""
    loss = 0.0
    both = (probabilities(student, temperature), probabilities(teacher, temperature))
    for p, q, y in zip(*both, labels.tolist(), strict=True):
        others = [c for c in range(len(p)) if c != y]
        loss += float(q[y] * (q[y] / p[y]).log() + (1 - q[y]) * ((1 - q[y]) / (1 - p[y])).log())
        p_rest, q_rest = p[others] / (1 - p[y]), q[others] / (1 - q[y])
        loss += 8 * float((q_rest * (q_rest / p_rest).log()).sum())
    return loss / len(labels)


def label(z: Tensor, labels: Tensor) -> float:
    return float(-probabilities(z, 1.0)[torch.arange(len(labels)), labels].log().mean())


def distance(first: Tensor, second: Tensor) -> float:
    """The norm over the whole batch."""
    return float((first - second).square().sum().sqrt())
