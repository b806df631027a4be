"""The teacher of a student whose targets are cached: which runs can do that, and the modules in the teacher's place.

While the student learns, a `CachingTeacher` stands around the teacher and writes its outputs, or a `CachedTeacher`
stands in its place and answers with those that another run has written. Methods and the loop cannot tell: they call a
model. `TrainedRole.compute_losses` says which step is next.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from spacedkd.config.resolve import ResolvedRun, make_stream
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec, read_spec, teacher_settings
from spacedkd.data.stream import View
from spacedkd.methods.base import Method
from spacedkd.models.classifier import Prediction
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.tensor_file import digest
from spacedkd.runtime.errors import TargetsGone, UserError
from spacedkd.runtime.files import Folder
from spacedkd.runtime.locks import is_held
from spacedkd.schedule import Turn
from spacedkd.timeline import Block, updates_by_step
from spacedkd.trajectory.identity import check_shareable, draws_random_numbers, trajectory_settings
from spacedkd.trajectory.store import POLL_SECONDS, Settings, describe_setting, first_difference
from spacedkd.trajectory.targets import INDEX, Targets, TargetsForm, draw_seed, parse_form, read_index

OUTPUTS, FEATURES = "outputs", "features"
"""the two settings that may differ: a reader without a feature loss also reads targets that have features"""


# Which runs have targets, and what determines them


def teacher_of(run: ResolvedRun) -> str:
    """Return the model whose outputs the student of a run learns from; refuse a run whose targets cannot be cached."""
    method, spec, student = run.method, run.spec, run.method.roles[-1]
    teachers = [*method.roles[:-1], *method.frozen]

    def refuse(why: str) -> UserError:
        return UserError(
            f"Targets of {spec.method.name} cannot be cached: {why} Leave out --cache-targets, --targets-path and "
            "--targets-form."
        )

    if len(teachers) != 1:
        raise refuse(f"its student must have one teacher, and here it has {len(teachers)}.")
    teacher = method.learners.get(teachers[0], teachers[0])
    if teacher == method.learners[student]:
        raise refuse("teacher and student are one network, so its outputs belong to one run.")
    if student not in run.roles:
        raise refuse(f"--only {spec.only} trains no student.")
    if teachers[0] in method.roles and method.determined_by(teachers[0]) is None:
        raise refuse(f"its {teachers[0]} learns from the student, so its outputs belong to one run.")
    if spec.frozen_mode != "eval" or spec.optimizer.moves_frozen:
        quirk = "moves_frozen" if spec.frozen_mode == "eval" else f"frozen_mode={spec.frozen_mode}"
        raise refuse(f"with {quirk} the teacher is not frozen while the student learns.")
    if spec.engine.pipeline or spec.extends:
        raise refuse(f"{'--pipeline' if spec.engine.pipeline else '--extend'} has another way to its teacher.")
    if [*method.views(student, 0)] != [View(0)]:
        raise refuse("its student takes several views of a batch.")
    if getattr(type(method), "on_block_start", Method.on_block_start) is not Method.on_block_start:
        raise refuse("it copies its teacher before each block.")
    steps = [turn.step for turn in run.timeline.after(0) if turn.role == student]
    if len({*steps}) < len(steps) or any(turn.role == student for turn in run.timeline.forward_only_turns.values()):
        raise refuse("in this schedule the student passes a batch more than once.")
    if teachers[0] in method.roles:
        check_shareable(run, teachers[0])
    return str(teacher)


def target_settings(
    run: ResolvedRun, models: Mapping[str, nn.Module], trajectories: Mapping[str, Settings] | None = None
) -> dict[str, Any]:
    """Return all settings that determine the outputs of the student's teacher at each of its steps.

    The keys name the settings in error messages. `models` are those of the run, as they are built, and `trajectories`
    the settings of roles that are known already.
    """
    teacher, spec, student = teacher_of(run), run.spec, run.method.roles[-1]
    role = next((role for role in run.method.roles[:-1]), teacher)
    updates = [*updates_by_step(run.timeline.after(0), role, by=student)]
    has_features = uses_features(run.method)
    form = parse_form(spec.targets_form)
    if form.count and spec.task != "classification":
        raise UserError(
            f"targets_form {form} is about one class for each item, not about task {spec.task}: use whole, float16 or "
            "bfloat16."
        )
    form.check_classes(len(run.data.info.classes))
    _check_draws(form, run.method)
    if draws_random_numbers(models[teacher], run.data.info.sample, training=False):
        raise UserError(
            f"Targets of {spec.method.name} cannot be cached: its teacher draws random numbers while it is frozen, and "
            "the student's own would be others without it."
        )
    of_teacher = (trajectories or {}).get(role)
    if of_teacher is None:
        learns = role in run.roles
        of_teacher = trajectory_settings(run, role, models) if learns else _frozen_settings(run, models[teacher])
    return {
        **of_teacher,
        "teacher update at each step": _describe_updates(updates),
        "batches of the student": "drawn again" if spec.redraw_replay else None,
        "teacher average": [spec.teacher_average, spec.average_bn] if run.average_seen(role) else None,
        "form": str(form),
        OUTPUTS: ["logits", "features"] if has_features else ["logits"],
        FEATURES: getattr(models[teacher], "features_name", type(models[teacher]).__name__) if has_features else None,
    }


def uses_features(method: Method) -> bool:
    """Return whether a method uses its teacher's features; of a method without a weight for them it is not known."""
    return bool(getattr(method, "feature_weight", True))


