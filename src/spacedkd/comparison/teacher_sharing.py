"""Arms with equal teachers share one: a run trains the teacher and records its snapshots, the others replay them.

`share_teachers` sets `record` or `teacher_path` in specs. Of students that see the same teacher at the same steps one
caches its outputs, the others read them: `share_targets` sets `cache_targets` or `targets_path`. While the runs train,
`replace_lost_recorders` trains a teacher alone if the run that recorded it is lost, and `remove_passed_snapshots` and
`remove_passed_targets` remove what no run needs any more.
"""

import json
import shutil
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from spacedkd.averages import batch_norm_of, parse_average
from spacedkd.comparison.job import Job, LostRuns, read_divergence, record_divergence, record_failure
from spacedkd.config.resolve import ResolvedRun, resolve_method
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec, read_spec
from spacedkd.data.inputs import row_count
from spacedkd.models.classifier import eval_mode
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import Diverged, RunFailed, SnapshotsGone, TargetsGone, UserError
from spacedkd.runtime.files import Folder, resolve_links
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.user_code import is_user_code
from spacedkd.schedule import Offline, Schedule
from spacedkd.timeline import updates_seen
from spacedkd.training.forecast import count_flops
from spacedkd.trajectory.cached_teacher import (
    FEATURES,
    OUTPUTS,
    bytes_per_item,
    items_of_student,
    target_settings,
    teacher_of,
)
from spacedkd.trajectory.identity import trajectory_settings
from spacedkd.trajectory.record import average_updates_to_record, updates_to_record
from spacedkd.trajectory.replay import TARGETS, read_oldest_needed
from spacedkd.trajectory.store import RunSnapshots, index_file, read_index
from spacedkd.trajectory.targets import INDEX, Targets

DISK_FRACTION = 0.25
"""largest part of the free disk space that recorded snapshots may take"""


@dataclass(frozen=True)
class ShareableTeacher:
    """The teacher of an arm, and the snapshots of it that the arm's student needs."""

    run: ResolvedRun
    name: str
    """equal for arms whose teachers are equal, to the bit"""
    needed: frozenset[int]
    """teacher updates that the student sees; empty if the teacher is the only role"""
    size: int
    """bytes of one snapshot on disk, including that of the average that the student sees"""

    def covered_by(self, run: ResolvedRun, spec: RunSpec) -> bool:
        """Return whether a run records everything that this arm's student needs, when it has this spec."""
        own, recorded = self.run.spec, (spec.teacher_average, *spec.record_average)
        seen = _average_of(own, own.teacher_average)
        recording = replace(run, spec=spec)
        if seen is not None and seen not in [_average_of(spec, text) for text in recorded]:
            return False
        updates_of = updates_to_record if seen is None else average_updates_to_record
        return self.needed <= {*updates_of(recording, run.roles[0])}


def _average_of(spec: RunSpec, text: str | None) -> tuple[str, str] | None:
    """Return an average of the teacher and how BatchNorm's statistics in it are made, as a spec has them."""
    return None if text is None else (text, batch_norm_of(parse_average(text), spec.average_bn))


def shareable_teacher(run: ResolvedRun, models: Mapping[str, nn.Module]) -> ShareableTeacher | None:
    """Return an arm's teacher; None if it has no teacher that other arms could replay."""
    spec, roles = run.spec, run.roles
    if len(roles) == 1 and spec.student_average is not None:  # a recording has no average of the student
        return None
    if spec.engine.pipeline or spec.teacher_path is not None:  # it is replayed already
        return None
    try:
        settings = trajectory_settings(run, roles[0], models)
    except UserError:
        return None
    intervals = [to_json(every) for every in (spec.evaluate_every, spec.log_every, spec.save_every)]
    needed = updates_seen(run.timeline.after(0), roles[0], by=roles[1]) if len(roles) > 1 else set()
    weights = models[run.method.learners[roles[0]]].state_dict().values()
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights) * (1 + (spec.teacher_average is not None))
    return ShareableTeacher(run, json.dumps([settings, intervals]), frozenset(needed), size)


