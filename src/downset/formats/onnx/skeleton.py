"""The skeleton of an `.onnx` file: its message without the data of large tensors, which stay in the file.

`skeleton` leaves out every run of raw bytes, floats or doubles above `LEAST_BYTES`, in any tensor of the file
(initializers, attributes, sparse tensors, functions, bodies). In its place the tensor's `raw_data` names the range of
the file that holds it: `left_out` reads the name. So a skeleton is an ordinary ModelProto of kilobytes, which can be
parsed, copied and changed. `streamed` undoes `skeleton` while a message is written: the data are streamed from file to
file, in the field in which they were.

A name starts with random bytes of this process: no file can state one. No library reads an ONNX message without its
data, so the few rules of protobuf's encoding that this takes are here.
"""

from __future__ import annotations

import os
import secrets
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeAlias

from downset.errors import UnsupportedError
from downset.formats.onnx import LARGEST_FILE
from downset.process.file_ranges import FileRange, file_state, sha256
from downset.text import format_size

__all__ = ["LEAST_BYTES", "TOKEN", "digest", "left_out", "save", "skeleton", "streamed"]

LEAST_BYTES = 1 << 14
"""Data of no more bytes stay in the skeleton. So values that are evaluated while shapes are inferred do, which have at
most `values.LARGEST_ELEMENTS` elements."""
TOKEN = secrets.token_bytes(16)
_NAME = struct.Struct("<B5Q")
"""Number of the field with the data; start and bytes of the range; inode, size and time of the file. Then its path."""

_TYPE, _RAW, _DATA = 2, 9, (4, 5, 6, 7, 9, 10, 11)
"""Numbers of fields of TensorProto: of its element type, of raw data, and of all fields with data."""
_AS_RAW: Mapping[tuple[int, int], int] = {(4, 1): 4, (4, 14): 8, (10, 11): 8, (10, 15): 16}
"""Bytes of an element, by number of the field and element type, where packed floats or doubles are encoded as raw data
are."""

Piece = bytes | FileRange
Buffer: TypeAlias = "bytes | _FileBytes"
Naming = Callable[[int, int, int], bytes]
Field = tuple[int, int, int, int]
"""Number; the byte at which the field starts; those at which its value, without tag and length, starts and ends."""


def skeleton(path: str, token: bytes = TOKEN) -> bytes:
    """The serialised skeleton of the file. A message that is not encoded as ONNX's are (damaged, too deep, or with
    groups) is returned whole, and protobuf decides what it is."""
    with open(path, "rb") as file:  # noqa: PTH123  the path is a string
        state = file_state(os.fstat(file.fileno()))

        def name(field: int, start: int, end: int) -> bytes:
            return token + _NAME.pack(field, start, end - start, *state) + os.fsencode(path)

        try:
            return b"".join(_without_data(_FileBytes(file), 0, state[1], "ModelProto", name))
        except (ValueError, RecursionError):
            file.seek(0)
            return file.read()