def _frozen_settings(run: ResolvedRun, teacher: nn.Module) -> dict[str, Any]:
    """Return the settings that determine the outputs of a trained teacher, which never learns, for each batch."""
    of_learning = ("epochs", "optimizer", "learning rate", "label smoothing", "shared BatchNorm")
    spec = run.spec
    return {
        "network": to_json((spec.teacher or spec.network).untrained()),
        **{name: value for name, value in teacher_settings(spec).items() if name not in of_learning},
        "number of processes": [spec.engine.processes, *spec.processes_before],
        "objects": [spec.objects.get(name) for name in ("teacher", "data", "collate")],
        "trained teacher": digest(teacher.state_dict()),
        "attention": spec.attention if spec.attention != "fused" else None,
        "parts of a batch": spec.accumulate if spec.accumulate > 1 else None,
    }


def _describe_updates(updates: list[tuple[int, int]]) -> str:
    """Return the teacher's update at each step in short: the first hand-overs, and a digest of all.

    >>> _describe_updates([(0, 2), (1, 2), (2, 4)])
    '2 from step 0, 4 from step 2; 3 steps, 7571e62a'
    """
    changes = [pair for pair, before in zip(updates, [(-1, -1), *updates], strict=False) if pair[1] != before[1]]
    first = ", ".join(f"{update} from step {step}" for step, update in changes[:2])
    text = f"{first}{', ...' if len(changes) > 2 else ''}; {len(updates)} steps"
    return f"{text}, {hashlib.sha256(json.dumps(updates).encode()).hexdigest()[:8]}"


def _check_draws(form: TargetsForm, method: Method) -> None:
    """Refuse drawn classes for a loss whose gradient they do not give on average."""
    if form.name != "sample":
        return
    temperature = getattr(method, "temperature", None)
    if temperature != form.temperature:
        raise UserError(
            f"targets_form {form} draws classes at temperature {form.temperature:g}, and the method's is "
            f"{temperature}: write sample:{form.count}@{temperature}."
        )
    others = [name for name in ("standardise", "curriculum") if getattr(method, name, None)]
    others += ["logit_loss=decoupled"] if getattr(method, "logit_loss", "kl") == "decoupled" else []
    if others:
        raise UserError(f"targets_form {form} is for a KL of the logits as they are, and here is {others[0]}.")


