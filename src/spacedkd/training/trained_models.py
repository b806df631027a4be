"""Trained networks ready to be measured: those of a run, or any timm network with weights from a file."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from spacedkd.config.objects import Objects
from spacedkd.config.resolve import resolve
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import DataSpec, NetworkSpec, OptimizerSpec, RateSpec, read_spec
from spacedkd.data import sources
from spacedkd.data.inputs import Inputs, cast_floats
from spacedkd.data.splits import RunData
from spacedkd.data.stream import Batch
from spacedkd.evaluation.scores import Predict
from spacedkd.models import factory
from spacedkd.models.classifier import Classifier, Logits, Prediction
from spacedkd.models.pretrained import check_published, keep_normalisation
from spacedkd.runs import checkpoint, tensor_file
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.machine import check_threads
from spacedkd.runtime.processes import print_notice
from spacedkd.training.build import build_models
from spacedkd.training.onednn import patch_strided_convolutions, supports_channels_last
from spacedkd.training.state import check_same_data


@dataclass(frozen=True)
class TrainedModels:
    """Trained models with the data they are measured on."""

    models: dict[str, nn.Module]
    """on the device and in eval mode; one of them is the student"""
    student: str
    data: RunData
    precision: str
    device: torch.device
    channels_last: bool
    origin: dict[str, Any]
    """what these weights are (of which run after which epoch, or from which file), and which data that is"""

    @property
    def module(self) -> nn.Module:
        return self.models[self.student]

    def head_names(self, model: str | None = None) -> Sequence[str]:
        names: Sequence[str] = self.models[model or self.student].head_names  # type: ignore[assignment]
        return names

    def predict(self, model: str | None = None) -> Predict:
        """What every head of a model says of images, in the precision it was trained in."""
        return self._saying(self.models[model or self.student])

    def deepest(self) -> nn.Module:
        """The student without its early exits, sharing its weights."""
        return Classifier(self.module.network).eval()  # type: ignore[arg-type]

    def predict_deepest(self) -> Predict:
        """What the student's deepest head alone says; gradients pass through to the images."""
        return self._saying(self.deepest())

    def _saying(self, module: nn.Module) -> Predict:
        whole, mixed = next(module.parameters()).dtype, self.precision == "bf16-mixed"

        def say(inputs: Inputs) -> Sequence[Prediction]:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
                found: Sequence[Prediction] = module(cast_floats(inputs, whole))
            return [one._replace(logits=one.logits.float(), features=one.features.float()) for one in found]

        return say

    def student_in_float32(self) -> nn.Module:
        """A copy of the student for what is too delicate for fewer bits; images to the deepest head's logits."""
        return Logits(deepcopy(self.deepest())).float().requires_grad_(True).eval()

    def to_device(self, batch: Batch) -> Batch:
        return batch.to(self.device, self.channels_last)