def _recording_spec(spec: RunSpec, others: Sequence[ShareableTeacher]) -> RunSpec:
    """Return the spec of an arm that records its teacher, and averages of it, for others."""
    students = [other.run.spec for other in others]
    averaged = [student for student in students if student.teacher_average is not None]
    averages = dict.fromkeys([*spec.record_average, *(student.teacher_average for student in averaged)])
    averages.pop(spec.teacher_average, None)  # which is recorded as well
    own = [] if spec.teacher_average is None else [spec]
    return replace(
        spec,
        record=(*_add_schedules(spec.record, students),) or (Offline(),),
        record_average=tuple(text for text in averages if text is not None),
        record_average_for=(*_add_schedules(spec.record_average_for, [*averaged, *own]),),
    )


def _add_schedules(schedules: Sequence[Schedule], specs: Sequence[RunSpec]) -> list[Schedule]:
    """Return the schedules and those of the specs, each once; a user's own need not be hashable."""
    all_schedules = [*schedules]
    for spec in specs:
        if spec.schedule is not None and spec.schedule not in all_schedules:
            all_schedules.append(spec.schedule)
    return all_schedules


def share_teachers(jobs: Sequence[Job], teachers: Mapping[str, ShareableTeacher | None]) -> list[Job]:
    """Return jobs whose specs set `record` or `teacher_path`; jobs that have begun are not changed."""
    alike: dict[tuple[int, str], list[tuple[Job, ShareableTeacher]]] = {}
    for job in jobs:
        teacher = teachers.get(job.label)
        if teacher is not None:
            alike.setdefault((job.seed, teacher.name), []).append((job, teacher))
    changed = {job.folder: job for arms in alike.values() for job in _share_one_teacher(arms)}
    return [changed.get(job.folder, job) for job in jobs]


def _share_one_teacher(arms: Sequence[tuple[Job, ShareableTeacher]]) -> list[Job]:
    """Return the changed jobs of runs of one seed with one teacher: one of them records, the others replay.

    A run that has begun to record is preferred to a new one. If no run can replay, no job is changed.
    """
    new = [(job, teacher) for job, teacher in arms if not job.begun]
    begun = [(job, teacher) for job, teacher in arms if job.begun and job.spec.record and job.has_snapshots]
    for recorder, own in begun or sorted(new, key=lambda arm: -len(arm[1].needed))[:1]:
        others = [(job, teacher) for job, teacher in new if job is not recorder]
        if not recorder.begun:
            others = _fit_on_disk(others, recorder.folder)
        spec = recorder.spec if recorder.begun else _recording_spec(recorder.spec, [teacher for _, teacher in others])
        folder, last = str(resolve_links(recorder.folder)), own.run.stops[own.run.roles[0]]
        threads = recorder.spec.engine.threads  # they show in the bits; a run that has begun keeps its own
        replaying = []
        for job, teacher in others:
            first = min(teacher.needed, default=last)
            if teacher.covered_by(own.run, spec) and _has_snapshots_from(recorder, first):
                replays = replace(job.spec, teacher_path=folder, engine=replace(job.spec.engine, threads=threads))
                replaying.append(job._replace(spec=replays, first_update=first))
        if own.needed and replaying:
            return replaying if recorder.begun else [recorder._replace(spec=spec), *replaying]
    return []


def _fit_on_disk(arms: Sequence[tuple[Job, ShareableTeacher]], folder: Path) -> list[tuple[Job, ShareableTeacher]]:
    """Return as many arms as have room for their snapshots on the disk, those that need the fewest first."""
    existing = next(parent for parent in resolve_links(folder).parents if parent.exists())
    room = shutil.disk_usage(existing).free * DISK_FRACTION
    fitting, recorded = [], set[int]()
    for job, teacher in sorted(arms, key=lambda arm: len(arm[1].needed)):
        recorded |= teacher.needed
        if len(recorded) * teacher.size <= room:
            fitting.append((job, teacher))
    return fitting