def bytes_per_item(run: ResolvedRun, teacher: nn.Module) -> int:
    """Return the bytes on disk of the targets of one item, from the teacher's outputs for the data's sample."""
    with torch.no_grad():
        (example,) = teacher(run.data.info.sample)
    form = parse_form(run.spec.targets_form)
    tensors = [*form.encode(example.logits, seed=0).values()]
    if uses_features(run.method):
        tensors.append(form.encode_features(example.features))
    return sum(tensor.nbytes for tensor in tensors) // len(example.logits)


def items_of_student(run: ResolvedRun) -> int:
    """Return the number of items in all batches of the student, as often as it sees them."""
    stream = make_stream(run.spec, run.data, 0, 1)
    return sum(stream.size(turn.step) for turn in run.timeline.after(0) if turn.role == run.method.roles[-1])


# In the teacher's place among the models of a run


class NotCached(UserError, AttributeError):
    """A method uses more of its teacher than its outputs."""


class TeacherOutputs(nn.Module):
    """A module in the teacher's place while its student learns; it can be called, and has no attribute of a teacher."""

    def __init__(self, model: str, student: str, method: str) -> None:
        super().__init__()
        self.model_name, self.student, self.method = model, student, method
        self._turn: Turn | None = None
        self._part = self._calls = 0

    def seek(self, turn: Turn, part: int) -> None:
        """Note the step, and the part of its batch, that the next call is for."""
        self._turn, self._part, self._calls = (turn if turn.role == self.student else None), part, 0

    def _check_call(self) -> int:
        """Return the step; refuse a call with gradients, and a second one at a step."""
        assert self._turn is not None, "the teacher is called in a turn of its student"
        self._calls += 1
        if torch.is_grad_enabled():
            raise UserError(
                f"Targets of {self.method} cannot be cached: it passes gradients through its teacher. Call the teacher "
                "under torch.no_grad(), or leave out --cache-targets and --targets-path."
            )
        if self._calls > 1:
            raise UserError(f"Targets of {self.method} cannot be cached: it calls its teacher twice at a step.")
        return self._turn.step

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise NotCached(
                f"Targets of {self.method} cannot be cached: it uses {name!r} of its teacher, and cached are "
                "the outputs of a call alone."
            ) from None


class CachingTeacher(TeacherOutputs):
    """A frozen teacher whose outputs are cached as it computes them, and given to the student in the form they have."""

    def __init__(self, run_targets: "RunTargets", run: ResolvedRun) -> None:
        """Wrap no teacher yet, and write nothing: `open` names the folder."""
        super().__init__(run_targets.model, run_targets.student, run_targets.method)
        self._run, self._run_targets, self._form = run, run_targets, parse_form(run.spec.targets_form)
        self._targets: Targets | None = None
        self._step = -1
        self._parts: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}

    def open(self, folder: Folder, rank: int) -> None:
        """Write to a run's folder from here on, if its spec says so; what is there already is left as it is."""
        spec = self._run.spec
        if spec.cache_targets:
            self._targets = Targets(
                folder.path / "targets",
                spec.targets_form,
                self._run_targets.settings,
                seed=spec.seed,
                rank=rank,
                ranks=spec.engine.processes,
                within=folder,
            )

    def around(self, teacher: nn.Module) -> Self:
        """Return this module around a teacher."""
        if teacher is not self:
            self.teacher: nn.Module = teacher
        return self

    def seek(self, turn: Turn, part: int) -> None:
        if turn.role == self.student and turn.step != self._step:
            self._commit()
            self._step = turn.step
        super().seek(turn, part)

    def forward(self, *inputs: Any, **named: Any) -> tuple[Prediction, ...]:
        """Return the teacher's prediction in its form; its encoded outputs are kept until the step is over."""
        step = self._check_call()
        predictions = self.teacher(*inputs, **named)
        if len(predictions) != 1 or predictions[0].heat is not None:
            raise UserError(
                f"Targets of {self.method} cannot be cached: its teacher must give one prediction, and gives "
                f"{len(predictions)}."
            )
        (prediction,) = predictions
        encoded = self._form.encode(prediction.logits, draw_seed(self._run.spec.seed, step, self._part))
        if self._run_targets.features:
            encoded["features"] = self._form.encode_features(prediction.features)
        self._parts[self._part] = prediction.logits.detach(), encoded
        if self._form.is_whole:
            return (prediction,)
        dtype = prediction.logits.dtype
        logits = self._form.decode(encoded, prediction.logits.shape[-1], dtype)
        features = (
            self._form.decode_features(encoded["features"], dtype)
            if self._run_targets.features
            else prediction.features
        )
        return (prediction._replace(logits=logits, features=features),)

    def _commit(self) -> None:
        """Hand the outputs of the step that is over to the files."""
        step, parts, self._step, self._parts = self._step, self._parts, -1, {}
        if self._targets is None or step < 0:
            return
        if not parts:
            self._targets.skip(step)
        elif step not in self._targets:
            encoded = [parts[number][1] for number in sorted(parts)]
            whole = {name: torch.cat([part[name] for part in encoded]) for name in encoded[0]}
            whole = encoded[0] if len(encoded) == 1 else whole
            self._targets.write_encoded(step, parts[0][0], whole)

    def flush(self) -> None:
        """Write all outputs of steps that are over to disk; called between two steps."""
        self._commit()
        if self._targets is not None:
            self._targets.flush()


