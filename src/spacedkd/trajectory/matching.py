"""Whether a path that was recorded is the one that a run's own teacher would take."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.spec import read_spec
from spacedkd.runtime.errors import UserError
from spacedkd.timeline import updates_seen
from spacedkd.trajectory.replay import RecordedPath, read_paths


def find_paths(plan: ResolvedRun, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, RecordedPath]:
    """The paths that a run's `teacher_path` has of its roles; whoever has none there learns here.

    The first role must have one: what differs, or was not recorded, is said.
    """
    assert plan.spec.teacher_path is not None
    run = Path(plan.spec.teacher_path)
    recorded = read_paths(run)
    found = {}
    for place, (role, wanted) in enumerate(settings.items()):
        same = [name for name, path in recorded.items() if _difference(path["settings"], wanted) is None]
        if same:
            path = RecordedPath(run, same[0], recorded[same[0]]["versions"])
            _check_versions(plan, path, role)
            _check_measured(plan, run)
            found[role] = path
        elif place == 0:
            theirs = recorded.get(role) or next(iter(recorded.values()))
            different = _difference(theirs["settings"], wanted) or "path"
            ours, its = (json.dumps(one.get(different)) for one in (wanted, theirs["settings"]))
            raise UserError(
                f"--teacher-path: the path of {run} is not that of this run's {role}, which has another {different} "
                f"({_short(ours)}; there {_short(its)}). Train without it, or with the same {different}."
            )
        else:
            break  # those behind it learn from it
    return found


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first setting that is not the same."""
    plain = json.loads(json.dumps(other))
    return next((name for name in {**one, **plain} if one.get(name) != plain.get(name)), None)


def _check_versions(plan: ResolvedRun, path: RecordedPath, role: str) -> None:
    behind = [*plan.roles[plan.roles.index(role) + 1 :], None][0]
    needed = {plan.stops[role]} | (updates_seen(plan.timeline.after(0), role, by=behind) if behind else set())
    missing = sorted(needed - {*path.recorded})
    if missing:
        some = ", ".join(map(str, path.recorded[:6])) + (", ..." if len(path.recorded) > 6 else "")
        raise UserError(
            f"--teacher-path: this schedule needs the {role} after {missing[0]} updates, and {path.run} records it "
            f"after {some}. Record it with --record and this interval, or choose another interval."
        )


def _check_measured(plan: ResolvedRun, run: Path) -> None:
    """Refuse a path on which roles were not measured as often as here: their accuracies would be missing."""
    if not (run / "spec.json").exists():
        return
    theirs = read_spec(run).evaluate_every
    if plan.every.evaluate % theirs.as_period(plan.steps_per_epoch, plan.total_steps):
        raise UserError(
            f"--teacher-path: {run} measured every {theirs}, and this run is to measure every "
            f"{plan.spec.evaluate_every}: give --evaluate-every {theirs} or a multiple of it."
        )
