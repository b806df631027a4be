"""A safetensors file of tensors and metadata (names and texts), with a checksum over all of it.

The format is that of safetensors. It is written here, so that the checksum is computed while writing, and a kill leaves
no file under another name. The checksum is part of the metadata: it is the SHA-256 of the whole file with zeros in
place of the checksum.
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
_NO_CHECKSUM = "0" * 64
"""placeholder of the checksum while it is computed"""
_ALIGNMENT = 8
_BLOCK = 1 << 24


def write(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    before: Path | None = None,
    within: Folder | None = None,
) -> None:
    """Replace a file by these tensors, which are in the CPU's memory; the old file is kept as `before`, if given.

    The file is written from the handle of `within`, the folder of a run, or else of the folder it is in.
    """
    header, order = _header(tensors, {**metadata, "checksum": _NO_CHECKSUM})
    checksum = hashlib.sha256(header)
    with (within or Folder(path.parent)).write_whole(path, before) as file:
        file.write(header)
        for name in order:
            data = _bytes(tensors[name])
            checksum.update(data)
            file.write(data)
        file.seek(header.index(_NO_CHECKSUM.encode()))
        file.write(checksum.hexdigest().encode())


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Return the header of the file, and the order of the tensors: wide types first, so that all are aligned."""
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    # The checksum comes first, so that the first run of zeros in the header is its own.
    header: dict[str, Any] = {"__metadata__": {"checksum": metadata["checksum"], **metadata}}
    begin = 0
    for name in order:
        end = begin + tensors[name].nbytes
        kind = _DTYPES.get(tensors[name].dtype)
        if kind is None:
            raise UserError(f"{name} cannot be saved: its type is {tensors[name].dtype}.")
        header[name] = {"dtype": kind, "shape": [*tensors[name].shape], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, order


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def read(
    path: Path,
    metadata: Collection[str],
    tensors: bool = True,
    needed: Collection[str] = (),
    within: Folder | Path | None = None,
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file; without `tensors`, no tensor is returned.

    The whole file is checked: its checksum, that it has exactly these names in its metadata, and the tensors that are
    `needed`. What is wrong is refused as `Damaged`. Below `within`, the folder of a run, no link is followed.
    """
    try:
        with os.fdopen(open_ordinary(path, within=within), "rb") as opened:
            texts, contents = _contents(path, opened, metadata, tensors, needed)
    except (SafetensorError, OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise Damaged(f"{path} cannot be read: {(str(error).splitlines() or [repr(error)])[0]}.") from None
    if "digest" in texts and digest(contents) != texts["digest"]:  # snapshots of earlier versions have this one
        raise Damaged(f"{path} is damaged: its checksum is another.")
    return texts, contents


def _contents(
    path: Path, opened: BinaryIO, metadata: Collection[str], tensors: bool, needed: Collection[str]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    texts = _check_checksum(path, opened)
    if texts.keys() - {"checksum", "digest"} != {*metadata}:
        raise Damaged(f"{path} is damaged: it has other parts than were written.")
    # The open file by the name the system gives it: another file may have the path by now.
    with safe_open(f"/dev/fd/{opened.fileno()}", framework="pt", device="cpu") as file:
        names = file.keys()
        if missing := [name for name in needed if name not in {*names}]:
            raise Damaged(f"{path} is damaged: {missing[0]} is missing.")
        names = names if tensors or "digest" in texts else []
        return texts, {name: file.get_tensor(name) for name in names}


def _check_checksum(path: Path, opened: BinaryIO) -> dict[str, str]:
    """Return the metadata of a file, if its checksum is right; files of earlier versions have none."""
    with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        length = int.from_bytes(mapped[:8], "little")
        if length > len(mapped) - 8:
            raise Damaged(f"{path} is damaged: it is cut off.")
        header = mapped[: 8 + length]
        texts = _parse_metadata(header[8:], path)
        if "checksum" in texts:
            checksum = hashlib.sha256(header.replace(texts["checksum"].encode(), _NO_CHECKSUM.encode(), 1))
            for begin in range(8 + length, len(mapped), _BLOCK):
                checksum.update(mapped[begin : begin + _BLOCK])
            if checksum.hexdigest() != texts["checksum"]:
                raise Damaged(f"{path} is damaged: its checksum is another.")
        return texts


def _parse_metadata(header: bytes, path: Path) -> dict[str, str]:
    try:
        texts: dict[str, str] = parse_json(header, "its header")["__metadata__"]
    except UserError as error:
        raise Damaged(f"{path} is damaged: {error}") from None
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise Damaged(f"{path} is damaged: its header has no metadata.")
    return texts


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a name for these tensors that is equal for equal bits: the start of a SHA-256 over names and contents."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        hashed.update(_bytes(tensor.cpu()))
    return hashed.hexdigest()[:16]


@contextmanager
def system_errors() -> Iterator[None]:
    """Turn a system's error that safetensors raised in the block (a full disk, say) into an OSError."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def copy_to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies in the CPU's memory, which do not change with the originals; tied weights are untied."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def gather(tensor: Tensor, keep: bool = True) -> Tensor:
    """Return a sharded tensor as one, on the CPU; other tensors as they are.

    Every process must call this; one that does not `keep` the tensor gets an empty one.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    full: Tensor = tensor.full_tensor()
    return full.cpu() if keep else full.new_empty(0)


def shard_like(tensor: Tensor, other: Any) -> Tensor:
    """Return a tensor, which every process has, sharded as `other` is; as it is where `other` is not sharded."""
    if not isinstance(other, DTensor):
        return tensor
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def shard_state(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return a state, which every process has, sharded as the model's own."""
    like = model.state_dict()
    return {name: shard_like(tensor, like.get(name)) for name, tensor in state.items()}
