"""Early high-resolution segments computed strip by strip, so that never more than a strip of them is live.

Source: ours; patch-based inference on microcontrollers (MCUNetV2) does it with square patches of the first layers.
Names: a *segment* is a run of operators with one tensor going in and one coming out; a *strip* computes some rows of
    that one, with the halo it needs of everything before it; what neighbours both compute is recomputed.
Complexity: a segment for each pair of cuts around the peak, times the numbers of strips tried; each costs one pass of
    halo arithmetic, and those that stay below the limit one rewriting and one simulation.
Deviations: rows only. The strips' results are joined by a Concat, which holds the segment's result twice; so only
    segments that end small gain anything. Candidates are judged in the order of the best plan of the network before,
    strip after strip; the caller plans the result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.cost import macs, redundant_macs, row_form
from downset.graph.edit import Edit
from downset.graph.halos import channels_last
from downset.graph.row_form import RowForm, equal_strips
from downset.memory.liveness import order_problem, peak_bytes, profile
from downset.memory.models import MemoryModel, MemoryName
from downset.orders.plan import plan_order
from downset.rewrites.strips import strip_ops

__all__ = ["RowStrips", "StripedSegment", "choose_row_strips", "row_segments", "row_strips"]

_STRIPS = (2, 3, 4, 5, 6, 8, 10, 12, 16)


@dataclass(frozen=True, slots=True)
class StripedSegment:
    """`first` and `last`: names of the segment's operators at its ends. `extra_macs` are computed twice;
    `peak_bytes`: of the network with this segment and those before it in strips, in the order they were judged in."""

    first: str
    last: str
    strips: int
    extra_macs: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class RowStrips:
    """The network with `segments` in strips (itself if none helps); `peak_bytes_before`: of its own best order."""

    graph: Graph
    segments: tuple[StripedSegment, ...]
    peak_bytes_before: int


def row_segments(graph: Graph, form: RowForm) -> tuple[tuple[int, int], ...]:
    """Runs of operators [first, stop) in the graph's order that can be computed by rows: a single tensor with rows
    crosses at both ends, the one at the second end is made inside, and no operator inside is computed whole, mixes in
    other inputs or waits for side effects."""
    cuts = [index for index in range(len(graph.ops) + 1) if _single_crossing(graph, form, index) >= 0]
    found = []
    for place, first in enumerate(cuts):
        for stop in cuts[place + 1 :]:
            if any(form.ops[op].whole or graph.ops[op].after for op in range(first, stop)):
                break
            result = _single_crossing(graph, form, stop)
            if any(result in op.outputs for op in graph.ops[first:stop]):  # else only dead operators lie inside
                found.append((first, stop))
    return tuple(found)


def _single_crossing(graph: Graph, form: RowForm, position: int) -> int:
    """The one tensor with rows that is there before operator `position` and needed from it on, or -1."""
    there = {*graph.inputs, *(t for op in graph.ops[:position] for t in op.outputs)}
    later = {*graph.outputs, *(t for op in graph.ops[position:] for t in op.inputs)}
    crossing = [t for t in there & later if t != ABSENT and graph.tensors[t].role != "constant"]
    return crossing[0] if len(crossing) == 1 and form.rows[crossing[0]] > 1 else -1


def row_strips(graph: Graph, first: int, stop: int, strips: int, *, form: RowForm | None = None) -> Graph:
    """The graph with operators [first, stop), one of `row_segments`, computed in so many equal strips of rows.

    Raises UnsupportedError where there are fewer rows than strips.
    """
    form = form or row_form(graph, strict=False)
    result = _single_crossing(graph, form, stop)
    if strips > form.rows[result]:
        raise UnsupportedError(
            f"{graph.tensors[result].name!r} has {form.rows[result]} rows: not enough for {strips} strips"
        )
    edit = Edit(graph)
    ops: list[Op] = []
    parts: list[int] = []
    for number, rows in enumerate(equal_strips(form.rows[result], strips)):
        made, found = strip_ops(
            graph, form, range(first, stop), {result: rows}, edit.add_tensor, suffix=f"/strip{number}"
        )
        ops += made
        parts.append(found[result])
    last = channels_last(graph)
    attrs = {"axis": 1, "layout": "NHWC"} if last else {"axis": 2}
    for index in range(first, stop - 1):
        edit.replace(index, [])
    joined = Op(f"{graph.ops[stop - 1].name}/strips", "Concat", tuple(parts), (result,), attrs)
    edit.replace(stop - 1, [*ops, joined])
    return edit.finish()


def choose_row_strips(
    graph: Graph,
    *,
    memory: MemoryName | MemoryModel = "live",
    max_recompute: float = 0.1,
    strips: Sequence[int] = _STRIPS,
    rounds: int = 4,
    time_limit_s: float = 10.0,
) -> RowStrips:
    """Segments in strips while that lowers the peak and at most `max_recompute` of the network's MACs are added.

    Each round takes the segment around the peak, and the number of strips, with the least peak (then the least work).
    `time_limit_s` holds for the order search and again for all rounds; past it the best so far is taken.
    """
    order = plan_order(graph, memory=memory, time_limit_s=time_limit_s)
    before = peak_bytes(order_problem(graph, memory), order.steps)
    current = _reordered(graph, order.steps)
    budget = int(macs(graph) * max_recompute)
    peak, segments = before, []
    deadline = time.perf_counter() + time_limit_s
    for _ in range(rounds):
        found = _best_segment(current, memory, strips, peak, budget, deadline)
        if found is None:
            break
        current, segment = found
        segments.append(segment)
        peak, budget = segment.peak_bytes, budget - segment.extra_macs
    return RowStrips(current if segments else graph, tuple(segments), before)


def _best_segment(
    graph: Graph, memory: MemoryName | MemoryModel, strips: Sequence[int], peak: int, budget: int, deadline: float
) -> tuple[Graph, StripedSegment] | None:
    form = row_form(graph, strict=False)
    live = profile(order_problem(graph, memory), tuple(range(len(graph.ops))))
    at = live.index(max(live))
    best: tuple[Graph, StripedSegment] | None = None
    for first, stop in row_segments(graph, form):
        result = _single_crossing(graph, form, stop)
        if not first <= at < stop or 2 * graph.tensors[result].nbytes >= peak:
            continue
        for count in strips:
            if count > form.rows[result] or time.perf_counter() > deadline:
                continue
            parts = [{result: rows} for rows in equal_strips(form.rows[result], count)]
            extra = redundant_macs(form, range(first, stop), parts)
            if extra > budget:
                break  # more strips recompute more
            try:
                striped = row_strips(graph, first, stop, count, form=form)
            except UnsupportedError:
                continue  # a strip would be padding alone
            reached = peak_bytes(order_problem(striped, memory), tuple(range(len(striped.ops))))
            if reached < peak and (best is None or (reached, extra) < (best[1].peak_bytes, best[1].extra_macs)):
                names = graph.ops[first].name, graph.ops[stop - 1].name
                best = striped, StripedSegment(*names, count, extra, reached)
    return best


def _reordered(graph: Graph, steps: Sequence[int]) -> Graph:
    """The same network with its operators in another order."""
    number = {old: new for new, old in enumerate(steps)}
    ops = tuple(replace(graph.ops[old], after=tuple(number[a] for a in graph.ops[old].after)) for old in steps)
    source = graph.source
    op_index = tuple(source.op_index[old] for old in steps) if source.op_index else ()
    settings = tuple(source.settings_of[old] for old in steps) if source.settings_of else ()
    return replace(graph, ops=ops, source=replace(source, op_index=op_index, settings_of=settings)).check()
