"""A state in place: one record for the whole run, written after its last reader; against every order by brute force."""

from itertools import permutations

import numpy as np
import pytest

import downset as ds
from downset.arenas.check import verify_arena
from downset.errors import InvalidPlan, LoadError
from downset.graph.core import Graph, InPlaceState, Op, Tensor
from downset.memory.liveness import lifetimes, order_problem
from downset.memory.liveness import peak_bytes as peak_of
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from tests.effort import cases

UNIT = 16


def random_graph(random):
    """A graph with one or two states: the operators read what came before, and one of them makes the next value."""
    states = int(random.integers(1, 3))
    sizes = [int(size) * UNIT for size in random.integers(1, 6, 16)]
    tensors = [Tensor("x", (sizes[0],), "int8", sizes[0])]
    tensors += [Tensor(f"state/{s}", (sizes[s + 1],), "int8", sizes[s + 1]) for s in range(states)]
    ops, written = [], {}
    for number in range(int(random.integers(2, 6)) + states):
        writes = None
        there = list(range(len(tensors)))
        read = {int(one) for one in random.choice(there, min(len(there), int(random.integers(1, 3))), replace=False)}
        free = [s for s in range(states) if s not in written and s + 1 not in read]
        if free and random.random() < 0.6:
            writes = free[0]
        size = sizes[writes + 1] if writes is not None else sizes[8 + number % 8]
        if writes is not None:
            written[writes] = len(tensors)
        ops.append(Op(f"op{number}", "Foo", tuple(sorted(read)), (len(tensors),)))
        tensors.append(Tensor(f"t{number}", (size,), "int8", size))
    if len(written) < states:
        return None
    outputs = (len(tensors) - 1, *(tensor for tensor in written.values() if tensor != len(tensors) - 1))
    pairs = tuple(InPlaceState(f"s{s}", s + 1, tensor) for s, tensor in written.items())
    try:
        return Graph("g", tuple(tensors), tuple(ops), tuple(range(states + 1)), outputs, states=pairs).check()
    except LoadError:
        return None


def simulated_peak(graph, steps):
    """The bytes of the largest step of an order; None where it is not lawful. It shares no code with liveness."""
    over = {state.written: state.read for state in graph.states}
    content = {tensor: tensor for tensor in graph.inputs}
    left = [{i for i, op in enumerate(graph.ops) if t in op.inputs} for t in range(len(graph.tensors))]
    held, peak = set(graph.inputs), sum(graph.tensors[t].nbytes for t in graph.inputs)
    for step in steps:
        op = graph.ops[step]
        if any(content.get(over.get(t, t)) != t for t in op.inputs):
            return None
        (made,) = op.outputs
        place = over.get(made, made)
        held.add(place)
        peak = max(peak, sum(graph.tensors[t].nbytes for t in held))
        content[place] = made
        for tensor in op.inputs:
            left[tensor].discard(step)
        kept = {*graph.outputs, *over.values()}
        held = {t for t in held if left[t] or t in kept}
    return peak


def test_the_best_order_is_that_of_brute_force_and_its_arena_keeps_every_state():
    random = np.random.default_rng(1)
    tried = 0
    while tried < cases(200):
        graph = random_graph(random)
        if graph is None or len(graph.ops) > 6:
            continue
        tried += 1
        peaks = {steps: simulated_peak(graph, steps) for steps in permutations(range(len(graph.ops)))}
        lawful = {steps: peak for steps, peak in peaks.items() if peak is not None}
        order = ds.plan_order(graph, memory="tflm")
        assert lawful[order.steps] == order.peak_bytes == min(lawful.values())
        problem = order_problem(graph, "tflm")
        for steps, peak in list(lawful.items())[:: max(1, len(lawful) // 10)]:
            assert peak_of(problem, steps) == peak
        arena = ds.plan_arena(graph, order.steps, memory="tflm")
        verify_arena(graph, order.steps, arena)
        for state in graph.states:
            assert arena.tensor_offsets[state.read] == arena.tensor_offsets[state.written]
            lives = lifetimes(graph, order.steps, "tflm")
            record = lives.records[lives.record_of[state.read]]
            assert (record.start, record.stop) in ((0, len(graph.ops)), (-1, len(graph.ops)))
        assert order.peak_bytes >= ds.plan_order(graph, memory="live").peak_bytes, "a place for the whole run"


def pair(*ops, size=UNIT):
    names = ("x", "state/s", "next/s", "y", "z")
    tensors = tuple(Tensor(name, (size,), "int8", size) for name in names)
    return Graph("g", tensors, ops, (0, 1), (2, 3), states=(InPlaceState("s", 1, 2),))


READ, WRITE = Op("read", "Foo", (1, 0), (3,)), Op("write", "Foo", (3,), (2,))


def test_the_next_value_waits_for_every_reader_of_the_old_one():
    late = Op("late", "Foo", (1,), (4,))
    assert pair(READ, late, WRITE).check().predecessors() == ((), (), (0, 1))
    with pytest.raises(LoadError, match="'write' writes its next value over it, but 'late' reads it then or later"):
        pair(READ, WRITE, late).check()
    with pytest.raises(LoadError, match="'both' reads it then or later"):
        pair(Op("both", "Foo", (1, 0), (2,)), Op("y", "Foo", (0,), (3,))).check()
    graph = pair(READ, late, WRITE)
    arena = ds.plan_arena(graph, (0, 1, 2), memory="tflm")
    with pytest.raises(InvalidPlan):
        verify_arena(graph, (0, 2, 1), arena)


def test_only_tflite_micro_keeps_states_in_place():
    graph = pair(READ, WRITE).check()
    for memory in ("live", "litert", "ort"):
        lives = lifetimes(graph, (0, 1), memory)
        assert lives.record_of[1] != lives.record_of[2] or lives.record_of[1] < 0
    for memory in ("tflm", "tflm-reference", "tflm-cmsis-nn-mve", "tflm-esp-nn-s3@1.2.1", TFLM_WITHOUT_OFFSETS):
        lives = lifetimes(graph, (0, 1), memory)
        assert lives.record_of[1] == lives.record_of[2] >= 0