class CachedTeacher(TeacherOutputs):
    """A module without weights that answers with the outputs that another run has cached."""

    head_names: tuple[str, ...] = ("final",)

    def __init__(self, run_targets: "RunTargets", targets: Targets, spec: RunSpec, device: torch.device) -> None:
        """Read the targets of the run that a spec names, to a device."""
        super().__init__(run_targets.model, run_targets.student, run_targets.method)
        self._targets, self._parts, self._device = targets, spec.accumulate, device
        self._run = Path(spec.targets_path or "")
        self.seen_model = run_targets.seen_model
        """the model that is not computed here: its passes are not part of this run's own cost"""
        self._next = self._next_at_save = 0
        self._outputs: tuple[int, dict[str, Tensor]] | None = None

    @property
    def steps_per_file(self) -> int:
        """The steps after which the writer has finished another file."""
        return self._targets.steps_per_file

    def open(self, folder: Folder, rank: int) -> None:
        """Do nothing: nothing is written."""

    def around(self, teacher: nn.Module) -> Self:
        """Return this module: there is no teacher."""
        return self

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def forward(self, *inputs: Any, **named: Any) -> tuple[Prediction, ...]:
        """Return the cached prediction for the part of the batch at hand."""
        step = self._check_call()
        if self._outputs is None or self._outputs[0] != step:
            self._outputs = step, self._targets.read(step)
            self._next = step + 1
        outputs = {name: _part(tensor, self._part, self._parts) for name, tensor in self._outputs[1].items()}
        on_device = {name: tensor.to(self._device, non_blocking=True) for name, tensor in outputs.items()}
        logits = on_device["logits"]
        return (Prediction(logits, on_device.get("features", logits.new_empty(len(logits), 0))),)

    def wait(self, block: Block, all_ready: Callable[[bool], bool]) -> Iterator[str]:
        """Wait until all steps of a block are cached; yield a description of what is waited for, again and again."""
        missing = [*block.steps] if block.role == self.student else []
        while True:
            missing = [step for step in missing if step not in self._targets]
            if all_ready(not missing):
                return
            if not missing:
                yield "waiting for all processes to see the cached targets"
            else:
                yield waits_for_targets(self._run, f"step {missing[-1]}")
                missing = [step for step in missing if step not in self._targets]
            time.sleep(POLL_SECONDS)

    def mark_save(self) -> int:
        """Note a save; return the oldest step whose targets the two checkpoints need once it is written."""
        before, self._next_at_save = self._next_at_save, self._next
        return before

    def resume(self, oldest: int) -> None:
        """Restore the oldest step that the run needed when it was stopped."""
        self._next = self._next_at_save = oldest


