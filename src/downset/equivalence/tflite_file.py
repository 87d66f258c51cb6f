"""A `.tflite` file as it is stored: its tables as the schema's objects, and the bytes to which they point. A file that
cannot be compared is refused: it has a field or a member of a union that the installed schema does not define, or an
index that counts beyond what it counts.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from downset.equivalence.file_network import ABSENT
from downset.errors import LoadError
from downset.formats.tflite.flatbuffer import stored_flatbuffer

__all__ = ["StoredFile", "fields", "listed", "plain", "subgraph_order", "subgraphs_of", "text"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`model`: the ModelT, in which nothing is resolved. `data`: the bytes of the file. `operators`: the names of the
    builtin operators by number."""

    path: Path
    model: Any
    data: bytes
    operators: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StoredFile:
        """Raises LoadError for a damaged file, and for one of a newer schema."""
        root, data, schema = stored_flatbuffer(path)
        model = schema.ModelT.InitFromObj(root)
        unknown = _unknown(schema, root, model)
        if unknown:
            raise LoadError(
                f"{path} has {unknown}, which the installed schema does not define; is ai-edge-litert older?"
            )
        names = {number: name for name, number in vars(schema.BuiltinOperator).items() if name[0] != "_"}
        stored = cls(Path(path), model, data, names)
        stored._check_buffers()
        return stored

    def at(self, index: Any, count: int, what: str) -> int:
        """An index that is one of `count`. Raises LoadError, which names it, for any other."""
        if not 0 <= index < count:
            raise LoadError(f"{self.path} is damaged: {what} {index} does not exist")
        return int(index)

    def code_of(self, operator: Any) -> Any:
        """The OperatorCode of an operator."""
        codes = listed(self.model.operatorCodes)
        return codes[self.at(operator.opcodeIndex, len(codes), "operator code")]

    def kind_of(self, operator: Any) -> str:
        """The name of a builtin operator."""
        code = self.code_of(operator)
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        return self.operators.get(number, f"operator {number}")

    def tensor_at(self, number: int, index: Any) -> int:
        return self.at(index, len(listed(self.model.subgraphs[number].tensors)), f"in subgraph {number} tensor")

    def tensor_or_none(self, number: int, index: Any) -> int:
        return ABSENT if index == ABSENT else self.tensor_at(number, index)

    def subgraph_at(self, index: Any) -> int:
        return self.at(index, len(listed(self.model.subgraphs)), "subgraph")

    def content(self, index: int) -> bytes | None:
        """The bytes of a buffer, as LiteRT takes them: those in the flatbuffer, else those that lie outside it. None
        where there are none, which differs from no bytes."""
        buffer = listed(self.model.buffers)[self.at(index, len(listed(self.model.buffers)), "buffer")]
        if buffer.data is not None:
            return np.asarray(buffer.data, np.uint8).tobytes()
        return self.outside(buffer.offset, buffer.size, f"buffer {index}")

    def outside(self, offset: int, size: int, what: str) -> bytes | None:
        """Bytes outside the flatbuffer; offsets 0 and 1 mean none."""
        if offset <= 1:
            return None
        if offset + size > len(self.data):
            raise LoadError(f"{self.path} is cut short: {what} ends outside the file")
        return self.data[offset : offset + size]

    def metadata(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """(name, bytes) of each entry, in the order of the file."""
        for entry in listed(self.model.metadata):
            yield plain(entry.name), self.content(entry.buffer)

    def _check_buffers(self) -> None:
        for index, buffer in enumerate(listed(self.model.buffers)):
            if buffer.data is None:
                self.content(index)


def listed(values: Any) -> Any:
    return () if values is None else values


def text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else (value or "")


def plain(value: Any) -> Any:
    """A field of the schema as a hashable value: two are equal only for equal contents, floats by their bits."""
    if value is None or isinstance(value, (bool, int, bytes)):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes()) if value.size else ()
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    return (type(value).__name__, *fields(value).items())


