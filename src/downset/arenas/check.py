"""Checks an arena by simulating its order. Imports no planner; the code is naive so that it is easy to verify.

An arena is checked by simulation: every write stamps its byte range with the value it holds, every read looks whether
the stamps are still there. A placement that overwrites a byte which is still needed is named with operator and tensor.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from downset.errors import InvalidPlan
from downset.graph.core import ABSENT, Graph, Op
from downset.memory.liveness import lifetimes, order_problem, peak_bytes
from downset.memory.models import MemoryModel, stated_model
from downset.results.plans import Arena

__all__ = ["verify_arena"]


def verify_arena(graph: Graph, steps: Sequence[int], arena: Arena, *, memory: str | MemoryModel | None = None) -> None:
    """The laws of a placement for this graph and order; `memory` where the model is the caller's own, which has the
    name that the arena states.

    Every tensor keeps its bytes until its last reader ran; all bytes lie in the arena and are aligned; the arena is at
    least the peak. Raises InvalidPlan naming the first law broken. O(steps x tensors)."""
    model = stated_model(arena.memory, memory, "arena")
    planned = lifetimes(graph, steps, model)
    if (planned.records, planned.overlaps) != (arena.records, arena.overlaps) or len(arena.offsets) != len(
        arena.records
    ):
        raise InvalidPlan("the arena was planned for other lifetimes than this order gives")
    for tensor, offset in planned.tensor_offsets(arena.offsets).items():
        if arena.tensor_offsets.get(tensor) != offset:
            name = graph.tensors[tensor].name
            raise InvalidPlan(f"tensor {name!r} has no offset or another one than its record gives it ({offset})")
    for record, offset in zip(arena.records, arena.offsets, strict=True):
        if offset < 0 or offset % record.alignment:
            raise InvalidPlan(f"{record.id!r} lies at {offset}, which is not a multiple of {record.alignment}")
        if record.offset is not None and offset != record.offset:
            raise InvalidPlan(f"{record.id!r} is pinned at {record.offset} but lies at {offset}")
        if offset + record.nbytes > arena.arena_bytes:
            raise InvalidPlan(
                f"{record.id!r} ends at {offset + record.nbytes}, outside the arena of {arena.arena_bytes} bytes"
            )
    peak = peak_bytes(order_problem(graph, model), steps)
    if arena.arena_bytes < peak:
        raise InvalidPlan(f"an arena of {arena.arena_bytes} bytes is less than the peak of {peak}")
    _ArenaSimulation(graph, arena, model).run(steps)


class _Stamps:
    """Which value each byte range of the arena holds; ranges are split where writes cut them."""

    def __init__(self, arena_bytes: int) -> None:
        self.cuts = [0, max(arena_bytes, 1)]
        self.holds = [-1]

    def _cut(self, offset: int) -> int:
        index = bisect.bisect_left(self.cuts, offset)
        if self.cuts[index] != offset:
            self.cuts.insert(index, offset)
            self.holds.insert(index, self.holds[index - 1])
        return index

    def write(self, start: int, stop: int, value: int) -> None:
        low = self._cut(start)
        high = self._cut(stop)
        self.cuts[low:high] = [start]
        self.holds[low:high] = [value]

    def intruder(self, start: int, stop: int, value: int) -> int | None:
        """Another value that lies somewhere in the range, or None."""
        low, high = self._cut(start), self._cut(stop)
        return next((other for other in self.holds[low:high] if other != value), None)


Piece = tuple[int, int, int]
"""Bytes [start, stop) of the arena that hold a value, which has the number of a tensor."""


def _values(graph: Graph, arena: Arena, model: MemoryModel) -> tuple[list[tuple[Piece, ...]], set[int]]:
    """By tensor: the pieces that it consists of; and the tensors that are partial sums.

    A view consists of the value that it looks at. A zero-copy concatenation consists of its parts; one in place, of
    those parts that lie where the result has them. A partial sum is the value that it adds to, and writes it too."""
    offsets = arena.tensor_offsets
    parts: list[tuple[Piece, ...]] = [
        ((tensor, offsets[tensor], offsets[tensor] + meta.nbytes),) if tensor in offsets else ()
        for tensor, meta in enumerate(graph.tensors)
    ]
    partial: set[int] = set()
    for op in reversed(graph.ops):  # a sum may itself be part of a later one
        if op.kind == "Sum" and model.accumulates and op.attrs.get("partial_sum") and op.outputs[0] != ABSENT:
            for tensor in op.inputs:
                if _adds_to(graph, tensor, op) and offsets.get(tensor) == offsets.get(op.outputs[0]):
                    parts[tensor] = parts[op.outputs[0]]
                    partial.add(tensor)
    for op in graph.ops:
        if not op.outputs or op.outputs[0] == ABSENT or not op.inputs:
            continue
        output, source = op.outputs[0], op.inputs[0]
        if op.kind in model.views and source != ABSENT and offsets.get(source) == offsets.get(output) and parts[source]:
            parts[output] = parts[source]
        elif op.kind == "Concat" and model.concat_is_view and (output not in offsets or _is_whole(graph, offsets, op)):
            parts[output] = tuple(pair for tensor in op.inputs if tensor != ABSENT for pair in parts[tensor])
        elif model.rows_in_place and "lies_at" in op.attrs and output in offsets and source in offsets:
            if offsets[output] == offsets[source] + op.attrs["lies_at"]:
                parts[output] = _cut(parts[source], offsets[output], offsets[output] + graph.tensors[output].nbytes)
        elif model.rows_in_place and op.kind == "Concat" and op.attrs.get("in_place") and output in offsets:
            parts[output] = _joined(graph, op, offsets, parts)
    return parts, partial


def _cut(pieces: Sequence[Piece], start: int, stop: int) -> tuple[Piece, ...]:
    """The pieces that lie in these bytes."""
    inside = ((value, max(low, start), min(high, stop)) for value, low, high in pieces)
    return tuple((value, low, high) for value, low, high in inside if low < high)


def _joined(graph: Graph, op: Op, offsets: Mapping[int, int], parts: Sequence[tuple[Piece, ...]]) -> tuple[Piece, ...]:
    """A concatenation where parts lie where the result has them; the others are copied there."""
    output, pieces = op.outputs[0], list[Piece]()
    start = offsets[output]
    for tensor in op.inputs:
        stop = start + graph.tensors[tensor].nbytes
        lies = offsets.get(tensor) == start and op.inputs.count(tensor) == 1
        pieces += parts[tensor] if lies else [(output, start, stop)]
        start = stop
    return tuple(pieces)


def _adds_to(graph: Graph, tensor: int, summing: Op) -> bool:
    """Whether a tensor may be added up in the bytes of a sum: the sum alone reads it, and it has no activation of its
    own."""
    if tensor == ABSENT or tensor in graph.inputs or tensor in graph.outputs:
        return False
    reads = [op for op in graph.ops for read in op.inputs if read == tensor]
    activated = any(op.kind == "Sum" and op.attrs.get("activation") and tensor in op.outputs for op in graph.ops)
    as_large = graph.tensors[tensor].nbytes == graph.tensors[summing.outputs[0]].nbytes
    return len(reads) == 1 and reads[0] is summing and as_large and not activated


def _is_whole(graph: Graph, offsets: Mapping[int, int], op: Op) -> bool:
    """Whether a concatenation of one tensor lies where that tensor does."""
    parts = [tensor for tensor in op.inputs if tensor != ABSENT]
    output = op.outputs[0]
    return (
        len(parts) == 1
        and offsets.get(parts[0]) == offsets[output]
        and graph.tensors[parts[0]].nbytes == graph.tensors[output].nbytes
        and not op.attrs.get("activation")
    )


class _ArenaSimulation:
    """The bytes of an arena while the operators of a graph run in an order."""

    def __init__(self, graph: Graph, arena: Arena, model: MemoryModel) -> None:
        self._graph, self._offsets, self._model = graph, arena.tensor_offsets, model
        self._stamps = _Stamps(arena.arena_bytes)
        self._values, self._partial = _values(graph, arena, model)

    def run(self, steps: Sequence[int]) -> None:
        """Raise InvalidPlan for the first operator that does not find what it reads."""
        graph = self._graph
        for tensor in graph.inputs:
            for piece in self._values[tensor]:
                self._write(piece)
        for tensor in graph.inputs:  # the caller fills them all before anything runs
            self._read(tensor, "the caller")
        for operator in steps:
            op = graph.ops[operator]
            reader = f"operator {op.name!r}"
            for tensor in op.inputs:
                self._read(tensor, reader)
            for tensor in op.outputs:
                for piece in self._values[tensor] if tensor != ABSENT else ():
                    if piece[0] == tensor or tensor in self._partial:
                        self._forbid_overwriting_inputs(op, piece)
                        self._write(piece)
            for tensor in op.outputs:  # two outputs of one operator must not overwrite each other
                self._read(tensor, reader)
        for tensor in graph.outputs:
            self._read(tensor, "the caller")

    def _write(self, piece: Piece) -> None:
        value, start, stop = piece
        if start < stop:
            self._stamps.write(start, stop, value)

    def _read(self, tensor: int, reader: str) -> None:
        for value, start, stop in self._values[tensor] if tensor != ABSENT else ():
            lost = self._stamps.intruder(start, stop, value)
            if start < stop and lost is not None:
                intruder = self._graph.tensors[lost].name if lost >= 0 else "nothing"
                raise InvalidPlan(
                    f"{reader} needs tensor {self._graph.tensors[tensor].name!r} at offset {start}, but {intruder!r} "
                    "lies there then"
                )

    def _forbid_overwriting_inputs(self, op: Op, written: Piece) -> None:
        """While an operator runs its inputs must stay readable, except that it may work exactly in place, or where its
        kernel has read what it overwrites."""
        value, start, stop = written
        for tensor in op.inputs:
            for read_value, offset, end in self._values[tensor] if tensor != ABSENT else ():
                if not (offset < stop and start < end) or start == stop or read_value == value:
                    continue
                exactly = (offset, end) == (start, stop) and self._works_in_place(op, tensor)
                if not (exactly or self._is_read_before(op, read_value, value)):
                    raise InvalidPlan(
                        f"operator {op.name!r} would write {self._graph.tensors[value].name!r} over its own input "
                        f"{self._graph.tensors[read_value].name!r}"
                    )

    def _works_in_place(self, op: Op, tensor: int) -> bool:
        """Whether a kernel of this kind may write its result over this input, at the same bytes."""
        position = self._model.in_place_input.get(op.kind)
        alone = (
            position is not None
            and op.inputs[position : position + 1] == (tensor,)
            and list(op.inputs).count(tensor) == 1
        )
        return op.kind in self._model.in_place or alone

    def _is_read_before(self, op: Op, read_value: int, value: int) -> bool:
        """Whether the kernel has read each byte of its first input before it writes its first result there."""
        offsets, kernels = self._offsets, self._model.kernels
        if kernels is None or (read_value, value) != (op.inputs[0], op.outputs[0]):
            return False
        if read_value not in offsets or value not in offsets:
            return False
        from downset.arenas.check_overlaps import reads_before_it_writes  # it needs NumPy, which few arenas do

        return reads_before_it_writes(self._graph, op, kernels, offsets[read_value], offsets[value])
