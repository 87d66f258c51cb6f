"""The price of a segment in strips: bytes live while it runs, arithmetic, copies and operators.

Bytes are those of `memory.liveness` for the rewritten network in the sequence of the program's steps, found without
making that network. They are equal for models in which tensors share bytes only in place. For other models they are
never fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from downset import native
from downset.errors import UnsupportedError
from downset.graph.core import Graph
from downset.graph.cost import whole_macs
from downset.graph.halos import window
from downset.graph.kinds import kind_of
from downset.graph.row_form import Interval, RowForm
from downset.memory.liveness import order_problem, profile
from downset.memory.models import MemoryModel
from downset.memory.overlaps import geometry, least_lag
from downset.memory.records import align_up
from downset.memory.storages import map_storages
from downset.methods import EngineName
from downset.partial.memory_form import Persistent, padded_row_bits, row_bits, same_pads, takes_over
from downset.partial.native_form import native_network
from downset.partial.segments import Segment, computing
from downset.partial.strip_program import StripProgram, StripStep, check_strips, strip_program
from downset.rewrites.strips import strip_pads

__all__ = ["Price", "Pricing", "Surroundings"]


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a part of the network.

    `peak_bytes`: the most bytes live while it runs, other live tensors included. `extra_macs`: MACs beyond computing
    everything once; negative where rows are left out that no operator reads. `copied_bytes`: bytes written by operators
    that only move values. `extra_operators`: operators beyond those of the network. `persistent_bytes`: an estimate of
    the bytes that the runtime keeps for these; `narrow_bytes`: the same where pointers have four bytes. `apart_bytes`:
    the peak if no result takes over bytes of an input."""

    peak_bytes: int
    extra_macs: int = 0
    copied_bytes: int = 0
    extra_operators: int = 0
    persistent_bytes: int = 0
    narrow_bytes: int = 0
    apart_bytes: int = 0

    def beside(self, other: Price) -> Price:
        """The price of two parts that run one after the other."""
        return Price(
            max(self.peak_bytes, other.peak_bytes),
            self.extra_macs + other.extra_macs,
            self.copied_bytes + other.copied_bytes,
            self.extra_operators + other.extra_operators,
            self.persistent_bytes + other.persistent_bytes,
            self.narrow_bytes + other.narrow_bytes,
            max(self.apart_bytes, other.apart_bytes),
        )


class _PricedOperator(NamedTuple):
    """The buffers of one operator: those that it reads and makes, and those that its result may overwrite. `lag`: the
    least bytes by which the result must begin below the first buffer read to overlap it (None: it must not)."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[int, ...] = ()
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Live bytes of a graph in its order: `live[i]` bytes before operator i, `transient[i]` bytes while it runs."""

    live: tuple[int, ...]
    transient: tuple[int, ...]
    apart: tuple[int, ...]
    """`transient` if no result takes over bytes of an input."""
    needed_until: tuple[int, ...]
    """By tensor: the last operator that reads its bytes; the number of operators where they are kept to the end."""
    held_by: tuple[tuple[int, ...], ...]
    """By tensor: its storages."""
    alone: tuple[bool, ...]
    """By tensor: whether no other tensor lies in its storages."""


def surroundings(graph: Graph, model: MemoryModel) -> Surroundings:
    """The surroundings of a graph under a memory model. O(operators + storages). Raises UnsupportedError for models in
    which a concatenation is a view or sums accumulate in place."""
    if model.concat_is_view or model.accumulates:
        raise UnsupportedError(f"strips are not priced in the memory model {model.name!r}, where joins cost no bytes")
    storage_map, count = map_storages(graph, model), len(graph.ops)
    changes, until = [0] * (count + 1), []
    for nbytes, producers, consumers, kept in zip(
        storage_map.nbytes, storage_map.producers, storage_map.consumers, storage_map.kept, strict=True
    ):
        last = count if kept else max((*consumers, *producers), default=-1)
        until.append(last)
        if last >= 0 or kept:
            changes[producers[0] + 1 if producers else 0] += nbytes
            if last < count:
                changes[last + 1] -= nbytes
    needed = tuple(max((until[storage] for storage in held), default=-1) for held in storage_map.storages_of)
    problem = order_problem(graph, model)
    transient = profile(problem, range(count))
    apart = profile(replace(problem, in_place=(), in_place_bytes=()), range(count))
    held = tuple(storage_map.storages_of)
    tensors = Counter(held)
    alone = tuple(tensors[storages] == 1 for storages in held)
    return Surroundings(tuple(accumulate(changes)), tuple(transient), tuple(apart), needed, held, alone)


