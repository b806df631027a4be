"""Cached targets: the outputs of a frozen teacher for the batch of each step, written once and read by any student.

    RUN/targets/targets.json                      the index: form, settings that determine the targets, steps per file
    RUN/targets/000000064-000000127.safetensors   the outputs at these steps, with a checksum; of several processes each
                                                  has a folder, rank1/ and so on, with its part of every batch

The batch of a step is a pure function of the step, and a frozen teacher's outputs are one of the batch. So a student
that reads them learns the bits that it would learn from the teacher itself, also with random augmentation.

What is cached of the logits z [..., C] is their form; p = softmax(z), and the student sees z':

    whole              z' = z, to the bit
    float16, bfloat16  z' = z rounded; features are rounded too
    top-k:K            z' = z for the K largest; every other class gets the mean probability of the others. At
                       temperature 1 the K probabilities and the mass of the tail are exact, its shape is lost: the
                       gradient is biased towards an even tail
    sample:K@T         K classes are drawn from softmax(z/T), and softmax(z'/T) is the share of the draws of each. The
                       KL's gradient at temperature T is that of the whole logits on average (arXiv 2503.16870)
"""

import hashlib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from spacedkd.config.spec import TARGETS_FORM, check_folder
from spacedkd.data.dataloader import rank_and_processes
from spacedkd.runs import tensor_file
from spacedkd.runs.tensor_file import copy_to_cpu
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import CannotRead, Damaged, TargetsGone, UserError, first_line, whole_number
from spacedkd.runtime.files import Folder, as_folder, make_durable, write_errors, write_json
from spacedkd.runtime.seeds import seed_for
from spacedkd.trajectory.store import Settings, as_json, describe_setting, first_difference, shorten

FILE_BYTES = 1 << 25
"""size up to which steps are collected for one file; they are lost in a kill, and computed again"""
MOST_STEPS = 128
"""steps of a file at most, so that students that follow are not far behind"""
INDEX = "targets.json"


# The form of the logits in a file


@dataclass(frozen=True)
class TargetsForm:
    """A form in which logits [..., C] are cached: whole, rounded, the K largest, or drawn classes.

    >>> z = torch.tensor([[2.0, 1.0, 0.0, 0.0]])
    >>> form = parse_form("top-k:1")
    >>> restored = form.decode(form.encode(z, seed=0), classes=4, dtype=z.dtype)
    >>> torch.allclose(restored.softmax(1)[0, 0], z.softmax(1)[0, 0]), restored[0, 1:].unique().numel()
    (True, 1)
    """

    name: str
    count: int = 0
    """the classes that are kept, or drawn"""
    temperature: float = 1.0
    """of the draws"""

    def __str__(self) -> str:
        count = f":{self.count}" if self.count else ""
        return f"{self.name}{count}{f'@{self.temperature:g}' if self.name == 'sample' else ''}"

    @property
    def is_whole(self) -> bool:
        """Whether the student sees the teacher's own bits."""
        return self.name == "whole"

    def check_classes(self, classes: int) -> None:
        """Refuse to keep the largest of all classes, where none would be left out."""
        if self.name == "top-k" and self.count >= classes:
            raise UserError(f"targets_form top-k:{self.count} keeps all of {classes} classes: use whole.")

    def encode(self, logits: Tensor, seed: int) -> dict[str, Tensor]:
        """Return the tensors that are cached of logits [..., C]; `seed` decides the draws."""
        z = logits.detach()
        if self.name in _DTYPES:
            return {"logits": _rounded(z, self.name)}
        classes = z.shape[-1]
        if self.name == "whole":
            return {"logits": z}
        small = torch.int16 if classes <= torch.iinfo(torch.int16).max else torch.int32
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        if self.name == "sample":
            generator = torch.Generator(z.device).manual_seed(seed)
            shares = (z / self.temperature).softmax(-1).reshape(-1, classes)
            drawn = torch.multinomial(shares, self.count, replacement=True, generator=generator)
            return {"drawn": drawn.sort(-1).values.reshape(*z.shape[:-1], self.count).to(small)}
        self.check_classes(classes)
        values, kept = z.topk(self.count)
        others = z.scatter(-1, kept, -torch.inf).logsumexp(-1, keepdim=True)
        return {"values": values, "kept": kept.to(small), "others": others - math.log(classes - self.count)}

    def decode(self, cached: Mapping[str, Tensor], classes: int, dtype: torch.dtype) -> Tensor:
        """Return the logits that the student sees."""
        if "logits" in cached:
            return cached["logits"].to(dtype)
        if "values" in cached:
            spread = cached["others"].expand(*cached["others"].shape[:-1], classes)
            return spread.scatter(-1, cached["kept"].long(), cached["values"]).to(dtype)
        drawn = cached["drawn"].long()
        counts = torch.zeros(*drawn.shape[:-1], classes, device=drawn.device)
        counts = counts.scatter_add(-1, drawn, torch.ones_like(drawn, dtype=counts.dtype))
        return (self.temperature * torch.where(counts > 0, counts.log(), NEVER)).to(dtype)

    def encode_features(self, features: Tensor) -> Tensor:
        """Return what is cached of features."""
        return _rounded(features.detach(), self.name) if self.name in _DTYPES else features.detach()

    def decode_features(self, cached: Tensor, dtype: torch.dtype) -> Tensor:
        """Return features as the student sees them."""
        return cached.to(dtype) if self.name in _DTYPES else cached


