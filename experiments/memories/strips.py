"""MobileNet v2 in float32 with 256 KB of fast memory: bytes of activations to and from slow memory, as whole tensors
and as segments in strips of rows.

    python -m experiments.memories.strips [--quick]

Segments lie between operators that one tensor crosses. A chain of segments of least cost is chosen by dynamic
programming: each is priced alone, its input and its result in slow memory, by the quick residency of its operators on
rows. The chain is then one network, with exact residency in its sequence. Input and output of the network lie in slow
memory. A direct access costs what the reference kernel reads. TiGrIS 0.12.1 (`-m 256K+8M`) moves 21.23 MB.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

from downset import DownsetError, Graph, load
from downset.budget import Budget
from downset.memories.moves import implied
from downset.memories.of_graph import MemoriesRequest, memories_form
from downset.memories.residency import exact_residency, quick_residency
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from downset.partial.rewrite import InStrips, in_strips
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.serenity.float_copy import write_float_copy
from experiments.serenity.swiftnet import MODEL, part

SOURCE = MODEL.parent / "mobilenet_v2_1.0_224_quant.tflite"
FAST_BYTES = 256 * 1024
TIGRIS_BYTES = 21_230_000
AHEAD, QUICK_AHEAD = 7, 3
"""The most cuts that one segment reaches."""


def request() -> MemoriesRequest:
    return MemoriesRequest(FAST_BYTES, TFLM_WITHOUT_OFFSETS, inputs="slow", outputs="slow")


def cost_of(graph: Graph) -> int | None:
    """The quick residency of the operators in their sequence; None where one does not fit."""
    try:
        problem = memories_form(graph, request()).problem
    except DownsetError:
        return None
    return quick_residency(problem, range(len(graph.ops))).cost


def cuts_of(graph: Graph) -> list[int]:
    """The operators before which one activation is alive."""
    producers = {tensor: index for index, op in enumerate(graph.ops) for tensor in op.outputs}
    last = {
        tensor: index
        for index, op in enumerate(graph.ops)
        for tensor in op.inputs
        if tensor >= 0 and graph.tensors[tensor].role == "activation"
    }
    crossing = (sum(producers.get(t, -1) < cut <= last[t] for t in last) for cut in range(1, len(graph.ops)))
    return [0, *(cut for cut, count in enumerate(crossing, 1) if count == 1), len(graph.ops)]


def priced(graph: Graph, first: int, stop: int) -> Iterator[tuple[int, int, InStrips]]:
    """(cost with a result in pieces, cost with a joined one, segment) of the ways to run operators [first, stop) in
    strips."""
    inside = part(graph, first, stop - 1)
    shape = graph.tensors[graph.ops[stop - 1].outputs[0]].shape
    rows = shape[1] if len(shape) == 4 else 1
    for strips, again in product(sorted({rows, rows // 2, rows // 4} - {0, 1}), {frozenset(), widening(inside)}):
        segment = InStrips(0, stop - first, strips, recomputed=again)
        try:
            network = in_strips(inside, [segment])
        except DownsetError:
            continue
        costs = cost_of(in_pieces(network)), cost_of(network)
        if None not in costs:
            moved = replace(segment, first=first, stop=stop, recomputed=frozenset(first + op for op in again))
            yield (*costs, moved)


def widening(graph: Graph) -> frozenset[int]:
    """Convolutions of one cell in front of one with a window: their rows are cheap to compute again, and wide."""
    windows = [math.prod(op.attrs.get("kernel_shape") or (0,)) for op in graph.ops]
    return frozenset(index for index, (one, after) in enumerate(pairwise(windows)) if one == 1 < after)


def in_pieces(network: Graph) -> Graph:
    """The network without the concatenations that join its result, whose parts it has in place of that."""
    made = network.producers()
    gone: set[int] = set()

    def parts(tensor: int) -> Iterator[int]:
        op = network.ops[made[tensor]]
        if op.kind != "Concat":
            yield tensor
            return
        gone.add(made[tensor])
        for one in op.inputs:
            yield from parts(one)

    outputs = tuple(dict.fromkeys(chain.from_iterable(map(parts, network.outputs))))
    return replace(network, ops=tuple(op for i, op in enumerate(network.ops) if i not in gone), outputs=outputs)


def chosen(graph: Graph, ahead: int) -> list[InStrips]:
    """The segments of the chain of least cost. One that strips follow leaves its result in pieces."""
    cuts = cuts_of(graph)
    best: dict[tuple[int, bool], tuple[int, tuple[InStrips, ...]]] = {(0, False): (0, ())}
    """By cut, and whether the activation there is in pieces."""

    def offer(place: tuple[int, bool], cost: int, segments: tuple[InStrips, ...]) -> None:
        if place not in best or cost < best[place][0]:
            best[place] = cost, segments

    for index, first in enumerate(cuts[:-1]):
        before = [(pieces, *best[first, pieces]) for pieces in (False, True) if (first, pieces) in best]
        for stop in cuts[index + 1 : index + 1 + ahead] if before else ():
            if stop - first <= _WHOLE and (first, False) in best:
                cost = cost_of(part(graph, first, stop - 1))
                if cost is not None:
                    offer((stop, False), best[first, False][0] + cost, best[first, False][1])
            for open_cost, joined_cost, segment in priced(graph, first, stop):
                for _, cost, segments in before:
                    offer((stop, True), cost + open_cost, (*segments, segment))
                    offer((stop, False), cost + joined_cost, (*segments, segment))
    return list(best[len(graph.ops), False][1])


_WHOLE = 3
"""The most operators that are priced as they are, without strips."""


def row_of(name: str, graph: Graph, segments: Sequence[InStrips]) -> Row:
    network = in_strips(graph, segments, joined=False) if segments else graph
    problem = memories_form(network, request()).problem
    order = range(len(network.ops))
    residency = exact_residency(problem, order, clock=Budget(3600.0, 5_000_000).start(), most_width=512)
    taken = implied(problem, order, residency.residences)
    return {
        "program": name,
        "operators": len(network.ops),
        "segments": len(segments),
        "moved": taken.moved_bytes,
        "direct": taken.direct_bytes,
        "total": taken.cost,
        "bound": residency.bound,
        "tigris": TIGRIS_BYTES,
    }


def rows(options: Namespace) -> Iterator[Row]:
    if not SOURCE.exists():
        return
    with TemporaryDirectory() as folder:
        target = Path(folder) / "float.tflite"
        write_float_copy(SOURCE, target)
        graph = load(target)
        yield row_of("whole tensors", graph, [])
        yield row_of("strips of rows", graph, chosen(graph, QUICK_AHEAD if options.quick else AHEAD))


EXPERIMENT = Experiment(
    "memories_strips",
    rows,
    (*fields("program", "operators", "segments"), *fields("moved", "direct", "total", "bound", "tigris", spec=",")),
    key=("program",),
    quick="shorter segments, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