def load_run(
    path: Path,
    unfinished: bool = False,
    accelerator: str | None = None,
    threads: int | None = None,
    objects: Objects | None = None,
    trust_code: bool = False,
) -> TrainedModels:
    """The models of a run's checkpoint: the student, whoever taught it, and the student's moving average if it has one.

    A run that is not finished is refused unless asked for, and one that was given a network, data or a method as an
    object needs the same again. It gets the CPU threads it was trained with, unless told. Code that its spec.json names
    is imported only with `trust_code`.
    """
    folder, objects = RunFolder(path), objects or Objects()
    folder.check_links()
    spec = read_spec(path, trust_code)
    if not checkpoint.generations(folder.checkpoint):
        if folder.finished():
            raise UserError(
                f"The checkpoint of {path} is gone, and all its models with it. Train it again with: spacedkd train "
                f"--resume {path} --restart, or measure its student alone with --network and --weights {path}."
            )
        raise UserError(f"{path} has no checkpoint yet. Train it with: spacedkd train --resume {path}")
    if not folder.finished() and not unfinished:
        raise UserError(
            f"{path} is not finished, so it has no student to measure. Finish it with: spacedkd train --resume {path}, "
            "or measure its last checkpoint with --unfinished."
        )
    how_trained = ("optimizer", "lr")  # which does not matter any more
    objects = replace(objects, **dict.fromkeys(how_trained))
    needed = {name: one for name, one in spec.objects.items() if name not in how_trained}
    objects.check(needed, str(path), f"--{{}} package.module:name, or spacedkd.evaluate({str(path)!r}, {{}}=...)")
    check_threads(threads)
    torch.set_num_threads(threads or spec.engine.threads or torch.get_num_threads())
    plan = resolve(replace(spec, rate=RateSpec(), optimizer=OptimizerSpec(), objects=needed), objects)
    check_same_data(folder, plan.data)
    models = build_models(plan)
    if spec.ema is not None:
        models["average"] = deepcopy(models[plan.student])
    found = checkpoint.newest(folder.checkpoint, models=models)
    if found.why and folder.finished():
        raise UserError(f"{found.why} Make it again from the one before it with: spacedkd train --resume {path}")
    if found.why:
        print_notice(f"{found.why} The one before it is measured, which is of turn {found.position.turns}.")
    learners = {*plan.method.learners.values()}
    for name, model in models.items():  # before the weights come: those of 64-true do not fit into float32
        model.to(_kept_in(plan.spec.precision, name in learners))
    position = checkpoint.load(found.path, spec.fingerprints(), models, {})
    # Whatever else nobody trains is memory, or a copy of somebody.
    measured = [name for name in models if name in learners or name in plan.method.frozen or name == "average"]
    origin = {
        "run": spec.label or str(path),
        "fingerprint": spec.fingerprint(),
        "checkpoint": "last",
        "turns": position.turns,
        "of_turns": len(plan.timeline),
        "epochs": spec.epochs if position.turns == len(plan.timeline) else None,
        "data": to_json(plan.spec.data),
    }
    ready = {name: models[name] for name in measured}
    where = accelerator or spec.engine.accelerator
    return _ready(ready, plan.student, plan.data, plan.spec.precision, where, origin)


def load_network(network: NetworkSpec, data: DataSpec, accelerator: str = "auto") -> TrainedModels:
    """Any timm network, with the weights its spec names, or else timm's own.

    It sees images normalised as in its own training, where that is known.
    """
    data = sources.resolve_data(data)
    parts = sources.load(data)
    if not network.pretrained and timm.is_model(network.name):
        published = timm.get_pretrained_cfg(network.name)
        if published is None or not published.has_weights:
            raise UserError(f"There are no published weights of {network.name}: use --weights FILE.")
        check_published(network.name, len(parts.names))
        network = replace(network, options={**network.options, "pretrained": True})
    built = factory.build_network(network, parts.info, seed=0)
    keep_normalisation(built, network, parts.info.normalisation)
    origin = {"network": to_json(network), "weights": network.weights or "timm's own", "data": to_json(data)}
    return _ready({"student": Classifier(built)}, "student", parts, "32-true", accelerator, origin)


def _kept_in(precision: str, learns: bool) -> torch.dtype:
    """What a model's weights are in while it is trained; one that never learns is never in bfloat16."""
    if precision == "64-true":
        return torch.float64
    return torch.bfloat16 if precision == "bf16-true" and learns else torch.float32


def _ready(
    models: dict[str, nn.Module], student: str, data: RunData, precision: str, accelerator: str, origin: dict[str, Any]
) -> TrainedModels:
    device = device_for(accelerator)
    # As if in float32, in which curvature is measured whatever the run's precision was.
    samples = data.samples()
    channels_last = all(supports_channels_last(model, device, samples, "32-true") for model in models.values())
    layout = torch.channels_last if channels_last else torch.contiguous_format
    ready = {
        name: model.to(device, memory_format=layout).eval().requires_grad_(False)  # type: ignore[call-overload]
        for name, model in models.items()
    }
    for model in ready.values():
        patch_strided_convolutions(model, device, precision)  # as in training, to the same bits
    origin = {**origin, "weights_digest": tensor_file.digest(ready[student].state_dict()), "precision": precision}
    return TrainedModels(ready, student, data, precision, device, channels_last, origin)


def device_for(accelerator: str) -> torch.device:
    """The device an accelerator's name means here."""
    if accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator in ("auto", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    if accelerator in ("auto", "cpu"):
        return torch.device("cpu")
    raise UserError(f"There is no {accelerator} here: use --accelerator cpu.")
