"""Tensors with a few words in one safetensors file, and a checksum over all of it.

The format is that of safetensors, written here so that it is hashed on the way and no file of another name is left
behind by a kill. The checksum, among the words, is of the whole file with zeros in its own place.
"""

import hashlib
import json
import mmap
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from spacedkd.runtime.documents import parse_json
from spacedkd.runtime.errors import Damaged, UserError
from spacedkd.runtime.files import Folder, open_ordinary

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_OPEN = "0" * 64
"""in the place of a checksum that is not known yet"""
_ALIGNED = 8
_PIECE = 1 << 24


def write(
    path: Path,
    tensors: Mapping[str, Tensor],
    words: Mapping[str, str],
    before: Path | None = None,
    within: Folder | None = None,
) -> None:
    """Replace a file by these tensors, which lie in the CPU's memory, and words; the old one is kept as `before`.

    It is written below `within`, the folder of a run, or else in the folder that the path names.
    """
    header, order = _header(tensors, {**words, "checksum": _OPEN})
    checksum = hashlib.sha256(header)
    with (within or Folder(path.parent)).write_whole(path, before) as file:
        file.write(header)
        for name in order:
            data = _bytes(tensors[name])
            checksum.update(data)
            file.write(data)
        file.seek(header.index(_OPEN.encode()))
        file.write(checksum.hexdigest().encode())


def _header(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """The beginning of the file, and the order in which the tensors follow: wide numbers first, so all are aligned."""
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    described: dict[str, Any] = {"__metadata__": {"checksum": words["checksum"], **words}}
    begin = 0
    for name in order:
        end = begin + tensors[name].nbytes
        kind = _DTYPES.get(tensors[name].dtype)
        if kind is None:
            raise UserError(f"{name} cannot be saved: its numbers are {tensors[name].dtype}.")
        described[name] = {"dtype": kind, "shape": [*tensors[name].shape], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text, order


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def read(
    path: Path,
    words: Collection[str],
    tensors: bool = True,
    needed: Collection[str] = (),
    within: Folder | Path | None = None,
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What is in a file that has these words, no others, and the tensors that are `needed`.

    All of it is checked; the tensors are read where they are wanted. Below `within`, the folder of a run, no links are
    followed.
    """
    try:
        with os.fdopen(open_ordinary(path, within=within), "rb") as opened:
            found, contents = _contents(path, opened, words, tensors, needed)
    except (SafetensorError, OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise Damaged(f"{path} cannot be read: {(str(error).splitlines() or [repr(error)])[0]}.") from None
    if "digest" in found and digest(contents) != found["digest"]:  # as paths had it before
        raise Damaged(f"{path} is damaged: its checksum is another.")
    return found, contents


def _contents(
    path: Path, opened: BinaryIO, words: Collection[str], tensors: bool, needed: Collection[str]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    found = _checked(path, opened)
    if found.keys() - {"checksum", "digest"} != {*words}:
        raise Damaged(f"{path} is damaged: it has other parts than were written.")
    # The file that is open, by the name that the system gives it: another may have the path by now.
    with safe_open(f"/dev/fd/{opened.fileno()}", framework="pt", device="cpu") as file:
        names = file.keys()
        if missing := [name for name in needed if name not in {*names}]:
            raise Damaged(f"{path} is damaged: {missing[0]} is missing.")
        names = names if tensors or "digest" in found else []
        return found, {name: file.get_tensor(name) for name in names}


def _checked(path: Path, opened: BinaryIO) -> dict[str, str]:
    """The words of a file, if its checksum is right; files of earlier versions have none."""
    with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        length = int.from_bytes(whole[:8], "little")
        if length > len(whole) - 8:
            raise Damaged(f"{path} is damaged: it is cut off.")
        header = whole[: 8 + length]
        found = _metadata(header[8:], path)
        if "checksum" in found:
            checksum = hashlib.sha256(header.replace(found["checksum"].encode(), _OPEN.encode(), 1))
            for piece in _pieces(whole, 8 + length):
                checksum.update(piece)
            if checksum.hexdigest() != found["checksum"]:
                raise Damaged(f"{path} is damaged: its checksum is another.")
        return found


def _metadata(header: bytes, path: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = parse_json(header, "its header")["__metadata__"]
    except UserError as error:
        raise Damaged(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Damaged(f"{path} is damaged: its header says nothing of it.")
    return found


def _pieces(whole: mmap.mmap, start: int) -> Iterator[bytes]:
    for begin in range(start, len(whole), _PIECE):
        yield whole[begin : begin + _PIECE]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Names tensors by what is in them: equal bits, equal name."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(_bytes(tensor.cpu()))
    return found.hexdigest()[:16]


@contextmanager
def system_errors() -> Iterator[None]:
    """What the system refuses safetensors itself while this lasts is an error of the system."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, in the memory of the CPU, of tensors that go on changing; tied weights become apart."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def whole(tensor: Tensor, keep: bool = True) -> Tensor:
    """All parts of a tensor in one, on the CPU; every process must ask, and those that do not `keep` it get nothing."""
    if not isinstance(tensor, DTensor):
        return tensor
    found: Tensor = tensor.full_tensor()
    return found.cpu() if keep else found.new_empty(0)


def spread_like(tensor: Tensor, other: Any) -> Tensor:
    """A whole tensor, which every process has, in parts where `other` is; else as it is."""
    if not isinstance(other, DTensor):
        return tensor
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def spread(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """A whole state as a model takes it."""
    like = model.state_dict()
    return {name: spread_like(tensor, like.get(name)) for name, tensor in state.items()}
