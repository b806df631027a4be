"""Experimental tools for studies, which have not been shown to help: rules of timing. Names and arguments may change.

A rule of timing says when a teacher hands over to its student, read off the teacher's recorded trajectory. A teacher of
spaced KD does not depend on its student, so a rule that adapts to the teacher needs nothing in the training loop. It is
a function from a trajectory, recorded before, to the `Blocks` of a schedule:

    spacedkd.train(spec_with_record_online, "runs/teacher")
    blocks = drift("runs/teacher", probe_of("runs/teacher"), 0.05)
    spacedkd.train(dataclasses.replace(spec, schedule=blocks, teacher_path="runs/teacher"), "runs/student")

With u(0) = 0, u(1) the first recorded update and u(k) the update of hand-over k, block k has the steps from u(k-1) to
u(k), and the student sees the teacher after u(k) updates while it learns them. The last block ends with the run.

A rule is only as good as its controls, which have its cost and not its information: `yoked` takes the blocks of another
seed, `even` as many blocks of one length, `shuffled` the same lengths in another order.

Verdict so far: in a pilot on MNIST-1D (small MLP and CNN, up to 48 paired seeds, four regimes) no rule of timing was
better than the better of {1.5 epochs, offline} beyond noise.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.config.resolve import resolve
from spacedkd.config.spec import check_folder, read_spec
from spacedkd.evaluation.statistics import paired_difference
from spacedkd.runtime.errors import UserError, check_between, format_value, pluralize, whole_number
from spacedkd.schedule import Blocks, steps_of
from spacedkd.trajectory.snapshot_teacher import SnapshotTeacher
from spacedkd.trajectory.store import open_store, shorten

BATCH = 512
"""items of a probe in one forward pass, so that a large probe fits into memory"""


@dataclass(frozen=True)
class Probe:
    """Images on which a rule compares a teacher with its earlier self, and their labels.

    They are training or held-out images: a rule that has seen the test images would be tuned on them.
    """

    inputs: Tensor
    """what the network takes: [N, ...]"""
    labels: Tensor
    """class numbers: [N]"""

    def __post_init__(self) -> None:
        for name in ("inputs", "labels"):
            if not isinstance(getattr(self, name), Tensor):
                raise UserError(f"The {name} of a Probe must be a tensor, got {format_value(getattr(self, name))}.")
        if self.labels.ndim != 1 or len(self.labels) != len(self.inputs) or len(self.labels) < 2:
            raise UserError(
                "A Probe needs two items or more and a label for each, got "
                f"inputs {[*self.inputs.shape]} and labels {[*self.labels.shape]}."
            )


def probe_of(
    run: Path | str, split: Literal["train", "holdout"] = "train", count: int = 1000, trust_code: bool = False
) -> Probe:
    """Return images of a run, evenly spread over one of its splits, as its networks see them without augmentation.

    Code of a user's that the run's spec names is imported only with `trust_code`.
    """
    check_folder("run", run)
    count = whole_number("count", count, 2)
    if split not in ("train", "holdout"):
        raise UserError(f"A probe is of the split train or holdout, got {format_value(split)}.")
    data = resolve(read_spec(Path(run), trust_code)).data
    images = data.train if split == "train" else data.holdout
    if images is None:
        raise UserError(f"{run} has no held-out images: train it with --holdout 0.1, or take split='train'.")
    count = min(count, len(images))
    inputs, labels = images.inputs_and_labels(torch.arange(count) * len(images) // count)
    if not isinstance(inputs, Tensor):
        raise UserError(f"The inputs of {run} are several tensors, and a probe has one: make a Probe of your own.")
    return Probe(inputs, labels)


# Rules


def drift(folder: Path | str, probe: Probe, amount: float, **opening: Any) -> Blocks:
    """Return blocks of which a new one begins whenever the teacher's predictions have moved by `amount`.

        u(k+1) = min {u > u(k) recorded : mean_i JS(p_u(x_i), p_u(k)(x_i)) >= amount}
        JS(p, q) = (KL(p || m) + KL(q || m)) / 2,  m = (p + q) / 2,  in nats: from 0 to ln 2 = 0.69

    p_u(x) are the class probabilities of the teacher after u updates, in eval mode, for an item of the probe. The
    labels of the probe do not matter.

    Args:
        folder: a run with --record, or a folder of `Snapshots`; hand-overs are at recorded updates alone.
        probe: the images to predict.
        amount: from 0, a hand-over at each recorded update, to ln 2.
        opening: `network`, `total`, `role`, `prefix` and `trust_code` of `SnapshotTeacher`, which reads the folder.

    Verdict so far: in a pilot on MNIST-1D (small MLP and CNN, up to 48 paired seeds, four regimes) no rule of timing
    was better than the better of {1.5 epochs, offline} beyond noise; drift was one of them.
    """
    check_between("amount", amount, 0, math.log(2))
    return _hand_over(folder, probe, lambda before, now: float(_jensen_shannon(before, now).mean()) >= amount, opening)


def proven_better(folder: Path | str, probe: Probe, level: float = 0.01, **opening: Any) -> Blocks:
    """Return blocks of which a new one begins whenever the teacher has become significantly better.

        u(k+1) = min {u > u(k) recorded : t(u) > 0 and P(T_{n-1} > t(u)) < level}
        t(u) = mean(d) sqrt(n) / s(d),  d_i = CE(x_i, y_i; u(k)) - CE(x_i, y_i; u)

    d_i is by how much the cross-entropy of item i of the probe is lower than at the last hand-over, s its standard
    deviation over the n items. Each update is tested by itself: `level` is no error rate of all tests together.

    Args:
        folder: a run with --record, or a folder of `Snapshots`; hand-overs are at recorded updates alone.
        probe: the images and labels to measure the loss on.
        level: of the one-sided test, at most 0.5.
        opening: `network`, `total`, `role`, `prefix` and `trust_code` of `SnapshotTeacher`, which reads the folder.

    Verdict so far: in a pilot on MNIST-1D (small MLP and CNN, up to 48 paired seeds, four regimes) no rule of timing
    was better than the better of {1.5 epochs, offline} beyond noise; a rule that waits for proof was one of them.
    """
    check_between("level", level, 0, 0.5)
    labels = probe.labels.long()

    def losses(log_probabilities: Tensor) -> dict[int, float]:
        return dict(enumerate(F.nll_loss(log_probabilities, labels, reduction="none").tolist()))

    def is_better(before: Tensor, now: Tensor) -> bool:
        gain = paired_difference(losses(before), losses(now))
        return gain is not None and gain.p is not None and gain.mean > 0 and gain.p / 2 < level

    return _hand_over(folder, probe, is_better, opening)


def _hand_over(
    folder: Path | str, probe: Probe, is_due: Callable[[Tensor, Tensor], bool], opening: dict[str, Any]
) -> Blocks:
    """Return the blocks between hand-overs: the first recorded update, and each that is due since the last one.

    `is_due` is given the log-probabilities of the last hand-over and of a later update, [N, C] each.
    """
    teacher = SnapshotTeacher(folder, "online", **opening)  # at step t it is the teacher after t + 1 updates
    available = [update for update in open_store(Path(folder), opening.get("role")).available() if update > 0]
    total = teacher.teacher_updates.total or max(available, default=0)
    recorded = sorted(update for update in available if update <= total)
    if len(recorded) < 2 or recorded[-1] < total:
        raise UserError(
            f"{folder} has snapshots after {shorten(recorded)} of {pluralize(total, 'update')}: a rule of timing needs "
            "several, up to the last one. Record the whole run with --record and a short interval."
        )
    ends, before = [0], None
    for update in recorded[:-1]:  # the last block ends with the run, whatever the teacher does there
        now = _log_probabilities(teacher.seek(update - 1), probe.inputs)
        if before is None or is_due(before, now):
            ends.append(update)
            before = now
    return _between([*ends, total])


def _log_probabilities(teacher: SnapshotTeacher, inputs: Tensor) -> Tensor:
    """Return the log-probabilities of all classes for all inputs: [N, C]."""
    logits = torch.cat([teacher(batch) for batch in inputs.split(BATCH)])
    if logits.ndim != 2 or not logits.isfinite().all():
        raise UserError(
            f"{teacher.folder}: a rule of timing needs finite logits [N, C] of the teacher, got "
            f"{[*logits.shape]} after {teacher.updates} updates."
        )
    return F.log_softmax(logits.double(), dim=1)


def _jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of log-probabilities [N, C] in nats: [N]."""
    middle = torch.logaddexp(one, other) - math.log(2)
    return sum((p.exp() * (p - middle)).sum(1) for p in (one, other)) / 2  # type: ignore[return-value]


