"""What was recorded for runs of a comparison is removed as they pass it."""

import json
import shutil
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from spacedkd.config.resolve import ResolvedRun, resolve_method
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec, read_spec
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.documents import read_json, read_small_json
from spacedkd.runtime.errors import Diverged, Moved, RunFailed, SnapshotsGone, UserError
from spacedkd.runtime.files import Folder, resolve_links, write_json
from spacedkd.runtime.processes import print_notice
from spacedkd.schedule import Offline, Schedule
from spacedkd.timeline import updates_seen
from spacedkd.trajectory.identity import trajectory_settings
from spacedkd.trajectory.record import updates_to_record
from spacedkd.trajectory.replay import read_oldest_needed
from spacedkd.trajectory.store import RunSnapshots, index_file, read_index

# Arms whose teachers are the same: one of them trains the teacher and records its path, the others follow it.

ROOM = 4
"""a path may take this part of the free disk: students who meet their teacher at every step need a great deal"""


class Job(NamedTuple):
    """One run of a comparison."""

    label: str
    seed: int
    spec: RunSpec
    folder: Path
    first: int = 0
    """the updates of the teacher it waits for, when it follows one that is being recorded"""

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def begun(self) -> bool:
        return RunFolder(self.folder).spec.exists()

    @property
    def finished(self) -> bool:
        return RunFolder(self.folder).finished()

    @property
    def has_path(self) -> bool:
        """Whether what it records is there, or will be: it has learned nothing yet."""
        return (self.folder / "path").exists() or not RunFolder(self.folder).checkpoint.exists()

    def diverged(self) -> Diverged | None:
        """How it diverged, in this comparison or one before; the same run would again."""
        error = read_diverged(self.folder)
        return error and self.named(error)

    def named(self, error: Diverged) -> Diverged:
        return Diverged(f"{self.name}: {error}", error.role, error.step)


