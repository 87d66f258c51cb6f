"""Random graphs and problems for property tests: small, and rich in the corners that break planners."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from downset import lattice
from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.memory.liveness import OrderProblem, Storage
from tests.plain_graphs import random_graph

SIZES = st.sampled_from([0, 1, 3, 8, 16, 16, 16, 24, 40, 64, 64, 64, 100, 256, 300])
KINDS = ("Conv", "Conv", "Relu", "Relu", "Clip", "Add", "Concat", "Reshape", "Split", "Sum", "Sum")


class SeededRandom(Random):
    """A generator that a failing example prints with its seed."""

    def __init__(self, seed):
        super().__init__(seed)
        self.start = seed

    def __repr__(self):
        return f"SeededRandom({self.start})"


def generators():
    """Generators of random numbers, by seeds alone: `st.randoms` records every number that is drawn, which takes ten
    times as long as to draw it."""
    return st.integers(0, 2**64 - 1).map(SeededRandom)


@st.composite
def graphs(draw, most_ops=7, fewest_ops=0):
    """A lawful graph: several inputs (unused and passed through ones too), constants, views, elementwise operators of
    equal size, concatenations, partial sums, several outputs, outputs that are consumed, zero sizes, side effects."""
    tensors: list[Tensor] = []
    ops: list[Op] = []

    def tensor(nbytes, role="activation"):
        tensors.append(Tensor(f"t{len(tensors)}", (nbytes,), "uint8", nbytes, role))
        return len(tensors) - 1

    inputs = [tensor(draw(SIZES)) for _ in range(draw(st.integers(1, 2)))]
    weight = tensor(1000, "constant")
    available = list(inputs)
    for index in range(draw(st.integers(fewest_ops, most_ops))):
        kind = draw(st.sampled_from(KINDS))
        first = draw(st.sampled_from(available[-6:]))
        second = draw(st.sampled_from(available))
        after = (draw(st.integers(0, index - 1)),) if index and draw(st.integers(0, 9)) == 0 else ()
        attrs = {}
        if kind in ("Relu", "Clip", "Reshape"):
            reads, makes = [first], [tensor(tensors[first].nbytes)]
        elif kind == "Add":
            reads, makes = [first, second], [tensor(max(tensors[first].nbytes, tensors[second].nbytes))]
        elif kind == "Concat":
            reads = draw(st.sampled_from([[first, second], [first, second], [first]]))
            makes = [tensor(sum(tensors[read].nbytes for read in reads))]
        elif kind == "Split":
            reads, makes = [first], [tensor(draw(SIZES)), tensor(draw(SIZES))]
        elif kind == "Sum":
            same = [t for t in available if tensors[t].nbytes == tensors[first].nbytes and t not in inputs]
            reads = draw(st.lists(st.sampled_from(same), min_size=1, max_size=3, unique=True)) if same else [first]
            makes, attrs = [tensor(tensors[reads[0]].nbytes)], {"partial_sum": int(reads[0] not in inputs)}
        else:
            reads, makes = [first, second, weight, ABSENT], [tensor(draw(SIZES))]
        ops.append(Op(f"op{index}", kind, tuple(reads), tuple(makes), attrs, after))
        available += makes
    outputs = draw(st.lists(st.sampled_from(available), min_size=1, max_size=3, unique=True))
    return Graph("random", tuple(tensors), tuple(ops), tuple(inputs), tuple(outputs)).check()


def plain_graphs(most_ops=8, fewest_ops=1):
    """Graphs of opaque operators, each of which reads what was made just before it."""
    return st.builds(random_graph, generators(), st.integers(fewest_ops, most_ops))


@st.composite
def precedences(draw, most=8, fewest=0):
    """Predecessor masks of a dense or a sparse graph whose index order is topological."""
    before = [st.integers(0, (1 << operator) - 1) for operator in range(draw(st.integers(fewest, most)))]
    sparse = draw(st.booleans())
    return tuple(draw(masks) & (draw(masks) if sparse else -1) for masks in before)


@st.composite
def orders_of(draw, predecessors):
    """Any topological order, each choice drawn."""
    from downset.lattice import masks, ready

    predecessors = masks(predecessors)
    downset, steps = 0, []
    while len(steps) < len(predecessors):
        operator = draw(st.sampled_from(list(ready(predecessors, downset))))
        steps.append(operator)
        downset |= 1 << operator
    return tuple(steps)


@st.composite
def record_sets(draw, most=10, pins=True, gaps=True):
    """Records that can be planned: ties in size and time, alignments, gaps, pins that do not collide."""
    from downset.memory.records import Record

    records, pinned = [], []
    for index in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, 9))
        stop = start + draw(st.integers(1, 6))
        nbytes = draw(st.sampled_from([1, 2, 3, 4, 4, 6, 8, 8, 11, 16]))
        alignment = draw(st.sampled_from([1, 1, 1, 2, 4, 6]))
        holes = ()
        if gaps and stop - start > 2 and draw(st.integers(0, 3)) == 0:
            low = draw(st.integers(start + 1, stop - 2))
            holes = ((low, draw(st.integers(low + 1, stop - 1))),)
        offset = alignment * draw(st.integers(0, 5)) if pins and draw(st.integers(0, 5)) == 0 else None
        if offset is not None:
            # A gap could let two pins share bytes; keeping whole lifetimes apart is simpler and loses little.
            if any(offset < o + n and o < offset + nbytes and start < e and b < stop for o, n, b, e in pinned):
                offset = None
            else:
                pinned.append((offset, nbytes, start, stop))
        records.append(Record(f"r{index}", start, stop, nbytes, alignment, offset, holes))
    return records


@st.composite
def wide_problems(draw, operators=10):
    """Wider than networks are: many independent operators, tensors with several readers, accumulated storages."""
    count = draw(st.integers(1, operators))
    predecessors = [0] * count
    storages = []
    for producer in range(-1, count):
        for _ in range(draw(st.integers(0, 2))):
            readers = draw(st.integers(0, (1 << count) - 1)) & ~((1 << (producer + 1)) - 1)
            also = draw(st.integers(0, (1 << count) - 1)) if draw(st.integers(0, 4)) == 0 else 0
            producers = (1 << producer) if producer >= 0 else 0
            first = (readers & -readers).bit_length() - 1
            if producers and readers:
                producers |= also & ((1 << first) - 1)
            for reader in lattice.bits(readers):
                predecessors[reader] |= producers
            kept = draw(st.integers(0, 5)) == 0
            if readers or producers or kept:
                storages.append(
                    Storage(draw(st.integers(0, 30)), *lattice.lists((producers, readers or producers)), kept)
                )
    return OrderProblem(lattice.lists(predecessors), tuple(storages))
