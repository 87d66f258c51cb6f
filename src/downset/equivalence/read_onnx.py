"""`.onnx` -> FileNetwork: nodes with every attribute, bodies, functions, versions of operator sets, weights by content.

Left out are names of nodes and inner values, documentation, metadata, annotations, and the stated shapes of inner
values, which follow from the rest.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from downset.equivalence.file_network import ABSENT, Body, Effect, FileNetwork, FileNode, FileValue
from downset.errors import LoadError
from downset.formats.certificates import METADATA_KEY
from downset.formats.onnx.data_files import stored_value
from downset.formats.onnx.external import external_path
from downset.formats.onnx.model_file import infer, onnx_library, read_model, read_unfixed
from downset.graph.kinds import kind_of

__all__ = ["read_onnx", "with_shapes"]

_GRAPH, _GRAPHS, _TENSOR, _TENSORS, _SPARSE, _SPARSES = 5, 10, 4, 9, 11, 12


def read_onnx(path: str | os.PathLike[str]) -> tuple[FileNetwork, bytes | None]:
    """(the network of the file, the certificate in it or None). Raises LoadError for a damaged file, UnsupportedError
    without the extra `onnx`."""
    onnx = onnx_library()
    model = read_unfixed(onnx, Path(path))
    carried = [entry.value.encode() for entry in model.metadata_props if entry.key == METADATA_KEY]
    try:
        return _OnnxNetworkReader(onnx, Path(path)).network(model), carried[0] if carried else None
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} while reading it ({error})") from None


def with_shapes(
    network: FileNetwork, path: str | os.PathLike[str], shapes: Mapping[str, tuple[int, ...]] | None
) -> FileNetwork:
    """The network with shapes and element types of the main graph's values, as ONNX infers them with the inputs fixed
    to `shapes`. Raises LoadError where the size of an input stays open."""
    onnx = onnx_library()
    graph = infer(onnx, Path(path), read_model(onnx, Path(path), shapes or {})).graph
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output, *graph.input)}
    main = {value for index in network.bodies[0].nodes for value in network.nodes[index].outputs} | {
        *network.bodies[0].inputs
    }
    values = list(network.values)
    for index in sorted(main - {ABSENT}):
        stated = types.get(values[index].label)
        if stated is not None and stated.HasField("shape"):
            shape = tuple(dim.dim_value for dim in stated.shape.dim if dim.HasField("dim_value"))
            if len(shape) == len(stated.shape.dim):
                values[index] = replace(values[index], shape=shape, dtype=_numpy_name(onnx, stated.elem_type))
    return replace(network, values=tuple(values))


class _OnnxNetworkReader:
    def __init__(self, onnx: Any, path: Path) -> None:
        self._onnx, self._path = onnx, path
        self._values: list[FileValue] = []
        self._nodes: list[FileNode | None] = []
        self._domains: set[str] = set()

    def network(self, model: Any) -> FileNetwork:
        scope: dict[str, int] = {"": ABSENT}
        main = self._body(model.graph, scope, "the main graph")
        weights = {value.name for value in model.graph.initializer}
        named = {f"input {v.name}": scope[v.name] for v in model.graph.input if v.name not in weights}
        # A caller may also feed an input that has a default value.
        named |= {f"optional input {v.name}": scope[v.name] for v in model.graph.input if v.name in weights}
        named |= {f"output {value.name}": scope[value.name] for value in model.graph.output}
        functions = {
            f"function {function.domain}::{function.name} {getattr(function, 'overload', '')}": _serialised(function)
            for function in model.functions
        }
        versions = {_domain(entry.domain): entry.version for entry in model.opset_import}
        used = versions if functions else {name: versions.get(name) for name in sorted(self._domains)}
        settings: dict[str, Hashable] = {f"version of operator set {name!r}": version for name, version in used.items()}
        nodes = tuple(node for node in self._nodes if node is not None)
        assert len(nodes) == len(self._nodes)
        return FileNetwork(str(self._path), tuple(self._values), nodes, (main,), {**settings, **functions}, named)

    def _add(self, scope: dict[str, int], value: FileValue) -> int:
        self._values.append(value)
        scope[value.label] = len(self._values) - 1
        return scope[value.label]

    def _body(self, graph: Any, scope: dict[str, int], label: str) -> Body:
        """Read a graph. Its values are added to `scope`, which holds those of the graphs around it."""
        for weight in graph.initializer:
            self._add(scope, self._weight(weight))
        for sparse in graph.sparse_initializer:
            self._add(scope, self._sparse(sparse))
        own = {weight.name for weight in graph.initializer}
        inputs = tuple(
            self._add(scope, FileValue(value.name, ("type", _serialised(value.type))))
            for value in graph.input
            if value.name not in own
        )
        outputs_of = [
            [self._add(scope, FileValue(name)) if name else ABSENT for name in node.output] for node in graph.node
        ]
        first = [self._node(node, tuple(out), scope) for node, out in zip(graph.node, outputs_of, strict=True)]
        outputs = tuple(scope[value.name] for value in graph.output)
        return Body(label, inputs, outputs, tuple(first))

    def _weight(self, weight: Any) -> FileValue:
        form = ("constant", weight.data_type, tuple(weight.dims))
        dtype = _numpy_name(self._onnx, weight.data_type)
        return FileValue(
            weight.name, form, lambda: self._bytes(weight), shape=tuple(weight.dims), dtype=dtype,
            stored=self._place(weight),
        )  # fmt: skip

    def _place(self, weight: Any) -> Hashable:
        """The file and the bytes in it that are a weight outside the model file; None for one inside."""
        if weight.data_location != weight.EXTERNAL:
            return None
        entries = {entry.key: entry.value for entry in weight.external_data}
        try:
            held = external_path(self._path, entries.get("location", ""), weight.name).stat()
        except OSError:
            return None  # a missing file is an error only when its bytes are needed
        return held.st_dev, held.st_ino, entries.get("offset", "0"), entries.get("length", "")

    def _sparse(self, sparse: Any) -> FileValue:
        form = ("sparse", sparse.values.data_type, tuple(sparse.dims))
        return FileValue(
            sparse.values.name, form, lambda: self._bytes(sparse.values) + b"|" + self._bytes(sparse.indices)
        )

    def _bytes(self, tensor: Any) -> bytes:
        value = stored_value(self._onnx, self._path, tensor)
        if value.dtype == object:
            return repr(value.tolist()).encode()
        return np.ascontiguousarray(value).tobytes()

    def _node(self, node: Any, outputs: tuple[int, ...], scope: Mapping[str, int]) -> int:
        index = len(self._nodes)
        self._nodes.append(None)
        inputs = [scope[name] for name in node.input]
        settings: dict[str, Hashable] = {}
        bodies: list[Body] = []
        captured: dict[int, None] = {}
        for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
            graphs = [attribute.g] if attribute.type == _GRAPH else attribute.graphs
            if attribute.type in (_GRAPH, _GRAPHS):
                settings[attribute.name] = ("graphs", len(graphs))
                label = f"{attribute.name} of {node.name}"
                bodies += [self._inner(graph, scope, captured, label) for graph in graphs]
            else:
                settings[attribute.name] = (attribute.type, self._setting(attribute))
        self._domains.add(_domain(node.domain))
        domain = f"{node.domain}::" if _domain(node.domain) else ""
        overload = f" {node.overload}" if getattr(node, "overload", "") else ""
        label = node.name or next((name for name in node.output if name), f"node {index}")
        effects: tuple[Effect, ...] = (("random numbers", True),) if kind_of(node.op_type).draws != "never" else ()
        self._nodes[index] = FileNode(
            label, f"{domain}{node.op_type}{overload}", settings, _trimmed(inputs), _trimmed(outputs), tuple(bodies),
            tuple(captured), effects,
        )  # fmt: skip
        return index

    def _inner(self, graph: Any, scope: Mapping[str, int], captured: dict[int, None], label: str) -> Body:
        around = set(scope.values()) - {ABSENT}
        first = len(self._nodes)
        body = self._body(graph, dict(scope), label)
        for node in self._nodes[first:]:
            assert node is not None
            captured |= {value: None for value in node.inputs if value in around}
        captured |= {value: None for value in body.outputs if value in around}
        return body

    def _setting(self, attribute: Any) -> Hashable:
        kind = attribute.type
        if kind in (_TENSOR, _TENSORS):
            tensors = [attribute.t] if kind == _TENSOR else attribute.tensors
            return tuple((tensor.data_type, tuple(tensor.dims), self._bytes(tensor)) for tensor in tensors)
        if kind in (_SPARSE, _SPARSES):
            sparse = [attribute.sparse_tensor] if kind == _SPARSE else attribute.sparse_tensors
            return tuple((tuple(one.dims), self._bytes(one.values), self._bytes(one.indices)) for one in sparse)
        if kind in (1, 6):  # floats compare by their bits
            return np.asarray([attribute.f] if kind == 1 else attribute.floats, np.float32).tobytes()
        if kind in (2, 7):
            return attribute.i if kind == 2 else tuple(attribute.ints)
        if kind in (3, 8):
            return attribute.s if kind == 3 else tuple(attribute.strings)
        return _serialised(attribute)


def _numpy_name(onnx: Any, number: int) -> str:
    """numpy's name of an element type; "" for one that numpy does not have."""
    try:
        return str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)))
    except (KeyError, TypeError, ValueError):
        return ""


def _trimmed(values: list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """The values without absent ones at the end, which mean nothing."""
    count = max((index + 1 for index, value in enumerate(values) if value != ABSENT), default=0)
    return tuple(values[:count])


def _serialised(message: Any) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    if "doc_string" in copy.DESCRIPTOR.fields_by_name:
        copy.ClearField("doc_string")
    data: bytes = copy.SerializeToString(deterministic=True)
    return data


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
