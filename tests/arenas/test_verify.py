"""The verifier must accept every right plan and name what is wrong with every broken one."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from downset.arenas.check import verify_arena
from downset.errors import InvalidPlan
from downset.joint.check import verify
from downset.memory.liveness import lifetimes, order_problem, peak_bytes
from downset.memory.models import MEMORY_MODELS
from downset.orders.check import verify_order, verify_steps
from downset.results.plans import Arena, Evidence, Order
from tests.strategies import graphs, orders_of

MODELS = pytest.mark.parametrize("memory", MEMORY_MODELS)


def first_fit(records):
    """Lowest offset that overlaps nobody placed before: a placement made without any planner of the library."""
    placed = []
    for record in records:
        offset = 0
        for other, low in sorted(placed, key=lambda item: item[1]):
            together = other.start < record.stop and record.start < other.stop
            if together and low < offset + record.nbytes and offset < low + other.nbytes:
                offset = -(-(low + other.nbytes) // record.alignment) * record.alignment
        placed.append((record, offset))
    return tuple(offset for _, offset in placed)


def arena_of(graph, steps, memory, offsets=None):
    living = lifetimes(graph, steps, memory)
    offsets = first_fit(living.records) if offsets is None else offsets
    total = max((at + r.nbytes for at, r in zip(offsets, living.records, strict=True)), default=0)
    by_tensor = {t: offsets[r] for t, r in enumerate(living.record_of) if r >= 0}
    return Arena(living.records, tuple(offsets), Evidence("test", total, 0, False), memory, by_tensor)


def order_of(graph, steps, memory):
    peak = peak_bytes(order_problem(graph, memory), steps)
    return Order(tuple(steps), memory, Evidence("test", peak, 0, peak == 0))


@MODELS
@given(data=st.data())
def test_right_plans_pass(memory, data):
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    verify(graph, order_of(graph, steps, memory), arena_of(graph, steps, memory))


@given(data=st.data())
def test_any_two_records_alive_together_must_not_overlap(data):
    """Move one record onto another that lives at the same time: the simulation must notice the lost bytes."""
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    arena = arena_of(graph, steps, "live")
    clashes = [
        (one, other)
        for one, a in enumerate(arena.records)
        for other, b in enumerate(arena.records)
        if one != other and a.start < b.stop and b.start < a.stop
    ]
    assume(clashes)
    one, other = data.draw(st.sampled_from(clashes))
    offsets = list(arena.offsets)
    offsets[one] = arena.offsets[other]
    moved = replace(
        arena_of(graph, steps, "live", offsets), evidence=Evidence("test", arena.arena_bytes + 200, 0, False)
    )
    with pytest.raises(InvalidPlan):
        verify_arena(graph, steps, moved)


@given(data=st.data())
def test_an_order_that_breaks_an_edge_is_named(data):
    graph = data.draw(graphs())
    predecessors = graph.predecessors()
    assume(any(predecessors))
    steps = list(data.draw(orders_of(predecessors)))
    later = data.draw(st.sampled_from([v for v, before in enumerate(predecessors) if before]))
    steps.remove(later)
    with pytest.raises(InvalidPlan, match="needs"):
        verify_steps(predecessors, [later, *steps])
    with pytest.raises(InvalidPlan, match="each once"):
        verify_steps(predecessors, steps)


@given(data=st.data(), wrong=st.sampled_from(["value", "bound", "proven"]))
def test_evidence_that_does_not_hold_is_refused(data, wrong):
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    order = order_of(graph, steps, "live")
    peak = order.peak_bytes
    false = {
        "value": Evidence("test", peak + 1, 0, False),
        "bound": Evidence("test", peak, peak + 1, False),
        "proven": Evidence("test", peak, peak - 1, True),
    }
    with pytest.raises(InvalidPlan):
        verify_order(graph, replace(order, evidence=false[wrong]))


@given(data=st.data())
def test_misaligned_outside_or_foreign_placements_are_refused(data):
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    arena = arena_of(graph, steps, "tflm")
    assume(arena.records)
    shifted = arena_of(graph, steps, "tflm", [offset + 8 for offset in arena.offsets])
    with pytest.raises(InvalidPlan, match="multiple of 16"):
        verify_arena(graph, steps, shifted)
    small = replace(arena, evidence=Evidence("test", arena.arena_bytes - 1, 0, False))
    with pytest.raises(InvalidPlan, match="outside the arena"):
        verify_arena(graph, steps, small)
    with pytest.raises(InvalidPlan, match="other lifetimes"):
        verify_arena(graph, steps, replace(arena, records=arena.records[1:]))
