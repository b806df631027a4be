"""A network as ONNX, compared with what torch says before anybody relies on it."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spacedkd.models.classifier import logits_and_features
from spacedkd.runtime.errors import UserError, error_sentence

NAME = "model.onnx"
TOLERANCE = 1e-3
"""the largest difference that is borne, for logits up to 1; for larger ones in proportion"""
_BATCHES = (1, 3)
_ONE_FILE = 1 << 30
"""bytes of weights beyond which they lie beside the file, because no ONNX file can hold more than two gigabytes"""


class Logits(nn.Module):
    """A network that answers with logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return logits_and_features(self.network(images), "the student")[0]


def write_onnx(network: nn.Module, shape: tuple[int, ...], path: Path, said: Mapping[str, Any]) -> float:
    """Write a network for inputs [batch, *shape] of any batch; gives the largest difference to torch's logits.

    `said` goes into the file's metadata. A file that says something else than torch is refused, and not written.
    """
    logits = Logits(network).float().eval()
    batch = torch.export.Dim("batch")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch's exporter warns of torch
            made = torch.onnx.export(
                logits,
                (torch.zeros(2, *shape),),
                dynamo=True,
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=({0: batch},),
                verbose=False,
            )
        assert made is not None
        made.model.metadata_props.update({key: _as_text(value) for key, value in said.items()})
        weights = sum(tensor.numel() * tensor.element_size() for tensor in logits.state_dict().values())
        made.save(str(path), external_data=weights > _ONE_FILE)
    except Exception as error:  # what the exporter cannot express fails in many ways
        raise UserError(f"This network cannot be written as ONNX: {error_sentence(error)} Leave --onnx out.") from error
    return _compared(logits, shape, path)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _compared(logits: nn.Module, shape: tuple[int, ...], path: Path) -> float:
    """Return the largest difference between the logits of the file and of the network, on random batches."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator, largest = torch.Generator().manual_seed(0), 0.0
    for batch in _BATCHES:
        images = torch.randn(batch, *shape, generator=generator)
        with torch.no_grad():
            ours = logits(images)
        theirs = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        difference = (ours - theirs).abs().max().item() if ours.shape == theirs.shape else float("inf")
        bearable = TOLERANCE * max(1.0, ours.abs().max().item())
        if not difference <= bearable:  # written so that NaN fails too
            raise UserError(
                f"The network as ONNX differs from torch by {difference:.2g}, more than {bearable:.2g} can be borne: "
                "nothing was exported. Leave --onnx out."
            )
        largest = max(largest, difference)
    return largest
