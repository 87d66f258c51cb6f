"""Weights of an `.onnx` file in one file beside it, laid out so that ONNX Runtime can map them: it uses the pages of
the file where they are, and reads none before a kernel does.

ONNX Runtime writes such a file without gaps, packed weights included, and then crashes where a kernel reads packed
weights at an address that is not aligned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downset.errors import LoadError
from downset.formats.onnx.bodies import tensors_of
from downset.formats.onnx.data_files import external_path
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.skeleton import streamed
from downset.process.file_ranges import FileRange, file_state
from downset.process.whole_files import write_whole

__all__ = ["data_name", "has_packed", "write_mapped"]

_PACKED = "prepacked_"
"""How the entries begin that name packed weights: `KEY|offset;length;checksum|...`."""
_ALIGNED, _PAGE = 64, 4096
_LARGE = 4 * _PAGE
"""Bytes from which a blob begins a page: smaller ones share pages, since each gap is up to a page."""


@dataclass(frozen=True, slots=True)
class _Blob:
    """Bytes of a file that begin at `start` in the new file."""

    content: FileRange
    start: int


def data_name(output: Path) -> str:
    """The name of the file with the weights of `output`, beside it."""
    return f"{output.name}.data"


def has_packed(path: Path) -> bool:
    """Whether a file names packed weights."""
    return any(entry.key.startswith(_PACKED) for tensor in _external(read_skeleton(path)) for entry in tensor)


def write_mapped(path: Path, model: Any, output: Path) -> None:
    """Write `model`, a changed skeleton of the file at `path`, to `output`, and its weights that lie in other files
    into the file `data_name` next to `output`, aligned. Both are written whole or not at all, the weights first. Raises
    LoadError where the place of weights is not valid, and what `write_whole` raises."""
    blobs: dict[tuple[str, int, int], _Blob] = {}
    tensors = _external(model)
    # Weights whose packed form is used are never read: they lie behind all others.
    for tensor in sorted(tensors, key=lambda tensor: any(entry.key.startswith(_PACKED) for entry in tensor)):
        _place(path, tensor, blobs, packed=True)
    for tensor in tensors:
        _place(path, tensor, blobs, packed=False)
    for tensor in tensors:
        _rename(tensor, blobs, data_name(output))
    if blobs:
        write_whole(output.with_name(data_name(output)), _content(list(blobs.values())), source=path)
    write_whole(output, streamed(model), source=path)


def _external(model: Any) -> list[Any]:
    """The places of all tensors of a model that lie beside it, each as its entries."""
    return [tensor.external_data for tensor in tensors_of(model) if tensor.data_location == tensor.EXTERNAL]


def _entries(tensor: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor}


def _place(path: Path, tensor: Any, blobs: dict[tuple[str, int, int], _Blob], *, packed: bool) -> None:
    """Give the packed weights of a tensor, or those as they are, a place behind the others."""
    entries = _entries(tensor)
    file = external_path(path, entries.get("location", ""))
    size = file.stat().st_size
    plain = (int(entries.get("offset", 0)), int(entries.get("length", size)))
    is_used = not any(key.startswith(_PACKED) for key in entries)
    wanted = [place for key, value in entries.items() if key.startswith(_PACKED) for place in _packed(value)]
    for start, nbytes in [*wanted, *([plain] if is_used else [])] if packed else [plain]:
        key = (entries["location"], start, nbytes)
        if start < 0 or nbytes < 0 or start + nbytes > size:
            raise LoadError(f"{path}: weights end outside {file.name}, which has {size} bytes")
        if key in blobs:
            continue
        last = next(reversed(blobs.values()), None)
        end = 0 if last is None else last.start + last.content.nbytes
        step = _PAGE if nbytes >= _LARGE else _ALIGNED
        blobs[key] = _Blob(FileRange(str(file), start, nbytes, file_state(file.stat())), -(-end // step) * step)


def _packed(value: str) -> list[tuple[int, int]]:
    """(offset, bytes) of each of the buffers that an entry names."""
    return [(int(start), int(nbytes)) for start, nbytes, *_ in (one.split(";") for one in value.split("|")[1:])]


def _rename(tensor: Any, blobs: dict[tuple[str, int, int], _Blob], location: str) -> None:
    """Write the new places into the entries of a tensor."""
    entries = _entries(tensor)
    old = entries["location"]
    size = next(blob.content.state[1] for key, blob in blobs.items() if key[0] == old)
    for entry in tensor:
        if entry.key.startswith(_PACKED):
            key, *buffers = entry.value.split("|")
            moved = []
            for buffer in buffers:
                start, nbytes, *rest = buffer.split(";")
                moved.append(";".join([str(blobs[old, int(start), int(nbytes)].start), nbytes, *rest]))
            entry.value = "|".join([key, *moved])
    place = (old, int(entries.get("offset", 0)), int(entries.get("length", size)))
    plain = {"location": location, "offset": str(blobs[place].start), "length": str(place[2])}
    kept = [(entry.key, entry.value) for entry in tensor if entry.key not in (*plain, "checksum")]
    del tensor[:]
    for key, value in [*plain.items(), *kept]:
        tensor.add(key=key, value=value)


def _content(blobs: Sequence[_Blob]) -> Iterator[bytes]:
    """The new file, with zeros in its gaps."""
    end = 0
    for blob in blobs:
        yield b"\0" * (blob.start - end)
        yield from blob.content.pieces()
        end = blob.start + blob.content.nbytes