class Pricing:
    """Prices of segments of one graph, in its order, under one memory model.

    With `engine` "native" the compiled twin of `strip_program` and `of_program` computes them.
    """

    def __init__(
        self,
        graph: Graph,
        form: RowForm,
        model: MemoryModel,
        *,
        persistent: Persistent | None = None,
        engine: EngineName = "native",
    ) -> None:
        self.graph, self.form, self.model = graph, form, model
        self.persistent = persistent or Persistent((0,) * len(graph.ops), 0)
        self.around = surroundings(graph, model)
        self._padded = graph.source.format == "tflite"
        self._native = native_network(graph, form, model, self.persistent) if engine == "native" else None
        self._inputs, self._outputs = frozenset(graph.inputs), frozenset(graph.outputs)
        self._segments: dict[Segment, Any] = {}
        self._replaced: dict[Segment, tuple[int, int]] = {}

    def whole(self, first: int, stop: int) -> Price:
        """The price of the operators [first, stop) without strips."""
        return Price(max(self.around.transient[first:stop], default=0))

    def strips(self, segment: Segment, strips: int, *, recomputed: Collection[int] = (), even: bool = False) -> Price:
        """The price of a segment in strips. Raises UnsupportedError as `strip_program` does."""
        if self._native is None:
            program = strip_program(self.graph, self.form, segment, strips, recomputed=recomputed, even=even)
            return self.of_program(program)
        check_strips(self.graph, self.form, segment, strips, even=even)
        if segment not in self._segments:
            self._segments[segment] = self._native_segment(segment)
        price = native.compiled.strips_price(self._native, self._segments[segment], strips, list(recomputed), even)
        possible, peak, apart, macs, copied, operators, persistent = price
        if not possible:
            raise UnsupportedError(f"{self.graph.name}: a strip is padding alone, and rows are added to it")
        extra = macs - whole_macs(self.form, segment.operators)
        return self._price(segment, (peak, apart), extra, copied, operators, persistent)

    def _native_segment(self, segment: Segment) -> Any:
        nbytes, beside = self.inputs(segment)
        assert self._native is not None
        return native.compiled.StripSegment(
            self._native,
            segment.first,
            segment.stop,
            inputs=segment.inputs,
            input_bytes=nbytes,
            inputs_kept=[self.stays(tensor, segment) for tensor in segment.inputs],
            inputs_apart=[tensor in self._inputs for tensor in segment.inputs],
            inputs_alone=[self.around.alone[tensor] for tensor in segment.inputs],
            results=segment.results,
            results_counted=[self.counts(tensor) for tensor in segment.results],
            live_beside=beside,
        )

    def inputs(self, segment: Segment) -> tuple[list[int], int]:
        """(bytes of each input of the segment, other bytes that are live before it runs). Inputs that share bytes count
        once."""
        nbytes: list[int] = []
        seen: set[tuple[int, ...]] = set()
        for tensor in segment.inputs:
            held = self.around.held_by[tensor]
            nbytes.append(0 if held in seen or not held else self.piece_bytes(tensor, (0, self.form.rows[tensor])))
            seen.add(held)
        return nbytes, self.around.live[segment.first] - sum(nbytes)

    def counts(self, tensor: int) -> bool:
        """Whether the model counts a tensor that an operator makes."""
        return self.model.outputs_counted or tensor not in self._outputs

    def stays(self, tensor: int, segment: Segment) -> bool:
        """Whether the bytes of an input are needed after the segment."""
        return self.around.needed_until[tensor] >= segment.stop

    def of_program(self, program: StripProgram) -> Price:
        """The price of these steps. O(steps)."""
        graph, segment = self.graph, program.segment
        nbytes = [self.piece_bytes(piece.tensor, piece.rows) for piece in program.pieces]
        for piece, tensor in zip(program.results, segment.results, strict=True):
            if not self.counts(tensor):
                nbytes[piece] = 0
        runs = [run for step in program.steps for run in self._runs(program, step, nbytes)]
        given, beside = self.inputs(segment)
        nbytes[: len(given)] = given
        kept = {
            *program.results,
            *(position for position, tensor in enumerate(segment.inputs) if self.stays(tensor, segment)),
        }
        apart = {position for position, tensor in enumerate(segment.inputs) if tensor in graph.inputs}
        shared = {position for position, tensor in enumerate(segment.inputs) if not self.around.alone[tensor]}
        peaks = _peaks(runs, nbytes, beside + sum(given), kept, apart, shared, self.model)
        computed = [step for step in program.steps if step.kind == "compute"]
        macs = sum(self.form.ops[step.op].macs_per_row * _made(program, step) for step in computed)
        written = sum(nbytes[piece] for run in runs for piece in run.writes)
        copied = written - sum(nbytes[piece] for step in computed for piece in step.writes)
        extra = macs - whole_macs(self.form, segment.operators)
        moved = (len(runs) - len(computed)) * self.persistent.moving_bytes
        persistent = moved + sum(self.persistent.operator_bytes[step.op] for step in computed)
        return self._price(segment, peaks, extra, copied, len(runs), persistent)

    def _price(
        self, segment: Segment, peaks: tuple[int, int], extra: int, copied: int, operators: int, persistent: int
    ) -> Price:
        if segment not in self._replaced:
            replaced = computing(self.graph, segment)
            self._replaced[segment] = len(replaced), sum(self.persistent.operator_bytes[index] for index in replaced)
        count, nbytes = self._replaced[segment]
        more, kept = operators - count, persistent - nbytes
        peak, apart = peaks
        return Price(peak, extra, copied, more, kept, kept - more * self.persistent.narrower_bytes, apart)

    def piece_bytes(self, tensor: int, rows: Interval) -> int:
        """Aligned bytes of these rows of a tensor."""
        bits = row_bits(self.graph, tensor, self.form.rows[tensor]) * (rows[1] - rows[0])
        return align_up((bits + 7) // 8, self.model.alignment)

    def _runs(self, program: StripProgram, step: StripStep, nbytes: list[int]) -> Iterator[_PricedOperator]:
        """The operators of one step: two where a .tflite file cannot state a window's pads and a Pad comes before
        it."""
        reads = step.reads
        if step.kind != "compute":
            yield _PricedOperator(reads, step.writes)
            return
        op = self.graph.ops[step.op]
        sides = self._sides(program, step) if kind_of(op.kind).rows == "window" else None
        padded = self._pad_bytes(program, step, sides) if self._padded and sides else 0
        lag = None if sides is None else self._lag(program, step, sides, padded=padded > 0)
        if padded:
            nbytes.append(padded)
            yield _PricedOperator(reads[:1], (len(nbytes) - 1,))
            reads = (len(nbytes) - 1, *reads[1:])
        over = takes_over(op, self.model)
        if self.model.outputs_apart and op.outputs[0] in self.graph.outputs and step.writes[0] in program.results:
            over = frozenset()
        in_place = tuple(piece for piece in step.reads if program.pieces[piece].tensor in over)
        yield _PricedOperator(reads, step.writes, in_place, lag)

    def _sides(self, program: StripProgram, step: StripStep) -> tuple[int, int, int, int]:
        """Padding of a window in a strip: above, below, left and right."""
        op = self.graph.ops[step.op]
        source, result = program.pieces[step.reads[0]], program.pieces[step.writes[0]]
        rows, columns = window(self.graph, op, 0), window(self.graph, op, 1)
        count = self.form.rows[source.tensor]
        pads = strip_pads(rows, count, result.rows, source.rows)
        if (result.rows, source.rows) == ((0, self.form.rows[result.tensor]), (0, count)):
            pads = rows.pad_begin, rows.pad_end
        return (*pads, columns.pad_begin, columns.pad_end)

    def _pad_bytes(self, program: StripProgram, step: StripStep, sides: tuple[int, int, int, int]) -> int:
        """Bytes of the padded input, or 0 where no Pad is needed: the pads are those of SAME, or zero."""
        op, source = self.graph.ops[step.op], program.pieces[step.reads[0]]
        rows, columns = window(self.graph, op, 0), window(self.graph, op, 1)
        height, wide = source.rows[1] - source.rows[0], self.graph.tensors[source.tensor].shape[2]
        if not any(sides) or sides == (*same_pads(rows, height), *same_pads(columns, wide)):
            return 0
        count = self.form.rows[source.tensor]
        bits = padded_row_bits(self.graph, source.tensor, count, sides[2] + sides[3]) * (height + sides[0] + sides[1])
        return align_up((bits + 7) // 8, self.model.alignment)

    def _lag(
        self, program: StripProgram, step: StripStep, sides: tuple[int, int, int, int], *, padded: bool
    ) -> int | None:
        """The aligned lag of a window in a strip, by the kernels of the model's library (`memory.storages.lagged`)."""
        op = self.graph.ops[step.op]
        if self.model.kernels is None or op.kind in self.model.in_place:
            return None
        whole = geometry(self.graph, op)
        source, result = program.pieces[step.reads[0]], program.pieces[step.writes[0]]
        if whole is None or source.tensor != op.inputs[0]:
            return None
        top, below, left, right = sides
        batches, _, columns, depth = whole.read
        height = source.rows[1] - source.rows[0]
        strip = replace(
            whole,
            read=(batches, height + padded * (top + below), columns + padded * (left + right), depth),
            written=(batches, result.rows[1] - result.rows[0], *whole.written[2:]),
            pads=(0, 0) if padded else (top, left),
        )
        lag = least_lag(self.graph, op, self.model.kernels, strip)
        return None if lag is None else align_up(lag, self.model.alignment)


def _made(program: StripProgram, step: StripStep) -> int:
    start, stop = program.pieces[step.writes[0]].rows
    return stop - start


def _peaks(
    runs: Sequence[_PricedOperator],
    nbytes: Sequence[int],
    live: int,
    kept: set[int],
    apart: set[int],
    shared: set[int],
    model: MemoryModel,
) -> tuple[int, int]:
    """(peak, peak if no bytes are taken over). Inputs in `apart` are never overwritten in place. Inputs in `shared` are
    never overlapped, since other tensors lie in their bytes."""
    last: dict[int, int] = {}
    readers: dict[int, int] = {}
    for index, run in enumerate(runs):
        for piece in run.writes:
            last[piece] = index
        for piece in set(run.reads):
            last[piece] = index
            readers[piece] = readers.get(piece, 0) + 1
    peak = without = 0
    for index, run in enumerate(runs):
        live += sum(nbytes[piece] for piece in run.writes)
        over = (
            nbytes[piece]
            for piece in run.in_place
            if last[piece] == index
            and piece not in kept
            and piece not in apart
            and nbytes[piece] == nbytes[run.writes[0]]
            and not (model.in_place_only_reader and readers[piece] > 1)
        )
        taken = next(over, 0)
        if not taken and run.lag is not None and last[run.reads[0]] == index and run.reads[0] not in kept | shared:
            taken = max(min(nbytes[run.reads[0]], nbytes[run.writes[0]] - run.lag), 0)
        peak, without = max(peak, live - taken), max(without, live)
        for piece in {*run.reads, *run.writes}:
            if last[piece] == index and piece not in kept:
                live -= nbytes[piece]
    return peak, without