def fields(table: Any, *without: str) -> dict[str, Hashable]:
    """The fields of a table by name, but for some."""
    return {key: plain(value) for key, value in vars(table).items() if key not in without}


def subgraphs_of(options: Any) -> dict[str, Any]:
    """The fields of a table of options that state subgraphs, by name: a number, or several."""
    members = vars(options).items() if options is not None else ()
    return {key: value for key, value in members if "subgraph" in key.lower() or key == "calledComputations"}


def _unknown(schema: Any, root: Any, model: Any) -> str:
    """The first field of a table, or member of a union, that the file has and the schema does not; "" without one."""
    counts: dict[str, int] = {}
    stack = [(root, model)]
    while stack:
        table, entry = stack.pop()
        name = type(entry).__name__[:-1]
        if name not in counts:
            counts[name] = _field_count(schema, name)
        if any(table._tab.Offset(4 + 2 * place) for place in range(counts[name], _stored_count(table))):
            return f"a field of {name}"
        for key, value in vars(entry).items():
            read = getattr(table, key[0].upper() + key[1:])
            if f"{key}Type" in vars(entry):
                stored = read()
                if stored is not None and value is None:
                    return f"the {key} {getattr(entry, f'{key}Type')} of {name}"
                if stored is not None:
                    member = getattr(schema, type(value).__name__[:-1])()
                    member.Init(stored.Bytes, stored.Pos)
                    stack.append((member, value))
            elif isinstance(value, list):
                stack += [(read(place), item) for place, item in enumerate(value) if hasattr(item, "__dict__")]
            elif hasattr(value, "__dict__"):
                stack.append((read(), value))
    return ""


def _field_count(schema: Any, name: str) -> int:
    """The number of fields that the schema gives a table: what its generated function for writing asks for."""
    counts: list[int] = []
    getattr(schema, f"{name}Start")(SimpleNamespace(StartObject=counts.append))
    return counts[0]


def _stored_count(table: Any) -> int:
    """The number of fields for which the file's own table has room."""
    stored = table._tab
    start = stored.Pos - struct.unpack_from("<i", stored.Bytes, stored.Pos)[0]
    return int((struct.unpack_from("<H", stored.Bytes, start)[0] - 4) // 2)


def subgraph_order(stored: StoredFile) -> tuple[int, ...]:
    """The sequence in which subgraphs are compared: the main one, those that it calls and so on, those of signatures,
    and the others. It follows from what they call, so that files that number the same subgraphs differently correspond.
    No proof relies on it: numbers of subgraphs are translated by it."""
    order: dict[int, None] = {}
    roots = [0, *(stored.subgraph_at(one.subgraphIndex) for one in listed(stored.model.signatureDefs))]
    for root in (*roots, *range(len(stored.model.subgraphs))):
        waiting = [root]
        while waiting:
            number = waiting.pop()
            if number not in order:
                order[number] = None
                waiting += reversed(list(_called(stored, stored.model.subgraphs[number])))
    return tuple(order)


def _called(stored: StoredFile, subgraph: Any) -> Iterator[int]:
    for operator in _operators(subgraph):
        for options in (operator.builtinOptions, operator.builtinOptions2):
            for value in subgraphs_of(options).values():
                yield from (stored.subgraph_at(index) for index in (np.ravel(value) if value is not None else ()))


def _operators(subgraph: Any) -> Iterator[Any]:
    """First the operators that the outputs need, from there backwards; then the others, as they stand in the file."""
    operators = listed(subgraph.operators)
    made_by = {int(tensor): place for place, one in enumerate(operators) for tensor in listed(one.outputs)}
    left = dict(enumerate(operators))
    waiting = [int(tensor) for tensor in listed(subgraph.outputs)][::-1]
    while waiting:
        operator = left.pop(made_by.get(waiting.pop(), -1), None)
        if operator is not None:
            yield operator
            waiting += [int(tensor) for tensor in listed(operator.inputs)][::-1]
    yield from left.values()
