"""A `.tflite` file with moves between two memories, as the network without them and the places of its tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from downset.errors import LoadError
from downset.formats.tflite.flatbuffer import Flatbuffer, read_flatbuffer
from downset.formats.tflite.read import load_tflite, two_memories
from downset.formats.tflite.write import OFFSETS_KEY, drop_metadata
from downset.formats.tflite.write_rewritten import drop_weights, listed, renumber_ends
from downset.process.whole_files import write_whole
from downset.results.two_memories import MEMORIES_KEY, TwoMemories

__all__ = ["PlacedNetwork", "PlacedOperator", "write_without_moves"]


@dataclass(frozen=True, slots=True)
class PlacedOperator:
    """The offsets of an operator's operands in the table of the file with moves, by tensor of the file without them.
    `loaded`: the tensors that moves brought to where they are since the operator before."""

    offsets: Mapping[int, int]
    loaded: frozenset[int]


@dataclass(frozen=True, slots=True)
class PlacedNetwork:
    """`inputs`, `outputs`: offsets of the network's ends, by tensor. `stored`: the offsets of copies that moves made in
    slow memory."""

    memories: TwoMemories
    operators: tuple[PlacedOperator, ...]
    inputs: Mapping[int, int]
    outputs: Mapping[int, int]
    stored: Mapping[int, int]


def write_without_moves(source: str | os.PathLike[str], target: Path) -> PlacedNetwork:
    """Write the network of a file with moves without them, in its own order and without offsets. Raises LoadError for
    any other file."""
    memories = two_memories(source)
    if memories is None:
        raise LoadError(f"{source} was not fitted to two memories")
    file = read_flatbuffer(source)
    main, table = file.model.subgraphs[0], file.metadata(OFFSETS_KEY)
    offsets = np.frombuffer(table or b"", "<i4")[3:].tolist()
    if len(offsets) != len(main.tensors):
        raise LoadError(f"{source} states no offset of each of its {len(main.tensors)} tensors")

    def fast(tensor: int) -> bool:
        return memories.is_fast(offsets[tensor], 1) is True

    marked = ["move" in op.attrs for op in load_tflite(source).ops]
    first: dict[int, int] = {}
    """By result of a move: the tensor that was made first."""
    members: dict[int, list[int]] = {}
    loaded: set[int] = set()
    stored: dict[int, int] = {}
    steps: list[tuple[Any, dict[int, int], frozenset[int]]] = []
    for operator, move in zip(main.operators, marked, strict=True):
        sources, results = _tensors(operator.inputs), _tensors(operator.outputs)
        if move and fast(sources[0]) != fast(results[0]):
            origin = first[results[0]] = first.get(sources[0], sources[0])
            members.setdefault(origin, [origin]).append(results[0])
            if fast(results[0]):
                loaded.add(origin)
            else:
                stored[origin] = offsets[results[0]]
            continue
        places = {first.get(tensor, tensor): offsets[tensor] for tensor in (*sources, *results)}
        steps.append((operator, places, frozenset(loaded)))
        loaded.clear()
    outputs = [int(tensor) for tensor in listed(main.outputs)]
    inputs = [int(tensor) for tensor in listed(main.inputs)]
    name_of = {one: _named(one, members.get(one, [one]), inputs, outputs) for one in range(len(main.tensors))}
    copy_of = {copy: name_of[origin] for origin, copies in members.items() for copy in copies}
    main.operators = [operator for operator, _, _ in steps]
    place = _renumbered(file, copy_of)
    for name in (OFFSETS_KEY, MEMORIES_KEY):
        drop_metadata(file.model, name)
    drop_weights(file.model)
    write_whole(target, file.packed(), source=Path(source))

    def by_place(places: Mapping[int, int]) -> dict[int, int]:
        return {place[name_of[tensor]]: offset for tensor, offset in places.items()}

    return PlacedNetwork(
        memories,
        tuple(
            PlacedOperator(by_place(places), frozenset(place[name_of[tensor]] for tensor in into))
            for _, places, into in steps
        ),
        by_place({tensor: offsets[tensor] for tensor in inputs}),
        by_place({first.get(tensor, tensor): offsets[tensor] for tensor in outputs}),
        by_place(stored),
    )


def _tensors(stated: Any) -> list[int]:
    return [int(tensor) for tensor in listed(stated) if tensor >= 0]


def _named(origin: int, copies: list[int], inputs: list[int], outputs: list[int]) -> int:
    """The copy that stands for all: the one under the name by which callers and certificates know the tensor."""
    return next((one for ends in (inputs, outputs) for one in copies if one in ends), origin)


def _renumbered(file: Flatbuffer, copy_of: Mapping[int, int]) -> dict[int, int]:
    """Let operators and ends refer to one copy of each tensor, and drop the others. Returns the new index of each
    tensor that is left."""
    main = file.model.subgraphs[0]
    renumber_ends(file.model, "outputs", copy_of)

    def references() -> Iterator[tuple[Any, str]]:
        for operator in main.operators:
            for key in ("inputs", "outputs", "intermediates"):
                if getattr(operator, key) is not None:
                    yield operator, key

    used = {int(tensor) for ends in (main.inputs, main.outputs) for tensor in listed(ends)}
    for operator, key in references():
        used.update(copy_of.get(tensor, tensor) for tensor in _tensors(getattr(operator, key)))
    place = {tensor: index for index, tensor in enumerate(sorted(used))}
    for operator, key in references():
        stated = [int(tensor) for tensor in getattr(operator, key)]
        there = [place[copy_of.get(tensor, tensor)] if tensor >= 0 else tensor for tensor in stated]
        setattr(operator, key, np.asarray(there, np.int32))
    main.tensors = [main.tensors[tensor] for tensor in sorted(used)]
    renumber_ends(file.model, "inputs", place)
    renumber_ends(file.model, "outputs", place)
    return place
