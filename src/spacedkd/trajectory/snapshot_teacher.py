"""A frozen teacher that has, at every step of a student, the weights that spaced KD gives it there."""

import difflib
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from spacedkd.config.resolve import resolve
from spacedkd.config.spec import OptimizerSpec, RateSpec, check_folder, read_spec
from spacedkd.runtime.errors import Damaged, UserError, check_between, pluralize
from spacedkd.runtime.processes import print_notice
from spacedkd.schedule import Duration, Schedule
from spacedkd.timeline import TeacherUpdates
from spacedkd.training.build import build_models
from spacedkd.training.trained_models import Logits
from spacedkd.trajectory import formats
from spacedkd.trajectory.formats import Recorded, Source

# Weights from a file into a network that somebody else built: what fits, and what is said when it does not.


def load(network: nn.Module, found: Mapping[str, Tensor], prefix: str, file: Path) -> None:
    """Give a network the weights and statistics of a file, of which the names that begin with `prefix` are its own.

    A tensor that the network has under two names may stand in the file under one of them.
    """
    expected = network.state_dict()
    own = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    missing = [name for name in expected if name not in own]
    for name in [*missing]:
        twin = next((other for other in own if other in expected and _is_same(expected[name], expected[other])), None)
        if twin is not None:
            own[name] = own[twin]
            missing.remove(name)
    unknown = [name for name in own if name not in expected]
    shapes = [name for name in own if name in expected and own[name].shape != expected[name].shape]
    if missing or unknown:
        raise UserError(f"{_misfit(network, file)}{_names(missing, unknown, expected, found, prefix)}")
    if shapes:
        theirs, ours = own[shapes[0]].shape, expected[shapes[0]].shape
        raise UserError(f"{_misfit(network, file)}{shapes[0]!r} is {[*theirs]} there and {[*ours]} in the network.")
    network.load_state_dict(own)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.numel() > 0 and one.data_ptr() == other.data_ptr() and one.shape == other.shape


def _misfit(network: nn.Module, file: Path) -> str:
    return f"The weights in {file} are not those of the network given ({type(network).__name__}): "


def _names(
    missing: list[str], unknown: list[str], expected: Mapping[str, Tensor], found: Mapping[str, Tensor], prefix: str
) -> str:
    """Which names do not fit, which are near, and which prefix would make them fit."""
    said = []
    if missing:
        near = [name for name in found if name.endswith(f".{missing[0]}")]
        near = near or difflib.get_close_matches(missing[0], found, n=2, cutoff=0.4)
        instead = f", near it is {' or '.join(map(repr, near[:2]))}" if near else ""
        said.append(f"{missing[0]!r} is missing in the file ({_count(missing)}){instead}")
    if unknown:
        near = difflib.get_close_matches(unknown[0], expected, n=1, cutoff=0.4)
        instead = f", which has {near[0]!r}" if near else ""
        said.append(f"{prefix + unknown[0]!r} is unknown to the network ({_count(unknown)}){instead}")
    way_out = "Give the network that was trained, or prefix= if its names begin with something more"
    first = next(iter(expected), "")
    for name in found:
        more = name.removesuffix(first)
        if more != prefix and name.endswith(first) and all(more + one in found for one in expected):
            way_out = f"Give prefix={more!r}" if more else "Leave prefix= out"
            break
    return f"{'; '.join(said)}. {way_out}."


def _count(names: list[str]) -> str:
    return f"{len(names)} name{'s' * (len(names) > 1)} in all"


# A frozen teacher that has, at every step of a student, the weights that spaced KD gives it there.

POLL_SECONDS = 0.2


