"""Tensors that share bytes, over every order of small graphs: nothing that anybody reads is lost, and the bytes counted
are those that a run by symbols counts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.arenas.check import verify_arena
from downset.arenas.plan import plan_arena
from downset.errors import InvalidPlan
from downset.graph.core import Graph, Op, Tensor
from downset.memory.liveness import order_problem, peak_bytes, profile
from downset.memory.models import MEMORY_MODELS
from downset.memory.storages import map_storages
from downset.orders.plan import plan_order
from tests.effort import cases
from tests.oracles_sharing import Mixed, run
from tests.plain_graphs import every_order

SERENITY = MEMORY_MODELS["serenity"]
WITH_VIEWS = replace(SERENITY, name="serenity with views", views=frozenset({"Reshape"}))
MODELS = pytest.mark.parametrize("model", [SERENITY, WITH_VIEWS], ids=lambda model: model.name)


@st.composite
def sharing_graphs(draw):
    """Concatenations of one tensor and of several, reshapes of them, sums of partial results over all of these, each
    read by others too: whatever could make bytes shared that must not be."""
    tensors = [Tensor("t0", (), "uint8", 2)]
    ops = []
    for index in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["Conv", "Conv", "Concat", "Concat", "Reshape", "Sum", "Sum"]))
        recent = st.integers(max(0, len(tensors) - 4), len(tensors) - 1)
        reads, attrs = draw(st.lists(recent, min_size=1, max_size=1 if kind == "Reshape" else 3)), {}
        nbytes = tensors[reads[0]].nbytes
        if kind == "Conv":
            nbytes = draw(st.sampled_from([1, 2, 2, 2, 4]))
        elif kind == "Concat":
            nbytes = sum(tensors[read].nbytes for read in reads)
        elif kind == "Sum":
            attrs = {"partial_sum": 1}
        if kind != "Reshape" and draw(st.integers(0, 5)) == 0:
            attrs = {**attrs, "activation": "Relu"}
        ops.append(Op(f"op{index}", kind, tuple(reads), (len(tensors),), attrs))
        tensors.append(Tensor(f"t{len(tensors)}", (), "uint8", nbytes))
    outputs = draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=2, unique=True))
    return Graph("sharing", tuple(tensors), tuple(ops), (0,), tuple(outputs)).check()


@MODELS
@given(graph=sharing_graphs())
@settings(max_examples=cases(300))
def test_in_no_order_does_anybody_read_bytes_that_hold_something_else(model, graph):
    storage_map, problem = map_storages(graph, model), order_problem(graph, model)
    for tensor, held in enumerate(storage_map.storages_of):
        assert sum(storage_map.nbytes[storage] for storage in held) == graph.tensors[tensor].nbytes
    for steps in every_order(graph):
        assert run(graph, steps, storage_map.storages_of, storage_map.nbytes) == profile(problem, steps)


@MODELS
@given(graph=sharing_graphs())
@settings(max_examples=cases(300))
def test_the_proven_peak_is_the_least_of_all_orders_and_has_an_arena(model, graph):
    storage_map = map_storages(graph, model)
    peaks = [max(run(graph, steps, storage_map.storages_of, storage_map.nbytes)) for steps in every_order(graph)]
    plan = plan_order(graph, method="optimal", memory=model)
    assert plan.evidence.proven
    assert plan.peak_bytes == max(min(peaks), graph.tensors[0].nbytes)  # all inputs lie there before the first operator
    arena = plan_arena(graph, plan.steps, memory=model)
    assert arena.arena_bytes >= plan.peak_bytes


def graph_of(sizes, ops, inputs, outputs):
    tensors = tuple(Tensor(f"t{index}", (), "uint8", size) for index, size in enumerate(sizes))
    built = tuple(Op(f"op{index}", *op) for index, op in enumerate(ops))
    return Graph("hand", tensors, built, tuple(inputs), tuple(outputs)).check()


PARTIAL = {"partial_sum": 1}


def test_a_concatenation_of_one_tensor_is_that_tensor():
    ops = [("Conv", (0,), (1,)), ("Concat", (1,), (2,)), ("Conv", (1,), (3,)), ("Conv", (2, 3), (4,))]
    graph = graph_of([1, 2, 2, 3, 1], ops, [0], [4])
    order = plan_order(graph, memory="serenity")
    assert profile(order_problem(graph, "serenity"), order.steps) == [3, 2, 5, 6]
    assert plan_arena(graph, order).arena_bytes == 6


@pytest.mark.parametrize(
    ("why", "ops", "outputs"),
    [
        # t2 is t1, which the last convolution reads too
        (
            "a view",
            [
                ("Conv", (0,), (1,)),
                ("Concat", (1,), (2,)),
                ("Conv", (0,), (3,)),
                ("Sum", (2, 3), (4,), PARTIAL),
                ("Conv", (1, 4), (5,)),
            ],
            [5],
        ),
        ("an input", [("Conv", (0,), (1,)), ("Sum", (0, 1), (2,), PARTIAL), ("Conv", (2,), (3,))], [3]),
        ("an output", [("Conv", (0,), (1,)), ("Conv", (0,), (2,)), ("Sum", (1, 2), (3,), PARTIAL)], [1, 3]),
        ("the same twice", [("Conv", (0,), (1,)), ("Sum", (1, 1), (2,), PARTIAL)], [2]),
        (
            "an activated sum",
            [
                ("Conv", (0,), (1,)),
                ("Conv", (0,), (2,)),
                ("Sum", (1, 2), (3,), {**PARTIAL, "activation": "Relu"}),
                ("Conv", (0,), (4,)),
                ("Sum", (3, 4), (5,), PARTIAL),
            ],
            [5],
        ),
    ],
)
def test_nothing_is_added_to_bytes_that_somebody_reads_as_they_are(why, ops, outputs):
    count = max(op[2][0] for op in ops) + 1
    graph = graph_of([2] * count, ops, [0], outputs)
    storage_map = map_storages(graph, SERENITY)
    last = next(op for op in reversed(graph.ops) if op.kind == "Sum")
    assert storage_map.storages_of[last.outputs[0]] not in [storage_map.storages_of[part] for part in last.inputs], why
    # and were it done all the same, somebody would read something else
    summed = {storage_map.storages_of[tensor] for tensor in (*last.inputs, *last.outputs)}
    careless = [(0,) if held in summed else held for held in storage_map.storages_of]
    with pytest.raises(Mixed):
        for steps in every_order(graph):
            run(graph, steps, careless, [2] * len(storage_map.nbytes))


def test_the_check_refuses_an_arena_that_adds_to_what_another_reads():
    ops = [("Conv", (0,), (1,)), ("Conv", (0,), (2,)), ("Sum", (1, 2), (3,), PARTIAL), ("Conv", (1, 3), (4,))]
    graph = graph_of([2] * 5, ops, [0], [4])
    steps = (0, 1, 2, 3)
    arena = plan_arena(graph, steps, memory="serenity")
    at = {0: 0, 1: 2, 2: 2, 3: 2, 4: 4}  # t1 is read by op3 after t2 was added to it
    assert [record.id for record in arena.records] == ["t0", "t1", "t2", "t3", "t4"]
    with pytest.raises(InvalidPlan, match=r"op2.* needs tensor 't1'"):
        verify_arena(graph, steps, replace(arena, offsets=tuple(at.values()), tensor_offsets=at))


def test_sums_of_sums_share_one_block_from_the_first_part_on():
    ops = [
        ("Conv", (0,), (1,)),
        ("Conv", (0,), (2,)),
        ("Sum", (1, 2), (3,), PARTIAL),
        ("Conv", (0,), (4,)),
        ("Sum", (4, 3), (5,), PARTIAL),
        ("Conv", (5,), (6,)),
    ]
    graph = graph_of([2, 8, 8, 8, 8, 8, 1], ops, [0], [6])
    steps = plan_order(graph, memory="serenity").steps
    assert peak_bytes(order_problem(graph, "serenity"), steps) == 10
    arena = plan_arena(graph, steps, memory="serenity")
    assert len({arena.tensor_offsets[tensor] for tensor in (1, 2, 3, 4, 5)}) == 1
