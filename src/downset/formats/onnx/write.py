"""Writing of an `.onnx` file again, with its nodes in another order and a rewrite's new nodes in place of old ones.

Nodes that a rewrite did not change are copied. Its new nodes are written from the graph, and their weights as new
initializers; weights that nothing reads any more are removed. A certificate is added to the metadata. Everything else
in the file stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from downset.errors import UnsupportedError
from downset.extras import optional_library
from downset.formats.certificates import METADATA_KEY, write_certificate
from downset.formats.onnx.bodies import overridable, subgraphs
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.old_versions import of_version
from downset.formats.onnx.read import ELEMENT_TYPES
from downset.formats.onnx.skeleton import streamed
from downset.graph.core import ABSENT, Graph, Op
from downset.process.whole_files import write_whole
from downset.results.streams import STREAM_KEY, StreamRecord

__all__ = ["export_onnx"]

_OURS = frozenset({"layout", "depthwise", "fill", "partial_sum"})
"""Attributes that only downset's graphs have: they are not written."""


def export_onnx(
    path: str | os.PathLike[str], graph: Graph, steps: Sequence[int], *, record: StreamRecord | None = None
) -> None:
    """Write the file that the graph was loaded from, with its nodes in the order `steps`. `record`: that of a stream,
    whose inputs and outputs are the graph's.

    External weights are neither loaded nor copied, except those that a rewrite cut. The new file keeps the references
    to external weights: if it lies in another folder, the caller must put the data files beside it. Raises
    UnsupportedError if the graph was not read from an .onnx file, if it is neither that file's graph nor a rewrite of
    it, and if the new file cannot be serialised, for example because it is too large.
    """
    if graph.source.format != "onnx":
        raise UnsupportedError(f"{graph.name} was not read from an .onnx file: it cannot be written as one")
    onnx = optional_library("onnx", what="writing .onnx files", extra="onnx")
    model = read_skeleton(graph.source.path)
    nodes = list(model.graph.node)
    positions = [graph.source.op_index[operator] for operator in steps]
    rewritten = graph.source.rewritten
    kept = sorted(position for position in positions if position >= 0)
    if sorted(steps) != list(range(len(graph.ops))) or kept != (
        sorted(set(kept)) if rewritten else list(range(len(nodes)))
    ):
        raise UnsupportedError(f"{graph.name}: this graph is neither its file's nor a rewrite of it")
    names = _names(graph, model) if rewritten else {}
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    inputs = overridable(model)
    written = [
        _copy(nodes[position]) if position >= 0 else _node(onnx, of_version(graph, graph.ops[operator], version), names)
        for operator, position in zip(steps, positions, strict=True)
    ]
    del model.graph.node[:]
    model.graph.node.extend(written)
    if rewritten:
        _write_weights(onnx, model, graph, names)
        _drop_unused(model, inputs)
        _import_domains(onnx, model)
        _certify(model, graph, names)
    if record is not None:
        _write_ends(onnx, model, graph)
        model.metadata_props.add(key=STREAM_KEY, value=record.to_json())
    try:
        write_whole(path, streamed(model), source=Path(graph.source.path))
    except UnsupportedError as error:
        raise UnsupportedError(f"{graph.name}: the rewritten file cannot be written (", error.message, ")") from None


