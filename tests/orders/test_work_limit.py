"""Work limits of orders: the same limit gives the same plan, a larger one never a worse, and it is told."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.budget import Budget
from downset.errors import LimitReached, UsageError
from downset.memory.liveness import OrderProblem, Storage, peak_bytes
from downset.orders.optimal import improving
from downset.orders.plan import plan_order
from downset.orders.planners import ORDERS
from experiments.speed.order import random_problem
from tests.strategies import wide_problems

beam = ORDERS["beam"]

pytestmark = pytest.mark.native
LIMITS = st.integers(0, 60)


@pytest.fixture(scope="module")
def hard_problem():
    """Fourteen operators without order, and storages between many of them: no bound meets the optimum."""
    readers = [tuple(sorted(14 + (5 * v + more) % 14 for more in (0, 1 + v % 5, 7 + v % 6))) for v in range(14)]
    storages = [Storage(1 + 37 * v % 99, (v,), readers[v]) for v in range(14)]
    storages += [Storage(1 + 61 * v % 99, (v,), (v,), kept=True) for v in range(14, 28)]
    predecessors = [()] * 14 + [tuple(u for u in range(14) if v in storages[u].consumers) for v in range(14, 28)]
    return OrderProblem(tuple(predecessors), tuple(storages))


def planned(problem, method, limit, **options):
    return plan_order(problem, method=method, time_limit_s=math.inf, work_limit=limit, **options)


@pytest.mark.parametrize("method", ["optimal", "beam", "serenity"])
@given(problem=wide_problems(operators=12), limit=LIMITS, more=LIMITS)
def test_more_work_never_makes_an_order_worse(method, problem, limit, more):
    less, further = planned(problem, method, limit), planned(problem, method, limit + more)
    assert further.peak_bytes <= less.peak_bytes
    assert further.evidence.bound >= less.evidence.bound
    assert less.evidence.proven <= further.evidence.proven
    assert (less.evidence.stopped_by == "work") >= (further.evidence.stopped_by == "work")
    assert less.evidence.states <= limit


@given(problem=wide_problems(operators=12), limit=LIMITS)
def test_the_clock_has_no_part_in_what_a_work_limit_gives(problem, limit):
    """The same plan where every look at the clock says that much time has gone by."""
    plain = planned(problem, "optimal", limit)
    with pytest.MonkeyPatch.context() as patch:
        clock = iter(range(0, 10**9, 1000))
        for name in ("perf_counter", "monotonic", "process_time"):
            patch.setattr(time, name, lambda: float(next(clock)))
        slow = planned(problem, "optimal", limit)
    assert (slow.steps, slow.evidence.bound, slow.evidence.states, slow.evidence.stopped_by) == (
        plain.steps,
        plain.evidence.bound,
        plain.evidence.states,
        plain.evidence.stopped_by,
    )


@given(problem=wide_problems(operators=12), limit=LIMITS, more=LIMITS)
def test_the_orders_found_on_the_way_are_the_first_of_those_under_a_larger_limit(problem, limit, more):
    less, further = (improving(problem, Budget(math.inf, states).start())[1] for states in (limit, limit + more))
    assert further[: len(less)] == less


@pytest.mark.parametrize("window", [40, 60])
def test_no_beam_of_fewer_states_finds_a_better_order(window):
    problem = random_problem(200, window, 0)
    narrow = beam(problem, width=4)
    value, greedy = (peak_bytes(problem, found.solution) for found in (narrow, ORDERS["greedy"](problem)))
    assert planned(problem, "optimal", 2_000 + narrow.states).peak_bytes <= value < greedy


def test_a_search_that_a_limit_ends_says_which(hard_problem):
    assert planned(hard_problem, "optimal", 3).evidence.stopped_by == "work"
    assert plan_order(hard_problem, time_limit_s=0).evidence.stopped_by == "time"
    finished = planned(hard_problem, "optimal", 10**30).evidence
    assert finished.proven and finished.stopped_by == ""
    assert "stopped by the work limit" in planned(hard_problem, "optimal", 3).evidence.in_bytes()
    with pytest.raises(LimitReached):
        planned(hard_problem, "exhaustive", 3)


@pytest.mark.parametrize("limit", [-1, 1.5, "many"])
def test_a_work_limit_is_a_number_of_states(hard_problem, limit):
    with pytest.raises(UsageError, match="states from 0"):
        planned(hard_problem, "optimal", limit)