def _part(tensor: Tensor, number: int, count: int) -> Tensor:
    """Return the rows of one of the parts that a batch is computed in, as `Batch.parts` cuts it."""
    if count == 1:
        return tensor
    rows = slice(len(tensor) * number // count, len(tensor) * (number + 1) // count)
    return tensor[rows].clone(memory_format=torch.preserve_format)


def waits_for_targets(run: Path, what: str) -> str:
    """Return what a reader of a run's targets waits for; targets that will never come are refused as `TargetsGone`."""
    folder = RunFolder(run)
    if is_held(run / ".lock"):
        return f"waiting for {run} to cache the targets of {what}"
    if folder.finished():
        raise TargetsGone(
            f"{run} is finished, and its targets of {what} are gone. Train without --targets-path, in a new folder."
        )
    return f"waiting for {run}, which is not being trained. Resume with: spacedkd train --resume {run}"


# Before a run begins


@dataclass(frozen=True)
class RunTargets:
    """A description of a run's targets: whose outputs they are, and the settings that determine them."""

    model: str
    student: str
    seen_model: str
    """the model whose outputs the student sees: the teacher itself, or the average of its weights"""
    method: str
    features: bool
    """whether the method uses its features"""
    settings: Settings

    @classmethod
    def of(
        cls, run: ResolvedRun, models: Mapping[str, nn.Module], trajectories: Mapping[str, Settings] | None = None
    ) -> Self:
        """Return the description of a run's targets; a run whose targets cannot be cached is refused."""
        settings = target_settings(run, models, trajectories)
        return cls(
            model=(model := teacher_of(run)),
            seen_model=next(
                (seen for role in run.method.roles[:-1] if (seen := run.average_seen(role)) is not None), model
            ),
            student=run.method.roles[-1],
            method=run.spec.method.name,
            features=FEATURES in settings[OUTPUTS],
            settings=settings,
        )


def uses_targets(run: ResolvedRun) -> bool:
    """Return whether a run writes or reads targets, or its student sees the teacher in another form."""
    spec = run.spec
    return spec.cache_targets or spec.targets_path is not None or not parse_form(spec.targets_form).is_whole


def open_cached_teacher(run_targets: RunTargets, run: ResolvedRun, rank: int, device: torch.device) -> CachedTeacher:
    """Return the module that reads the targets at a run's `targets_path`; other targets are refused by what differs."""
    spec = run.spec
    assert spec.targets_path is not None
    writer = Path(spec.targets_path)
    folder = Folder(writer)
    index = read_index(writer / "targets", folder)
    cached = index["settings"]
    missing = [name for name in run_targets.settings[OUTPUTS] if name not in cached.get(OUTPUTS, ())]
    if missing:
        raise UserError(
            f"--targets-path: {writer} has cached no {missing[0]}, which method {run_targets.method} with these "
            "options uses."
        )
    wanted = (
        dict(run_targets.settings) if run_targets.features else {**run_targets.settings, FEATURES: cached.get(FEATURES)}
    )
    wanted[OUTPUTS] = cached[OUTPUTS]
    if (name := first_difference(cached, wanted)) is not None:
        ours, theirs = describe_setting(wanted, name), describe_setting(cached, name)
        raise UserError(
            f"--targets-path: {writer} has cached the targets of another {name} ({theirs}; here {ours}). Train without "
            f"it, or with the same {name}."
        )
    targets = Targets(writer / "targets", rank=rank, ranks=spec.engine.processes, within=folder)
    return CachedTeacher(run_targets, targets, spec, device)


def wait_for_targets(run: ResolvedRun) -> Iterator[str]:
    """Wait until the run whose targets are read has cached its first; yield what is waited for, again and again."""
    if run.spec.targets_path is None:
        return
    writer = Path(run.spec.targets_path)
    if not RunFolder(writer).spec.exists():
        raise UserError(f"--targets-path: there is no run {writer}. Train it with: spacedkd train --cache-targets ...")
    if not RunFolder(writer).targets.exists() and not read_spec(writer).cache_targets:
        raise UserError(f"--targets-path: {writer} caches no targets. Train it with --cache-targets.")
    while not (RunFolder(writer).targets / INDEX).exists():
        yield waits_for_targets(writer, "its first step")
        time.sleep(POLL_SECONDS)