def _certify(model: Any, graph: Graph, names: Mapping[int, str]) -> None:
    """Put the certificate into the file's metadata: the parts of the file's tensors that new tensors hold."""
    kept = [_copy(entry) for entry in model.metadata_props if entry.key != METADATA_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    parts = {names[tensor]: part for tensor, part in sorted(graph.source.parts.items())}
    joined = {names[tensor]: pieces for tensor, pieces in sorted(graph.source.joined.items())}
    if parts or joined:
        model.metadata_props.add(key=METADATA_KEY, value=write_certificate(parts, joined).decode())


def _write_ends(onnx: Any, model: Any, graph: Graph) -> None:
    """Let the model have the graph's inputs and outputs, with the sizes that they have in the graph."""
    numbers = {name: number for number, name in ELEMENT_TYPES.items()}
    for values, tensors in ((model.graph.input, graph.inputs), (model.graph.output, graph.outputs)):
        metas = [graph.tensors[tensor] for tensor in tensors]
        others = [_copy(value) for value in values if value.name not in {meta.name for meta in metas}]
        del values[:]
        values.extend(onnx.helper.make_tensor_value_info(m.name, numbers[m.dtype], m.shape) for m in metas)
        values.extend(others)  # weights with a default value


def _copy(node: Any) -> Any:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy


def _names(graph: Graph, model: Any) -> dict[int, str]:
    """The name of each tensor in the written file. Tensors of the old file keep their names. A new tensor gets a name
    that is not used anywhere in the old file, subgraphs included."""
    taken = set(_all_names(model.graph))
    made_new = {
        tensor
        for op, position in zip(graph.ops, graph.source.op_index, strict=True)
        if position < 0
        for tensor in op.outputs
    }
    first_level = {name for node in model.graph.node for name in node.output}
    first_level |= {value.name for value in model.graph.initializer}
    names = {ABSENT: ""}
    for index, tensor in enumerate(graph.tensors):
        new = tensor.name not in first_level and (index in made_new or index in graph.constants)
        name, number = tensor.name, 2
        while new and name in taken:
            name, number = f"{tensor.name}_{number}", number + 1
        taken.add(name)
        names[index] = name
    return names


def _all_names(graph: Any) -> Iterator[str]:
    for values in (graph.initializer, graph.input, graph.output):
        yield from (value.name for value in values)
    for node in graph.node:
        yield from node.input
        yield from node.output
        for inner in subgraphs(node):
            yield from _all_names(inner)


def _node(onnx: Any, op: Op, names: dict[int, str]) -> Any:
    domain, _, kind = op.kind.rpartition("::")
    attrs = {key: value for key, value in op.attrs.items() if key not in _OURS and value is not None}
    inputs, outputs = ([names[tensor] for tensor in tensors] for tensors in (op.inputs, op.outputs))
    return onnx.helper.make_node(kind, inputs, outputs, name=op.name, domain=domain or None, **attrs)


def _write_weights(onnx: Any, model: Any, graph: Graph, names: dict[int, str]) -> None:
    """Add the constants that nodes read and the file does not have, as initializers: those of new nodes, and values
    that were folded."""
    computed = {name for node in model.graph.node for name in node.output}
    named = {value.name for value in model.graph.initializer} | computed
    named |= {value.values.name for value in model.graph.sparse_initializer}
    for op in graph.ops:
        for tensor in op.inputs:
            if tensor in graph.constants and names[tensor] not in named:
                value = graph.constant(tensor)
                model.graph.initializer.append(onnx.numpy_helper.from_array(value, names[tensor]))
                named.add(names[tensor])
    # Before version 4 of the format every initializer had to be an input as well.
    model.ir_version = max(model.ir_version, 4)


def _drop_unused(model: Any, inputs: frozenset[str]) -> None:
    """Remove the weights that only replaced nodes read, and the types and annotations of values that are gone. Inputs
    stay, also those with a default value."""
    graph = model.graph
    read = {value.name for value in graph.output}
    for node in graph.node:
        read.update(node.input)
        for inner in subgraphs(node):
            read.update(_all_names(inner))
    computed = {name for node in graph.node for name in node.output}
    dropped = {value.name for value in graph.initializer if value.name not in read} - inputs
    _keep(graph.initializer, [value.name not in dropped for value in graph.initializer])
    _keep(graph.input, [value.name not in dropped for value in graph.input])
    _keep(graph.value_info, [value.name in computed for value in graph.value_info])
    annotated = graph.quantization_annotation
    _keep(annotated, [value.tensor_name in computed | read for value in annotated])


def _keep(values: Any, keeps: Sequence[bool]) -> None:
    kept = [_copy(value) for value, keep in zip(values, keeps, strict=True) if keep]
    del values[:]
    values.extend(kept)


def _import_domains(onnx: Any, model: Any) -> None:
    """Import the domains of new nodes, such as ONNX Runtime's, that the model does not import yet."""
    imported = {entry.domain for entry in model.opset_import}
    for domain in sorted({node.domain for node in model.graph.node} - imported - {"", "ai.onnx"}):
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
