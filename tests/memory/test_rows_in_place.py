"""Rows that lie where they are copied to, byte by byte: in every order of small graphs each operator reads what it did
without, and live bytes stay a submodular function of the downset."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.arenas.check import verify_arena
from downset.arenas.plan import plan_arena
from downset.errors import InvalidPlan
from downset.graph.core import Graph, Op, Tensor
from downset.memory.bounds import breadth_bound
from downset.memory.liveness import lifetimes, live_bytes, order_problem, peak_bytes, profile
from downset.memory.models import memory_model
from downset.memory.storages import map_storages
from downset.orders.plan import plan_order
from tests.effort import cases
from tests.plain_graphs import every_order


@st.composite
def row_graphs(draw):
    """Tensors (1, rows, 7) of bytes: cut, joined, computed; what may be in place is drawn too, so that much of what is
    marked must not be shared (inputs, outputs, parts of two joins, one part twice)."""
    tensors, ops = [tensor(0, draw(st.integers(1, 4)))], []
    for index in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["Conv", "Slice", "Slice", "Concat", "Concat"]))
        recent = st.integers(max(0, len(tensors) - 4), len(tensors) - 1)
        reads, attrs = draw(st.lists(recent, min_size=1, max_size=1 if kind == "Slice" else 3)), {}
        rows = draw(st.integers(1, 4))
        if kind == "Slice":
            rows = draw(st.integers(1, tensors[reads[0]].shape[1]))
            start = draw(st.integers(0, tensors[reads[0]].shape[1] - rows))
            attrs = {"lies_at": 7 * start} if draw(st.booleans()) else {"start": 7 * start}
        elif kind == "Concat":
            rows = sum(tensors[read].shape[1] for read in reads)
            attrs = {"axis": 1, "in_place": tuple(at for at in range(len(reads)) if draw(st.booleans()))}
        ops.append(Op(f"op{index}", kind, tuple(reads), (len(tensors),), attrs))
        tensors.append(tensor(len(tensors), rows))
    outputs = draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=2, unique=True))
    return Graph("rows", tuple(tensors), tuple(ops), (0,), tuple(outputs)).check()


def tensor(number, rows):
    return Tensor(f"t{number}", (1, rows, 7), "uint8", 7 * rows)


def made(op, read, nbytes):
    """The bytes of a result, as symbols, from those that are read."""
    if op.kind == "Slice":
        start = op.attrs.get("lies_at", op.attrs.get("start"))
        return read[0][start : start + nbytes]
    if op.kind == "Concat":
        return sum(read, ())
    return tuple((op.name, at, tuple(read)) for at in range(nbytes))


def run(graph, steps, offsets):
    """What the outputs hold in the end, and what they would hold if every tensor had a place of its own."""
    memory, apart = {}, {}
    for given_input in graph.inputs:
        nbytes = graph.tensors[given_input].nbytes
        apart[given_input] = tuple((given_input, at) for at in range(nbytes))
        memory.update(zip(range(offsets[given_input], offsets[given_input] + nbytes), apart[given_input], strict=True))

    def held(number):
        return tuple(memory[offsets[number] + at] for at in range(graph.tensors[number].nbytes))

    for operator in steps:
        op = graph.ops[operator]
        (result,) = op.outputs
        nbytes = graph.tensors[result].nbytes
        content = made(op, [held(number) for number in op.inputs], nbytes)
        apart[result] = made(op, [apart[number] for number in op.inputs], nbytes)
        memory.update(zip(range(offsets[result], offsets[result] + nbytes), content, strict=True))
    return [held(number) for number in graph.outputs], [apart[number] for number in graph.outputs]


@given(graph=row_graphs())
@settings(max_examples=cases(300))
def test_in_every_order_the_outputs_are_what_they_are_with_places_of_their_own(graph):
    for steps in every_order(graph):
        arena = plan_arena(graph, steps, memory="tflm")
        in_place, apart = run(graph, steps, arena.tensor_offsets)
        assert in_place == apart


@given(graph=row_graphs())
@settings(max_examples=cases(200))
def test_live_bytes_are_submodular_and_those_of_the_records(graph):
    problem = order_problem(graph, "tflm")
    assert plan_order(graph, method="optimal", memory="tflm").peak_bytes == min(
        peak_bytes(problem, steps) for steps in every_order(graph)
    )
    for steps in every_order(graph):
        assert max([problem.floor_bytes, *profile(problem, steps)]) == peak_bytes(problem, steps)
        assert breadth_bound(lifetimes(graph, steps, "tflm").records) == peak_bytes(problem, steps)
    downsets = [
        mask
        for mask in range(1 << len(graph.ops))
        if all(mask >> other & 1 for v in range(len(graph.ops)) if mask >> v & 1 for other in problem.predecessors[v])
    ]
    live = {mask: live_bytes(problem, mask) for mask in downsets}
    for one in downsets:
        for other in downsets:
            assert live[one | other] + live[one & other] <= live[one] + live[other]


def test_parts_are_made_in_the_result_and_cuts_need_no_place():
    tensors = [tensor(number, rows) for number, rows in enumerate([4, 2, 2, 1, 3, 7])]
    ops = (
        Op("cut", "Slice", (0,), (1,), {"lies_at": 14}),
        Op("one", "Conv", (1,), (2,)),
        Op("kept", "Slice", (2,), (3,), {"start": 7}),
        Op("two", "Conv", (0,), (4,)),
        Op("joined", "Concat", (3, 4), (5,), {"axis": 1, "in_place": (1,)}),
    )
    graph = Graph("rows", (*tensors[:5], tensor(5, 4)), ops, (0,), (5,)).check()
    storage_map = map_storages(graph, memory_model("tflm"))
    assert storage_map.storages_of[1] == storage_map.storages_of[0] and storage_map.begin_of[1] == 14
    assert storage_map.storages_of[4] == storage_map.storages_of[5] and storage_map.begin_of[4] == 7
    assert storage_map.storages_of[3] != storage_map.storages_of[5]
    arena = plan_arena(graph, range(5), memory="tflm")
    assert arena.tensor_offsets[4] == arena.tensor_offsets[5] + 7
    # 28 bytes of the input, 14 of the first part, 7 that are kept: each in whole multiples of 16
    assert [record.nbytes for record in arena.records] == [32, 16, 16, 32]


def test_a_tensor_over_rows_that_are_still_read_is_found():
    tensors = tuple(tensor(number, 2) for number in range(4))
    ops = (
        Op("cut", "Slice", (0,), (1,), {"lies_at": 0}),
        Op("one", "Conv", (0,), (2,)),
        Op("two", "Concat", (1, 2), (3,), {"axis": 1}),
    )
    graph = Graph("rows", (*tensors[:3], tensor(3, 4)), ops, (0,), (3,)).check()
    arena = plan_arena(graph, range(3), memory="tflm")
    moved = {**arena.tensor_offsets, 1: arena.tensor_offsets[1] + 1}
    wrong = type(arena)(arena.records, arena.offsets, arena.evidence, arena.memory, moved)
    with pytest.raises(InvalidPlan, match="has no offset or another one"):
        verify_arena(graph, range(3), wrong)
