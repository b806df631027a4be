"""The settings that a role's trajectory depends on, and the check that a recorded one is that of a run's own role.

A role that learns from labels, or from roles before it, has weights that are a pure function of the settings listed
here. Equal settings are equal bits, so the trajectory can be recorded by one run and replayed by another.
"""

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import read_spec, teacher_settings
from spacedkd.data.inputs import Inputs
from spacedkd.runs.tensor_file import digest
from spacedkd.runtime.errors import UserError
from spacedkd.schedule import Turn
from spacedkd.timeline import dropout_key, updates_seen
from spacedkd.trajectory.record import average_settings
from spacedkd.trajectory.replay import RecordedTrajectory
from spacedkd.trajectory.store import (
    RecordedRole,
    Settings,
    describe_setting,
    first_difference,
    read_index,
    shorten,
)


def shared_roles(run: ResolvedRun) -> Sequence[str]:
    """Return the roles whose trajectories a run records or replays: all before the last, or all it has."""
    if not run.spec.record and run.spec.teacher_path is None:
        return ()
    if len(run.roles) == 1 or (run.spec.teacher_path is None and run.spec.only is not None):
        return run.roles  # the student of a run without distillation may be another run's teacher
    return run.roles[:-1]


def check_shareable(run: ResolvedRun, role: str) -> None:
    """Refuse to record or replay a role whose weights depend on more than its own settings."""
    method, spec = run.method, run.spec
    others = [model for other, model in method.learners.items() if other != role]
    if method.determined_by(role) is None or method.learners[role] in others:
        raise UserError(
            f"The {role} of {spec.method.name} learns from roles that learn from it, so it cannot be recorded or "
            "replayed: leave out --record and --teacher-path."
        )
    if spec.frozen_mode == "train" or spec.optimizer.moves_frozen:
        quirk = "frozen_mode=train" if spec.frozen_mode == "train" else "moves_frozen"
        raise UserError(
            f"With {quirk} the {role} moves while others learn, so it cannot be recorded or replayed: leave one of "
            "them out."
        )
    if spec.engine.strategy == "fsdp":
        raise UserError("A snapshot holds a whole network, which --strategy fsdp does not: leave one of them out.")
    steps = [turn.step for turn in run.timeline.after(0) if turn.role == role]
    if steps != [*range(run.stops[role])]:
        raise UserError(
            f"In this schedule the {role} does not learn every step in order, so it cannot be recorded or replayed."
        )


