"""Order and placement under a limit of work: repeatable, never worse with more, and told."""

import math
import time
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.budget import Clock
from downset.graph.core import Graph, Op, Tensor
from downset.joint import order_and_arena
from downset.joint.check import verify
from downset.joint.order_and_arena import plan_together
from tests.effort import cases
from tests.strategies import graphs

LIMITS = st.sampled_from([0, 1, 5, 40, 300, 5000, 20_000])


def planned(graph, limit, memory="live"):
    return plan_together(graph, memory=memory, time_limit_s=math.inf, work_limit=limit, count=2)


def figures(found):
    return found.order.steps, found.arena.offsets, found.arena.evidence.bound, found.arena.evidence.stopped_by


@pytest.mark.parametrize("memory", ["live", "tflm"])
@given(graph=graphs(most_ops=9), limits=st.tuples(LIMITS, LIMITS).map(sorted))
def test_more_work_never_gives_a_larger_arena(memory, graph, limits):
    less, further = (planned(graph, limit, memory) for limit in limits)
    for found in (less, further):
        verify(graph, found.order, found.arena)
    assert further.arena.arena_bytes <= less.arena.arena_bytes
    assert further.arena.evidence.bound >= less.arena.evidence.bound
    assert less.arena.evidence.proven <= further.arena.evidence.proven


def network(seed):
    """Ten operators that read up to three of the last eight tensors each: few such graphs are proven by their first
    states."""
    random = Random(seed)
    tensors, ops = [Tensor("t0", (9,), "uint8", 9)], []
    for index in range(10):
        reads = random.sample(range(max(0, index - 7), index + 1), k=min(random.choice((1, 1, 2, 3)), index + 1))
        nbytes = random.choice((random.randint(1, 12), random.randint(5, 60)))
        tensors.append(Tensor(f"t{index + 1}", (nbytes,), "uint8", nbytes))
        ops.append(Op(f"op{index}", "Conv", tuple(reads), (index + 1,)))
    return Graph("random", tuple(tensors), tuple(ops), (0,), (10,)).check()


def searched(graph, limit):
    """The plan, and the searches and placements that ran, in turn: the name of each and what it started from."""
    ran = []

    def recorded(name):
        search = getattr(order_and_arena, name)

        def run(problem, *start, **options):
            ran.append((name, options.get("method"), [one for one in start if not isinstance(one, Clock)]))
            return search(problem, *start, **options)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in ("improving", "alternatives", "plan_arena"):
            patch.setattr(order_and_arena, name, recorded(name))
        return planned(graph, limit), ran


def test_a_run_is_the_beginning_of_every_run_under_a_larger_limit(monkeypatch):
    """With parts that are shares of what is left it is not, and then only chance keeps more work from a worse plan.
    Graphs of this size are searched in several rounds only if the first is short."""
    monkeypatch.setattr(order_and_arena, "_FIRST_STATES", 4)
    for seed in range(cases(200)):
        graph, runs = network(seed), []
        for limit in (*range(0, 60, 5), *range(60, 300, 40), 1000):
            runs.append(searched(graph, limit))
            if runs[-1][0].arena.evidence.proven:
                break
        for (less, begun), (further, ran) in pairwise(runs):
            assert ran[: len(begun)] == begun, seed
            assert further.arena.arena_bytes <= less.arena.arena_bytes, seed
            assert further.arena.evidence.bound >= less.arena.evidence.bound, seed
            assert further.order.evidence.bound >= less.order.evidence.bound, seed


@given(graph=graphs(most_ops=9), limit=LIMITS)
def test_the_clock_has_no_part_in_it(graph, limit):
    plain = planned(graph, limit)
    with pytest.MonkeyPatch.context() as patch:
        clock = iter(range(0, 10**9, 1000))
        for name in ("perf_counter", "monotonic", "process_time"):
            patch.setattr(time, name, lambda: float(next(clock)))
        slow = planned(graph, limit)
    assert figures(slow) == figures(plain)


@given(graph=graphs(most_ops=9))
def test_the_time_limit_holds_beside_a_limit_of_work(graph):
    """Where the time ends while the first order is placed, no other order is, and the time is said to have ended it."""
    with pytest.MonkeyPatch.context() as patch:
        now, placed, plan = [0.0], [], order_and_arena.plan_arena

        def placing(*problem, **options):
            placed.append(problem)
            now[0] += 1.0
            return plan(*problem, **options)

        patch.setattr(time, "process_time", lambda: now[0])
        patch.setattr(order_and_arena, "plan_arena", placing)
        found = plan_together(graph, memory="live", time_limit_s=0.5, work_limit=10**9, count=2)
    assert len(placed) == 1
    assert found.arena.evidence.proven or found.arena.evidence.stopped_by == "time"