class SnapshotTeacher(nn.Module):
    """The teacher of a student's run, read from the snapshots that the teacher's own run has left, or is leaving.

    At step t, counted from 0, it is the teacher after ceil((t+1)/s) s updates, at most `total`: `seek(t)` reads that
    snapshot when it is another than before, and depends on nothing but t.

        teacher = SnapshotTeacher("runs/teacher", interval=586, network=make_network, total=31280)
        for step, (x, y) in enumerate(loader):
            loss = 0.7 * cross_entropy(z := student(x), y) + 0.3 * kl(z, teacher.seek(step)(x), temperature=3)

    It answers as its network does, without gradients and in eval mode, whatever `train()` says, and has what its
    network has (`config`, `forward_features`, ...). Its weights are none of its parameters, buffers or state: a student
    that holds it as a part has the optimizer, the checkpoints and the DDP of a student without it, and moves it along
    with `.to(device)`. A copy (`deepcopy`) has weights of its own.
    """

    network: nn.Module
    """frozen, with the weights of the last `seek`; not among the modules of whoever holds the teacher"""
    _fitted: nn.Module
    updates: int | None
    """how many the weights have had; None before the first `seek`"""

    def __init__(
        self,
        folder: Path | str,
        interval: Schedule | Duration | str | int,
        network: nn.Module | Callable[[], nn.Module] | None = None,
        *,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        prefix: str | None = None,
        wait: float = 0.0,
        role: str | None = None,
        trust_code: bool = False,
    ) -> None:
        """Snapshots in `folder`, and a network to put them in: a function that makes it, or one to copy.

        `folder` holds step-N.safetensors, checkpoint-N/ or ...step=N.ckpt, or is a run with --record, whose spec says
        the network (code that it names is imported only with `trust_code`), how long it is, and by which `role`.

        `interval` is steps, a length such as "1.5ep" with `steps_per_epoch`, or any schedule; `total` is the length of
        the run, which a last block shorter than the interval needs to know. Names in the files begin with `prefix`, as
        Lightning's do with "model.". A snapshot that is still to come is waited for, `wait` seconds at the most.
        """
        super().__init__()
        check_folder("folder", folder)
        check_between("wait", wait, 0)
        self.folder, self.wait = Path(folder), wait
        self._source = self._found(role)
        if isinstance(self._source, Recorded):
            total = total or self._source.total
        self._prefix = self._source.prefix if prefix is None else prefix
        if network is not None:
            made = fitted = _made(network)
        elif isinstance(self._source, Recorded):
            if prefix is not None:
                raise UserError(f"The run in {folder} knows its network and the names in it: leave prefix= out.")
            fitted, epoch = _of_run(self._source, trust_code)
            made, self._prefix, steps_per_epoch = Logits(fitted), "", steps_per_epoch or epoch
        else:
            raise UserError(f"The weights in {folder} need a network: give network=, a function that makes it.")
        self.teacher_updates = TeacherUpdates(interval, steps_per_epoch, total)
        # Not as torch would, which would make it a part, with parameters for optimizers and tensors for checkpoints.
        object.__setattr__(self, "network", made.requires_grad_(False).eval())
        object.__setattr__(self, "_fitted", fitted)
        self.updates = None
        self.training = False

    def seek(self, step: int) -> Self:
        """Have the weights that belong to this step of the student, counted from 0."""
        updates = self.teacher_updates.at(step)
        if updates != self.updates:
            file, weights = self._snapshot(updates, step)
            load(self._fitted, weights, self._prefix, file)
            self.updates = updates
        return self

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the network says of its inputs."""
        if self.updates is None:
            raise UserError("A SnapshotTeacher must know the student's step before it is asked: teacher.seek(step).")
        with torch.no_grad():
            return self.network(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        """What torch finds in no other way; Python's own names, such as those of copying, are never the network's."""
        if name.startswith("__") or "network" not in self.__dict__:
            return super().__getattr__(name)
        return getattr(self.network, name)

    def train(self, mode: bool = True) -> Self:
        """Nothing: it stays in eval mode."""
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `.to()`, `.cuda()` and `.half()` do, also when it is a part of what is moved."""
        self.network._apply(fn, recurse)
        return super()._apply(fn, recurse)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{str(self.folder)!r}, {type(self.network).__name__}, updates={self.updates}"

    def _found(self, role: str | None) -> Source:
        """Where the snapshots are, as soon as there is one."""
        for _ in self._waiting("its first snapshot"):
            source = formats.source(self.folder, role)
            if isinstance(source, Recorded) or source.there():
                return source
        raise UserError(
            f"{self.folder} has no snapshots: neither step-N.safetensors nor checkpoint-N/ nor ...step=N.ckpt, and it "
            f"is no run with --record. Train the teacher first, or give wait=SECONDS while it is trained{self._over()}."
        )

    def _snapshot(self, updates: int, step: int) -> tuple[Path, dict[str, Tensor]]:
        """The file of these weights and what is in it, as soon as it is there whole."""
        for _ in self._waiting(f"its snapshot after {pluralize(updates, 'update')}"):
            why = self._source.never(updates)  # before looking: what comes in between is there
            there, damaged = self._source.there(), None
            if updates in there:
                try:
                    return there[updates], formats.read(there[updates])
                except Damaged as error:  # or it is still being written
                    damaged = error
            elif why:
                break
        if damaged is not None:
            raise damaged
        raise UserError(
            f"{self.folder} has no snapshot after {pluralize(updates, 'update')}, which step {step} needs; it has "
            f"those after {formats.some(there)}: {why or self._way_out(updates) + self._over()}."
        )

    def _way_out(self, updates: int) -> str:
        if updates == self.teacher_updates.total:
            return (
                "it is that of the last block, which may be shorter than the interval. Save the teacher at the end of "
                "its run too, or give wait=SECONDS while it is trained"
            )
        return "train the teacher on with this interval, give wait=SECONDS while it is trained, or total= if it ends"

    def _waiting(self, what: str) -> Iterator[None]:
        """Once, and then again and again while there is time."""
        end = time.monotonic() + self.wait
        yield
        if self.wait:
            print_notice(f"waiting for {self.folder} to leave {what}, {self.wait:g} s at the most")
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, left))
            yield

    def _over(self) -> str:
        return f" (waited {self.wait:g} s)" if self.wait else ""


def _made(network: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """A network of the teacher's own; one that was given may be the student."""
    made = deepcopy(network) if isinstance(network, nn.Module) else network() if callable(network) else network
    if not isinstance(made, nn.Module):
        raise UserError(f"network must be an nn.Module, or a function that makes one; got {type(made).__name__}.")
    return made


def _of_run(path: Recorded, trust_code: bool) -> tuple[nn.Module, int]:
    """The model of a role as its run has it, and the steps of an epoch there."""
    spec = read_spec(path.run, trust_code)
    how_trained = ("optimizer", "lr")  # which does not matter any more
    own = [name for name in spec.objects if name not in how_trained]
    if own:
        raise UserError(
            f"{path.run} was given a {own[0]} of your own: give network=, a function that makes its network."
        )
    plan = resolve(replace(spec, rate=RateSpec(), optimizer=OptimizerSpec(), objects={}))
    return build_models(plan)[plan.method.learners[path.role]], plan.steps_per_epoch