def _has_snapshots_from(recorder: Job, first: int) -> bool:
    """Return whether no recorded snapshot from this update on has been removed."""
    updates = [int(file.stem) for file in (recorder.folder / "path").glob("*/*.safetensors")]
    return min(updates, default=first) <= first


# Targets that several students share


FLOPS_PER_BYTE = {False: 50, True: 20_000}
"""operations of a forward pass that take about as long as to read a byte of targets and to check it, at 1 GB/s: on a
CPU's core, or, with True, on a GPU"""


@dataclass(frozen=True)
class CacheableTargets:
    """The outputs of an arm's teacher at each step of its student, which other students may see as well."""

    name: str
    """equal for arms whose students see the same logits at the same steps, to the bit"""
    features: str | None
    """what the features are; None where the method uses none"""
    size: int
    """bytes of all of them on disk"""

    def covers(self, other: "CacheableTargets") -> bool:
        """Return whether these targets have everything that another arm's student needs."""
        return self.name == other.name and other.features in (None, self.features)


def cacheable_targets(run: ResolvedRun, models: Mapping[str, nn.Module]) -> CacheableTargets | None:
    """Return an arm's targets; None if they cannot be cached, are already, or cost more to read than to compute."""
    spec = run.spec
    if spec.cache_targets or spec.targets_path is not None or spec.engine.processes > 1:
        return None
    if is_user_code(spec.method.name):  # which may use more of its teacher than one call
        return None
    try:
        settings = target_settings(run, models)
    except UserError:
        return None
    features = settings.pop(FEATURES)
    settings.pop(OUTPUTS)
    teacher = models[teacher_of(run)]
    with eval_mode(teacher), count_flops() as flops:
        item_bytes = bytes_per_item(run, teacher)
    on_gpu = torch.cuda.is_available() and spec.engine.accelerator != "cpu"
    pays = flops.get_total_flops() / row_count(run.data.info.sample) > FLOPS_PER_BYTE[on_gpu] * item_bytes
    size = item_bytes * items_of_student(run)
    return CacheableTargets(json.dumps(settings, sort_keys=True), features, size) if pays else None


def share_targets(jobs: Sequence[Job], targets: Mapping[str, CacheableTargets | None]) -> list[Job]:
    """Return jobs of which one in each group caches the targets that the others read; others are not changed.

    Those of a teacher that learns must replay one recorder, because its journal is theirs too. Jobs that have begun are
    not changed.
    """
    groups: dict[tuple[int, str, str | None], list[tuple[Job, CacheableTargets]]] = {}
    for job in jobs:
        own = targets.get(job.label)
        if own is not None and not job.begun:
            recorder = str(resolve_links(job.folder)) if job.spec.record else job.spec.teacher_path
            groups.setdefault((job.seed, own.name, recorder), []).append((job, own))
    changed: dict[Path, Job] = {}
    size = 0
    for group in groups.values():
        writer, own, readers = max(_possible_writers(group), key=lambda possible: len(possible[2]))
        if readers and _has_room(size + own.size, writer.folder):
            size += own.size
            path = str(resolve_links(writer.folder))
            changed[writer.folder] = writer._replace(spec=replace(writer.spec, cache_targets=True))
            for job in readers:
                changed[job.folder] = job._replace(spec=replace(job.spec, targets_path=path))
    return [changed.get(job.folder, job) for job in jobs]


def _possible_writers(
    group: Sequence[tuple[Job, CacheableTargets]],
) -> Iterator[tuple[Job, CacheableTargets, list[Job]]]:
    """Yield every job of a group with the jobs that could read its targets; the recorder comes first.

    The recorder itself reads none: it trains the teacher, before anybody can write.
    """
    for writer, own in sorted(group, key=lambda member: not member[0].spec.record):
        others = [(job, theirs) for job, theirs in group if job is not writer and not job.spec.record]
        yield writer, own, [job for job, theirs in others if own.covers(theirs) and _has_teacher(job)]


