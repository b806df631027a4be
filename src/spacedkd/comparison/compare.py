"""`compare`, the public function: train every arm over seeds, and compare what they reached."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from spacedkd.comparison.pool import Callback
from spacedkd.comparison.results import ComparisonDocument, compare_runs, write_comparison
from spacedkd.comparison.scheduler import jobs_at_once, plan_jobs, run_jobs
from spacedkd.config.spec import RunSpec, check_folder, check_spec
from spacedkd.data.sources import Library
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.signals import Stop, never_stop


def compare(
    arms: Mapping[str, RunSpec],
    out: Path | str,
    *,
    seeds: int | Sequence[int] = 3,
    against: str | None = None,
    jobs: int | None = None,
    sharing: bool = True,
    ray: str | None = None,
    callback: Callback = lambda job, moment: None,
    stop: Stop = never_stop,
) -> ComparisonDocument:
    """Train every arm over seeds, several runs at once, and compare them; also written to `out`/comparison.json.

    Runs that are finished already are used as they are; runs that were stopped are resumed. Arms with equal teachers
    share one, to the same bits, unless `sharing` is False. With the address of a `ray` cluster, or "auto" for the one
    this machine belongs to, runs are trained there, as many at once as there is room for.

    A run that diverges is left out, and listed under `diverged`; it is not trained again unless its folder is deleted.
    A run that fails by an exception, or whose process dies, is listed under `failed`; the others continue, and the same
    call tries it again. Only where no run finishes is the first of these errors raised.
    `stop` is asked a few times a second; when it says True, every run saves after its turn, and `Stopped` is raised.
    As in `train`, no signal is handled here.

    `comparison.results` says what is in a comparison; `spacedkd report` makes a page of it.
    """
    check_folder("out", out)
    out = Path(out)
    if not isinstance(arms, Mapping):
        raise UserError(f"arms must be specs by name, {{'online': RunSpec(), ...}}; got {arms!r}.")
    for spec in arms.values():
        check_spec(spec)
    if not arms or (not seeds if isinstance(seeds, int) else not len(seeds)):
        raise UserError("A comparison needs at least one arm and one seed.")
    if against is not None and against not in arms:
        raise unknown("arm", against, arms)
    first = next(iter(arms.values()))
    numbers = range(first.seed, first.seed + seeds) if isinstance(seeds, int) else seeds
    library = Library()
    planned = plan_jobs(arms, numbers, out, jobs_at_once(jobs, first.engine.accelerator), library)
    lost = run_jobs(planned, jobs, callback, library=library, sharing=sharing, ray=ray, stop=stop)
    ordered = [job for label in arms for job in planned if job.label == label]
    finished = [job for job in ordered if job.folder not in lost]
    if not finished:
        raise next(iter(lost.values()))
    if against not in {job.label for job in finished}:
        against = None  # it has diverged or failed, as the comparison says
    unfinished = [job for job in ordered if job.folder in lost]
    comparison = compare_runs([job.folder for job in finished], against, [job.folder for job in unfinished])
    listed = {run["folder"] for run in (*comparison["diverged"], *comparison["failed"])}
    for job in unfinished:
        if str(job.folder) not in listed:  # nothing could be written into its folder
            line = str(lost[job.folder]).removeprefix(f"{job.name}: ")
            comparison["failed"].append({"label": job.label, "seed": job.seed, "folder": str(job.folder), "said": line})
    write_comparison(out / "comparison.json", comparison)
    return comparison
