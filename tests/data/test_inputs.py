"""One tensor, several, or named ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spacedkd.data import Batch
from spacedkd.data.inputs import call, row_count, to_device

CPU = torch.device("cpu")


class Sum(nn.Module):
    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return x.sum() + (0 if weight is None else 100 * weight.sum())


def test_networks_are_called_as_their_inputs_say() -> None:
    x, weight = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert [float(call(Sum(), given)) for given in (x, (x,), (x, weight))] == [3, 3, 703]
    assert float(call(Sum(), {"weight": weight, "x": x})) == 703
    assert [row_count(given) for given in (x, (x, weight), {"x": x})] == [2, 2, 2]


def test_channels_come_last_for_images_alone() -> None:
    image, words, video = torch.rand(2, 3, 4, 5), torch.ones(2, 3, 4, 5).long(), torch.rand(2, 3, 4, 5, 6)
    moved: Any = to_device({"image": image, "words": words, "video": video}, CPU, channels_last=True)
    assert moved["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved["image"], image)
    assert moved["words"].is_contiguous()
    assert moved["video"].is_contiguous()
    back: Any = to_device(image.to(memory_format=torch.channels_last), CPU, channels_last=False)
    assert back.is_contiguous()


def test_a_batch_moves_with_all_it_holds() -> None:
    image = torch.rand(2, 3, 4, 5)
    other = Batch((image, torch.rand(2)), torch.arange(2), torch.arange(2))
    batch = Batch(image, torch.arange(2), torch.arange(2), (other,)).to(CPU, channels_last=True)
    assert isinstance(batch.others[0].inputs, tuple)
    assert batch.others[0].inputs[0].is_contiguous(memory_format=torch.channels_last)
    meta = batch.to(torch.device("meta"))
    assert {meta.inputs.device.type, meta.labels.device.type, meta.others[0].inputs[1].device.type} == {"meta"}