class _FileBytes:
    """The bytes of a file, of which only those around the last slice are held."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._start, self._held = file, 0, b""

    def __getitem__(self, part: slice) -> bytes:
        place = part.start - self._start
        if not 0 <= place <= part.stop - self._start <= len(self._held):
            self._file.seek(part.start)
            self._start, self._held, place = part.start, self._file.read(max(part.stop - part.start, _HELD)), 0
        return self._held[place : place + part.stop - part.start]


def left_out(tensor: Any) -> FileRange | None:
    """The range of a file that holds the data of a tensor of a skeleton; None where they are in the tensor, or in a
    file beside the model."""
    named = _named(tensor.raw_data) if len(tensor.raw_data) > len(TOKEN) else None
    return None if named is None else named[1]


def _named(data: bytes) -> tuple[int, FileRange] | None:
    """(number of the field, range) that a name states; None for data."""
    if not data.startswith(TOKEN):
        return None
    field, start, nbytes, *state = _NAME.unpack_from(data, len(TOKEN))
    inode, size, changed = state
    path = os.fsdecode(data[len(TOKEN) + _NAME.size :])
    return field, FileRange(path, start, nbytes, (inode, size, changed))


def _without_data(data: Buffer, start: int, end: int, kind: str, name: Naming) -> list[bytes]:
    """The pieces of the skeleton of a message that lies at data[start:end]."""
    if kind == "TensorProto":
        return _without_large(data, start, end, name)
    held, kept, once = _tensor_holders()[kind], start, set[int]()
    written: list[bytes] = []
    for number, place, value, stop in _fields(data, start, end):
        if number in once:
            raise ValueError("parts of one message")  # which protobuf merges
        if number in held and not held[number].repeated:
            once.add(number)
        if number in held and stop - value > LEAST_BYTES:
            inner = _without_data(data, value, stop, held[number].kind, name)
            written += [data[kept:place], *_lengthened(number, inner)]
            kept = stop
    return [*written, data[kept:end]]


def _without_large(data: Buffer, start: int, end: int, name: Naming) -> list[bytes]:
    """The pieces of a tensor. Data stay where they are in several parts, or in a field that other types have."""
    fields = [*_fields(data, start, end)]
    filled = [field for field in fields if field[0] in _DATA]
    if len(filled) != 1 or filled[0][3] - filled[0][2] <= LEAST_BYTES:
        return [data[start:end]]
    ((number, place, value, stop),) = filled
    types = [_varint(data[first:last], 0)[0] for field, _, first, last in fields if field == _TYPE]
    element_bytes = 1 if number == _RAW else _AS_RAW.get((number, types[-1] if types else 0), 0)
    if data[place : place + 1][0] & 7 != _LENGTH or not element_bytes or (stop - value) % element_bytes:
        return [data[start:end]]
    return [data[start:place], *_lengthened(_RAW, [name(number, value, stop)]), data[stop:end]]


def _pieces(message: Any) -> list[Piece]:
    """The serialised message, with the data of its tensors: bytes, and ranges of files."""
    data = message.SerializeToString()
    names, place = [], data.find(TOKEN)
    while place >= 0:
        names.append(place)
        place = data.find(TOKEN, place + 1)
    return _with_data(data, 0, len(data), message.DESCRIPTOR.name, names) if names else [data]


def _with_data(data: bytes, start: int, end: int, kind: str, names: Sequence[int]) -> list[Piece]:
    """The pieces of the message at data[start:end]. `names`: where those of ranges start."""
    if kind == "TensorProto":
        return _with_large(data, start, end)
    held, kept = _tensor_holders()[kind], start
    written: list[Piece] = []
    for number, place, value, stop in _fields(data, start, end):
        if number in held and bisect_left(names, value) < bisect_left(names, stop):
            inner = _with_data(data, value, stop, held[number].kind, names)
            written += [data[kept:place], *_lengthened(number, inner)]
            kept = stop
    return [*written, data[kept:end]]


def _with_large(data: bytes, start: int, end: int) -> list[Piece]:
    """The pieces of a tensor, with its data among the other fields, which protobuf writes in ascending order."""
    written: list[Piece] = []
    fields = [(number, data[place:stop], data[value:stop]) for number, place, value, stop in _fields(data, start, end)]
    named = next((name for number, _, value in fields if number == _RAW and (name := _named(value))), None)
    for number, field, value in fields:
        if named is not None and number > named[0]:
            written += _lengthened(named[0], [named[1]])
            named = None
        written += [] if number == _RAW and _named(value) else [field]
    return written if named is None else [*written, *_lengthened(named[0], [named[1]])]


def _nbytes(written: Sequence[Piece]) -> int:
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in written)


def streamed(message: Any) -> Iterator[bytes]:
    """The serialised message with the data of its tensors, piece by piece. Raises UnsupportedError
    where it would be larger than protobuf reads, and LoadError where a file with data has changed."""
    try:
        written = _pieces(message)
    except Exception as error:  # protobuf's error, whose class differs by version
        raise UnsupportedError(f"it cannot be serialised: {str(error)[:100]}") from None
    if _nbytes(written) >= LARGEST_FILE:
        raise UnsupportedError(f"it would have {format_size(_nbytes(written))}, and an .onnx file ends below 2 GB")
    for piece in written:
        yield from [piece] if isinstance(piece, bytes) else piece.pieces()


def save(message: Any, path: Path) -> None:
    """Write a message with the data of its tensors, which may lie in the very file that is replaced. Raises the errors
    of `streamed`, and OSError."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.writelines(streamed(message))
    part.replace(path)


def digest(message: Any) -> bytes:
    """The SHA-256 of a serialised message with the data of its tensors."""
    return sha256(streamed(message))


_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Numbers of the encodings of fields."""
_HEAD, _HELD = 20, 1 << 16
"""The most bytes of a tag and a length, and those of a file that are held."""


def _fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """The fields of the message at data[start:end]. Raises ValueError where it is not encoded as ONNX's are."""
    place = start
    while place < end:
        head = data[place : min(place + _HEAD, end)]
        tag, after = _varint(head, 0)
        encoding, value = tag & 7, place + after
        if encoding == _LENGTH:
            nbytes, after = _varint(head, after)
            value, stop = place + after, place + after + nbytes
        elif encoding == _VARINT:
            stop = place + _varint(head, after)[1]
        elif encoding in (_FIXED32, _FIXED64):
            stop = value + (4 if encoding == _FIXED32 else 8)
        else:
            raise ValueError("a group")
        if stop > end:
            raise ValueError("a field ends outside its message")
        yield tag >> 3, place, value, stop
        place = stop


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """(the number at data[place], the byte after it)."""
    number = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
    raise ValueError("a number without an end")


def _lengthened(number: int, inner: Sequence[Any]) -> list[Any]:
    """The pieces of a field with this value: tag, length, value."""
    return [_encoded(number << 3 | _LENGTH) + _encoded(_nbytes(inner)), *inner]


def _encoded(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


@dataclass(frozen=True, slots=True)
class _Held:
    """The messages that a field holds: their name, and whether it holds several."""

    kind: str
    repeated: bool


@cache
def _tensor_holders() -> Mapping[str, Mapping[int, _Held]]:
    """By message: the fields, by number, whose messages hold tensors or are tensors."""
    import onnx

    inside: dict[str, dict[int, _Held]] = {"TensorProto": {}}
    left = [onnx.ModelProto.DESCRIPTOR]
    while left:
        message = left.pop()
        if message.name not in inside:
            inner = [field for field in message.fields if field.message_type is not None]
            inside[message.name] = {field.number: _Held(field.message_type.name, field.is_repeated) for field in inner}
            left += [field.message_type for field in inner]
    holding, count = {"TensorProto"}, 0
    while len(holding) > count:
        count = len(holding)
        holding |= {name for name, inner in inside.items() if any(each.kind in holding for each in inner.values())}
    return {
        name: {number: each for number, each in inner.items() if each.kind in holding} for name, inner in inside.items()
    }
