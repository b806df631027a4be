"""Trained models with their data, ready to be evaluated: those of a run, or any timm network with its weights.

`load_run` and `load_network` load them. Instruments get predict functions from them, and never the run.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from spacedkd.config.objects import Objects
from spacedkd.config.optimizer import OptimizerSpec, RateSpec
from spacedkd.config.resolve import ResolvedRun, resolve
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import DataSpec, NetworkSpec, RunSpec, read_spec
from spacedkd.data import sources
from spacedkd.data.inputs import Inputs, cast_floats
from spacedkd.data.run_data import RunData
from spacedkd.data.stream import Batch
from spacedkd.evaluation.scores import Predict
from spacedkd.models import factory
from spacedkd.models.classifier import Classifier, Logits, Prediction
from spacedkd.models.pretrained import check_published, keep_normalisation
from spacedkd.runs import checkpoint, tensor_file
from spacedkd.runs.checkpoint import Position
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import Damaged, UserError
from spacedkd.runtime.processes import check_threads, print_notice
from spacedkd.training.build import build_models
from spacedkd.training.device import patch_strided_convolutions, supports_channels_last
from spacedkd.training.state import check_same_data
from spacedkd.training.students import build_saved_models
from spacedkd.trajectory.cached_teacher import teacher_of

MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""precision -> dtype of its autocast"""


@dataclass(frozen=True)
class TrainedModels:
    """Trained models with the data they are evaluated on."""

    models: dict[str, nn.Module]
    """on the device and in evaluation mode; one of them is the student"""
    student: str
    data: RunData
    precision: str
    device: torch.device
    channels_last: bool
    origin: dict[str, Any]
    """source of the weights (a run and its epoch, or a file), and the data's spec"""

    @property
    def module(self) -> nn.Module:
        """The student."""
        return self.models[self.student]

    def head_names(self, model: str | None = None) -> Sequence[str]:
        names: Sequence[str] = self.models[model or self.student].head_names  # type: ignore[assignment]
        return names

    def predict(self, model: str | None = None) -> Predict:
        """Return the predict function of a model with all its heads, in the precision it was trained in."""
        return self._predict_function(self.models[model or self.student])

    def deepest(self) -> nn.Module:
        """Return the student without its early exits; it shares the student's weights."""
        return Classifier(self.module.network).eval()  # type: ignore[arg-type]

    def predict_deepest(self) -> Predict:
        """Return the predict function of the student's deepest head; gradients pass through it to the images."""
        return self._predict_function(self.deepest())

    def _predict_function(self, module: nn.Module) -> Predict:
        dtype, mixed = next(module.parameters()).dtype, MIXED.get(self.precision)

        def predict(inputs: Inputs) -> Sequence[Prediction]:
            with torch.autocast(self.device.type, mixed or torch.bfloat16, enabled=mixed is not None):
                heads: Sequence[Prediction] = module(cast_floats(inputs, dtype))
            return [head._replace(logits=head.logits.float(), features=head.features.float()) for head in heads]

        return predict

    def student_in_float32(self) -> nn.Module:
        """Return a copy of the student, images to logits of its deepest head, for measurements that need float32."""
        return Logits(deepcopy(self.deepest())).float().requires_grad_(True).eval()

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the models' device and in their memory layout."""
        return batch.to(self.device, self.channels_last)


def load_run(
    path: Path,
    *,
    unfinished: bool = False,
    accelerator: str | None = None,
    threads: int | None = None,
    objects: Objects | None = None,
    trust_code: bool = False,
) -> TrainedModels:
    """Return the models of a run's last checkpoint: the student, its teachers, and its moving average if it has one.

    A run that is not finished is refused unless `unfinished`. A run that was given its network, data or method as an
    object needs the same in `objects`. CPU threads are those it was trained with, unless `threads` says otherwise. User
    code that its spec.json names is imported only with `trust_code`.
    """
    folder, objects = RunFolder(path), objects or Objects()
    folder.check_links()
    spec = read_spec(path, trust_code)
    _check_loadable(folder, path, unfinished)
    not_needed = ("optimizer", "lr")  # to evaluate
    objects = replace(objects, **dict.fromkeys(not_needed))
    needed = {name: described for name, described in spec.objects.items() if name not in not_needed}
    objects.check(needed, str(path), f"--{{}} package.module:name, or spacedkd.evaluate({str(path)!r}, {{}}=...)")
    check_threads(threads)
    torch.set_num_threads(threads or spec.engine.threads or torch.get_num_threads())
    run = resolve(replace(spec, rate=RateSpec(), optimizer=OptimizerSpec(), objects=needed), objects)
    check_same_data(folder, run.data)
    models = build_saved_models(run)
    position = _load_newest_checkpoint(folder, spec, run, models)
    if spec.targets_path is not None and position.turns == len(run.timeline):
        models = {**_teacher_of_reader(run), **models}
    # All other models are memory banks, or copies of a learner.
    evaluated = {*run.method.learners.values(), *run.method.frozen, "average"}
    origin = {
        "run": spec.label or str(path),
        "fingerprint": spec.fingerprint(),
        "checkpoint": "last",
        "turns": position.turns,
        "of_turns": len(run.timeline),
        "epochs": spec.epochs if position.turns == len(run.timeline) else None,
        "data": to_json(run.spec.data),
    }
    return _prepare(
        {name: model for name, model in models.items() if name in evaluated},
        student=run.student,
        data=run.data,
        precision=run.spec.precision,
        accelerator=accelerator or spec.engine.accelerator,
        origin=origin,
    )


