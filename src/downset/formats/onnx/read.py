"""`.onnx` -> Graph. ONNX's inference gives the shapes. Weights are read only when they are needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import DownsetError, LoadError, OpenShapeError
from downset.formats.onnx.bodies import captures, is_fixed, overridable
from downset.formats.onnx.data_files import stored_value
from downset.formats.onnx.model_file import axes_of, infer, input_values, onnx_library, read_model, read_unfixed
from downset.formats.onnx.run_types import complete_types
from downset.formats.onnx.scope import is_open
from downset.graph.core import ABSENT, Graph, Op, Role, Source, Tensor, tensor_bytes
from downset.graph.kinds import kind_of
from downset.messages import Message, Setting
from downset.results.sizes import OpenTensor

__all__ = ["load_onnx", "load_open", "without_defaults"]

ELEMENT_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8e4m3fn",
    18: "float8e4m3fnuz",
    19: "float8e5m2",
    20: "float8e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4e2m1",
    24: "float8e8m0",
    25: "uint2",
    26: "int2",
}
_LARGEST = 1 << 48


def load_onnx(path: str | os.PathLike[str], *, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """The main graph of an ONNX file. Control flow is opaque; values that its subgraphs capture are its inputs.

    Raises LoadError for damaged files, and for shapes that stay open, with the `shapes` to add; UnsupportedError
    without the extra `onnx`.
    """
    path = Path(path)
    onnx = onnx_library()
    try:
        inferred = infer(onnx, path, read_model(path, shapes or {}))
        told, refusal = complete_types(onnx, path, inferred)
        graph = _OnnxGraphReader(onnx, path, inferred, refusal).graph().check()
    except (ValueError, TypeError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} ({error})") from None
    tensors = "the shape of 1 tensor, which ONNX cannot infer, is that" if told == 1 else ""
    tensors = tensors or f"the shapes of {told} tensors, which ONNX cannot infer, are those"
    note = f"{tensors} of runs in ONNX Runtime" if told else ""
    return replace(graph, source=replace(graph.source, note=note))


def load_open(path: Path) -> tuple[Graph, tuple[OpenTensor, ...], tuple[OpenTensor, ...]]:
    """The main graph of an ONNX file whose inputs leave sizes open, and its inputs and outputs as the file states them.
    Values whose sizes are open have no bytes."""
    onnx = onnx_library()
    model = read_unfixed(path)
    inputs, outputs = (tuple(map(_open_tensor, values)) for values in (input_values(model.graph), model.graph.output))
    try:
        with contextlib.suppress(DownsetError):  # the operators are there without any type
            model = infer(onnx, path, model)
        graph = _OnnxGraphReader(onnx, path, model, sized=False).graph().check()
    except (ValueError, TypeError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} ({error})") from None
    return graph, inputs, outputs


def _open_tensor(value: Any) -> OpenTensor:
    axes = axes_of(value) if value.type.WhichOneof("value") else None
    return OpenTensor(value.name, None if axes is None else tuple("?" if size == "" else size for size in axes))


def without_defaults(graph: Graph) -> Graph:
    """The graph of an .onnx file without the values of inputs that a caller may override, so that no rewrite takes them
    for constants. Any other graph is returned as it is."""
    if graph.source.format != "onnx":
        return graph
    names = overridable(read_unfixed(Path(graph.source.path)))
    kept = {index: value for index, value in graph.constants.items() if graph.tensors[index].name not in names}
    return replace(graph, constants=kept) if names else graph


class _OnnxGraphReader:
    """`refusal`: why ONNX Runtime did not tell the shapes that ONNX cannot infer; "" if it did. Unless `sized`, a value
    whose sizes are open has no bytes."""

    def __init__(self, onnx: Any, path: Path, model: Any, refusal: str = "", *, sized: bool = True) -> None:
        self._onnx, self._path, self._proto, self._sized = onnx, path, model.graph, sized
        self._refusal = Message("; a run might tell it (", refusal, ")") if refusal else ""
        self._tensors: list[Tensor] = []
        self._number: dict[str, int] = {"": ABSENT}
        self._constants: dict[int, Callable[[], npt.NDArray[Any]]] = {}
        graph = model.graph
        self._read = {name for node in graph.node for name in (*node.input, *captures(node))}
        self._read |= {value.name for value in graph.output}
        stated = (*graph.value_info, *graph.output, *graph.input)
        self._types = {value.name: value.type for value in stated if value.type.WhichOneof("value")}
        versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
        self._flattens = bool(versions) and versions[0] < 13
        self._version = versions[0] if versions else 1
        self._schemas: dict[str, Mapping[str, int]] = {}

    def graph(self) -> Graph:
        proto = self._proto
        for initializer in proto.initializer:
            self._weight(initializer.name, initializer)
        for sparse in proto.sparse_initializer:
            self._add(sparse.values.name, tuple(sparse.dims), sparse.values.data_type, "constant")
        inputs = tuple(self._value(value.name, None) for value in proto.input if value.name not in self._number)
        ops: list[Op] = []
        names: set[str] = set()
        for position, node in enumerate(proto.node):
            ops.append(self._operator(position, node, names))
        outputs = tuple(self._reference(value.name, "the graph's outputs") for value in proto.output)
        name = proto.name or self._path.stem
        source = Source(
            "onnx", str(self._path), tuple(range(len(ops))), (-1,) * len(self._tensors), version=self._version
        )
        return Graph(name, tuple(self._tensors), tuple(ops), inputs, outputs, self._constants, source)

    def _operator(self, position: int, node: Any, names: set[str]) -> Op:
        name = node.name or f"{node.op_type}_{position}"
        name = f"{name}#{position}" if name in names else name
        names.add(name)
        captured = dict.fromkeys(captures(node))
        inputs = [self._reference(item, f"operator {name!r}") for item in (*node.input, *captured)]
        kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        attrs = self._attributes(node)
        if self._flattens and kind in ("Softmax", "LogSoftmax"):
            kind, attrs = self._softmax_of_old(kind, attrs, self._tensors[inputs[0]].shape)
        present = [tensor for tensor in inputs if tensor != ABSENT]
        constant = not captured and all(self._tensors[tensor].role == "constant" for tensor in present)
        # what is drawn at random is not a constant, although it has no inputs
        constant = constant and kind_of(kind).draws != "always"
        outputs = tuple(self._value(item, name, constant) if item else ABSENT for item in node.output)
        if kind == "ConstantOfShape":
            attrs |= self._fill(node)
        if kind == "Constant" and outputs:
            value = self._constant_value(node)
            if value is not None:
                self._constants[outputs[0]] = value
        return Op(name, kind, tuple(inputs), outputs, attrs)

    def _reference(self, name: str, reader: str) -> int:
        if name not in self._number:
            raise LoadError(f"{self._path}: {reader} reads {name!r}, which nothing before it makes")
        return self._number[name]

    def _add(self, name: str, shape: tuple[int, ...], elem_type: int, role: Role) -> int:
        if elem_type not in ELEMENT_TYPES:
            raise LoadError(f"{self._path}: tensor {name!r} has the unknown element type {elem_type}")
        if any(extent < 0 for extent in shape):
            raise LoadError(f"{self._path}: tensor {name!r} has a negative dimension: {list(shape)}")
        nbytes = tensor_bytes(shape, ELEMENT_TYPES[elem_type])
        if nbytes >= _LARGEST:
            raise LoadError(f"{self._path}: tensor {name!r} of shape {list(shape)} is impossibly large")
        if name in self._number:
            raise LoadError(f"{self._path}: the name {name!r} is given to two values")
        self._number[name] = len(self._tensors)
        self._tensors.append(Tensor(name, shape, ELEMENT_TYPES[elem_type], nbytes, role))
        return self._number[name]

    def _softmax_of_old(self, kind: str, attrs: dict[str, Any], shape: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
        """A Softmax before version 13 normalises over all axes from `axis` on together. Where only one of them is
        longer than 1, today's Softmax along that axis is the same; else today's ONNX has no such operator."""
        axis = int(attrs.get("axis", 1)) % max(len(shape), 1)
        wide = [dimension for dimension in range(axis, len(shape)) if shape[dimension] != 1]
        if len(wide) > 1:
            return f"ai.onnx.12::{kind}", attrs
        return kind, {**attrs, "axis": wide[0] if wide else axis}

    def _value(self, name: str, maker: str | None, constant: bool = False) -> int:
        """A graph input or an operator's result, with the shape that inference found."""
        what = f"{name!r}, made by {maker!r}," if maker else repr(name)
        kind = self._types.get(name)
        if kind is None and name not in self._read:
            return self._opaque(name)  # an optional result that nobody asked for
        role: Role = "constant" if constant else "activation"
        if not self._sized and is_open(kind):
            return self._opaque(name, role)
        if kind is None:
            raise OpenShapeError(
                f"{self._path}: the shape of {what} cannot be inferred; if it depends on an input's size add ",
                Setting("shapes"),
                ", else the operator is unknown to ONNX",
                self._refusal,
            )
        if not kind.HasField("tensor_type"):
            return self._opaque(name)  # sequences, maps and optionals are not planned
        shape = kind.tensor_type.shape
        if not kind.tensor_type.HasField("shape") or not all(dim.HasField("dim_value") for dim in shape.dim):
            dims = ",".join(str(dim.dim_value) if is_fixed(dim) else "?" for dim in shape.dim)
            raise OpenShapeError(
                f"{self._path}: the shape [{dims}] of {what} stays open: it depends on values or sizes known only at "
                "run time; export the model with fixed sizes",
                self._refusal,
            )
        return self._add(name, tuple(dim.dim_value for dim in shape.dim), kind.tensor_type.elem_type, role)

    def _opaque(self, name: str, role: Role = "activation") -> int:
        """A value without bytes."""
        self._number[name] = len(self._tensors)
        self._tensors.append(Tensor(name, (), "opaque", 0, role))
        return self._number[name]

    def _weight(self, name: str, initializer: Any) -> None:
        index = self._add(name, tuple(initializer.dims), initializer.data_type, "constant")
        onnx, path = self._onnx, self._path
        self._constants[index] = lambda: stored_value(onnx, path, initializer)

    def _constant_value(self, node: Any) -> Callable[[], npt.NDArray[Any]] | None:
        onnx, path = self._onnx, self._path
        for attribute in node.attribute:
            if attribute.name == "value":
                tensor = attribute.t
                return lambda: stored_value(onnx, path, tensor)
            if attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
                value = self._onnx.helper.get_attribute_value(attribute)
                dtype = np.int64 if "int" in attribute.name else np.float32
                return lambda: np.asarray(value, dtype)
        return None

    def _fill(self, node: Any) -> dict[str, float]:
        """The attribute `fill` of a ConstantOfShape; none if its value cannot be read, as plans do not need it."""
        value = self._constant_value(node)
        try:
            numbers = [0.0] if value is None else value().reshape(-1).tolist()
        except Exception:  # protobuf and numpy raise errors of several classes for a damaged tensor
            return {}
        return {"fill": numbers[0]} if len(numbers) == 1 and isinstance(numbers[0], (int, float)) else {}

    def _types_of_attributes(self, node: Any) -> Mapping[str, int]:
        """The types of a standard operator's attributes, as numbers; none of another operator."""
        if node.domain not in ("", "ai.onnx"):
            return {}
        if node.op_type not in self._schemas:
            defs = self._onnx.defs
            types: dict[str, int] = {}
            if defs.has(node.op_type):
                with contextlib.suppress(defs.SchemaError):  # newer than the file's version
                    schema = defs.get_schema(node.op_type, self._version)
                    types = {name: int(described.type.value) for name, described in schema.attributes.items()}
            self._schemas[node.op_type] = types
        return self._schemas[node.op_type]

    def _attributes(self, node: Any) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        stated = self._types_of_attributes(node)
        for attribute in node.attribute:
            if attribute.type and stated.get(attribute.name, attribute.type) != attribute.type:
                raise LoadError(
                    f"{self._path}: attribute {attribute.name!r} of a node {node.op_type} is of another type than ONNX "
                    "says"
                )
            if attribute.type in (5, 10) or attribute.ref_attr_name:  # graphs: control flow stays opaque
                continue
            if attribute.type in (4, 9, 11, 12):  # tensors: values are read from the file when needed
                continue
            value = self._onnx.helper.get_attribute_value(attribute)
            attrs[attribute.name] = value if attribute.type in (6, 7) else _plain(value)  # lists of numbers
        return attrs


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (int, float, str)):
        return value
    try:
        return [_plain(item) for item in value]
    except TypeError:
        return repr(value)
