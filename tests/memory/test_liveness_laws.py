"""Laws that hold for every graph, order and memory model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset import lattice
from downset.graph.core import ABSENT
from downset.memory.bounds import breadth_bound, breadths
from downset.memory.liveness import lifetimes, live_bytes, order_problem, peak_bytes, profile, transient_bytes
from downset.memory.models import MEMORY_MODELS
from tests.effort import cases
from tests.strategies import graphs, orders_of

MODELS = pytest.mark.parametrize("memory", MEMORY_MODELS)


def simulated_profile(graph, steps):
    """Model `live` by the book: a set of live tensors, no storages, no masks."""
    last = {}
    for step, operator in enumerate(steps):
        for tensor in graph.ops[operator].inputs:
            last[tensor] = step
    size = [tensor.nbytes for tensor in graph.tensors]
    live = {tensor for tensor in graph.inputs if tensor in last or tensor in graph.outputs}
    needs = []
    for step, operator in enumerate(steps):
        live |= {tensor for tensor in graph.ops[operator].outputs if tensor != ABSENT}
        needs.append(sum(size[tensor] for tensor in live))
        live = {tensor for tensor in live if last.get(tensor, -1) > step or tensor in graph.outputs}
    return needs


@given(st.data())
def test_live_is_what_a_simulation_over_tensors_gives(data):
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    assert profile(order_problem(graph, "live"), steps) == simulated_profile(graph, steps)


@MODELS
@given(data=st.data())
def test_the_profile_is_the_transient_of_each_step(memory, data):
    graph = data.draw(graphs())
    problem = order_problem(graph, memory)
    steps = data.draw(orders_of(problem.predecessors))
    downset = 0
    for operator, need in zip(steps, profile(problem, steps), strict=True):
        assert need == transient_bytes(problem, downset, operator)
        downset |= 1 << operator


@MODELS
@given(data=st.data())
def test_the_largest_breadth_of_the_records_is_the_peak(memory, data):
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    problem = order_problem(graph, memory)
    records = lifetimes(graph, steps, memory).records
    assert breadth_bound(records) == peak_bytes(problem, steps)
    by_step = dict(breadths(records))
    level = 0
    for step, need in enumerate(profile(problem, steps)):
        level = by_step.get(step, level)
        assert level == need


@MODELS
@given(data=st.data())
@settings(max_examples=cases(50))
def test_live_bytes_are_submodular_over_downsets(memory, data):
    graph = data.draw(graphs(most_ops=6))
    problem = order_problem(graph, memory)
    every = list(lattice.downsets(lattice.masks(problem.predecessors)))
    one, other = data.draw(st.sampled_from(every)), data.draw(st.sampled_from(every))
    together, common = live_bytes(problem, one | other), live_bytes(problem, one & other)
    assert together + common <= live_bytes(problem, one) + live_bytes(problem, other)


@MODELS
@given(data=st.data())
def test_records_are_aligned_and_inside_the_run(memory, data):
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    for record in lifetimes(graph, steps, memory).records:
        assert record.nbytes > 0
        assert record.nbytes % MEMORY_MODELS[memory].alignment == 0
        assert -1 <= record.start < record.stop <= max(len(steps), 1)


@given(data=st.data(), factor=st.integers(1, 1000))
def test_scaling_bytes_scales_the_peak_at_alignment_one(data, factor):
    from dataclasses import replace

    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    tensors = tuple(replace(tensor, nbytes=tensor.nbytes * factor) for tensor in graph.tensors)
    scaled = replace(graph, tensors=tensors)
    assert peak_bytes(order_problem(scaled), steps) == factor * peak_bytes(order_problem(graph), steps)
