"""Graph order and offsets -> `.tflite`: the same network with its operators in another order or those of a rewrite, and
with offsets in the form that TFLite Micro reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from downset.errors import UnsupportedError, UsageError
from downset.formats.certificates import KERNELS_KEY, METADATA_KEY, packed_certificate
from downset.formats.tflite.flatbuffer import Flatbuffer, read_flatbuffer
from downset.formats.tflite.read import moves_between_memories
from downset.formats.tflite.stored_states import STATES_KEY, packed_states, states_of
from downset.formats.tflite.write_moves import write_moves
from downset.formats.tflite.write_states import write_states
from downset.graph.core import Graph
from downset.memories.program import MovedProgram
from downset.process.whole_files import write_whole
from downset.results.streams import STREAM_KEY, StreamRecord, read_stream_record
from downset.results.two_memories import MEMORIES_KEY, TwoMemories

__all__ = ["OFFSETS_KEY", "drop_metadata", "export_in_memories", "export_tflite"]

OFFSETS_KEY = "OfflineMemoryAllocation"
"""The metadata in which TFLite Micro finds the offsets of tensors."""


def export_tflite(
    path: str | os.PathLike[str],
    graph: Graph,
    steps: Sequence[int],
    *,
    offsets: Mapping[int, int] | None = None,
    kernels: str = "",
    record: StreamRecord | None = None,
) -> None:
    """Write the file the graph was loaded from with its operators in the order `steps`.

    With `offsets` (graph tensor -> byte offset in the arena) the file carries TFLite Micro's OfflineMemoryAllocation
    metadata: int32 [version 1, subgraph 0, n, offset...], where n counts the tensors of all subgraphs and -1 leaves a
    tensor to the runtime. `kernels`: the library for which the offsets are right, where results may overlap inputs; the
    file names it (metadata `downset.kernels`). `record`: that of a stream, whose inputs and outputs are the graph's; in
    the form "variables" its states become resource variables that are zero at first. Metadata of an earlier plan is
    replaced. Raises UnsupportedError for a graph that is not from a .tflite file or cannot be stated in one, or whose
    states in place the offsets do not keep, and UsageError where the file cannot be written.
    """
    file = _own_file(graph)
    place = _write_operators(file, graph, steps, record)
    _add_states(file, graph, offsets or {})
    if offsets is not None:
        _append_offsets(file, {place[tensor]: offset for tensor, offset in offsets.items()})
        if kernels:
            _append_metadata(file, KERNELS_KEY, kernels.encode())
    write_whole(path, file.packed(), source=Path(graph.source.path))


def export_in_memories(
    path: str | os.PathLike[str], graph: Graph, program: MovedProgram, memories: TwoMemories
) -> None:
    """Write the file the graph was loaded from with the operators and the moves of a program for two memories.

    The offsets of both memories stand in one table, and `memories` in the metadata `downset.memories`. Raises
    UnsupportedError as `export_tflite` does, and for states and operators with bodies, whose tensors TFLite Micro
    places by itself; UsageError where an offset does not fit the format."""
    file = _own_file(graph)
    if graph.states or len(file.model.subgraphs) > 1:
        raise UnsupportedError(
            f"{graph.name} keeps states or runs bodies: no plan for two memories places their tensors"
        )
    place = _write_operators(file, graph, [step.operator for step in program.steps if step.operator is not None], None)
    _append_offsets(file, write_moves(file, graph, program, place, memories))
    _append_metadata(file, MEMORIES_KEY, memories.to_json().encode())
    write_whole(path, file.packed(), source=Path(graph.source.path))


def _own_file(graph: Graph) -> Flatbuffer:
    """The tables of the graph's file, without the metadata of an earlier plan. Raises UnsupportedError for a graph of
    another format, and for a file with moves between two memories, which fit no other plan; without moves it is as any
    other."""
    if graph.source.format != "tflite":
        raise UnsupportedError(f"{graph.name} was not read from a .tflite file: it cannot be written as one")
    file = read_flatbuffer(graph.source.path)
    if file.metadata(MEMORIES_KEY) is not None and moves_between_memories(graph.source.path):
        raise UnsupportedError(
            f"{graph.source.path} has moves between two memories, which follow its own order and offsets: write the "
            "original that it was made from"
        )
    for name in (OFFSETS_KEY, KERNELS_KEY, STATES_KEY, MEMORIES_KEY):
        drop_metadata(file.model, name)
    return file


def _write_operators(
    file: Flatbuffer, graph: Graph, steps: Sequence[int], record: StreamRecord | None
) -> Mapping[int, int]:
    """Put the graph's operators into the file in the order `steps`; returns the place of each tensor in the file."""
    main = file.model.subgraphs[0]
    place: Mapping[int, int] = dict(enumerate(graph.source.tensor_index))
    if sorted(steps) != list(range(len(graph.ops))):
        raise UnsupportedError(f"{graph.name}: an order runs each of its {len(graph.ops)} operators once")
    if graph.source.rewritten:
        from downset.formats.tflite.write_rewritten import write_rewritten

        place = write_rewritten(file, graph, steps)
        _certify(file, graph)
        if record is not None:
            write_states(file, graph, record, place)
            _append_metadata(file, STREAM_KEY, record.to_json().encode())
    else:
        positions = [graph.source.op_index[operator] for operator in steps]
        if sorted(positions) != list(range(len(main.operators))):
            raise UnsupportedError(f"{graph.name}: this graph is neither its file's nor a rewrite of it")
        main.operators = [main.operators[position] for position in positions]
    return place


