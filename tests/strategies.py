"""Random graphs and problems for property tests: small, and rich in the corners that break planners."""

from __future__ import annotations

from hypothesis import strategies as st

from downset.graph.core import ABSENT, Graph, Op, Tensor

SIZES = st.sampled_from([0, 1, 3, 8, 16, 16, 16, 24, 32, 40, 64, 64, 100])


@st.composite
def graphs(draw, most_ops=7):
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
    for index in range(draw(st.integers(0, most_ops))):
        kind = draw(st.sampled_from(["Conv", "Conv", "Relu", "Add", "Concat", "Reshape", "Split", "Sum"]))
        first = draw(st.sampled_from(available))
        second = draw(st.sampled_from(available))
        after = (draw(st.integers(0, index - 1)),) if index and draw(st.integers(0, 9)) == 0 else ()
        attrs = {}
        if kind in ("Relu", "Reshape"):
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
