"""What was recorded for runs of a comparison is removed as they pass it."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from spacedkd.errors import UserError
from spacedkd.experiments.sharing import Job, moved, read_diverged
from spacedkd.files import Folder
from spacedkd.spec import read_spec
from spacedkd.training.folder import RunFolder
from spacedkd.training.following import forget, read_passed

Followers = Mapping[Path, Collection[Path]]
"""runs that record for others, unless that is to be kept, and who follows each of them"""


def followers(out: Path, jobs: Sequence[Job]) -> Followers:
    """Who follows whom in the folder of a comparison; some of its arms may have been left out of the jobs.

    Nobody where a spec cannot be read: who knows whom it follows, or whether it keeps what it recorded.
    """
    try:
        spec_of = {file.parent: read_spec(file) for file in out.glob("*/*/spec.json")}
    except UserError:
        return {}
    for job in jobs:
        spec_of[job.folder] = job.spec
    found: dict[Path, list[Path]] = {}
    for run, spec in spec_of.items():
        if spec.teacher_path is not None and (leader := moved(spec.teacher_path, out)).is_relative_to(out.resolve()):
            found.setdefault(leader, []).append(run)
            if _is_alone(leader):  # the run that it is within has recorded it, too
                found.setdefault(leader.parent, []).append(run)
    kept = {run.resolve() for run, spec in spec_of.items() if spec.engine.keep_path}
    return {leader: runs for leader, runs in found.items() if leader not in kept and leader.parent not in kept}


def forget_passed(found: Followers) -> None:
    """Remove what was recorded and nobody who follows it will ask for again, also when it goes on from a checkpoint."""
    for leader, runs in found.items():
        going_on = [RunFolder(run) for run in runs if not RunFolder(run).finished() and read_diverged(run) is None]
        ended = RunFolder(leader).finished() or read_diverged(leader) is not None
        if ended and not going_on:
            alone = _is_alone(leader)
            for place in (leader,) if alone else (leader / "path", RunFolder(leader).teacher):
                Folder(leader.parent if alone else leader).remove_tree(place)
        passed = [read_passed(run) for run in going_on]
        for role in Folder(leader).names(leader / "path") if leader.exists() else ():
            forget(leader, role, min((versions.get(role, 0) for versions in passed), default=LATER))


LATER = 10**9 - 1
"""than any version"""


def _is_alone(run: Path) -> bool:
    """Whether a run is the teacher of another one, trained alone within its folder."""
    return run == RunFolder(run.parent).teacher and RunFolder(run.parent).spec.exists()
