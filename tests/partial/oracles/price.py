"""The oracle of native/partial/price.hpp: the bytes of each operator of a strip program, one after the other.

Which bytes lie around the segment, and what a runtime keeps for each operator, are those of the `Pricing` itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from downset.graph.cost import whole_macs
from downset.graph.halos import same_pads, window
from downset.graph.kinds import kind_of
from downset.memory.models import MemoryModel
from downset.memory.overlaps import geometry, least_lag
from downset.memory.records import align_up
from downset.partial.memory_form import padded_row_bits, takes_over
from downset.partial.pieces import StripStep
from downset.partial.price import Price, Pricing
from downset.partial.segments import computing
from downset.partial.strip_program import StripProgram
from downset.partial.strip_scratch import OnRows, strip_scratch
from downset.rewrites.strips import strip_pads

__all__ = ["price_of"]


class PricedOperator(NamedTuple):
    """The buffers of one operator: those that it reads and makes, and those that its result may overwrite. `lag`: the
    least bytes by which the result must begin below the first buffer read to overlap it (None: it must not).
    `scratch`: bytes that its kernel asks for."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[int, ...] = ()
    lag: int | None = None
    moves: bool = False
    """Whether it only moves values."""
    scratch: int = 0


def price_of(pricing: Pricing, program: StripProgram) -> Price:
    """The price of these steps. O(steps)."""
    graph, segment = pricing.graph, program.segment
    nbytes = [pricing.piece_bytes(piece.tensor, piece.rows) for piece in program.pieces]
    for (piece,), tensor in zip(program.results, segment.results, strict=True):
        if not pricing.counts(tensor):
            nbytes[piece] = 0
    operators = [operator for step in program.steps for operator in _operators(pricing, program, step, nbytes)]
    given, beside = pricing.inputs(segment)
    nbytes[: len(given)] = given
    kept = {
        *(piece for (piece,) in program.results),
        *(position for position, tensor in enumerate(segment.inputs) if pricing.stays(tensor, segment)),
    }
    apart = {position for position, tensor in enumerate(segment.inputs) if pricing.never_overwritten(tensor, segment)}
    shared = {position for position, tensor in enumerate(segment.inputs) if not pricing.around.alone[tensor]}
    peaks = _peaks(operators, nbytes, beside + sum(given), kept, apart, shared, pricing.model)
    computed = [step for step in program.steps if step.kind == "compute"]
    macs = sum(pricing.form.ops[step.op].macs_per_row * _made(program, step) for step in computed)
    copied = sum(nbytes[piece] for operator in operators if operator.moves for piece in operator.writes)
    extra = macs - whole_macs(pricing.form, segment.operators)
    costs, replaced = pricing.persistent, computing(graph, segment)
    moved = (len(operators) - len(computed)) * costs.moving_bytes
    kept_bytes = moved + sum(costs.operator_bytes[step.op] for step in computed)
    kept_bytes -= sum(costs.operator_bytes[index] for index in replaced)
    more = len(operators) - len(replaced)
    return Price(peaks[0], extra, copied, more, kept_bytes, kept_bytes - more * costs.narrower_bytes, peaks[1])


