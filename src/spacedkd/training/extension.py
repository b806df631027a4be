"""A run made longer: it goes on, in a folder of its own, where another ended or was stopped."""

import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

from spacedkd.config.objects import Objects
from spacedkd.config.resolve import ResolvedRun, resolve, resolve_spec
from spacedkd.config.spec import Extends, RunSpec, check_folder, check_spec, read_spec
from spacedkd.data.sources import Library
from spacedkd.runs import checkpoint
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import matches_digest
from spacedkd.runtime.errors import UserError, pluralize
from spacedkd.schedule import with_defaults
from spacedkd.training.state import check_same_data
from spacedkd.training.students import WEIGHTS, best_is_saved, best_journal_entry


def extend_spec(
    spec: RunSpec, run: Path | str, objects: Objects | None = None, library: Library | None = None
) -> RunSpec:
    """The spec of a run that goes on where `run` has ended or was stopped; it says where that is, and how it goes on.

    The spec is that of the run, with more epochs. Turns and learning rates are pure functions, so those of both are
    compared up to there: where they are the same, the longer run has the bits of one that was trained in one go.
    """
    objects, library = objects or Objects(), library or Library()
    check_spec(spec)
    check_folder("extend", run)
    folder = RunFolder(run)
    held = read_spec(folder.path)
    before = _before(spec, held, folder, objects, library)
    turns = _turns(folder)
    old = resolve(before, objects, library)
    check_same_data(folder, old.data, "--extend: ")

    def longer(how: Literal["exact", "warm", "anew"]) -> RunSpec:
        extends = (*held.extends, Extends(held.epochs, turns, how))
        return resolve_spec(replace(before, epochs=spec.epochs, extends=extends), objects, library)

    new = resolve(longer("exact"), objects, library)
    if new.total_steps <= old.total_steps:
        raise UserError(f"--extend: {spec.epochs:g} epochs are not a step longer than the {held.epochs:g} of {run}.")
    if _same_turns(old, new, turns):
        exact = all(one.how == "exact" for one in held.extends) and _same_rates(old, new, turns)
        return longer("exact" if exact else "warm")
    _check_ended(old, turns, folder, spec.epochs)
    try:
        new = resolve(longer("anew"), objects, library)
    except UserError as error:
        added = pluralize(spec.epochs - held.epochs, "epoch")
        raise UserError(f"--extend: what {run} had begun does not fit into the {added} added: {error}") from None
    if not _same_turns(old, new, turns):
        raise _other_turns(folder, spec.epochs)
    return longer("anew")


def check_extended_run_given(spec: RunSpec, run: Path | RunFolder | None, folder: RunFolder) -> None:
    """Refuse a spec that goes on from another run, if nobody says which, and this folder has not begun with it."""
    if spec.extends and run is None and not folder.begin.exists():
        raise UserError(
            "This spec goes on where another run ended: name that run with --extend RUN. To train all of it in one "
            "go give --set 'extends=[]'."
        )


def _before(spec: RunSpec, held: RunSpec, folder: RunFolder, objects: Objects, library: Library) -> RunSpec:
    """The spec of the run that is extended, with whatever of this one decides no bits."""
    objects.check(held.objects, str(folder.path), "spacedkd.train(spec, folder, extend=RUN, {}=...)")
    if not spec.epochs > held.epochs:
        raise UserError(
            f"--extend: {folder.path} has {pluralize(held.epochs, 'epoch')} already: give more with --epochs."
        )
    if held.teacher_path is not None or held.engine.pipeline:
        whose = "in another process" if held.engine.pipeline else f"in {held.teacher_path}"
        raise UserError(
            f"--extend: the teacher of {folder.path} learned {whose}, and how it would go on was not kept here. Train "
            f"all {pluralize(spec.epochs, 'epoch')} in a new folder."
        )
    if spec.record or spec.teacher_path is not None or spec.engine.pipeline:
        raise UserError("--extend: a run that is extended trains its own teacher: leave out what records or follows.")
    engine = replace(spec.engine, threads=held.engine.threads or spec.engine.threads)  # which shows in the bits
    before = resolve_spec(replace(spec, epochs=held.epochs, extends=held.extends, engine=engine), objects, library)
    if held.fingerprint() not in before.fingerprints():
        raise UserError(
            f"--extend: {folder.path} differs from what is asked for in more than its epochs (see its spec.json). Take "
            f"its own spec: replace(read_spec({str(folder.path)!r}), epochs={spec.epochs:g})."
        )
    return before