def trajectory_settings(run: ResolvedRun, role: str, models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Return all settings that determine a role's weights after any number of updates.

    The keys name the settings in error messages.
    """
    check_shareable(run, role)
    spec, roles, learners, network = run.spec, run.method.roles, run.method.learners, run.network(role)
    own = "teacher" if network is spec.teacher else "network"
    uses_method = run.method.determined_by(role) == "method"
    masks, _ = dropout_key(Turn(role, 0), spec.frozen_mode)
    before = roles[: roles.index(role) + 1]
    settings = {
        "network": to_json(network.untrained()),
        **teacher_settings(spec),
        "steps to learn": run.stops[role],
        "number of processes": [spec.engine.processes, *spec.processes_before],
        "objects": [spec.objects.get(name) for name in (own, "data", "collate", "optimizer", "lr")],
        "method": to_json(spec.method) if uses_method else None,
        "first weights": [digest(models[learners[name]].state_dict()) for name in before],
        "trained teacher": [digest(models[name].state_dict()) for name in run.method.frozen] if uses_method else None,
        "updates left out": spec.on_nonfinite if spec.on_nonfinite != "stop" else None,
        "attention": spec.attention if spec.attention != "fused" else None,
        "parts of a batch": spec.accumulate if spec.accumulate > 1 else None,
        "dropout masks": masks if draws_random_numbers(models[learners[role]], run.data.info.sample) else None,
    }
    if spec.task != "classification":
        settings["task"] = [spec.task, spec.metric, spec.ignore_index]
    if role != roles[0]:  # it learns from the roles before it, whose turns the schedule decides
        settings["schedule"] = [to_json(spec.schedule), spec.follower_first, spec.redraw_replay, *run.leader_steps]
        if spec.teacher_average is not None:
            settings["teacher average"] = [spec.teacher_average, spec.average_bn]
    return settings


def draws_random_numbers(model: nn.Module, sample: Inputs, training: bool = True) -> bool:
    """Return whether a forward pass draws random numbers, which are seeded by the name of the role that learns."""

    def states() -> tuple[Any, ...]:
        kind, keys, *rest = np.random.get_state(legacy=True)
        return torch.random.get_rng_state().tolist(), random.getstate(), (kind, *keys, *rest)

    copy, before = deepcopy(model).train(training), states()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        copy(sample)
        return states() != before


def find_trajectories(run: ResolvedRun, settings: Mapping[str, Settings]) -> dict[str, RecordedTrajectory]:
    """Return the recorded trajectories in a run's `teacher_path`, by the roles of this run that have the same settings.

    The first role must have one; the error names the setting that differs. Other roles without one are trained here.
    """
    assert run.spec.teacher_path is not None
    recording = Path(run.spec.teacher_path)
    recorded = read_index(recording)
    trajectories = {}
    for number, (role, wanted) in enumerate(settings.items()):
        equal = [name for name, entry in recorded.items() if first_difference(entry.settings, wanted) is None]
        if equal:
            needs_weights = run.spec.targets_path is None
            trajectory = RecordedTrajectory(recording, equal[0], recorded[equal[0]].updates, needs_weights)
            if needs_weights:
                _check_updates(run, trajectory, role)
            _check_evaluations(run, recording)
            trajectories[role] = trajectory
        elif number == 0:
            raise _another_trajectory(recording, role, wanted, recorded.get(role) or next(iter(recorded.values())))
        else:
            break  # later roles depend on this one, so they train here
    return trajectories


def find_averages(
    run: ResolvedRun, settings: Mapping[str, Settings], replayed: Mapping[str, RecordedTrajectory]
) -> dict[str, RecordedTrajectory]:
    """Return the recorded averages of replayed roles' weights, by role, if other roles see averages in this run.

    A recorded run that has the role but not this average of it is refused.
    """
    averages = {}
    for role, trajectory in replayed.items():
        name = run.average_seen(role)
        if name is None or not trajectory.needs_weights:
            continue
        wanted, recorded = average_settings(settings[role], run.averages[name]), read_index(trajectory.run)
        equal = [other for other, entry in recorded.items() if first_difference(entry.settings, wanted) is None]
        if not equal:
            text = run.spec.teacher_average
            raise UserError(
                f"--teacher-path: {trajectory.run} has not recorded the average {text} of its {trajectory.role} "
                f"(BatchNorm: {run.averages[name].batch_norm}): record it with --record-average {text}, or leave out "
                "--teacher-average."
            )
        averages[role] = RecordedTrajectory(trajectory.run, equal[0], recorded[equal[0]].updates)
        _check_updates(run, averages[role], role)
    return averages


def _another_trajectory(recording: Path, role: str, wanted: Settings, recorded: RecordedRole) -> UserError:
    name = first_difference(recorded.settings, wanted) or "trajectory"
    ours, theirs = (describe_setting(settings, name) for settings in (wanted, recorded.settings))
    return UserError(
        f"--teacher-path: {recording} has recorded another trajectory than that of this run's {role}, which has "
        f"another {name} ({ours}; there {theirs}). Train without it, or with the same {name}."
    )


def _check_updates(run: ResolvedRun, trajectory: RecordedTrajectory, role: str) -> None:
    """Refuse a trajectory without a snapshot that the role's student needs in this run's schedule."""
    behind = [*run.roles[run.roles.index(role) + 1 :], None][0]
    needed = {run.stops[role]} | (updates_seen(run.timeline.after(0), role, by=behind) if behind else set())
    missing = sorted(needed - {*trajectory.recorded})
    if missing:
        raise UserError(
            f"--teacher-path: this schedule needs the {role} after {missing[0]} updates, and {trajectory.run} records "
            f"it after {shorten(trajectory.recorded)}. Record it with --record and this interval, or choose another "
            "interval."
        )


def _check_evaluations(run: ResolvedRun, recording: Path) -> None:
    """Refuse a trajectory that was evaluated less often than this run: its accuracies would be missing here."""
    if not (recording / "spec.json").exists():
        return
    theirs = read_spec(recording).evaluate_every
    if run.periods.evaluate % theirs.as_period(run.steps_per_epoch, run.total_steps):
        raise UserError(
            f"--teacher-path: {recording} was evaluated every {theirs}, and this run is to be evaluated every "
            f"{run.spec.evaluate_every}: give --evaluate-every {theirs} or a multiple of it."
        )
