"""The oracle of what native/partial/price.hpp counts besides live bytes: arithmetic, copies and operators of a strip
program, one step after the other. Live bytes have `memory.liveness` of the rewritten network as their oracle.

What a runtime keeps for each operator is that of the `Pricing` itself."""

from __future__ import annotations

from typing import NamedTuple

from downset.graph.cost import whole_macs
from downset.graph.halos import same_pads, window
from downset.graph.kinds import kind_of
from downset.memory.records import align_up
from downset.partial.memory_form import padded_row_bits
from downset.partial.pieces import StripStep
from downset.partial.price import Price, Pricing
from downset.partial.segments import computing
from downset.partial.strip_program import StripProgram
from downset.rewrites.strip_windows import strip_pads

__all__ = ["Counted", "counted", "counts_of"]


class Counted(NamedTuple):
    """The fields of a `Price` in addition to live bytes."""

    extra_macs: int
    copied_bytes: int
    extra_operators: int
    persistent_bytes: int
    narrow_bytes: int


def counted(price: Price) -> Counted:
    return Counted(*(getattr(price, name) for name in Counted._fields))


def counts_of(pricing: Pricing, program: StripProgram) -> Counted:
    """What these steps cost. O(steps)."""
    segment, costs = program.segment, pricing.persistent
    nbytes = [pricing.piece_bytes(piece.tensor, piece.rows) for piece in program.pieces]
    for (piece,), tensor in zip(program.results, segment.results, strict=True):
        if not pricing.counts(tensor):
            nbytes[piece] = 0
    computed = [step for step in program.steps if step.kind == "compute"]
    macs = sum(pricing.form.ops[step.op].macs_per_row * _made(pricing, program, step) for step in computed)
    moves = [copied for step in program.steps if (copied := _copied(pricing, program, step, nbytes)) is not None]
    replaced = computing(pricing.graph, segment)
    kept = len(moves) * costs.moving_bytes + sum(costs.operator_bytes[step.op] for step in computed)
    kept -= sum(costs.operator_bytes[index] for index in replaced)
    more = len(computed) + len(moves) - len(replaced)
    extra = macs - whole_macs(pricing.form, segment.operators)
    return Counted(extra, sum(moves), more, kept, kept - more * costs.narrower_bytes)


def _copied(pricing: Pricing, program: StripProgram, step: StripStep, nbytes: list[int]) -> int | None:
    """Bytes that an operator of the step copies, if one does: a slice or join, the Pad before a window whose pads a
    .tflite file cannot state, or the cut behind an AveragePool with the pads of SAME."""
    if step.kind != "compute":
        return nbytes[step.writes[0]]
    padded = _pad_bytes(pricing, program, step)
    if padded and pricing.graph.ops[step.op].kind == "AveragePool":
        return nbytes[step.writes[0]]
    return padded or None


def _pad_bytes(pricing: Pricing, program: StripProgram, step: StripStep) -> int:
    """Bytes of the padded input, or 0 where no Pad is needed: the pads are those of SAME, or zero."""
    graph, op = pricing.graph, pricing.graph.ops[step.op]
    if graph.source.format != "tflite" or not step.reads or kind_of(op.kind).rows != "window":
        return 0
    source, result = program.pieces[step.reads[0]], program.pieces[step.writes[0]]
    rows, columns = window(graph, op, 0), window(graph, op, 1)
    count = pricing.form.rows[source.tensor]
    above, below = strip_pads(rows, count, result.rows, source.rows)
    if (result.rows, source.rows) == ((0, pricing.form.rows[result.tensor]), (0, count)):
        above, below = rows.pad_begin, rows.pad_end
    sides = (above, below, columns.pad_begin, columns.pad_end)
    height, wide = source.rows[1] - source.rows[0], graph.tensors[source.tensor].shape[2]
    if not any(sides) or sides == (*same_pads(height, rows), *same_pads(wide, columns)):
        return 0
    bits = padded_row_bits(graph, source.tensor, count, sides[2] + sides[3]) * (height + above + below)
    return align_up((bits + 7) // 8, pricing.model.alignment)


def _made(pricing: Pricing, program: StripProgram, step: StripStep) -> int:
    start, stop = program.pieces[step.writes[0]].rows
    if _pad_bytes(pricing, program, step) and pricing.graph.ops[step.op].kind == "AveragePool":
        source = program.pieces[step.reads[0]].rows
        return -(-(source[1] - source[0]) // window(pricing.graph, pricing.graph.ops[step.op], 0).stride)
    return stop - start
