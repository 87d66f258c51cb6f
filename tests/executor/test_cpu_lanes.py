"""The CPU engine's lanes: a step waits for what the program says, and for nothing more."""

import random
import threading
import time
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from downset.executor import cpu
from downset.executor.binder import KernelCall
from downset.executor.cpu import CpuEngine
from downset.executor.lane_program import lower
from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.stages.problem import Stage
from downset.stages.unit_graph import UnitGraph, group_units
from tests.executor.test_programs import programs

PATIENCE_S = 60.0
"""For what a right engine does at once."""


class Terms:
    """A binder whose operators make terms of what they read. `during(step)` is called while a step runs; `threads`:
    what each step was bound with."""

    def __init__(self, graph, units, program, during=lambda step: None):
        self.graph, self.threads, self._during = graph, {}, during
        self._step_of = {op: at for at, step in enumerate(program.steps) for u in step.units for op in units.units[u]}

    def fixed_outputs(self, outputs):
        return {tensor: ("constant", tensor) for tensor in outputs if tensor in self.graph.constants}

    def bind(self, ops, *, threads):
        return tuple(self._call(op, threads) for op in ops)

    def _call(self, index, threads):
        op, step = self.graph.ops[index], self._step_of[index]
        self.threads[step] = threads
        reads = tuple(tensor for tensor in op.inputs if self._is_computed(tensor))

        def run(values):
            self._during(step)
            return [hash((op.name, at, *values)) for at in range(len(op.outputs))]

        return KernelCall(reads, op.outputs, run)

    def _is_computed(self, tensor):
        return tensor != ABSENT and self.graph.tensors[tensor].role == "activation"


def in_order(graph):
    """The terms of all tensors, one operator after another."""
    found = {tensor: hash(("input", tensor)) for tensor in graph.inputs}
    for op in graph.ops:
        values = [found[t] for t in op.inputs if t != ABSENT and graph.tensors[t].role == "activation"]
        found.update({tensor: hash((op.name, at, *values)) for at, tensor in enumerate(op.outputs)})
    return found


def run(graph, units, program, during, *, times=1, threads=4):
    binder = Terms(graph, units, program, during)
    given = [hash(("input", tensor)) for tensor in graph.inputs]
    with CpuEngine(binder, program, inputs=graph.inputs, outputs=graph.outputs, threads=threads) as engine:
        for _ in range(times):
            yield engine(given)


@given(programs(), st.integers(0, 999))
def test_every_run_computes_the_same_and_keeps_the_order(made, seed):
    graph, units, _, program = made
    events, chance = [], random.Random(seed)

    def during(step):
        events.append(("begin", step))
        time.sleep(chance.choice([0.0, 0.0, 2e-4]))
        events.append(("end", step))

    terms = in_order(graph)
    for found in run(graph, units, program, during, times=3):
        assert found == [terms[tensor] for tensor in graph.outputs]
        begun = Counter(step for what, step in events if what == "begin")
        assert begun == {at: sum(len(units.units[u]) for u in s.units) for at, s in enumerate(program.steps)}
        for at, (what, step) in enumerate(events):
            if what == "begin":
                later = {other for _, other in events[at:]}
                assert not any(program.before[step] >> other & 1 for other in later)
        events.clear()


@given(programs(), st.data())
def test_steps_that_nothing_orders_run_side_by_side(made, data):
    """Each of the two goes on only when the other runs as well."""
    graph, units, _, program = made
    every = range(len(program.steps))
    free = [(one, other) for other in every for one in range(other) if not program.before[other] >> one & 1]
    assume(free)
    pair = data.draw(st.sampled_from(free))
    meeting, seen = threading.Barrier(2, timeout=PATIENCE_S), set()

    def during(step):
        if step in pair and step not in seen:
            seen.add(step)
            meeting.wait()

    terms = in_order(graph)
    for found in run(graph, units, program, during):
        assert found == [terms[tensor] for tensor in graph.outputs]
    assert seen == set(pair)


def diamond():
    """A and B read the input, C reads A, D reads B and C."""
    tensors = tuple(Tensor(name, (1,), "float32", 4) for name in "xabcd")
    ops = (
        Op("A", "Relu", (0,), (1,)),
        Op("B", "Relu", (0,), (2,)),
        Op("C", "Relu", (1,), (3,)),
        Op("D", "Add", (2, 3), (4,)),
    )
    return Graph("diamond", tensors, ops, (0,), (4,)).check()


STAGES = (Stage(((0,), (1,))), Stage(((2,),)), Stage(((3,),)))


