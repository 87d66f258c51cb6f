"""Writing of a rewritten graph's operators, tensors and weights into the flatbuffer of its .tflite file.

Operators that the rewrite did not change stay as they are. A new operator has the options of the operator from which it
was cut: padding, strides, and options of later versions of the format. One that was not cut from another, such as a
sum, gets new options. Tensors and weights that nothing uses any more are removed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from downset.errors import UnsupportedError
from downset.formats.tflite.flatbuffer import Flatbuffer
from downset.formats.tflite.graph_reader import DTYPES
from downset.formats.tflite.kinds import ACTIVATIONS, NEW
from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.halos import same_pads, window

__all__ = ["drop_weights", "listed", "operator_code", "renumber_ends", "write_rewritten"]

_CODES = {name: code for code, name in DTYPES.items()}
_ACTIVATION_CODES = {name: code for code, name in ACTIVATIONS.items()}
_SAME, _VALID = 0, 1


def write_rewritten(file: Flatbuffer, graph: Graph, steps: Sequence[int]) -> dict[int, int]:
    """Replace the file's main subgraph by the rewritten graph, with its operators in the order `steps`.

    Returns the index of each of the graph's tensors among the subgraph's tensors. Raises UnsupportedError for an
    operator, pads, an activation or a constant that the format cannot state.
    """
    model = file.model
    main = model.subgraphs[0]
    old_tensors, old_operators = main.tensors, main.operators
    needed = _needed(model, graph, old_operators)
    main.tensors, place, old_place = [], {}, {}
    by_old = {old: tensor for tensor, old in enumerate(graph.source.tensor_index) if old >= 0}
    for old, entry in enumerate(old_tensors):
        if old in needed:
            old_place[old] = len(main.tensors)
            if old in by_old:
                place[by_old[old]] = len(main.tensors)
            main.tensors.append(entry)
    for tensor, old in enumerate(graph.source.tensor_index):
        if old < 0:
            place[tensor] = len(main.tensors)
            main.tensors.append(_tensor(file, graph, tensor))
    place[ABSENT] = old_place[ABSENT] = -1
    indices = _Indices(place, old_place)
    main.operators = [_operator(file, graph, step, old_operators, indices) for step in steps]
    renumber_ends(model, "inputs", old_place)
    renumber_ends(model, "outputs", old_place)
    drop_weights(model)
    del place[ABSENT]
    return place


def _needed(model: Any, graph: Graph, operators: Sequence[Any]) -> set[int]:
    """The file's tensors that stay: those that operators, the main subgraph's ends and its signatures refer to."""
    main = model.subgraphs[0]
    needed = {int(tensor) for tensors in (main.inputs, main.outputs) for tensor in listed(tensors)}
    for position in graph.source.op_index:
        if position >= 0:
            for tensors in (operators[position].inputs, operators[position].outputs, operators[position].intermediates):
                needed.update(int(tensor) for tensor in listed(tensors))
    for op in graph.ops:
        needed.update(graph.source.tensor_index[t] for t in (*op.inputs, *op.outputs) if t != ABSENT)
    for signature in model.signatureDefs or ():
        if signature.subgraphIndex == 0:
            needed.update(entry.tensorIndex for entry in (*(signature.inputs or ()), *(signature.outputs or ())))
    return needed - {-1}


def listed(tensors: Any) -> Sequence[int]:
    return () if tensors is None else tensors


def _tensor(file: Flatbuffer, graph: Graph, tensor: int) -> Any:
    """A new tensor for the file. If it is constant, its value is added to the file as a new buffer."""
    meta = graph.tensors[tensor]
    entry = file.schema.TensorT()
    entry.name, entry.shape, entry.type = meta.name.encode(), np.asarray(meta.shape, np.int32), _CODES[meta.dtype]
    entry.hasRank = True
    entry.quantization = _quantization(file.schema, meta)
    entry.buffer = 0  # by the format's convention buffer 0 is empty
    if tensor in graph.constants:
        value = graph.constant(tensor)
        if value is None or value.nbytes != meta.nbytes:
            raise UnsupportedError(f"{graph.name}: the value of {meta.name!r} cannot be written as {meta.dtype}")
        entry.buffer = file.add_buffer(np.ascontiguousarray(value).tobytes())
    return entry


def _quantization(schema: Any, meta: Tensor) -> Any:
    if meta.quantization is None:
        return None
    entry = schema.QuantizationParametersT()
    entry.scale = np.asarray(meta.quantization["scale"], np.float32)
    entry.zeroPoint = np.asarray(meta.quantization["zero_point"], np.int64)
    entry.quantizedDimension = int(meta.quantization.get("axis", 0))
    return entry


_FILE_INPUTS = {"Split": (1, 0)}
"""The order of an operator's inputs in the file, as positions in ONNX's order, where the two differ (`kinds`)."""


@dataclass(frozen=True, slots=True)
class _Indices:
    """Indices among the tensors of the new subgraph: `new` by the graph's tensor, `kept` by the old subgraph's."""

    new: Mapping[int, int]
    kept: Mapping[int, int]


def _operator(file: Flatbuffer, graph: Graph, index: int, operators: Sequence[Any], indices: _Indices) -> Any:
    """The operator `index` of the graph for the file, which had these `operators`."""
    op, position = graph.ops[index], graph.source.op_index[index]
    if position >= 0:
        entry = operators[position]
        for name in ("inputs", "outputs", "intermediates"):
            tensors = getattr(entry, name)
            if tensors is not None:
                setattr(entry, name, np.asarray([indices.kept[int(tensor)] for tensor in tensors], np.int32))
        return entry
    settings = graph.source.settings_of[index]
    entry = copy.deepcopy(operators[settings]) if settings >= 0 else _made(file, graph, op)
    order = _FILE_INPUTS.get(op.kind, range(len(op.inputs)))
    entry.inputs = np.asarray([indices.new[op.inputs[index]] for index in order], np.int32)
    entry.outputs = np.asarray([indices.new[tensor] for tensor in op.outputs], np.int32)
    if hasattr(entry.builtinOptions, "padding"):
        entry.builtinOptions.padding = _padding(graph, op)
    activation = op.attrs.get("activation")
    if hasattr(entry.builtinOptions, "fusedActivationFunction"):
        entry.builtinOptions.fusedActivationFunction = _ACTIVATION_CODES[activation] if activation else 0
    elif activation:
        raise UnsupportedError(f"{graph.name}: {op.kind} {op.name!r} cannot be written with a fused {activation}")
    return entry


def _padding(graph: Graph, op: Op) -> int:
    """The format's padding, SAME or VALID, that has the operator's pads. Raises UnsupportedError if neither has."""
    pads = tuple(op.attrs["pads"])
    if not any(pads):
        return _VALID
    sizes = graph.tensors[op.inputs[0]].shape[1:3]
    sides = [same_pads(size, window(graph, op, axis)) for axis, size in enumerate(sizes)]
    if pads != (sides[0][0], sides[1][0], sides[0][1], sides[1][1]):
        raise UnsupportedError(
            f"{graph.name}: {op.kind} {op.name!r} has the pads {list(pads)}, which a .tflite file cannot state; "
            "rewrite it by `tflite_form`"
        )
    return _SAME


_ONE_VERSION = ("Reshape",)
"""Kinds whose first version takes integers, too; LiteRT loads no later one."""


def _made(file: Flatbuffer, graph: Graph, op: Op) -> Any:
    """A new operator that was not cut from an operator of the file. Raises UnsupportedError if `NEW` does not have its
    kind."""
    if op.kind not in NEW:
        raise UnsupportedError(f"{graph.name}: {op.kind} {op.name!r} is new, and cannot be written to a .tflite file")
    name, options = NEW[op.kind] if op.kind != "Pad" or len(op.inputs) < 3 else ("PADV2", "PadV2Options")
    entry = file.schema.OperatorT()
    of_floats = graph.tensors[op.outputs[0]].dtype == "float32"
    entry.opcodeIndex = operator_code(file, name, 1 if of_floats or op.kind in _ONE_VERSION else 2)
    entry.builtinOptionsType = getattr(file.schema.BuiltinOptions, options)
    entry.builtinOptions = getattr(file.schema, f"{options}T")()
    if op.kind == "Concat":
        entry.builtinOptions.axis = int(op.attrs["axis"])
    elif op.kind == "Reshape":
        entry.builtinOptions.newShape = np.asarray(graph.tensors[op.outputs[0]].shape, np.int32)
    return entry


def operator_code(file: Flatbuffer, name: str, version: int = 1) -> int:
    """The index of a builtin operator, of this version or a later one, among those of the file; added if need be."""
    codes, number = file.model.operatorCodes, getattr(file.schema.BuiltinOperator, name)
    for index, code in enumerate(codes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == number and code.version >= version:
            return index
    code = file.schema.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), version
    codes.append(code)
    return len(codes) - 1


def renumber_ends(model: Any, ends: Literal["inputs", "outputs"], places: Mapping[int, int]) -> None:
    """Let the inputs or outputs of the main subgraph, and of its signatures, be those at `places`, by their index
    before; others keep their index."""
    main = model.subgraphs[0]
    tensors = [places.get(int(tensor), int(tensor)) for tensor in listed(getattr(main, ends))]
    setattr(main, ends, np.asarray(tensors, np.int32))
    for signature in model.signatureDefs or ():
        if signature.subgraphIndex == 0:
            for entry in getattr(signature, ends) or ():
                entry.tensorIndex = places.get(entry.tensorIndex, entry.tensorIndex)


def drop_weights(model: Any) -> None:
    """Empty the buffers to which nothing refers any more. They stay in the list, so that the indices of the others stay
    valid."""
    used = {entry.buffer for subgraph in model.subgraphs for entry in subgraph.tensors}
    used |= {entry.buffer for entry in model.metadata or ()} | set(listed(model.metadataBuffer))
    for index, buffer in enumerate(model.buffers):
        if index not in used:
            buffer.data, buffer.offset, buffer.size = None, 0, 0