_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
NEVER = -1e4
"""logit of a class that was not drawn: its probability is 0, and 0 times its logarithm is no NaN"""


def _rounded(values: Tensor, name: str) -> Tensor:
    rounded = values.to(_DTYPES[name])
    if name == "float16" and bool((rounded.isinf() & values.isfinite()).any()):
        raise UserError("targets_form float16 cannot hold values above 65504, and the teacher has some: use bfloat16.")
    return rounded


def parse_form(text: str) -> TargetsForm:
    """Return the form that a text names.

    >>> parse_form("sample:50@3")
    TargetsForm(name='sample', count=50, temperature=3.0)
    """
    match = TARGETS_FORM.fullmatch(text)
    if match is None:
        raise UserError(
            f"A form of targets is whole, float16, bfloat16, top-k:COUNT or sample:COUNT@TEMPERATURE; got {text!r}."
        )
    plain, top, kept, sample, draws, temperature = match.groups()
    return TargetsForm(plain or top or sample, int(kept or draws or 0), float(temperature or 1))


# The files


class Targets:
    """The outputs of a teacher at each step, in a folder: written in one loop, read in any number of others.

        targets = Targets("runs/targets", form="top-k:50", settings={"teacher": "gpt2", "seed": 0, "batch": 32})
        for step, batch in enumerate(loader):                    # the first student
            with targets, torch.no_grad():
                targets.write(step, teacher(batch).logits)
        ...
        targets = Targets("runs/targets")                        # the others: no teacher is in memory
        for step, batch in enumerate(loader):
            loss = kl(student(batch).logits, targets.read(step)["logits"].to(device), temperature=1, dim=-1)

    Logits have their classes in the last dimension, [B, C] or [B, L, C]. Batches must be a pure function of the step,
    as those of `seeded_loader` are: the targets of step t are of the batch that the writer had at t.

    Steps are collected in memory and written in files of up to 32 MB or 128 steps; `flush` writes what is left, and
    belongs before every checkpoint. A file is never partly written. A writer that resumes may write steps again that
    the files have already: they are left as they are. Of several processes each has its own part of every batch.
    """

    def __init__(
        self,
        folder: Path | str,
        form: str | None = None,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        ranks: int | None = None,
        within: Folder | None = None,
    ) -> None:
        """Open the targets in a folder, or a new folder for them.

        Args:
            folder: where they are, or will be.
            form: whole, float16, bfloat16, top-k:50 or sample:50@3; that of the folder if not given, else whole.
            settings: what determines them, in names and values that JSON has; a folder of other settings is refused by
                the name of the first that differs.
            seed: decides the draws of the form sample.
            rank: number of this process among those that share each batch; torch.distributed's if not given.
            ranks: number of these processes.
            within: the folder of a run, below which no link is followed.
        """
        check_folder("folder", folder)
        self.folder, self._handle, self._seed = Path(folder), within or as_folder(Path(folder)), seed
        self.rank, self.ranks = _process_numbers(rank, ranks)
        self._files_folder = self.folder if self.ranks == 1 else self.folder / f"rank{self.rank}"
        self._index: dict[str, Any] = {}
        self._pending: dict[int, dict[str, Tensor]] = {}
        self._files: list[tuple[int, int]] = []  # first and last step of each file, in order
        self._opened: tuple[tuple[int, int], dict[str, Tensor]] | None = None
        self.form, self.settings = parse_form(form or "whole"), as_json(settings or {})
        if self._handle.exists(self.folder / INDEX):
            self._read_index(form, settings)

    # The index.

    def _read_index(self, form: str | None, settings: Settings | None) -> None:
        """Read the index of a folder that has one; refuse another form or other settings than these."""
        index = read_index(self.folder, self._handle)
        written = index["settings"]
        if settings is not None and (name := first_difference(written, self.settings)) is not None:
            ours, theirs = describe_setting(self.settings, name), describe_setting(written, name)
            raise UserError(f"{self.folder} has targets of another {name}: {theirs}, and this is {ours}.")
        if form is not None and form != index["form"]:
            raise UserError(f"{self.folder} has targets in the form {index['form']}, and not {form}.")
        if index["processes"] != self.ranks:
            raise UserError(
                f"{self.folder} was written by {index['processes']} process(es), and {self.ranks} want to read it: "
                "each needs its own part of every batch."
            )
        self._index, self.form, self.settings = index, parse_form(index["form"]), written
        self._refresh()

    def _write_index(self, step_bytes: int, logits: Tensor, outputs: Mapping[str, Tensor]) -> None:
        self._index = {
            "form": str(self.form),
            "settings": self.settings,
            "processes": self.ranks,
            "outputs": {name: _layout(tensor) for name, tensor in outputs.items()},
            "classes": logits.shape[-1],
            "dtype": str(logits.dtype).removeprefix("torch."),
            "steps per file": max(1, min(MOST_STEPS, FILE_BYTES // max(step_bytes, 1))),
        }
        if self.rank == 0:
            self._make_folders()
            write_json(self.folder / INDEX, self._index, self._handle)

    def _make_folders(self) -> None:
        if self.folder == self._handle.path:
            with write_errors(self.folder):
                make_durable(self.folder)
        self._handle.make(self._files_folder)

    @property
    def steps_per_file(self) -> int:
        """The most steps in one file; a file ends where a multiple of it begins."""
        return int(self._index["steps per file"])

    @property
    def outputs(self) -> list[str]:
        """The names of what is cached: logits, and features."""
        return [*self._index.get("outputs", ())]

    # The steps that are there.

    @property
    def steps(self) -> list[int]:
        """The steps whose targets are written, in order."""
        self._refresh()
        return [step for first, last in self._files for step in range(first, last + 1)]

    def __contains__(self, step: int) -> bool:
        """Return whether a step is in a file, or waits to be written."""
        if step in self._pending or self._file_of(step) is not None:
            return True
        self._refresh()
        return self._file_of(step) is not None

    def _refresh(self) -> None:
        names = (_FILE_NAME.fullmatch(name) for name in self._handle.names(self._files_folder))
        self._files = sorted((int(name[1]), int(name[2])) for name in names if name)

    def _file_of(self, step: int) -> tuple[int, int] | None:
        number = bisect_right(self._files, (step, math.inf)) - 1
        return self._files[number] if number >= 0 and self._files[number][1] >= step else None

    def path(self, file: tuple[int, int]) -> Path:
        """Return the path of the file of these first and last steps."""
        return self._files_folder / f"{file[0]:09d}-{file[1]:09d}.safetensors"

    def remove_before(self, step: int) -> None:
        """Remove all files whose steps are before this one."""
        self._refresh()
        for file in [file for file in self._files if file[1] < step]:
            self._handle.remove(self.path(file))

    # Writing.

    def write(self, step: int, logits: Tensor, **features: Tensor) -> None:
        """Cache the outputs at a step; nothing is done where they are cached already."""
        step = whole_number("step", step)
        if step in self:
            return
        encoded = self.form.encode(logits, draw_seed(self._seed, step))
        self.write_encoded(step, logits, encoded | {k: self.form.encode_features(v) for k, v in features.items()})

    def write_encoded(self, step: int, logits: Tensor, encoded: Mapping[str, Tensor]) -> None:
        """Cache outputs in the form of the folder; `logits` are an example of the whole ones."""
        if not self._index:
            step_bytes = sum(tensor.nbytes for tensor in encoded.values())
            self._write_index(step_bytes, logits, encoded)
        # A copy: what a network returns may be a view of more, or be written to. It stays on its device until a file is
        # full, so that the teacher's step is not waited for.
        self._add(step, {name: tensor.clone() for name, tensor in encoded.items()})

    def skip(self, step: int) -> None:
        """Note that a step has no targets, because its teacher was not called."""
        if step not in self:
            self._add(step, {})

    def _add(self, step: int, tensors: dict[str, Tensor]) -> None:
        if self._pending and step != max(self._pending) + 1:
            self.flush()  # a file has consecutive steps
        self._pending[step] = tensors
        if self._index and (step + 1) % self.steps_per_file == 0:
            self.flush()

    def flush(self) -> None:
        """Write what was collected to disk."""
        if not self._pending or not self._index:
            return
        file = (min(self._pending), max(self._pending))
        self._make_folders()
        tensors = {f"{step}/{name}": t for step, named in self._pending.items() for name, t in named.items()}
        tensor_file.write(self.path(file), copy_to_cpu(tensors), self._metadata(file), within=self._handle)
        self._pending = {}
        self._refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write what was collected, also after an error: whole steps are whole."""
        self.flush()

    def _metadata(self, file: tuple[int, int]) -> dict[str, str]:
        """Return what a file says of itself, so that one that was renamed, or is of other targets, is refused."""
        # Not the steps per file: ranks have parts of a batch that may differ by an item.
        index = {name: value for name, value in self._index.items() if name != "steps per file"}
        return {
            "steps": f"{file[0]}-{file[1]}",
            "rank": f"{self.rank} of {self.ranks}",
            "index": hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()[:16],
        }

    # Reading.

    def read(self, step: int) -> dict[str, Tensor]:
        """Return the outputs at a step, in the CPU's memory: logits as the student sees them, and features by name.

        A step that is missing is refused as `TargetsGone`, and so is a file that was changed.
        """
        cached = self._cached(whole_number("step", step))
        dtype = getattr(torch, self._index["dtype"])
        logits = self.form.decode(cached, self._index["classes"], dtype)
        encoded = ("logits", "values", "kept", "others", "drawn")
        features = {k: self.form.decode_features(v, dtype) for k, v in cached.items() if k not in encoded}
        layouts = self._index["outputs"]
        return {
            name: tensor.contiguous(memory_format=torch.channels_last)
            if layouts.get(name) == "channels last"
            # A tensor in a mapped file may begin at any address, and vectorized sums from there have other bits.
            else tensor.clone()
            for name, tensor in {"logits": logits, **features}.items()
        }

    def _cached(self, step: int) -> dict[str, Tensor]:
        if step not in self:
            raise TargetsGone(f"{self.folder} has no targets of step {step}; it has those of {self._range()}.")
        named = self._pending.get(step)
        if named is None:
            file = self._file_of(step)
            assert file is not None
            start = f"{step}/"
            named = {k.removeprefix(start): t for k, t in self._contents(file).items() if k.startswith(start)}
        if not named:
            raise TargetsGone(f"{self.folder} has no targets of step {step}: its teacher was not called then.")
        return named

    def _contents(self, file: tuple[int, int]) -> dict[str, Tensor]:
        """Return the tensors of a file; the file read last is kept."""
        if self._opened is None or self._opened[0] != file:
            self._opened = None  # the memory of the file before is free while the next one is read
            path, expected = self.path(file), self._metadata(file)
            try:
                written, tensors = tensor_file.read(path, expected.keys(), within=self._handle)
            except Damaged as error:
                raise TargetsGone(f"{error} Delete it, and write these steps again.") from None
            if {name: written[name] for name in expected} != expected:
                raise TargetsGone(f"{path} is damaged: it says that it has other targets. Delete it.")
            self._opened = file, tensors
        return self._opened[1]

    def _range(self) -> str:
        steps = self.steps
        return f"steps {shorten(steps)}" if steps else "none"


_FILE_NAME = re.compile(r"(\d{9})-(\d{9})\.safetensors")


def draw_seed(seed: int, step: int, part: int = 0) -> int:
    """Return the seed of the draws of a form at a step, and a part of its batch."""
    return seed_for(seed, "targets", step, part)


def _process_numbers(rank: int | None, ranks: int | None) -> tuple[int, int]:
    return rank_and_processes() if rank is None or ranks is None else (rank, ranks)


def _layout(tensor: Tensor) -> str:
    """Return the memory layout of an output: in another one, sums over it would have other bits."""
    is_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return "channels last" if is_last and not tensor.is_contiguous() else "contiguous"


def read_index(folder: Path, within: Folder | Path | None = None) -> dict[str, Any]:
    """Return the index of a folder of targets; one that is gone or damaged is `TargetsGone`."""
    file = folder / INDEX
    try:
        index: dict[str, Any] = read_json(file, within=within or folder)
        counts = [index[name] for name in ("steps per file", "processes", "classes")]
        if not all(type(count) is int and count > 0 for count in counts) or not isinstance(index["settings"], dict):
            raise ValueError("it has no settings")
        parse_form(index["form"])
        if not isinstance(index["outputs"], dict) or not isinstance(getattr(torch, index["dtype"]), torch.dtype):
            raise ValueError("it has no outputs")
    except (CannotRead, FileNotFoundError) as error:
        raise TargetsGone(f"{folder} has no targets: {first_line(error)}.") from None
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise TargetsGone(f"{file} is damaged ({first_line(error).removesuffix('.')}).") from None
    return index