def drop_metadata(model: Any, name: str) -> None:
    """Remove the metadata of this name that the file has from an earlier fit. The buffer is emptied and stays, so that
    the indices of other buffers stay valid."""
    if model.metadata is not None:
        names = (name, name.encode())
        for entry in model.metadata:
            if entry.name in names:
                model.buffers[entry.buffer].data = None
        model.metadata = [entry for entry in model.metadata if entry.name not in names]


def _append_offsets(file: Flatbuffer, offsets: Mapping[int, int]) -> None:
    """Add TFLite Micro's table. `offsets`: by tensor of the file's main subgraph."""
    count = sum(len(subgraph.tensors) for subgraph in file.model.subgraphs)
    plan = np.full(3 + count, -1, np.int32)
    plan[:3] = (1, 0, count)
    for tensor, offset in offsets.items():
        if offset >= 1 << 31:
            name = (file.model.subgraphs[0].tensors[tensor].name or b"").decode(errors="replace")
            raise UsageError(f"tensor {name!r} lies at {offset}: the format ends at 2 GiB")
        plan[3 + tensor] = offset
    _append_metadata(file, OFFSETS_KEY, plan.tobytes())


def _add_states(file: Flatbuffer, graph: Graph, offsets: Mapping[int, int]) -> None:
    for state in graph.states:
        before, after = offsets.get(state.read), offsets.get(state.written)
        if before is None or before != after:
            raise UnsupportedError(
                f"{graph.name} keeps its state {state.name!r} in place: a file needs offsets, and the same one for "
                f"{graph.tensors[state.read].name!r} and {graph.tensors[state.written].name!r}; plan an arena under "
                "memory model tflm"
            )
    if graph.states:
        _append_metadata(file, STATES_KEY, packed_states(states_of(graph)))
        _restate_record(file, graph)


def _restate_record(file: Flatbuffer, graph: Graph) -> None:
    """Let the record of a stream whose states were variables name the inputs and outputs that they are now."""
    said = file.metadata(STREAM_KEY)
    record = None if said is None else read_stream_record(said)
    states = {one.name: one for one in states_of(graph)}
    if record is None or record.form != "variables" or not states.keys() >= {one.name for one in record.states}:
        return
    moved = tuple(replace(one, name=states[one.name].input, next=states[one.name].output) for one in record.states)
    drop_metadata(file.model, STREAM_KEY)
    restated = replace(record, form="in_place", states=moved)
    _append_metadata(file, STREAM_KEY, restated.to_json().encode())


def _certify(file: Flatbuffer, graph: Graph) -> None:
    """Put the certificate into the file's metadata: the parts of the file's tensors that new tensors hold."""
    drop_metadata(file.model, METADATA_KEY)
    parts = {graph.tensors[tensor].name: part for tensor, part in sorted(graph.source.parts.items())}
    if parts:
        _append_metadata(file, METADATA_KEY, packed_certificate(parts))


def _append_metadata(file: Flatbuffer, name: str, content: bytes) -> None:
    entry = file.schema.MetadataT()
    entry.name, entry.buffer = name, file.add_buffer(content)
    file.model.metadata = [*(file.model.metadata or []), entry]
