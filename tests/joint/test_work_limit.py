"""Order and placement under a limit of work: repeatable, never worse with more, and told."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.joint import order_and_arena
from downset.joint.check import verify
from downset.joint.order_and_arena import plan_together
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


@given(graph=graphs(most_ops=9), limit=LIMITS)
def test_the_clock_has_no_part_in_it(graph, limit):
    plain = planned(graph, limit)
    with pytest.MonkeyPatch.context() as patch:
        clock = iter(range(0, 10**9, 1000))
        for name in ("perf_counter", "monotonic"):
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

        patch.setattr(time, "monotonic", lambda: now[0])
        patch.setattr(order_and_arena, "plan_arena", placing)
        found = plan_together(graph, memory="live", time_limit_s=0.5, work_limit=10**9, count=2)
    assert len(placed) == 1
    assert found.arena.evidence.proven or found.arena.evidence.stopped_by == "time"