def _has_teacher(job: Job) -> bool:
    """Return whether another run trains the teacher of a job, or nobody does because it never learns."""
    return job.spec.teacher_path is not None or len(resolve_method(job.spec)[0].roles) == 1


def _has_room(size: int, folder: Path) -> bool:
    """Return whether targets of this size fit on the disk next to everything else."""
    existing = next(parent for parent in resolve_links(folder).parents if parent.exists())
    return size <= shutil.disk_usage(existing).free * DISK_FRACTION


def restart_if_targets_gone(job: Job) -> Job:
    """Return the job; if it has begun to read targets that will not be complete, restart it with the teacher itself."""
    if job.spec.targets_path is None or not job.begun or job.finished or job.diverged():
        return job
    writer = RunFolder(job.spec.targets_path)
    is_there = (writer.targets / INDEX).exists() or (writer.spec.exists() and not writer.finished())
    return job if is_there and read_divergence(writer.path) is None else restart_without_targets(job)


def restart_without_targets(job: Job) -> Job:
    """Remove the folder of a job that read cached targets, and return the job, which calls the teacher itself."""
    if job.begun:
        print_notice(f"{job.name} restarts with the teacher itself: the targets in {job.spec.targets_path} are gone.")
        with RunFolder(job.folder).lock():
            pass  # raises if a process trains the run now
        Folder(job.folder.parent).remove_tree(job.folder)
    return job._replace(spec=replace(job.spec, targets_path=None))


def restart_if_orphaned(job: Job) -> Job:
    """Return the job; if it has begun to replay snapshots that are gone, restart it without a replayed teacher."""
    recorder = job.spec.teacher_path
    if recorder is None or not job.begun or job.finished or job.diverged() or index_file(Path(recorder)).exists():
        return job
    if RunFolder(recorder).spec.exists() and not RunFolder(recorder).finished():
        return job  # the recorder is not finished and will record
    return restart_without_teacher(job)


def restart_without_teacher(job: Job) -> Job:
    """Remove the folder of a job that replayed another run, and return the job, which trains its own teacher."""
    print_notice(f"{job.name} restarts: the teacher it replayed, in {job.spec.teacher_path}, is gone.")
    with RunFolder(job.folder).lock():
        pass  # raises if a process trains the run now
    Folder(job.folder.parent).remove_tree(job.folder)
    return job._replace(spec=replace(job.spec, teacher_path=None))


def teacher_job(recorder: Job) -> Job:
    """Return the job that trains the teacher of a run alone, within the run's folder, and records it."""
    spec = recorder.spec.without_average()
    spec = replace(spec, cache_targets=False, targets_path=None, targets_form="whole")  # which are of the student
    spec = replace(spec, only=_recorded_roles(recorder)[0])
    folder = RunFolder(recorder.folder).teacher
    return Job(f"teacher of {recorder.label}", recorder.seed, spec, folder, objects=recorder.objects)


def _recorded_roles(recorder: Job) -> list[str]:
    """Return the roles that a run records: those in its index, or, before it has one, the first of its method."""
    for run in (recorder.folder, RunFolder(recorder.folder).teacher):
        with suppress(OSError, SnapshotsGone):
            return [*read_index(run)]
    return [resolve_method(recorder.spec)[0].roles[0]]


