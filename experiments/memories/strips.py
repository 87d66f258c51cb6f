"""MobileNet v2 in float32 with 256 KB of fast memory: bytes of activations to and from slow memory, as whole tensors
and as segments in strips of rows.

    python -m experiments.memories.strips [--quick]

Segments lie between operators that one tensor crosses. A chain of segments of least cost is chosen by dynamic
programming: each is priced alone, its input and its result in slow memory, by the quick residency of its operators on
rows, as a .tflite file states them. What one segment hands to the next stays in the pieces that strips made. Input and
output of the network lie in slow memory. A direct access costs what the reference kernel reads. `planned`: the
plan without offsets; `bound`: no residency of its sequence costs less. The first row is a plan. The last is a file: it
runs in TFLite Micro's stock wheel, its outputs are those of the original bit for bit, it is proven, and a machine of
the tests counts its bytes from the file alone. Fast memory has 256 KB for tensors there; TFLite
Micro's persistent part (on this host) lies outside. TiGrIS 0.12.1 (`-m 256K+8M`) moves 21.23 MB.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from downset import DownsetError, Graph, load
from downset.budget import Budget
from downset.formats.tflite.write import export_in_memories
from downset.graph.cost import row_form
from downset.memories.moves import implied
from downset.memories.of_graph import MemoriesRequest, memories_form
from downset.memories.plan import plan_memories
from downset.memories.program import program_of
from downset.memories.residency import exact_residency, quick_residency
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from downset.memory.records import align_up
from downset.partial.rewrite import InStrips, in_strips
from downset.results.two_memories import ALIGNMENT, TwoMemories
from downset.rewrites.tflite_form import tflite_form, writable_rows
from downset.runtimes import tflm
from downset.runtimes.compare import compare_outputs, prove_same
from downset.runtimes.feeds import FeedSource
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.serenity.float_copy import write_float_copy
from experiments.serenity.swiftnet import MODEL, part

SOURCE = MODEL.parent / "mobilenet_v2_1.0_224_quant.tflite"
FAST_BYTES, SLOW_BYTES = 256 * 1024, 8 * 1024**2
TIGRIS_BYTES = 21_230_000
SPARE_BYTES = 24 * 1024
"""Fast memory that segments leave for what offsets cost."""
AHEAD, QUICK_AHEAD = 5, 3
"""The most cuts that one segment reaches."""


def request(fast_bytes: int = FAST_BYTES) -> MemoriesRequest:
    return MemoriesRequest(fast_bytes, TFLM_WITHOUT_OFFSETS, inputs="slow", outputs="slow")


def cost_of(graph: Graph, fast_bytes: int = FAST_BYTES - SPARE_BYTES) -> int | None:
    """The quick residency of the operators in their sequence; None where one does not fit."""
    try:
        problem = memories_form(graph, request(fast_bytes)).problem
    except DownsetError:
        return None
    return quick_residency(problem, range(len(graph.ops))).cost


def cuts_of(graph: Graph) -> list[int]:
    """The operators before which one activation is alive that is not larger than those before and after it."""
    producers = {tensor: index for index, op in enumerate(graph.ops) for tensor in op.outputs}
    last = {
        tensor: index
        for index, op in enumerate(graph.ops)
        for tensor in op.inputs
        if tensor >= 0 and graph.tensors[tensor].role == "activation"
    }
    alive = [[t for t in last if producers.get(t, -1) < cut <= last[t]] for cut in range(1, len(graph.ops))]
    single = [(cut, graph.tensors[one[0]].nbytes) for cut, one in enumerate(alive, 1) if len(one) == 1]
    nbytes = [math.inf, *(size for _, size in single), math.inf]
    least = [cut for (cut, size), *around in zip(single, nbytes, nbytes[2:], strict=False) if size <= min(around)]
    return [0, *least, len(graph.ops)]


class Way(NamedTuple):
    """A segment in strips, and whether its windows run with SAME, so that wrong rows are cut off, or on a padded
    copy."""

    segment: InStrips
    cut_off: bool


def windows(graph: Graph, first: int = 0, stop: int | None = None) -> frozenset[int]:
    """The operators [first, stop) that read more than one cell for a result."""
    cells = (math.prod(op.attrs.get("kernel_shape") or (0,)) for op in graph.ops)
    return frozenset(
        index for index, count in enumerate(cells) if count > 1 and first <= index < (stop or len(graph.ops))
    )


def written(graph: Graph, ways: Sequence[Way]) -> Graph:
    """The network in strips, in the operators of a .tflite file."""
    cut = frozenset().union(*(windows(graph, way.segment.first, way.segment.stop) for way in ways if way.cut_off))
    form = writable_rows(graph, row_form(graph, halos_required=False), cut_off=cut)
    network = in_strips(graph, [way.segment for way in ways], form=form, joined=False)
    return tflite_form(network, cut_off=cut, in_place="nothing")


def priced(graph: Graph, first: int, stop: int) -> Iterator[tuple[int, int, Way]]:
    """(cost with a result in pieces, cost with a joined one, way) of the ways to run operators [first, stop) in
    strips."""
    shape = graph.tensors[graph.ops[stop - 1].outputs[0]].shape
    rows = shape[1] if len(shape) == 4 else 1
    for strips, again, cut_off in product(
        sorted({rows, rows // 2} - {0, 1}), {frozenset(), widening(graph, first, stop)}, (False, True)
    ):
        way = Way(InStrips(first, stop, strips, recomputed=again), cut_off)
        try:
            network = written(graph, [way])
            inside = part(network, first, len(network.ops) - len(graph.ops) + stop - 1)
            costs = cost_of(in_pieces(inside)), cost_of(inside)
        except DownsetError:
            continue
        if None not in costs:
            yield (*costs, way)


def widening(graph: Graph, first: int, stop: int) -> frozenset[int]:
    """Convolutions of one cell in front of one with a window: their rows are cheap to compute again, and wide."""
    cells = [math.prod(op.attrs.get("kernel_shape") or (0,)) for op in graph.ops]
    return frozenset(index for index in range(first, stop - 1) if cells[index] == 1 < cells[index + 1])


def in_pieces(network: Graph) -> Graph:
    """The network without the concatenations that join its result, whose parts it has in place of that."""
    producer_of = network.producers()
    gone: set[int] = set()

    def parts(tensor: int) -> Iterator[int]:
        op = network.ops[producer_of[tensor]]
        if op.kind != "Concat":
            yield tensor
            return
        gone.add(producer_of[tensor])
        for one in op.inputs:
            yield from parts(one)

    outputs = tuple(dict.fromkeys(chain.from_iterable(map(parts, network.outputs))))
    return replace(network, ops=tuple(op for i, op in enumerate(network.ops) if i not in gone), outputs=outputs)


def chosen(graph: Graph, ahead: int) -> list[Way]:
    """The segments of the chain of least cost. One that strips follow leaves its result in pieces."""
    cuts = cuts_of(graph)
    best: dict[tuple[int, bool], tuple[int, tuple[Way, ...]]] = {(0, False): (0, ())}
    """By cut, and whether the activation there is in pieces."""

    def offer(place: tuple[int, bool], cost: int, segments: tuple[Way, ...]) -> None:
        if place not in best or cost < best[place][0]:
            best[place] = cost, segments

    for index, first in enumerate(cuts[:-1]):
        before = [(pieces, *best[first, pieces]) for pieces in (False, True) if (first, pieces) in best]
        for stop in cuts[index + 1 : index + 1 + ahead] if before else ():
            if stop - first <= _WHOLE and (first, False) in best:
                cost = cost_of(part(graph, first, stop - 1))
                if cost is not None:
                    offer((stop, False), best[first, False][0] + cost, best[first, False][1])
            for open_cost, joined_cost, way in priced(graph, first, stop):
                for _, cost, segments in before:
                    offer((stop, True), cost + open_cost, (*segments, way))
                    offer((stop, False), cost + joined_cost, (*segments, way))
    return list(best[len(graph.ops), False][1])


_WHOLE = 3
"""The most operators that are priced as they are, without strips."""


def row_of(name: str, network: Graph) -> Row:
    """The exact residency of the operators in their sequence."""
    problem = memories_form(network, request()).problem
    order = range(len(network.ops))
    residency = exact_residency(problem, order, clock=Budget(3600.0, 5_000_000).start(), most_width=512)
    taken = implied(problem, order, residency.residences)
    row: Row = {
        "program": name,
        "operators": len(network.ops),
        "moved": taken.moved_bytes,
        "direct": taken.direct_bytes,
    }
    return row | {"total": taken.cost, "bound": residency.bound, "tigris": TIGRIS_BYTES}


def file_row(name: str, source: Path, network: Graph, target: Path) -> Row:
    """The file of a plan with offsets: its bytes by a machine that reads the file alone; it runs in TFLite Micro, and
    is proven. Fast memory has the bytes of the plan in addition to the persistent part."""
    from tests.oracles_memories import ran

    plan = plan_memories(
        network,
        fast=FAST_BYTES,
        slow=SLOW_BYTES,
        memory=TFLM_WITHOUT_OFFSETS,
        inputs="slow",
        outputs="slow",
        method="file_order",
        time_limit_s=3600.0,
        work_limit=2_000_000,
    )
    program = program_of(network, plan, TFLM_WITHOUT_OFFSETS)
    persistent = 0
    for _ in range(3):
        room = FAST_BYTES + persistent
        export_in_memories(target, network, program, TwoMemories(room, SLOW_BYTES, room, persistent, 0, "reference"))
        taken = tflm.measure(target, steps=1).tail_bytes
        if taken <= persistent:
            break
        persistent = align_up(taken, ALIGNMENT)
    outputs = compare_outputs(source, target, runtime="tflm", source=FeedSource(None, 0, ()))
    counted = ran(target)
    assert (counted.moved, counted.direct) == (plan.moved_bytes, plan.direct_bytes), "the file is not the plan"
    assert outputs.equal and prove_same(source, target).proven
    row: Row = {"program": name, "operators": len(network.ops) + counted.moves, "moves": counted.moves}
    row |= {"planned": int(plan.cost_without_offsets), "bound": int(plan.order_bound)}
    row |= {"moved": counted.moved, "direct": counted.direct, "total": counted.moved + counted.direct}
    return row | {"fast": counted.tops[True], "persistent": taken, "tigris": TIGRIS_BYTES}


def rows(options: Namespace) -> Iterator[Row]:
    if not SOURCE.exists():
        return
    with TemporaryDirectory() as folder:
        source = Path(folder) / "float.tflite"
        write_float_copy(SOURCE, source)
        graph = load(source)
        yield row_of("whole tensors", graph)
        network = written(graph, chosen(graph, QUICK_AHEAD if options.quick else AHEAD))
        yield file_row("strips of rows, the file", source, network, Path(folder) / "moved.tflite")


EXPERIMENT = Experiment(
    "memories_strips",
    rows,
    (
        *fields("program", "operators", "moves"),
        *fields("planned", "bound", "moved", "direct", "total", "fast", "persistent", "tigris", spec=","),
    ),
    key=("program",),
    quick="shorter segments, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
