"""Moves between two memories in a `.tflite` file: each is a RESHAPE to the same shape.

TFLite Micro's kernel of RESHAPE copies the bytes where the two tensors lie at different places, which the offsets in
the file state for every tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from downset.errors import InfeasibleError, UnsupportedError
from downset.formats.tflite.flatbuffer import Flatbuffer
from downset.formats.tflite.write_rewritten import listed, operator_code, renumber_ends
from downset.graph.core import ABSENT, Graph
from downset.memories.program import Copy, MovedProgram
from downset.results.two_memories import TwoMemories

__all__ = ["offset_in", "write_moves"]


def offset_in(memories: TwoMemories, one: Copy) -> int:
    """The offset of a copy from the beginning of the lower memory."""
    return (memories.fast_first if one.fast else memories.slow_first) + one.offset


def write_moves(
    file: Flatbuffer, graph: Graph, program: MovedProgram, place: Mapping[int, int], memories: TwoMemories
) -> dict[int, int]:
    """Let the file, whose operators are written in the order of the program, have its moves. Returns offsets by index
    of the file's tensors.

    `place`: by tensor of the graph, its index in the file. Raises UnsupportedError where an operator uses a tensor that
    TFLite Micro would place by itself: that may be between the memories."""
    main = file.model.subgraphs[0]
    final = dict(zip(graph.outputs, program.outputs, strict=True))
    index_of: dict[int, int] = {}
    for number, one in enumerate(program.copies):
        home = final.get(one.tensor, program.first[one.tensor])
        if one.tensor in graph.inputs:
            home = program.first[one.tensor]
        if number == home:
            index_of[number] = place[one.tensor]
        else:
            index_of[number] = _new_tensor(main, place[one.tensor], one)
    operators = iter(main.operators)
    written: list[Any] = []
    for step in program.steps:
        if step.moved is not None:
            source, target = (index_of[one] for one in step.moved)
            written.append(_move(file, source, target))
            continue
        operator = next(operators)
        names = {place[tensor]: index_of[number] for tensor, number in step.copies.items()}
        for key in ("inputs", "outputs"):
            tensors = getattr(operator, key)
            if tensors is not None:
                setattr(operator, key, np.asarray([names.get(int(one), int(one)) for one in tensors], np.int32))
        written.append(operator)
    main.operators = written
    ends = {place[tensor]: index_of[number] for tensor, number in final.items() if number != ABSENT}
    renumber_ends(file.model, "outputs", ends)
    for one in program.copies:
        nbytes = graph.tensors[one.tensor].nbytes
        if nbytes and memories.is_fast(offset_in(memories, one), nbytes) is not one.fast:
            name, memory = graph.tensors[one.tensor].name, "fast" if one.fast else "slow"
            raise InfeasibleError(f"{memory} memory has no room for tensor {name!r} of {nbytes:,} bytes")
    offsets = {index_of[number]: offset_in(memories, one) for number, one in enumerate(program.copies)}
    _check_all_placed(file, offsets)
    return offsets


def _new_tensor(main: Any, like: int, one: Copy) -> int:
    """Add a tensor like another one, for a copy of it."""
    entry = copy.deepcopy(main.tensors[like])
    name = (entry.name or b"").decode(errors="replace")
    entry.name = f"{name}/{'fast' if one.fast else 'slow'}/{len(main.tensors)}".encode()
    main.tensors.append(entry)
    return len(main.tensors) - 1


def _move(file: Flatbuffer, source: int, target: int) -> Any:
    entry = file.schema.OperatorT()
    entry.opcodeIndex = operator_code(file, "RESHAPE")
    entry.inputs, entry.outputs = np.asarray([source], np.int32), np.asarray([target], np.int32)
    entry.builtinOptionsType = file.schema.BuiltinOptions.ReshapeOptions
    entry.builtinOptions = file.schema.ReshapeOptionsT()
    shape = file.model.subgraphs[0].tensors[target].shape
    entry.builtinOptions.newShape = np.asarray([] if shape is None else shape, np.int32)
    return entry


def _check_all_placed(file: Flatbuffer, offsets: Mapping[int, int]) -> None:
    model = file.model
    main = model.subgraphs[0]
    used = [
        *listed(main.inputs),
        *(t for one in main.operators for t in (*listed(one.inputs), *listed(one.outputs))),
    ]
    for tensor in dict.fromkeys(map(int, used)):
        if tensor == ABSENT or tensor in offsets:
            continue
        entry = main.tensors[tensor]
        data = model.buffers[entry.buffer]
        if (data.data is None or not len(data.data)) and not data.size and np.prod(listed(entry.shape)) > 0:
            name = (entry.name or b"").decode(errors="replace")
            raise UnsupportedError(
                f"tensor {name!r} has no place in the plan, and TFLite Micro would place it itself, perhaps between "
                "the memories"
            )