def replace_lost_recorders(
    jobs: Sequence[Job], by_folder: Mapping[str, Job], lost: LostRuns, gone: Collection[Path] = ()
) -> list[Job]:
    """Return the jobs, in which a recorder that will not record any more is replaced by its teacher trained alone.

    Such a recorder is `lost`, or its snapshots are `gone`; `by_folder` has all runs. If the teacher itself diverged or
    failed, every job that replays it is added to the lost.
    """
    updated: dict[Path, Job] = {}
    for job in jobs:
        recorder = _recorder_to_replace(job, by_folder, {*lost, *gone})
        if recorder is None:
            updated[job.folder] = job
            continue
        teacher = teacher_job(recorder)
        _, error = lost.get(teacher.folder) or lost.get(recorder.folder) or (None, None)
        of_teacher = isinstance(error, Diverged) and error.role in _recorded_roles(recorder)
        if error is not None and (of_teacher or teacher.folder in lost):
            # The next command lets it replay the recorder again, which may not fail then.
            again = replace(job.spec, teacher_path=str(resolve_links(recorder.folder)))
            _add_to_lost(job._replace(spec=again), error, lost)
            continue
        if not teacher.finished:
            updated.setdefault(teacher.folder, teacher)
        updated[job.folder] = job._replace(spec=replace(job.spec, teacher_path=str(resolve_links(teacher.folder))))
    return [*updated.values()]


def _recorder_to_replace(job: Job, by_folder: Mapping[str, Job], ended: Container[Path]) -> Job | None:
    """Return the recorder whose teacher must be trained alone so that a job can replay it, if there is one."""
    if job.spec.teacher_path is None:
        return None
    recorder = by_folder.get(job.spec.teacher_path)
    if recorder is not None:
        return recorder if recorder.folder in ended else None
    path = Path(job.spec.teacher_path)  # a teacher that is trained alone already
    return by_folder.get(str(path.parent)) if path == RunFolder(path.parent).teacher else None


def _add_to_lost(job: Job, error: UserError, lost: LostRuns) -> None:
    """Add a job to the lost because the teacher it replays has diverged or failed."""
    if isinstance(error, Diverged):
        diverged = Diverged(f"The {error.role} it replays diverged at step {error.step}.", error.role, error.step)
        record_divergence(job, diverged)
        lost[job.folder] = (job, job.with_name(diverged))
    else:
        failed = RunFailed(f"The teacher it replays failed: {error}")
        record_failure(job, failed)
        lost[job.folder] = (job, RunFailed(f"{job.name}: {failed}"))


def jobs_to_begin(waiting: Sequence[tuple[int, Job]], running: Collection[Job], room: int) -> list[tuple[int, Job]]:
    """Return the jobs to begin now, at most `room`; those that do not wait for a running job come first."""
    busy = {str(resolve_links(job.folder)) for job in running}
    ready = [(number, job) for number, job in waiting if _can_begin(job, busy)]
    return sorted(ready, key=lambda numbered: numbered[1].reads_from(busy))[:room]


def _can_begin(job: Job, busy: Container[str]) -> bool:
    """Return whether what a job reads from other runs is there, or begins to be while they are trained."""
    return _has_snapshots(job, busy) and _has_targets(job, busy)


def _has_targets(job: Job, busy: Container[str]) -> bool:
    """Return whether the targets that a job reads are cached, or the first ones are while others follow."""
    if job.spec.targets_path is None:
        return True
    writer = RunFolder(job.spec.targets_path)
    return writer.finished() or (job.spec.targets_path in busy and (writer.targets / INDEX).exists())


def _has_snapshots(job: Job, busy: Container[str]) -> bool:
    """Return whether the snapshots that a job replays are recorded, or its first one is while others follow."""
    if job.spec.teacher_path is None:
        return True
    run = Path(job.spec.teacher_path)
    first = RunSnapshots(run, "*").file(job.first_update)
    there = index_file(run).exists() if job.first_update == 0 else any(run.glob(str(first.relative_to(run))))
    return RunFolder(run).finished() or (job.spec.teacher_path in busy and there)


def locate_recorder(teacher_path: str, out: Path) -> Path:
    """Return the present path of a replayed run; the folder of the whole comparison may have been moved."""
    path = Path(teacher_path)
    here = (out.resolve().joinpath(*path.parts[-last:]) for last in (2, 3))
    return path.resolve() if path.exists() else next((run for run in here if run.exists()), path)


ReplayingRuns = Mapping[Path, Collection[Path]]
"""runs whose snapshots may be removed -> the runs that replay them"""
LATER = 10**9 - 1
"""upper bound of all updates: their file names have nine digits"""