def _load_newest_checkpoint(
    folder: RunFolder, spec: RunSpec, run: ResolvedRun, models: Mapping[str, nn.Module]
) -> Position:
    """Load the newest whole checkpoint of a run into its models, and return its position; tell of a damaged one."""
    saved = checkpoint.newest(folder.checkpoint, models=models)
    if saved.damage and folder.finished():
        way_out = f"Repair it from the checkpoint before it with: spacedkd train --resume {folder.path}"
        raise UserError(f"{saved.damage} {way_out}")
    if saved.damage:
        print_notice(f"{saved.damage} The checkpoint before it, of turn {saved.position.turns}, is evaluated instead.")
    learners = {*run.method.learners.values()}
    for name, model in models.items():  # before weights are loaded: those of 64-true do not fit into float32
        model.to(_training_dtype(run.spec.precision, learns=name in learners))
    return checkpoint.load(saved.path, spec.fingerprints(), models, {})


def _teacher_of_reader(run: ResolvedRun) -> dict[str, nn.Module]:
    """Return the teacher of a finished run that read cached targets, which is not in its checkpoint; {} if it is gone.

    A trained teacher is built anew; one that learned is in the last checkpoint of the run that recorded it.
    """
    name = teacher_of(run)
    teacher, learns = build_models(run)[name], name in run.method.learners.values()
    teacher.to(_training_dtype(run.spec.precision, learns))
    recorder = RunFolder(run.spec.teacher_path or "")
    if learns and not (recorder.finished() and checkpoint.generations(recorder.checkpoint)):
        return {}
    try:
        if learns:
            last = checkpoint.newest(recorder.checkpoint, models={name: teacher})
            checkpoint.load(last.path, read_spec(recorder.path).fingerprints(), {name: teacher}, {})
    except Damaged:  # or the model has another name there
        return {}
    return {name: teacher}


def _check_loadable(folder: RunFolder, path: Path, unfinished: bool) -> None:
    """Refuse a run without a checkpoint, and one that is not finished unless `unfinished`."""
    if not checkpoint.generations(folder.checkpoint):
        if folder.finished():
            raise UserError(
                f"The checkpoint of {path} is gone, and all its models with it. Train it again with: spacedkd train "
                f"--resume {path} --restart, or evaluate its student alone with --network and --weights {path}."
            )
        raise UserError(f"{path} has no checkpoint yet. Train it with: spacedkd train --resume {path}")
    if not folder.finished() and not unfinished:
        raise UserError(
            f"{path} is not finished, so it has no student to evaluate. Finish it with: spacedkd train --resume "
            f"{path}, or evaluate its last checkpoint with --unfinished."
        )


def load_network(network: NetworkSpec, data: DataSpec, accelerator: str = "auto") -> TrainedModels:
    """Return any timm network as a student, with the weights its spec names, or else timm's own.

    It gets images normalised as in its own training, where that is known. A network without published weights, or with
    other classes than the data, is refused.
    """
    data = sources.resolve_data(data)
    parts = sources.load(data)
    if not network.pretrained and timm.is_model(network.name):
        published = timm.get_pretrained_cfg(network.name)
        if published is None or not published.has_weights:
            raise UserError(f"There are no published weights of {network.name}: use --weights FILE.")
        check_published(network.name, len(parts.class_names))
        network = replace(network, options={**network.options, "pretrained": True})
    built = factory.build_network(network, parts.info, seed=0)
    keep_normalisation(built, network, parts.info.normalisation)
    origin = {"network": to_json(network), "weights": network.weights or "timm's own", "data": to_json(data)}
    return _prepare(
        {"student": Classifier(built)},
        student="student",
        data=parts,
        precision="32-true",
        accelerator=accelerator,
        origin=origin,
    )


def _training_dtype(precision: str, learns: bool) -> torch.dtype:
    """Return the dtype of a model's weights while it is trained; frozen models are never in bfloat16."""
    if precision == "64-true":
        return torch.float64
    return torch.bfloat16 if precision == "bf16-true" and learns else torch.float32


def _prepare(
    models: dict[str, nn.Module],
    *,
    student: str,
    data: RunData,
    precision: str,
    accelerator: str,
    origin: dict[str, Any],
) -> TrainedModels:
    """Put the models on the device, in evaluation mode and in the fastest memory layout that is safe."""
    device = device_for(accelerator)
    # As if in float32, in which curvature is measured whatever the run's precision was.
    samples = data.samples()
    channels_last = all(supports_channels_last(model, device, samples, "32-true") for model in models.values())
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for model in models.values():
        model.to(device, memory_format=layout).eval().requires_grad_(False)  # type: ignore[call-overload]
        patch_strided_convolutions(model, device, precision)  # as in training, to the same bits
    origin = {**origin, "weights_digest": tensor_file.digest(models[student].state_dict()), "precision": precision}
    return TrainedModels(models, student, data, precision, device, channels_last, origin)


def device_for(accelerator: str) -> torch.device:
    """Return the device that an accelerator's name means on this machine; refuse one that is not there."""
    if accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator in ("auto", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    if accelerator in ("auto", "cpu"):
        return torch.device("cpu")
    raise UserError(f"This machine has no {accelerator}: use --accelerator cpu.")
