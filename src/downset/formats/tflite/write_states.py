"""The states of a stream in a .tflite file: as inputs and outputs, or as resource variables that the file itself reads
and assigns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from downset.formats.tflite.flatbuffer import Flatbuffer
from downset.formats.tflite.graph_reader import DTYPES
from downset.formats.tflite.write_rewritten import operator_code
from downset.graph.core import Graph, tensor_bytes
from downset.results.streams import StreamRecord

__all__ = ["write_states"]

_RESOURCE = 13
"""The type of the tensor that refers to a variable."""


def write_states(file: Flatbuffer, graph: Graph, record: StreamRecord, place: Mapping[int, int]) -> None:
    """Let the file, whose operators are written, have the stream's input with its new sizes, and its states.

    `place`: by tensor of the graph, its index in the file. States are the last inputs and outputs of the graph."""
    main, count = file.model.subgraphs[0], len(record.states)
    given = next(tensor for tensor in graph.inputs if graph.tensors[tensor].name == record.input)
    main.tensors[place[given]].shape = np.asarray(graph.tensors[given].shape, np.int32)
    main.tensors[place[given]].shapeSignature = None
    states, nexts = ([place[tensor] for tensor in ends[len(ends) - count :]] for ends in (graph.inputs, graph.outputs))
    if record.form == "variables":
        _StateWriter(file, record).write(states, nexts)
        return
    main.inputs = np.asarray([*main.inputs, *states], np.int32)
    main.outputs = np.asarray([*main.outputs, *nexts], np.int32)
    for signature in file.model.signatureDefs or ():
        if signature.subgraphIndex == 0:
            signature.inputs = [*(signature.inputs or ()), *(_entry(file, tensor) for tensor in states)]
            signature.outputs = [*(signature.outputs or ()), *(_entry(file, tensor) for tensor in nexts)]


def _entry(file: Flatbuffer, tensor: int) -> Any:
    entry = file.schema.TensorMapT()
    entry.name, entry.tensorIndex = file.model.subgraphs[0].tensors[tensor].name, tensor
    return entry


class _StateWriter:
    """Writes a variable for each state: read before the first operator that reads the state, and assigned behind the
    operator that makes the next one. A subgraph that runs once assigns zeros first."""

    def __init__(self, file: Flatbuffer, record: StreamRecord) -> None:
        self._file, self._record, self._main = file, record, file.model.subgraphs[0]
        self._zeros: dict[int, int] = {}

    def write(self, states: list[int], nexts: list[int]) -> None:
        """`states`, `nexts`: indices of tensors of the file, by state."""
        operators: list[Any] = [self._initialised(states)]
        handles = [self._handle(self._main, number) for number in range(len(states))]
        reads = dict(zip(states, handles, strict=True))
        assigns = dict(zip(nexts, handles, strict=True))
        operators += [self._named(number, handle) for number, handle in enumerate(handles)]
        # A state of a queue becomes that of the next age: it is read before it is assigned.
        moved = [_of(one.inputs)[0] for one in self._main.operators if {*_of(one.outputs)} & assigns.keys()]
        operators += [self._read(tensor, reads.pop(tensor)) for tensor in moved if tensor in reads]
        for operator in self._main.operators:
            inputs, outputs = _of(operator.inputs), _of(operator.outputs)
            operators += [self._read(tensor, reads.pop(tensor)) for tensor in inputs if tensor in reads]
            operators.append(operator)
            operators += [self._assign(assigns[tensor], tensor) for tensor in outputs if tensor in assigns]
        self._main.operators = operators

    def _handle(self, subgraph: Any, number: int) -> int:
        """Add a tensor that refers to the variable of a state."""
        entry = self._file.schema.TensorT()
        entry.name = f"{self._record.states[number].name}/handle".encode()
        entry.shape, entry.type, entry.hasRank = np.asarray([], np.int32), _RESOURCE, True
        subgraph.tensors.append(entry)
        return len(subgraph.tensors) - 1

    def _named(self, number: int, handle: int) -> Any:
        operator = self._operator("VAR_HANDLE", [], [handle], "VarHandleOptions")
        operator.builtinOptions.container = b""
        operator.builtinOptions.sharedName = self._record.states[number].name.encode()
        return operator

    def _read(self, tensor: int, handle: int) -> Any:
        return self._operator("READ_VARIABLE", [handle], [tensor], "ReadVariableOptions")

    def _assign(self, handle: int, tensor: int) -> Any:
        return self._operator("ASSIGN_VARIABLE", [handle, tensor], [], "AssignVariableOptions")

    def _operator(self, name: str, inputs: list[int], outputs: list[int], options: str) -> Any:
        schema, operator = self._file.schema, self._file.schema.OperatorT()
        operator.opcodeIndex = operator_code(self._file, name)
        operator.inputs, operator.outputs = np.asarray(inputs, np.int32), np.asarray(outputs, np.int32)
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        operator.builtinOptions = getattr(schema, f"{options}T")()
        return operator

    def _initialised(self, states: list[int]) -> Any:
        """Add the subgraph that assigns zeros to each variable, and return the operator that calls it once."""
        subgraph = self._file.schema.SubGraphT()
        subgraph.name, subgraph.tensors, subgraph.operators = b"initial_states", [], []
        subgraph.inputs = subgraph.outputs = np.asarray([], np.int32)
        for number, state in enumerate(states):
            handle = self._handle(subgraph, number)
            subgraph.tensors.append(self._zero(self._main.tensors[state], number))
            subgraph.operators += [self._named(number, handle), self._assign(handle, len(subgraph.tensors) - 1)]
        self._file.model.subgraphs.append(subgraph)
        operator = self._operator("CALL_ONCE", [], [], "CallOnceOptions")
        operator.builtinOptions.initSubgraphIndex = len(self._file.model.subgraphs) - 1
        return operator

    def _zero(self, like: Any, number: int) -> Any:
        """A constant like a state, all bytes of it zero. Those of equal size share them."""
        state = self._record.states[number]
        entry = self._file.schema.TensorT()
        entry.name, entry.shape, entry.type, entry.hasRank = (
            f"{state.name}/initial".encode(),
            like.shape,
            like.type,
            True,
        )
        entry.quantization = like.quantization
        nbytes = tensor_bytes(like.shape, DTYPES[like.type])
        if nbytes not in self._zeros:
            self._zeros[nbytes] = self._file.add_buffer(bytes(nbytes))
        entry.buffer = self._zeros[nbytes]
        return entry


def _of(tensors: Any) -> list[int]:
    return [] if tensors is None else [int(tensor) for tensor in tensors]
