"""Write a network as ONNX, and compare its logits with those of torch before the file is kept."""

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
"""largest difference that is accepted, for logits up to 1; for larger ones it grows in proportion"""
_BATCHES = (1, 3)
_ONE_FILE = 1 << 30
"""largest size of weights within the file; larger ones get a file of their own: ONNX allows at most two gigabytes"""


class LogitsOnly(nn.Module):
    """A plain network that returns its logits alone; `models.classifier.Logits` is the same for a `Classifier`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return logits_and_features(self.network(images), "the student")[0]


def write_onnx(network: nn.Module, shape: tuple[int, ...], path: Path, metadata: Mapping[str, Any]) -> float:
    """Write a network for inputs [batch, *shape] of any batch size; return the largest difference to torch's logits.

    A network whose ONNX form gives other logits than torch is refused: nothing is exported then.
    """
    logits = LogitsOnly(network).float().eval()
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
        made.model.metadata_props.update({key: _as_text(value) for key, value in metadata.items()})
        weights = sum(tensor.numel() * tensor.element_size() for tensor in logits.state_dict().values())
        made.save(str(path), external_data=weights > _ONE_FILE)
    except Exception as error:  # what the exporter cannot express fails in many ways
        raise UserError(f"This network cannot be written as ONNX: {error_sentence(error)} Leave --onnx out.") from error
    return _compare(logits, shape, path)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _compare(logits: nn.Module, shape: tuple[int, ...], path: Path) -> float:
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
        accepted = TOLERANCE * max(1.0, ours.abs().max().item())
        if not difference <= accepted:  # written so that NaN fails too
            raise UserError(
                f"The network as ONNX differs from torch by {difference:.2g}, and at most {accepted:.2g} is accepted: "
                "nothing was exported. Leave --onnx out."
            )
        largest = max(largest, difference)
    return largest