# Controls


def lengths_in_run(blocks: Blocks, total: int) -> list[int]:
    """Return the lengths in steps of all blocks of a run of `total` steps, the last one cut at its end.

    >>> lengths_in_run(Blocks([2, 3]), 10)
    [2, 3, 3, 2]
    """
    rest, lengths = whole_number("total", total, 1), []
    for length in chain(map(steps_of, blocks.lengths), repeat(steps_of(blocks.lengths[-1]))):
        if rest == 0:
            break
        lengths.append(min(length, rest))
        rest -= lengths[-1]
    return lengths


def yoked(blocks: Blocks, total: int) -> Blocks:
    """Return the blocks of another seed's run, unchanged, for a run of `total` steps.

    They have the lengths that a rule likes, and know nothing of this run's teacher. Blocks that would pass the end are
    cut; where the other run was shorter, its last length repeats.

    >>> yoked(Blocks([2, 3]), 10).describe()
    'blocks of 2st, 3st, 3st, 2st'
    """
    return Blocks(lengths_in_run(blocks, total))


def even(blocks: Blocks, total: int) -> Blocks:
    """Return as many blocks as these are in a run of `total` steps, all of equal length.

    With n blocks, block k ends at floor(k total / n): where n does not divide the run, lengths differ by one step.

    >>> even(Blocks([1, 9]), 10).describe(), even(Blocks([1, 2, 7]), 10).describe()
    ('blocks of 5st', 'blocks of 3st, 3st, 4st')
    """
    count = len(lengths_in_run(blocks, total))
    return _between([number * total // count for number in range(count + 1)])


def shuffled(blocks: Blocks, total: int, seed: int) -> Blocks:
    """Return the same lengths, in a run of `total` steps, in a random order that the seed decides.

    >>> sorted(map(str, shuffled(Blocks([2, 3]), 10, seed=0).lengths))
    ['2st', '2st', '3st', '3st']
    """
    lengths = lengths_in_run(blocks, total)
    random.Random(whole_number("seed", seed)).shuffle(lengths)
    return Blocks(lengths)


def _between(ends: Sequence[int]) -> Blocks:
    return Blocks([stop - start for start, stop in pairwise(ends)])