def read_diverged(run: Path) -> Diverged | None:
    """How a run diverged that is not finished, if it did."""
    try:
        found = read_json(run / "diverged.json", within=run)
        return None if RunFolder(run).finished() else Diverged(found["said"], found["role"], found["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def keep_diverged(job: Job, error: Diverged) -> None:
    """Leave a word in the folder of a run that diverged, so that it is not trained for nothing again."""
    if not job.begun:  # whoever it follows has diverged first
        RunFolder(job.folder).create(job.spec)
    known = {"role": error.role, "step": error.step, "said": str(error)}
    write_json(job.folder / "diverged.json", known, job.folder)


def read_failed(run: Path) -> str | None:
    """Return what ended a run that has failed, in one line; None where it has finished, diverged or not failed."""
    line = read_small_json(RunFolder(run).failed, within=run).get("said")
    is_failed = isinstance(line, str) and not RunFolder(run).finished() and read_diverged(run) is None
    return line if is_failed else None


def keep_failed(job: Job, error: UserError) -> None:
    """Write into the folder of a run what ended it, with the traceback of an exception that nobody expected.

    The run is tried again by the same command. Where the disk is full, say, nothing is written, nor where its folder
    was moved: no other one is made in its place.
    """
    if isinstance(error, Moved):
        return
    trace = {"traceback": [*error.trace]} if isinstance(error, RunFailed) and error.trace else {}
    with suppress(UserError, OSError):
        if not job.begun:
            RunFolder(job.folder).create(job.spec)
        write_json(RunFolder(job.folder).failed, {"said": str(error), **trace}, job.folder)


@dataclass(frozen=True)
class Teacher:
    """What an arm has to do with its teacher."""

    plan: ResolvedRun
    name: str
    """equal for arms whose teachers are equal, to the bit"""
    needed: frozenset[int]
    """after how many updates its student meets the teacher; nothing where there is none but itself"""
    size: int
    """of one version on disk, in bytes"""

    def covered_by(self, plan: ResolvedRun, spec: RunSpec) -> bool:
        """Whether a run with this plan and spec records what this arm's student needs."""
        return self.needed <= {*updates_to_record(replace(plan, spec=spec), plan.roles[0])}


def teacher_of(plan: ResolvedRun, models: Mapping[str, nn.Module]) -> Teacher | None:
    """An arm's teacher; None where it has none that others could have as well."""
    spec, roles = plan.spec, plan.roles
    if len(roles) == 1 and spec.ema is not None:  # nobody records the average
        return None
    if spec.engine.pipeline or spec.teacher_path is not None:  # it is handed over already
        return None
    try:
        decides = trajectory_settings(plan, roles[0], models)
    except UserError:
        return None
    written = [to_json(every) for every in (spec.evaluate_every, spec.log_every, spec.save_every)]
    needed = updates_seen(plan.timeline.after(0), roles[0], by=roles[1]) if len(roles) > 1 else set()
    weights = models[plan.method.learners[roles[0]]].state_dict().values()
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    return Teacher(plan, json.dumps([decides, written]), frozenset(needed), size)


def _recording(spec: RunSpec, others: Sequence[Teacher]) -> RunSpec:
    """The spec of an arm that records for others."""
    schedules: list[Schedule] = [*spec.record]
    for other in others:
        one = other.plan.spec.schedule
        schedules += [one] if one is not None and one not in schedules else []
    return replace(spec, record=tuple(schedules) or (Offline(),))


def share(jobs: Sequence[Job], teachers: Mapping[str, Teacher | None]) -> list[Job]:
    """The jobs with who records and who follows written into their specs; those that have begun stay as they are."""
    alike: dict[tuple[int, str], list[tuple[Job, Teacher]]] = {}
    for job in jobs:
        teacher = teachers.get(job.label)
        if teacher is not None:
            alike.setdefault((job.seed, teacher.name), []).append((job, teacher))
    changed = {job.folder: job for arms in alike.values() for job in _shared(arms)}
    return [changed.get(job.folder, job) for job in jobs]


def _shared(arms: Sequence[tuple[Job, Teacher]]) -> list[Job]:
    """Runs of one seed with one teacher, of which one records; what has begun to record is taken up again."""
    new = [(job, teacher) for job, teacher in arms if not job.begun]
    begun = [(job, teacher) for job, teacher in arms if job.begun and job.spec.record and job.has_path]
    for live, own in begun or sorted(new, key=lambda arm: -len(arm[1].needed))[:1]:
        others = [(job, teacher) for job, teacher in new if job is not live]
        if not live.begun:
            others = _fitting(others, live.folder)
        spec = live.spec if live.begun else _recording(live.spec, [teacher for _, teacher in others])
        path, last = str(resolve_links(live.folder)), own.plan.stops[own.plan.roles[0]]
        threads = live.spec.engine.threads  # which show in the bits; a run that has begun keeps its own
        follow = []
        for job, teacher in others:
            if teacher.covered_by(own.plan, spec) and _is_there(live, min(teacher.needed, default=last)):
                follows = replace(job.spec, teacher_path=path, engine=replace(job.spec.engine, threads=threads))
                follow.append(job._replace(spec=follows, first=min(teacher.needed, default=last)))
        if own.needed and follow:
            return follow if live.begun else [live._replace(spec=spec), *follow]
    return []


def _fitting(arms: Sequence[tuple[Job, Teacher]], folder: Path) -> list[tuple[Job, Teacher]]:
    """The arms that need least of their teacher, as long as what is recorded for all of them finds room on the disk."""
    room = shutil.disk_usage(next(place for place in resolve_links(folder).parents if place.exists())).free // ROOM
    found, recorded = [], set[int]()
    for job, teacher in sorted(arms, key=lambda arm: len(arm[1].needed)):
        recorded |= teacher.needed
        if len(recorded) * teacher.size <= room:
            found.append((job, teacher))
    return found


def _is_there(live: Job, first: int) -> bool:
    """Whether nothing from this version on has been removed of what a run has recorded."""
    versions = [int(file.stem) for file in (live.folder / "path").glob("*/*.safetensors")]
    return min(versions, default=first) <= first


def begun_again(job: Job) -> Job:
    """The job; if it has begun to follow a path that is gone, from its beginning, following nobody yet."""
    leader = job.spec.teacher_path
    if leader is None or not job.begun or job.finished or job.diverged() or index_file(Path(leader)).exists():
        return job
    if RunFolder(leader).spec.exists() and not RunFolder(leader).finished():
        return job  # it will record
    return without_teacher(job)


def without_teacher(job: Job) -> Job:
    """Return a job that followed another run, from its beginning, following nobody; what it has learned is removed."""
    print_notice(f"{job.name} begins again: what it followed in {job.spec.teacher_path} is gone.")
    with RunFolder(job.folder).lock():
        pass  # nobody trains it now
    Folder(job.folder.parent).remove_tree(job.folder)
    return job._replace(spec=replace(job.spec, teacher_path=None))


Lost = dict[Path, tuple[Job, UserError]]
"""runs that cannot be finished now, by folder, and why: they have diverged or failed"""


def teacher_alone(leader: Job) -> Job:
    """Return the job that trains the teacher of a run alone, within the run's folder, and records it."""
    spec = replace(leader.spec, only=_recorded_roles(leader)[0], ema=None)
    return Job(f"teacher of {leader.label}", leader.seed, spec, RunFolder(leader.folder).teacher)


def _recorded_roles(leader: Job) -> list[str]:
    """Return the roles that a run records, as it has written them down, or, before that, as its method has them."""
    for run in (leader.folder, RunFolder(leader.folder).teacher):
        with suppress(OSError, SnapshotsGone):
            return [*read_index(run)]
    return [resolve_method(leader.spec)[0].roles[0]]


def without_lost(jobs: Sequence[Job], leaders: Mapping[str, Job], lost: Lost, gone: Collection[Path] = ()) -> list[Job]:
    """The jobs, where those that follow a run that will not record for them follow its teacher trained alone.

    That is a run that is `lost`, or one whose snapshots are `gone`; `leaders` are all runs by folder. Where it is the
    teacher that diverged or failed, so does everybody who follows it: they are added to the lost.
    """
    found: dict[Path, Job] = {}
    for job in jobs:
        leader = _without_record(job, leaders, {*lost, *gone})
        if leader is None:
            found[job.folder] = job
            continue
        teacher = teacher_alone(leader)
        _, error = lost.get(teacher.folder) or lost.get(leader.folder) or (None, None)
        of_teacher = isinstance(error, Diverged) and error.role in _recorded_roles(leader)
        if error is not None and (of_teacher or teacher.folder in lost):
            # The leader may not fail the next time.
            again = replace(job.spec, teacher_path=str(resolve_links(leader.folder)))
            _lose(job._replace(spec=again), error, lost)
            continue
        if not teacher.finished:
            found.setdefault(teacher.folder, teacher)
        found[job.folder] = job._replace(spec=replace(job.spec, teacher_path=str(resolve_links(teacher.folder))))
    return [*found.values()]


def _without_record(job: Job, leaders: Mapping[str, Job], ended: Container[Path]) -> Job | None:
    """Return the run whose teacher must be trained alone for a job to follow it, if it is so."""
    if job.spec.teacher_path is None:
        return None
    leader = leaders.get(job.spec.teacher_path)
    if leader is not None:
        return leader if leader.folder in ended else None
    path = Path(job.spec.teacher_path)  # of a teacher that is trained alone already
    return leaders.get(str(path.parent)) if path == RunFolder(path.parent).teacher else None


def _lose(job: Job, error: UserError, lost: Lost) -> None:
    """Add a job to the lost because the teacher it follows has diverged or failed."""
    if isinstance(error, Diverged):
        diverged = Diverged(f"The {error.role} it follows diverged at step {error.step}.", error.role, error.step)
        keep_diverged(job, diverged)
        lost[job.folder] = (job, job.named(diverged))
    else:
        failed = RunFailed(f"What it follows failed: {error}")
        keep_failed(job, failed)
        lost[job.folder] = (job, RunFailed(f"{job.name}: {failed}"))


def next_jobs(waiting: Sequence[tuple[int, Job]], running: Collection[Job], room: int) -> list[tuple[int, Job]]:
    """Which jobs to begin now, as many as there is room for; first those that need not wait for one that is running."""
    busy = {str(resolve_links(job.folder)) for job in running}
    ready = [place for place in waiting if _can_begin(place[1], busy)]
    return sorted(ready, key=lambda place: place[1].spec.teacher_path in busy)[:room]


def _can_begin(job: Job, busy: Container[str]) -> bool:
    """Whether what a job follows, if anything, has been recorded, or is being recorded and has come far enough."""
    if job.spec.teacher_path is None:
        return True
    run = Path(job.spec.teacher_path)
    first = RunSnapshots(run, "*").file(job.first)
    there = index_file(run).exists() if job.first == 0 else any(run.glob(str(first.relative_to(run))))
    return RunFolder(run).finished() or (job.spec.teacher_path in busy and there)


def moved(teacher_path: str, out: Path) -> Path:
    """Where a run that is followed lies now, when the folder of the whole comparison may have been moved."""
    path = Path(teacher_path)
    here = (out.resolve().joinpath(*path.parts[-last:]) for last in (2, 3))
    return path.resolve() if path.exists() else next((run for run in here if run.exists()), path)


# What was recorded for runs of a comparison is removed as they pass it.

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
        needed = [read_oldest_needed(run) for run in going_on]
        for role in Folder(leader).names(leader / "path") if leader.exists() else ():
            oldest = min((updates.get(role, 0) for updates in needed), default=LATER)
            RunSnapshots(leader, role).remove_before(oldest)


LATER = 10**9 - 1
"""than any version"""


def _is_alone(run: Path) -> bool:
    """Whether a run is the teacher of another one, trained alone within its folder."""
    return run == RunFolder(run.parent).teacher and RunFolder(run.parent).spec.exists()