def _turns(folder: RunFolder) -> int:
    """How far a run has come that can be gone on with."""
    if not checkpoint.generations(folder.checkpoint):
        raise UserError(f"--extend: {folder.path} has no checkpoint to go on from: train in a new folder.")
    found = _newest(folder)
    if found.why and folder.finished():
        raise UserError(
            f"--extend: {found.why} Make it again from the one before it with: spacedkd train --resume {folder.path}"
        )
    return found.position.turns


def _newest(folder: RunFolder) -> checkpoint.CheckpointFile:
    return checkpoint.newest(folder.checkpoint, folder.journal)


def _same_turns(old: ResolvedRun, new: ResolvedRun, count: int) -> bool:
    first = (islice(plan.timeline.after(0), count) for plan in (old, new))
    return len(new.timeline) > count and all(one == other for one, other in zip(*first, strict=True))


def _same_rates(old: ResolvedRun, new: ResolvedRun, count: int) -> bool:
    """Whether all that a turn depends on is the same until then: its learning rate, what it sees, and its losses."""
    if new.method.depends_on_length:
        return False
    first = islice(old.timeline.after(0), count)
    return all(old.lr(turn) == new.lr(turn) and old.views(turn) == new.views(turn) for turn in first)


def _check_ended(old: ResolvedRun, turns: int, folder: RunFolder, epochs: float) -> None:
    """Refuse a run whose schedule cannot begin anew where it is."""
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
        f"--extend: a run of {length} has other turns than {folder.path} long before its end (lengths in percent, or a "
        f"window), so it is no part of one. Train all {length} in a new folder."
    )


def copy_start(run: RunFolder, folder: RunFolder, plan: ResolvedRun) -> None:
    """Copy what a run ended with to where the longer one, whose folder is held, begins."""
    spec = plan.spec
    run.check_links()
    folder.handle.make(folder.begin)
    newest = _newest(run).path
    position = checkpoint.copy_for_extension(newest, folder.first_checkpoint, spec.fingerprint(), folder.handle)
    if position.turns != spec.extends[-1].turn:
        raise UserError(f"--extend: {run.path} has gone on meanwhile. Give the command again.")
    with folder.handle.write_whole(folder.begin / "journal.jsonl") as file, run.handle.reading(run.journal) as theirs:
        file.write(theirs.read(position.journal_bytes))
    folder.handle.remove_tree(folder.begin / "best")
    best = best_journal_entry(folder.begin, plan.roles[-1])
    if best is not None and best_is_saved(run, best):
        if not matches_digest(run.handle, run.best / WEIGHTS, position.best_digest or None):
            raise UserError(
                f"--extend: {run.best / WEIGHTS} was changed or damaged: it is not the best student of that run. "
                f"Remove {run.best} to go on without it."
            )
        _copy(run, run.best, folder, folder.begin / "best")


def _copy(run: RunFolder, best: Path, folder: RunFolder, to: Path) -> None:
    with folder.handle.write_folder(to) as unfinished:
        for name in run.handle.names(best):
            with run.handle.reading(best / name) as theirs, (unfinished / name).open("xb") as ours:
                shutil.copyfileobj(theirs, ours)


def restore_start(folder: RunFolder) -> None:
    """Give a run that extends another the journal, and the best student, that it begins with."""
    first, best = folder.begin / "journal.jsonl", folder.begin / "best"
    with folder.handle.write_whole(folder.journal) as ours, folder.handle.reading(first) as theirs:
        shutil.copyfileobj(theirs, ours)
    if folder.handle.exists(best):
        _copy(folder, best, folder, folder.best)
