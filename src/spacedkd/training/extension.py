"""Extension of a run (`train --extend`): a longer run continues, in a new folder, from another run's last turn.

Turns and learning rates are pure functions of the step, so those of the shorter and of the longer run can be compared
up to the turn the shorter one has reached. How the run continues is written into its spec (`extends`):

exact   the turns and learning rates are equal: the bits are those of the longer run trained in one go
warm    the turns are equal, the learning rates are not: from there on they are those of the longer run
anew    the longer run has other blocks there, for instance offline: its schedule starts again with the added epochs

In all other cases the shorter run is no part of a longer one, and `extend_spec` refuses.
"""

import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

from spacedkd.config.objects import Objects
from spacedkd.config.resolve import ResolvedRun, resolve, resolve_spec
from spacedkd.config.spec import RunSpec, ShorterRun, check_folder, check_spec, read_spec
from spacedkd.data.sources import Library
from spacedkd.runs import checkpoint
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import matches_digest
from spacedkd.runtime.documents import MOST_BYTES
from spacedkd.runtime.errors import UserError, pluralize
from spacedkd.schedule import Turn, with_defaults
from spacedkd.training.state import check_same_data
from spacedkd.training.students import WEIGHTS, best_is_saved, best_journal_entry


def extend_spec(
    spec: RunSpec, run: Path | str, objects: Objects | None = None, library: Library | None = None
) -> RunSpec:
    """Return the resolved spec of a run that continues `run`; its last `extends` says from which turn, and how.

    `spec` is that of the run with more epochs. Refused are runs without a checkpoint, runs whose teacher was trained
    elsewhere, specs that differ in more than their epochs, and longer runs that have other turns.
    """
    objects, library = objects or Objects(), library or Library()
    check_spec(spec)
    check_folder("extend", run)
    folder = RunFolder(run)
    shorter = _spec_of_shorter_run(spec, folder, objects, library)
    turns = _turns_done(folder)
    old = resolve(shorter, objects, library)
    check_same_data(folder, old.data, "--extend: ")

    def extended(how: Literal["exact", "warm", "anew"]) -> RunSpec:
        extends = (*shorter.extends, ShorterRun(shorter.epochs, turns, how))
        return resolve_spec(replace(shorter, epochs=spec.epochs, extends=extends), objects, library)

    new = resolve(extended("exact"), objects, library)
    if new.total_steps <= old.total_steps:
        raise UserError(f"--extend: {spec.epochs:g} epochs are not a step longer than the {shorter.epochs:g} of {run}.")
    if _same_turns(old, new, turns):
        is_exact = all(earlier.how == "exact" for earlier in shorter.extends) and _same_updates(old, new, turns)
        return extended("exact" if is_exact else "warm")

    _check_restarts(old, turns, folder, spec.epochs)
    try:
        new = resolve(extended("anew"), objects, library)
    except UserError as error:
        added = pluralize(spec.epochs - shorter.epochs, "epoch")
        raise UserError(f"--extend: the schedule of {run} does not fit into the {added} added: {error}") from None
    if not _same_turns(old, new, turns):
        raise _other_turns(folder, spec.epochs)
    return extended("anew")


def _check_restarts(old: ResolvedRun, turns: int, folder: RunFolder, epochs: float) -> None:
    """Refuse a run whose schedule cannot start again where it ended, or that has not ended yet."""
    if turns < len(old.timeline):
        raise UserError(
            f"--extend: {folder.path} was stopped within turns that a run of {pluralize(epochs, 'epoch')} does not "
            f"have. Finish it first: spacedkd train --resume {folder.path}"
        )
    if old.spec.schedule is None or not with_defaults(old.spec.schedule).restarts:
        raise _other_turns(folder, epochs)


def _other_turns(folder: RunFolder, epochs: float) -> UserError:
    length = pluralize(epochs, "epoch")
    return UserError(
        f"--extend: a run of {length} has other turns than {folder.path} before its end (lengths in percent, a window, "
        f"or a last block that was cut), so it cannot be extended to that. Train all {length} in a new folder."
    )


def check_extended_run_given(spec: RunSpec, run: Path | RunFolder | None, folder: RunFolder) -> None:
    """Refuse a spec that continues another run, if that run is not given and this folder has not begun from it."""
    if spec.extends and run is None and not folder.begin.exists():
        raise UserError(
            "This spec extends another run: name that run with --extend RUN, or train all of it in one go with --set "
            "'extends=[]'."
        )