def _operators(pricing: Pricing, program: StripProgram, step: StripStep, nbytes: list[int]) -> Iterator[PricedOperator]:
    """The operators of one step: two where a .tflite file cannot state a window's pads and a Pad comes before it, or
    rows of an AveragePool with the pads of SAME are cut off behind it."""
    reads = step.reads
    if step.kind != "compute":
        yield PricedOperator(reads, step.writes, moves=True)
        return
    op = pricing.graph.ops[step.op]
    sides = _sides(pricing, program, step) if reads and kind_of(op.kind).rows == "window" else None
    padded = _pad_bytes(pricing, program, step, sides) if pricing.graph.source.format == "tflite" and sides else 0
    over = takes_over(op, pricing.model)
    in_place = tuple(piece for piece in step.reads if program.pieces[piece].tensor in over)
    if padded and op.kind == "AveragePool":
        source, made = program.pieces[step.reads[0]], program.pieces[step.writes[0]].tensor
        frame, height = window(pricing.graph, op, 0), source.rows[1] - source.rows[0]
        rows = -(-height // frame.stride)
        nbytes.append(pricing.piece_bytes(made, (0, rows)))
        whole = (len(nbytes) - 1,)
        sides = (*same_pads(height, frame), *sides[2:])
        lag = _lag(pricing, program, step, sides, rows, padded=False)
        yield PricedOperator(reads, whole, in_place, lag, scratch=_scratch(pricing, program, step, sides, rows))
        yield PricedOperator(whole, step.writes, moves=True)
        return
    made_rows = program.pieces[step.writes[0]].rows[1] - program.pieces[step.writes[0]].rows[0]
    lag = None if sides is None else _lag(pricing, program, step, sides, made_rows, padded=padded > 0)
    scratch = _scratch(pricing, program, step, sides, made_rows, padded=padded > 0)
    if padded:
        nbytes.append(padded)
        yield PricedOperator(reads[:1], (len(nbytes) - 1,), moves=True)
        reads = (len(nbytes) - 1, *reads[1:])
    if pricing.model.outputs_apart and op.outputs[0] in pricing.graph.outputs and (step.writes[0],) in program.results:
        in_place = ()
    yield PricedOperator(reads, step.writes, in_place, lag, scratch=scratch)


def _sides(pricing: Pricing, program: StripProgram, step: StripStep) -> tuple[int, int, int, int]:
    """Padding of a window in a strip: above, below, left and right."""
    op = pricing.graph.ops[step.op]
    source, result = program.pieces[step.reads[0]], program.pieces[step.writes[0]]
    rows, columns = window(pricing.graph, op, 0), window(pricing.graph, op, 1)
    count = pricing.form.rows[source.tensor]
    pads = strip_pads(rows, count, result.rows, source.rows)
    if (result.rows, source.rows) == ((0, pricing.form.rows[result.tensor]), (0, count)):
        pads = rows.pad_begin, rows.pad_end
    return (*pads, columns.pad_begin, columns.pad_end)


def _pad_bytes(pricing: Pricing, program: StripProgram, step: StripStep, sides: tuple[int, int, int, int]) -> int:
    """Bytes of the padded input, or 0 where no Pad is needed: the pads are those of SAME, or zero."""
    op, source = pricing.graph.ops[step.op], program.pieces[step.reads[0]]
    rows, columns = window(pricing.graph, op, 0), window(pricing.graph, op, 1)
    height, wide = source.rows[1] - source.rows[0], pricing.graph.tensors[source.tensor].shape[2]
    if not any(sides) or sides == (*same_pads(height, rows), *same_pads(wide, columns)):
        return 0
    count = pricing.form.rows[source.tensor]
    bits = padded_row_bits(pricing.graph, source.tensor, count, sides[2] + sides[3]) * (height + sides[0] + sides[1])
    return align_up((bits + 7) // 8, pricing.model.alignment)


def _lag(
    pricing: Pricing,
    program: StripProgram,
    step: StripStep,
    sides: tuple[int, int, int, int],
    made: int,
    *,
    padded: bool,
) -> int | None:
    """The aligned lag of a window that makes `made` rows in a strip, by the kernels of the model's library
    (`memory.storages.lagged`)."""
    op = pricing.graph.ops[step.op]
    if pricing.model.kernels is None or op.kind in pricing.model.in_place:
        return None
    whole = geometry(pricing.graph, op)
    source = program.pieces[step.reads[0]]
    if whole is None or source.tensor != op.inputs[0]:
        return None
    top, below, left, right = sides
    batches, _, columns, depth = whole.read
    height = source.rows[1] - source.rows[0]
    strip = replace(
        whole,
        read=(batches, height + padded * (top + below), columns + padded * (left + right), depth),
        written=(batches, made, *whole.written[2:]),
        pads=(0, 0) if padded else (top, left),
    )
    lag = least_lag(pricing.graph, op, pricing.model.kernels, strip)
    return None if lag is None else align_up(lag, pricing.model.alignment)


def _scratch(
    pricing: Pricing,
    program: StripProgram,
    step: StripStep,
    sides: tuple[int, int, int, int] | None,
    made: int,
    *,
    padded: bool = False,
) -> int:
    """Bytes of scratch of a step that makes `made` rows, with these pads."""
    if not pricing.model.scratch:
        return 0
    above, below = (0, 0) if sides is None else sides[:2]
    read = tuple(stop - start for start, stop in (program.pieces[piece].rows for piece in step.reads))
    return strip_scratch(pricing.graph, pricing.form, pricing.model, OnRows(step.op, made, above, below, padded, read))


def _made(program: StripProgram, step: StripStep) -> int:
    start, stop = program.pieces[step.writes[0]].rows
    return stop - start


def _peaks(
    operators: Sequence[PricedOperator],
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
    for index, operator in enumerate(operators):
        for piece in operator.writes:
            last[piece] = index
        for piece in set(operator.reads):
            last[piece] = index
            readers[piece] = readers.get(piece, 0) + 1
    peak = without = 0
    for index, operator in enumerate(operators):
        live += sum(nbytes[piece] for piece in operator.writes) + operator.scratch
        over = (
            nbytes[piece]
            for piece in operator.in_place
            if last[piece] == index
            and piece not in kept
            and piece not in apart
            and nbytes[piece] == nbytes[operator.writes[0]]
            and not (model.in_place_only_reader and readers[piece] > 1)
        )
        taken = next(over, 0)
        if (
            not taken
            and operator.lag is not None
            and last[operator.reads[0]] == index
            and operator.reads[0] not in kept | shared
        ):
            taken = max(min(nbytes[operator.reads[0]], nbytes[operator.writes[0]] - operator.lag), 0)
        peak, without = max(peak, live - taken), max(without, live)
        live -= operator.scratch
        for piece in {*operator.reads, *operator.writes}:
            if last[piece] == index and piece not in kept:
                live -= nbytes[piece]
    return peak, without
