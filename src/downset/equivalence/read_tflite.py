"""`.tflite` -> FileNetwork: every field of the file that affects what is computed.

Tables are read field by field from the objects of the schema, so that fields that a later version of the format adds
are compared too. Left out are names of tensors and graphs, the description, debugging records, the range that training
saw, and metadata that no runtime reads.

Settings of an operator are named by the schema: its first table of options by the fields alone, as proofs about parts
read them, and all else by table and field. No key holds text of the file.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from downset.equivalence.file_network import ABSENT, Body, FileNetwork, FileNode, FileValue
from downset.equivalence.offline import OFFLINE_KEY, Offline, read_offline
from downset.equivalence.tflite_effects import Effects, variable_name, visible_numbers
from downset.equivalence.tflite_file import StoredFile, fields, listed, plain, subgraph_order, subgraphs_of, text
from downset.errors import LoadError
from downset.formats.certificates import KERNELS_KEY, METADATA_KEY
from downset.results.streams import STREAM_KEY

__all__ = ["WITHOUT_MEANING", "Offline", "read_tflite"]

WITHOUT_MEANING = frozenset(
    {
        OFFLINE_KEY,
        METADATA_KEY,
        KERNELS_KEY,
        STREAM_KEY,
        "min_runtime_version",
        "CONVERSION_METADATA",
    },
)
"""Metadata that states nothing about the network: offsets and certificates, which are proven by themselves, and what
the converter notes about itself."""
_CONTROL_KEY = b"model_control_dependencies"
"""Metadata that names operators by their places, so that these have a meaning."""
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


def read_tflite(path: str | os.PathLike[str]) -> tuple[FileNetwork, Offline | None, bytes | None]:
    """(the network of the file, the offsets in it or None, the certificate in it or None). Raises LoadError for a
    damaged file, UnsupportedError without the extra `tflite`."""
    try:
        stored = StoredFile.read(path)
        certificates = [content for name, content in stored.metadata() if name == METADATA_KEY.encode()]
        return _Reader(stored).network(), read_offline(stored), certificates[0] if certificates else None
    except (IndexError, TypeError, AttributeError, ValueError, KeyError, OverflowError) as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} while reading it ({error})") from None


@dataclass(slots=True)
class _Reader:
    stored: StoredFile
    values: list[FileValue] = field(default_factory=list)
    nodes: list[FileNode] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    order: tuple[int, ...] = ()
    """The subgraphs in the sequence in which they are compared."""
    effects: Effects = field(default_factory=Effects)
    numbers: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    """The numbers of variables, where something depends on them."""
    placed: bool = False
    """Whether the places of operators have a meaning."""

    def network(self) -> FileNetwork:
        model = self.stored.model
        if not listed(model.subgraphs):
            raise LoadError(f"{self.stored.path} has no subgraph: nothing to compare")
        self.order, self.numbers = subgraph_order(self.stored), visible_numbers(self.stored)
        metadata = [entry for entry in self.stored.metadata() if text(entry[0]) not in WITHOUT_MEANING]
        self.placed = any(name == _CONTROL_KEY for name, _ in metadata)
        for number, subgraph in enumerate(model.subgraphs):
            self.starts.append(len(self.values))
            self._tensors(number, subgraph)
        bodies = {number: self._body(number, subgraph) for number, subgraph in enumerate(model.subgraphs)}
        named, signatures = self._signatures()
        compared = ("operatorCodes", "subgraphs", "buffers", "metadata", "signatureDefs")
        settings: dict[str, Hashable] = {
            f"Model.{key}": value for key, value in fields(model, *compared, "description", "metadataBuffer").items()
        }
        interface = ("tensors", "inputs", "outputs", "operators", "name", "debugMetadataIndex")
        settings["subgraphs"] = tuple(tuple(fields(model.subgraphs[n], *interface).items()) for n in self.order)
        settings |= {"signatures": signatures, "metadata": tuple(metadata)}
        if listed(model.externalBuffers):  # their files are found from the folder of the model
            settings["folder of external buffers"] = str(self.stored.path.resolve().parent)
        ordered = tuple(bodies[number] for number in self.order)
        return FileNetwork(str(self.stored.path), tuple(self.values), tuple(self.nodes), ordered, settings, named)

    def _signatures(self) -> tuple[dict[str, int], Hashable]:
        """(the tensors that callers know by name, the names with the subgraph of each signature)."""
        named: dict[str, int] = {}
        stated = []
        for signature in listed(self.stored.model.signatureDefs):
            number = self.stored.subgraph_at(signature.subgraphIndex)
            names = []
            for what, entries in (("input", signature.inputs), ("output", signature.outputs)):
                for entry in listed(entries):
                    key = f"signature {_quoted(signature.signatureKey)}, {what} {_quoted(entry.name)}"
                    if key in named:
                        raise LoadError(f"{self.stored.path} states the {key} twice")
                    named[key] = self._at(number, entry.tensorIndex)
                names.append(tuple(plain(entry.name) for entry in listed(entries)))
            stated.append((plain(signature.signatureKey), self.order.index(number), *names))
        return named, tuple(stated)

    def _tensors(self, number: int, subgraph: Any) -> None:
        fed = [self.stored.tensor_at(number, tensor) for tensor in listed(subgraph.inputs)]
        for tensor in listed(subgraph.outputs):
            self.stored.tensor_at(number, tensor)
        results: set[int] = set()
        for operator in listed(subgraph.operators):
            for tensor in listed(operator.outputs):
                if tensor in results or tensor in fed:
                    name = text(subgraph.tensors[tensor].name)
                    raise LoadError(f"{self.stored.path}: tensor {name!r} is made twice, or made and fed")
                if self.stored.tensor_or_none(number, tensor) != ABSENT:
                    results.add(int(tensor))
        for index in results:
            buffer = subgraph.tensors[index].buffer
            if buffer and self.stored.content(buffer):
                raise LoadError(f"{self.stored.path}: an operator makes tensor {index}, which has bytes in the file")
        labels = _labels(subgraph.tensors)
        for index, tensor in enumerate(listed(subgraph.tensors)):
            self.values.append(self._value(number, tensor, labels[index], index in results or index in fed))

    def _value(self, number: int, tensor: Any, label: str, varies: bool) -> FileValue:
        """`varies`: whether the subgraph's caller or an operator sets it. Its bytes in the file then only belong to its
        form."""
        content = self.stored.content(tensor.buffer)
        keeps = bool(tensor.isVariable)
        constant = None if varies or keeps else content
        form = fields(tensor, "name", "buffer", "shape", "shapeSignature", "quantization")
        form["shape"], form["signature"] = (plain(listed(one)) or () for one in (tensor.shape, tensor.shapeSignature))
        form["quantization"] = self._quantization(number, tensor.quantization)
        form["start"] = content if constant is None else None
        # LiteRT takes the first buffer to be empty; TFLite Micro reads it.
        form["in the first buffer"] = first = tensor.buffer == 0 and content is not None
        return FileValue(
            label,
            tuple(sorted(form.items())),
            None if constant is None else (lambda: constant),
            keeps,
            tuple(int(extent) for extent in listed(tensor.shape)),
            _dtype(tensor, first),
            _scales(tensor.quantization),
        )

    def _quantization(self, number: int, entry: Any) -> Hashable:
        """The parameters without the range that training saw; None where there are none. Details name tensors by their
        number; in place of it stands what the tensor holds."""
        if entry is None or (entry.details is None and not len(listed(entry.scale))):
            return None
        form = fields(entry, "min", "max", "details")
        form["details"] = plain(entry.details)
        if entry.details is not None and hasattr(entry.details, "scales"):
            details = fields(entry.details)
            for key in ("scales", "zeroPoints"):
                details[key] = self._parameter(number, getattr(entry.details, key))
            form["details"] = (type(entry.details).__name__, *details.items())
        return tuple(form.items())

    def _parameter(self, number: int, index: int) -> Hashable:
        if index == ABSENT:
            return None
        subgraph = self.stored.model.subgraphs[number]
        tensor = subgraph.tensors[self.stored.tensor_at(number, index)]
        if index in listed(subgraph.inputs):
            return "input", [int(one) for one in subgraph.inputs].index(index)
        content = self.stored.content(tensor.buffer)
        nested = tensor.quantization is not None and tensor.quantization.details is not None
        if content is None or tensor.isVariable or nested:
            raise LoadError(f"{self.stored.path}: the quantization parameters in tensor {index} are not constant")
        form = fields(tensor, "name", "buffer", "quantization")
        return tuple(form.items()), self._quantization(number, tensor.quantization), content

    def _body(self, number: int, subgraph: Any) -> Body:
        first = len(self.nodes)
        for operator in listed(subgraph.operators):
            self.nodes.append(self._node(number, operator, len(self.nodes) - first))
        inputs, outputs = (tuple(self._at(number, t) for t in listed(s)) for s in (subgraph.inputs, subgraph.outputs))
        return Body(text(subgraph.name) or f"subgraph {number}", inputs, outputs, tuple(range(first, len(self.nodes))))

    def _node(self, number: int, operator: Any, place: int) -> FileNode:
        code, kind = self.stored.code_of(operator), self.stored.kind_of(operator)
        builtin = max(code.builtinCode, code.deprecatedBuiltinCode)
        name = text(code.customCode) if kind == "CUSTOM" else kind
        intermediates = [self._operand(number, tensor) for tensor in listed(operator.intermediates)]
        settings = self._settings(operator, len(intermediates))
        settings |= {f"OperatorCode.{k}": v for k, v in fields(code, "builtinCode", "deprecatedBuiltinCode").items()}
        if self.placed:
            settings["place in the file"] = place
        inputs, outputs = ([self._operand(number, t) for t in listed(s)] for s in (operator.inputs, operator.outputs))
        label = self.values[outputs[0]].label if outputs and outputs[0] != ABSENT else f"operator {len(self.nodes)}"
        kept = [value for value in (*inputs, *intermediates) if value != ABSENT and self.values[value].keeps]
        effects = self.effects.of(builtin, name, operator, inputs, outputs)
        effects += tuple((value, True) for value in kept)
        if kind == "VAR_HANDLE" and self.numbers:
            settings["number of the variable"] = self.numbers[variable_name(operator)]
        kind = f"custom {name}" if kind == "CUSTOM" else kind
        return FileNode(label, kind, settings, (*inputs, *intermediates), tuple(outputs), effects=effects)

    def _settings(self, operator: Any, intermediates: int) -> dict[str, Hashable]:
        settings: dict[str, Hashable] = self._options(operator.builtinOptions)
        settings |= {f"BuiltinOptions2.{k}": v for k, v in self._options(operator.builtinOptions2).items()}
        for key, options in (
            ("BuiltinOptions", operator.builtinOptions),
            ("BuiltinOptions2", operator.builtinOptions2),
        ):
            settings[key] = None if options is None else type(options).__name__
        large = ("largeCustomOptionsOffset", "largeCustomOptionsSize")
        elsewhere = ("opcodeIndex", "inputs", "outputs", "builtinOptions", "builtinOptions2", "debugMetadataIndex")
        settings |= {f"Operator.{k}": v for k, v in fields(operator, *elsewhere, "customOptions", *large).items()}
        settings["Operator.intermediates"] = None if operator.intermediates is None else intermediates
        inline = None if operator.customOptions is None else np.asarray(operator.customOptions, np.uint8).tobytes()
        outside = self.stored.outside(
            operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize, "options of an operator"
        )
        settings["Operator.customOptions"] = outside if inline is None else inline
        settings["options behind the file besides those in it"] = None if inline is None else outside
        return settings

    def _options(self, options: Any) -> dict[str, Hashable]:
        """The fields of a table of options. Subgraphs stand in it by their place among those that are compared."""
        if options is None:
            return {}
        called = {
            key: tuple(map(self._compared, value)) if np.ndim(value) else self._compared(value)
            for key, value in subgraphs_of(options).items()
            if value is not None
        }
        return fields(options) | called

    def _compared(self, index: Any) -> int:
        return self.order.index(self.stored.subgraph_at(index))

    def _at(self, number: int, tensor: int) -> int:
        return self.starts[number] + self.stored.tensor_at(number, tensor)

    def _operand(self, number: int, tensor: int) -> int:
        return ABSENT if self.stored.tensor_or_none(number, tensor) == ABSENT else self._at(number, tensor)


def _dtype(tensor: Any, first: bool) -> str:
    """numpy's name of the type, or a name that no array has: where elements are of another type, packed, or not those
    of the tensor's buffer. `first`: whether they are in the first buffer."""
    stated = tensor.quantization
    packed = (tensor.sparsity, tensor.variantTensors, stated and (stated.details or stated.detailsType or None))
    name = _TYPES.get(tensor.type, f"type {tensor.type}")
    if first or tensor.externalBuffer or any(part is not None for part in packed):
        return f"{name} in the form {(plain(packed), tensor.externalBuffer, first)!r}"
    return name


def _scales(entry: Any) -> tuple[tuple[bytes, ...], tuple[int, ...], int] | None:
    """Scales one by one, so that a part of them can be taken."""
    if entry is None or not len(listed(entry.scale)):
        return None
    scales = tuple(np.float32(scale).tobytes() for scale in entry.scale)
    return scales, tuple(int(zero) for zero in listed(entry.zeroPoint)), int(entry.quantizedDimension)


def _quoted(name: Any) -> str:
    return repr(name.decode(errors="surrogateescape")) if isinstance(name, bytes) else repr(name)


def _labels(tensors: Any) -> list[str]:
    """The names of the tensors; a tensor whose name an earlier one has gets its number as a suffix."""
    seen: set[str] = set()
    labels = []
    for index, tensor in enumerate(listed(tensors)):
        name = text(tensor.name) or f"tensor_{index}"
        labels.append(f"{name}#{index}" if name in seen else name)
        seen.add(name)
    return labels