def _spec_of_shorter_run(spec: RunSpec, folder: RunFolder, objects: Objects, library: Library) -> RunSpec:
    """Return the spec of the run that is extended, with those settings of `spec` that decide no bits."""
    saved = read_spec(folder.path)
    objects.check(saved.objects, str(folder.path), "spacedkd.train(spec, folder, extend=RUN, {}=...)")
    if not spec.epochs > saved.epochs:
        raise UserError(
            f"--extend: {folder.path} has {pluralize(saved.epochs, 'epoch')} already: give more with --epochs."
        )
    if saved.teacher_path is not None or saved.targets_path is not None or saved.engine.pipeline:
        where = "in another process" if saved.engine.pipeline else f"in {saved.teacher_path or saved.targets_path}"
        raise UserError(
            f"--extend: the teacher of {folder.path} was trained {where}, so it cannot be continued here. "
            f"Train all {pluralize(spec.epochs, 'epoch')} in a new folder."
        )
    shares = spec.record or spec.cache_targets or spec.teacher_path is not None or spec.targets_path is not None
    if shares or spec.engine.pipeline:
        raise UserError(
            "--extend: an extended run trains its own teacher: leave out --record, --cache-targets, --teacher-path, "
            "--targets-path and --pipeline."
        )
    # The number of threads shows in the bits, so it stays.
    engine = replace(spec.engine, threads=saved.engine.threads or spec.engine.threads)
    shorter = resolve_spec(replace(spec, epochs=saved.epochs, extends=saved.extends, engine=engine), objects, library)
    if saved.fingerprint() not in shorter.fingerprints():
        raise UserError(
            f"--extend: {folder.path} differs from this config in more than its epochs (see its spec.json). Use "
            f"its own spec: replace(read_spec({str(folder.path)!r}), epochs={spec.epochs:g})."
        )
    return shorter


def _turns_done(folder: RunFolder) -> int:
    """Return the number of turns after which a run's newest checkpoint was saved; refuse a run without one."""
    if not checkpoint.generations(folder.checkpoint):
        raise UserError(f"--extend: {folder.path} has no checkpoint to continue from: train in a new folder.")
    newest = checkpoint.newest(folder.checkpoint, folder.journal)
    if newest.damage and folder.finished():
        raise UserError(
            f"--extend: {newest.damage} Repair it from the checkpoint before it with: "
            f"spacedkd train --resume {folder.path}"
        )
    return newest.position.turns


def _same_turns(old: ResolvedRun, new: ResolvedRun, count: int) -> bool:
    """Return whether the first `count` turns of both runs are equal, and the new one has more."""
    old_turns, new_turns = (islice(run.timeline.after(0), count) for run in (old, new))
    return len(new.timeline) > count and all(a == b for a, b in zip(old_turns, new_turns, strict=True))


def _same_updates(old: ResolvedRun, new: ResolvedRun, count: int) -> bool:
    """Return whether the first `count` turns have equal learning rates, batches, losses and moves of averages."""
    if new.method.depends_on_length:
        return False
    first = islice(old.timeline.after(0), count)
    return all(
        old.lr(turn) == new.lr(turn) and old.views(turn) == new.views(turn) and _shares(old, turn) == _shares(new, turn)
        for turn in first
    )


def _shares(run: ResolvedRun, turn: Turn) -> list[float]:
    """Return the shares that the averages of a role's weights take after a turn."""
    return [average.share(turn.step) for average in run.averages.values() if average.role == turn.role]


# Files: a longer run keeps its beginning in `begin/`, so that it can be resumed or restarted without the shorter run


def copy_start(run: RunFolder, folder: RunFolder, longer: ResolvedRun) -> None:
    """Copy the checkpoint, journal and best student that a run ended with to `begin/` of the longer run's folder.

    The folder must be locked. Refuses a run that has gone on since the longer spec was made, or a best student that is
    not the one its checkpoint names.
    """
    spec = longer.spec
    run.check_links()
    folder.handle.make(folder.begin)
    newest = checkpoint.newest(run.checkpoint, run.journal).path
    position = checkpoint.copy_for_extension(newest, folder.first_checkpoint, spec.fingerprint(), folder.handle)
    if position.turns != spec.extends[-1].turn:
        raise UserError(f"--extend: {run.path} was trained further meanwhile. Run the command again.")
    with folder.handle.write_whole(folder.begin / "journal.jsonl") as file, run.handle.reading(run.journal) as journal:
        file.write(journal.read(position.journal_bytes))
    folder.handle.remove_tree(folder.begin / "best")
    best = best_journal_entry(folder.begin, longer.roles[-1])
    if best is not None and best_is_saved(run, best):
        if not matches_digest(run.handle, run.best / WEIGHTS, position.best_digest or None):
            raise UserError(
                f"--extend: {run.best / WEIGHTS} was changed or damaged: it is not the best student of that run. "
                f"Remove {run.best} to continue without it."
            )
        _copy_folder(run, run.best, folder, folder.begin / "best")


def restore_start(folder: RunFolder) -> None:
    """Copy the journal and the best student in `begin/` to where the run writes them, which starts from there."""
    begin_journal, best = folder.begin / "journal.jsonl", folder.begin / "best"
    with folder.handle.write_whole(folder.journal) as file, folder.handle.reading(begin_journal) as journal:
        shutil.copyfileobj(journal, file)
    if folder.handle.exists(best):
        _copy_folder(folder, best, folder, folder.best)


def _copy_folder(source_run: RunFolder, source: Path, target_run: RunFolder, target: Path) -> None:
    names = source_run.handle.names(source)
    for name in names:
        # The weights have a digest; without a limit another file, damaged to be sparse, would fill the disk.
        if name != WEIGHTS and source_run.handle.size(source / name) > MOST_BYTES:
            raise UserError(
                f"{source / name} is larger than any file beside weights: it was changed or damaged. Remove {source} "
                "to continue without the best student."
            )
    with target_run.handle.write_folder(target) as unfinished:
        for name in names:
            with source_run.handle.reading(source / name) as file, (unfinished / name).open("xb") as copy:
                shutil.copyfileobj(file, copy)
