"""`.tflite` -> FileNetwork: every field of the file that affects what is computed.

Options, quantization and sparsity are read field by field from the objects of the schema, so that fields that a later
version of the format adds are compared too. Left out are names, descriptions, debugging records and metadata.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from downset.equivalence.effects import EVERYTHING
from downset.equivalence.file_network import ABSENT, Body, Effect, FileNetwork, FileNode, FileValue
from downset.errors import LoadError
from downset.formats.certificates import KERNELS_KEY, METADATA_KEY
from downset.formats.tflite.flatbuffer import read_flatbuffer

__all__ = ["Offline", "read_tflite"]

_OFFLINE = "OfflineMemoryAllocation"
_CALLS = frozenset({"CALL_ONCE", "IF", "WHILE", "CALL"})
_DRAWS = frozenset({"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"})
_TYPES = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    9: "int8",
    10: "float64",
}
_BITS = {
    2: 32,
    0: 32,
    1: 16,
    3: 8,
    4: 64,
    6: 8,
    7: 16,
    8: 64,
    9: 8,
    10: 64,
    11: 128,
    12: 64,
    15: 32,
    16: 16,
    17: 4,
    18: 16,
}
"""Bits of an element by the number of its type; those of other types are not known."""


@dataclass(frozen=True, slots=True)
class Offline:
    """The offsets in a file for TFLite Micro. By tensor of the main graph: its offset (-1: none) and its bytes (-1: not
    known). `tensors`: the number of tensors for which offsets were written. `expected`: the number in the file."""

    offsets: tuple[int, ...]
    nbytes: tuple[int, ...]
    tensors: int
    expected: int
    kernels: str = ""
    """The library whose kernels the offsets assume, where results overlap inputs; else ""."""


def read_tflite(path: str | os.PathLike[str]) -> tuple[FileNetwork, Offline | None, bytes | None]:
    """(the network of the file, the offsets in it or None, the certificate in it or None). Raises LoadError for a
    damaged file, UnsupportedError without the extra `tflite`."""
    model, _, schema = read_flatbuffer(path)
    try:
        reader = _TfliteNetworkReader(Path(path), model, schema)
        return reader.network(), reader.offline(), reader.metadata(METADATA_KEY)
    except (IndexError, TypeError, AttributeError, ValueError, KeyError) as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} while reading it ({error})") from None


class _TfliteNetworkReader:
    def __init__(self, path: Path, model: Any, schema: Any) -> None:
        self._path, self._model = path, model
        self._operators = {number: name for name, number in vars(schema.BuiltinOperator).items() if name[0] != "_"}
        self._values: list[FileValue] = []
        self._nodes: list[FileNode] = []
        self._starts: list[int] = []
        self._resource: dict[int, str] = {}

    def network(self) -> FileNetwork:
        model = self._model
        for subgraph in model.subgraphs:
            self._starts.append(len(self._values))
            fed = {int(tensor) for tensor in _listed(subgraph.inputs)}
            labels = _labels(subgraph.tensors)
            for index, tensor in enumerate(_listed(subgraph.tensors)):
                self._values.append(self._value(tensor, labels[index], index in fed))
        bodies = tuple(self._body(number, subgraph) for number, subgraph in enumerate(model.subgraphs))
        named = {
            f"signature {_text(signature.signatureKey)}, {what} {_text(entry.name)}": self._starts[
                signature.subgraphIndex
            ]
            + int(entry.tensorIndex)
            for signature in _listed(model.signatureDefs)
            for what, entries in (("input", signature.inputs), ("output", signature.outputs))
            for entry in _listed(entries)
        }
        external = plain([_listed(model.externalBufferGroups), _listed(model.externalBuffers)])
        settings = {"version": model.version, "external buffers": external}
        return FileNetwork(str(self._path), tuple(self._values), tuple(self._nodes), bodies, settings, named)

    def _value(self, tensor: Any, label: str, fed: bool) -> FileValue:
        content = self._content(tensor.buffer)
        keeps = bool(tensor.isVariable)
        form = (
            ("type", tensor.type),
            ("shape", plain(_listed(tensor.shape))),
            ("signature", plain(_listed(tensor.shapeSignature))),
            ("quantization", _quantization(tensor.quantization)),
            ("sparsity", plain(tensor.sparsity)),
            ("variants", plain(tensor.variantTensors)),
            ("external", tensor.externalBuffer),
            ("start", content if keeps else b""),
        )
        constant = bool(content) and not fed and not keeps
        return FileValue(
            label, form, (lambda: content) if constant else None, keeps,
            tuple(int(extent) for extent in _listed(tensor.shape)), _TYPES.get(tensor.type, ""),
            _scales(tensor.quantization),
        )  # fmt: skip

    def _content(self, index: int) -> bytes:
        buffer = self._model.buffers[index]
        if buffer.data is not None and len(buffer.data):
            return np.ascontiguousarray(buffer.data, np.uint8).tobytes()
        if buffer.size > 1 and buffer.offset > 1:
            with self._path.open("rb") as file:
                file.seek(buffer.offset)
                return file.read(buffer.size)
        return b""

    def _body(self, number: int, subgraph: Any) -> Body:
        start = self._starts[number]
        first = len(self._nodes)
        for operator in _listed(subgraph.operators):
            self._nodes.append(self._node(operator, start))
        inputs, outputs = (tuple(start + int(t) for t in _listed(some)) for some in (subgraph.inputs, subgraph.outputs))
        return Body(
            _text(subgraph.name) or f"subgraph {number}", inputs, outputs, tuple(range(first, len(self._nodes)))
        )

    def _node(self, operator: Any, start: int) -> FileNode:
        code = self._model.operatorCodes[operator.opcodeIndex]
        name = self._operators.get(max(code.builtinCode, code.deprecatedBuiltinCode), "?")
        if name == "CUSTOM":
            name = f"custom {_text(code.customCode)}"
        fields = {
            key: value
            for key, value in vars(operator).items()
            if key
            not in ("opcodeIndex", "inputs", "outputs", "builtinOptions", "builtinOptions2", "debugMetadataIndex")
            and not key.startswith("largeCustomOptions")
        }
        intermediates = tuple(self._at(start, tensor) for tensor in _listed(fields.pop("intermediates")))
        settings = {"version": code.version, **{key: plain(value) for key, value in fields.items()}}
        for options in (operator.builtinOptions, operator.builtinOptions2):
            settings |= {key: plain(value) for key, value in (vars(options) if options is not None else {}).items()}
        settings["options"] = tuple(type(o).__name__ for o in (operator.builtinOptions, operator.builtinOptions2))
        settings["intermediates"] = len(intermediates)
        inputs, outputs = (tuple(self._at(start, t) for t in _listed(s)) for s in (operator.inputs, operator.outputs))
        label = self._values[outputs[0]].label if outputs and outputs[0] != ABSENT else f"operator {len(self._nodes)}"
        effects = self._effects(name, settings, inputs, outputs)
        return FileNode(label, name, settings, inputs + intermediates, outputs, effects=effects)

    def _at(self, start: int, tensor: int) -> int:
        return start + int(tensor) if tensor >= 0 else ABSENT

    def _effects(
        self, name: str, settings: Mapping[str, Hashable], inputs: Sequence[int], outputs: Sequence[int]
    ) -> tuple[Effect, ...]:
        """The effects of an operator. Variables are identified by their shared name; an operator that calls another
        graph may touch any of them."""
        if name == "VAR_HANDLE":
            self._resource[outputs[0]] = f"variable {settings.get('container')!r} {settings.get('sharedName')!r}"
            return ()
        if name in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
            return (
                (
                    self._resource.get(inputs[0], EVERYTHING),
                    name == "ASSIGN_VARIABLE" or inputs[0] not in self._resource,
                ),
            )
        if name in _CALLS or name.startswith("STABLEHLO_WHILE"):
            return ((EVERYTHING, True),)
        if name in _DRAWS:
            return (("random numbers", True),)
        return tuple((value, True) for value in inputs if value != ABSENT and self._values[value].keeps)

    def metadata(self, name: str) -> bytes | None:
        entries = [entry for entry in _listed(self._model.metadata) if _text(entry.name) == name]
        return self._content(entries[0].buffer) if entries else None

    def offline(self) -> Offline | None:
        """The offsets in the file's metadata, or None."""
        data = self.metadata(_OFFLINE)
        if data is None:
            return None
        plan = np.frombuffer(data, np.int32)
        tensors = _listed(self._model.subgraphs[0].tensors)
        nbytes = tuple(_nbytes(tensor) for tensor in tensors)
        offsets = tuple(int(offset) for offset in plan[3 : 3 + len(tensors)])
        expected = sum(len(_listed(subgraph.tensors)) for subgraph in self._model.subgraphs)
        kernels = (self.metadata(KERNELS_KEY) or b"").decode(errors="replace")
        return Offline(offsets, nbytes, len(plan) - 3, expected, kernels)