def find_replaying_runs(out: Path, jobs: Sequence[Job]) -> ReplayingRuns:
    """Return the recorded runs in a comparison's folder, each with the runs that replay it, also of arms without a job.

    Runs that keep their snapshots are left out. If a spec cannot be read, the result is empty: that run may replay any
    other, or keep its snapshots.
    """
    specs = _specs_below(out, jobs)
    replaying: dict[Path, list[Path]] = {}
    for run, spec in specs.items():
        recorder = None if spec.teacher_path is None else locate_recorder(spec.teacher_path, out)
        if recorder is not None and recorder.is_relative_to(out.resolve()):
            replaying.setdefault(recorder, []).append(run)
            if _is_teacher_alone(recorder):  # the run around it has recorded it, too
                replaying.setdefault(recorder.parent, []).append(run)
    keep = {run.resolve() for run, spec in specs.items() if spec.engine.keep_path}
    return {recorder: runs for recorder, runs in replaying.items() if not {recorder, recorder.parent} & keep}


def _specs_below(out: Path, jobs: Sequence[Job]) -> dict[Path, RunSpec]:
    """Return the specs of all runs in a comparison's folder and of the jobs; none if one cannot be read."""
    try:
        specs = {file.parent: read_spec(file) for file in out.glob("*/*/spec.json")}
    except UserError:
        return {}
    return {**specs, **{job.folder: job.spec for job in jobs}}


def find_target_readers(out: Path, jobs: Sequence[Job]) -> ReplayingRuns:
    """Return the runs in a comparison's folder that cache targets, each with its readers: see `find_replaying_runs`."""
    specs, readers = _specs_below(out, jobs), dict[Path, list[Path]]()
    for run, spec in specs.items():
        if spec.targets_path is not None:
            readers.setdefault(locate_recorder(spec.targets_path, out), []).append(run)
    return {
        writer: runs
        for writer, runs in readers.items()
        if writer.is_relative_to(out.resolve()) and not (writer in specs and specs[writer].engine.keep_path)
    }


def remove_passed_targets(readers: ReplayingRuns) -> None:
    """Remove cached targets that no run will read again, not even when it resumes from its checkpoint."""
    for writer, runs in readers.items():
        active = [RunFolder(run) for run in runs if not RunFolder(run).finished() and read_divergence(run) is None]
        ended = RunFolder(writer).finished() or read_divergence(writer) is not None
        if ended and not active:
            Folder(writer).remove_tree(RunFolder(writer).targets)
        elif (RunFolder(writer).targets / INDEX).exists():
            oldest = min((read_oldest_needed(run).get(TARGETS, 0) for run in active), default=0)
            with suppress(TargetsGone):  # the index was damaged, or has just been removed
                Targets(RunFolder(writer).targets, within=Folder(writer)).remove_before(oldest)


def remove_passed_snapshots(replaying: ReplayingRuns) -> None:
    """Remove snapshots that no run will replay again, not even when it resumes from its checkpoint."""
    for recorder, runs in replaying.items():
        active = [RunFolder(run) for run in runs if not RunFolder(run).finished() and read_divergence(run) is None]
        ended = RunFolder(recorder).finished() or read_divergence(recorder) is not None
        if ended and not active:
            if _is_teacher_alone(recorder):
                Folder(recorder.parent).remove_tree(recorder)
            else:
                for folder in (recorder / "path", RunFolder(recorder).teacher):
                    Folder(recorder).remove_tree(folder)
        needed = [read_oldest_needed(run) for run in active]
        for role in Folder(recorder).names(recorder / "path") if recorder.exists() else ():
            oldest = min((updates.get(role, 0) for updates in needed), default=LATER)
            RunSnapshots(recorder, role).remove_before(oldest)


def _is_teacher_alone(run: Path) -> bool:
    """Return whether a run is the teacher of another one, trained alone within its folder."""
    return run == RunFolder(run.parent).teacher and RunFolder(run.parent).spec.exists()