def test_a_stage_of_one_group_waits_for_what_it_reads_only():
    """And then has its lane's share of the threads; with barriers it waits for the stage before, and has them all."""
    graph = diamond()
    units = UnitGraph(((0,), (1,), (2,), (3,)), (0, 0, 0b1, 0b110))
    program = lower(units, STAGES, barriers=False)
    done = threading.Event()

    def during(step):
        if step == 1:
            assert done.wait(PATIENCE_S), "B was waited for"
        if step == 2:
            done.set()

    list(run(graph, units, program, during))
    shares = {}
    for barriers in (True, False):
        program = lower(units, STAGES, barriers=barriers)
        binder = Terms(graph, units, program)
        CpuEngine(binder, program, inputs=(0,), outputs=(4,), threads=4).close()
        shares[barriers] = binder.threads
    assert shares == {True: {0: 2, 1: 2, 2: 4, 3: 4}, False: {0: 2, 1: 2, 2: 2, 3: 4}}


def test_what_nobody_reads_any_more_is_let_go_of():
    """As soon as a step runs that waits for all readers, in the middle of a region too."""
    import weakref

    class Value:
        pass

    graph = diamond()
    units = group_units(graph)
    program = lower(units, STAGES, barriers=False)
    alive, left = {}, []

    class Values(Terms):
        def _call(self, index, threads):
            call, step = super()._call(index, threads), self._step_of[index]

            def run(values):
                del values[:]
                if step == 3:
                    left.extend(name for name, ref in alive.items() if ref() is not None)
                made = Value()
                alive[graph.ops[index].name] = weakref.ref(made)
                return [made]

            return KernelCall(call.inputs, call.outputs, run)

    binder = Values(graph, units, program)
    with CpuEngine(binder, program, inputs=(0,), outputs=(4,), threads=2) as engine:
        engine([Value()])
    assert sorted(left) == ["B", "C"]


@given(programs(), st.data())
def test_the_first_failure_is_what_the_caller_sees(made, data):
    """Not that of a step which missed what was not made; and the next run is whole again."""
    graph, units, _, program = made
    assume(program.steps)
    failing = {data.draw(st.integers(0, len(program.steps) - 1))}

    def during(step):
        if step in failing:
            raise ArithmeticError(f"step {step}")

    binder = Terms(graph, units, program, during)
    given = [hash(("input", tensor)) for tensor in graph.inputs]
    with CpuEngine(binder, program, inputs=graph.inputs, outputs=graph.outputs, threads=4) as engine:
        for _ in range(3):
            with pytest.raises(ArithmeticError):
                engine(given)
        failing.clear()
        terms = in_order(graph)
        assert engine(given) == [terms[tensor] for tensor in graph.outputs]


@pytest.mark.parametrize("place", ["receive", "start", "wait"])
def test_a_call_that_is_interrupted_leaves_nothing_for_the_next(monkeypatch, place):
    """KeyboardInterrupt between two kernels of the caller's lane: the other lanes end, and the next calls are right."""
    graph = diamond()
    units = UnitGraph(((0,), (1,), (2,), (3,)), (0, 0, 0b1, 0b110))
    program = lower(units, STAGES, barriers=False)
    before = threading.active_count()
    expected = in_order(graph)
    waits = [0]

    def slowly(step):
        waits[0] += 1
        if step == 1:  # the other lane's: what the call before has sent comes too early for it
            time.sleep(0.05)

    binder = Terms(graph, units, program, slowly)
    given = [hash(("input", tensor)) for tensor in graph.inputs]
    with CpuEngine(binder, program, inputs=graph.inputs, outputs=graph.outputs, threads=4) as engine:
        for _ in range(3):
            with monkeypatch.context() as patch:
                interrupting(patch, place)
                with pytest.raises(KeyboardInterrupt):
                    engine(given)
            for _ in range(3):
                assert engine(given) == [expected[tensor] for tensor in graph.outputs]
    begin = time.monotonic()
    while threading.active_count() > before and time.monotonic() - begin < PATIENCE_S:
        time.sleep(0.01)
    assert threading.active_count() == before and waits[0]


def interrupting(patch, place):
    """Raise KeyboardInterrupt once in the caller's thread: where it waits for another lane, or gives it an order."""
    if place == "receive":
        real, caller = cpu._execute, threading.current_thread()

        def execute(tasks, table, failures):
            if threading.current_thread() is caller:
                real(tasks[:1], table, failures)
                raise KeyboardInterrupt
            real(tasks, table, failures)

        patch.setattr(cpu, "_execute", execute)
        return

    def interrupt(*_):
        raise KeyboardInterrupt

    patch.setattr(cpu._LaneThread, place, interrupt)