def plain(value: Any) -> Hashable:
    """A field of the schema as a hashable value that is equal for equal contents."""
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
    return (type(value).__name__, *((key, plain(item)) for key, item in vars(value).items()))


def _quantization(entry: Any) -> Hashable:
    """Scales, zero points and their axis. The range seen in training (min, max) is left out, as it has no effect."""
    scales, zeros = (np.asarray(_listed(v)) for v in ((entry.scale, entry.zeroPoint) if entry else (None, None)))
    if not len(scales) and not (entry and entry.details):
        return None
    numbers = tuple(int(zero) for zero in zeros) or (0,) * len(scales)
    axis = int(entry.quantizedDimension) if len(scales) > 1 else 0
    return scales.astype(np.float32).tobytes(), numbers, axis, plain(entry.details)


def _scales(entry: Any) -> tuple[tuple[bytes, ...], tuple[int, ...], int] | None:
    """Scales one by one, so that a part of them can be taken."""
    if entry is None or not len(_listed(entry.scale)):
        return None
    scales = tuple(np.float32(scale).tobytes() for scale in entry.scale)
    zeros = tuple(int(zero) for zero in _listed(entry.zeroPoint)) or (0,) * len(scales)
    return scales, zeros, int(entry.quantizedDimension) if len(scales) > 1 else 0


def _labels(tensors: Any) -> list[str]:
    """The names of the tensors; a tensor whose name an earlier one has gets its number as a suffix."""
    seen: set[str] = set()
    labels = []
    for index, tensor in enumerate(_listed(tensors)):
        name = _text(tensor.name) or f"tensor_{index}"
        labels.append(f"{name}#{index}" if name in seen else name)
        seen.add(name)
    return labels


def _nbytes(tensor: Any) -> int:
    bits = _BITS.get(tensor.type, -1)
    return -1 if bits < 0 else (math.prod(int(extent) for extent in _listed(tensor.shape)) * bits + 7) // 8


def _listed(values: Any) -> Any:
    return () if values is None else values


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else (value or "")
