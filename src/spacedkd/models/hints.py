"""A middle layer of a network as a hint, and the regressor that carries a student's hint to its teacher's (FitNets).

maps [B, C, H, W]    a convolution that also brings H and W to the teacher's, BatchNorm, and ReLU where the teacher's
                     maps are nowhere negative
tokens [B, D]        Linear, LayerNorm; where only one side has tokens, the other's maps are pooled
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs
from spacedkd.errors import UserError
from spacedkd.models.exits import STAGES, is_blocks
from spacedkd.models.heads import Prediction, final
from spacedkd.models.input_size import at_own_size
from spacedkd.models.taps import Taps, find_taps


class Hint(NamedTuple):
    """Where a network is read, and what is there for an example."""

    taps: Taps
    place: int
    found: Tensor  # [B, C, H, W] or [B, D]


def find_hint(network: nn.Module, image: Inputs, number: int | None = None) -> Hint:
    """The hint behind a stage or block, counted from 1; without a number the one in the middle.

    That is the second of four stages and the sixth of twelve blocks. Of more than four stages the last four count.
    """
    taps, (_, inner) = find_taps(network, at_own_size(network, image), "feature distillation of a middle layer")
    several, kind = (len(inner), "blocks") if is_blocks(inner) else (min(len(inner), STAGES), "stages")
    number = max(several // 2, 1) if number is None else number
    if not 1 <= number <= several:
        raise UserError(f"hint must be from 1 to {several}, the {kind} of {type(network).__name__}, got {number}.")
    place = len(inner) - several + number - 1
    return Hint(taps, place, inner[place])


class Hinted(nn.Module):
    """A network whose features are its hint; a student's comes through its regressor, towards the teacher's."""

    head_names: tuple[str, ...] = ("final",)

    def __init__(self, network: nn.Module, hint: Hint, pooled: bool, regressor: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network
        self.regressor = regressor
        self._taps, self._place, self._pooled = hint.taps, hint.place, pooled

    def forward(self, images: Tensor, adapted: bool = True) -> tuple[Prediction, ...]:
        """Not `adapted`, the hint is the network's own."""
        last, inner = self._taps(self.network, at_own_size(self.network, images))
        hint = _pooled(inner[self._place]) if self._pooled else inner[self._place]
        if self.regressor is not None and adapted:
            hint = self.regressor(hint)
        return (final(self.network, last)._replace(features=hint),)


def hinted_pair(teacher: nn.Module, student: nn.Module, hints: tuple[Hint, Hint]) -> tuple[Hinted, Hinted]:
    """Teacher and student with hints of one shape."""
    of_teacher, of_student = hints
    pooled = of_teacher.found.ndim != of_student.found.ndim
    ahead, behind = (_pooled(hint.found) if pooled else hint.found for hint in hints)
    return Hinted(teacher, of_teacher, pooled), Hinted(student, of_student, pooled, regressor(behind, ahead))


def regressor(student: Tensor, teacher: Tensor) -> nn.Module:
    """A new regressor between hints like these."""
    width, target = student.shape[1], teacher.shape[1]
    if student.ndim == 2:
        return nn.Sequential(nn.Linear(width, target), nn.LayerNorm(target))
    layers = [_resizing(student, teacher), nn.BatchNorm2d(target)]
    return nn.Sequential(*layers, *([nn.ReLU()] if torch.all(teacher >= 0) else []))


def _resizing(student: Tensor, teacher: Tensor) -> nn.Module:
    """mdistiller's convolutions for half, twice and other sizes, with its stride of 2 taken to other whole ratios."""
    channels = (student.shape[1], teacher.shape[1])
    (h, w), (height, width) = student.shape[2:], teacher.shape[2:]
    if h > height and (h % height, w) == (0, width * (h // height)):
        return nn.Conv2d(*channels, 3, stride=h // height, padding=1)
    if height > h and (height % h, width) == (0, w * (height // h)):
        times = height // h
        return nn.ConvTranspose2d(*channels, times + 2 * (times // 2), stride=times, padding=times // 2)
    if h >= height and w >= width:
        return nn.Conv2d(*channels, (1 + h - height, 1 + w - width))
    if h <= height and w <= width:
        return nn.ConvTranspose2d(*channels, (1 + height - h, 1 + width - w))
    raise UserError(
        f"The student's hint has maps of {h}x{w} and the teacher's of {height}x{width}: one must fit into the other. "
        "Choose other layers: --set method.hint=1 --set method.teacher_hint=1."
    )


def _pooled(hint: Tensor) -> Tensor:
    return hint.mean((2, 3)) if hint.ndim == 4 else hint
