"""Laws of the time limit of orders, as tests/arenas/test_time_limit.py holds those of arenas."""

import sys

import pytest

from downset.errors import LimitReached
from downset.orders.check import verify_steps
from downset.orders.planners import ORDERS
from experiments.speed.order import random_problem
from tests.clocks import over_after, watch_compiled

pytestmark = pytest.mark.native

COUNT = 1_500
CALLS = 100
"""The most calls for each operator after the end: passes over all operators, and sorting them."""


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("looks", [0, 3, 40])
def test_when_the_time_is_over_a_method_ends(name, looks, monkeypatch):
    problem = random_problem(COUNT, 40, 0)
    taken = over_after(monkeypatch, looks)
    watch_compiled(monkeypatch)
    calls = 0

    def called(frame, event, argument):
        nonlocal calls
        if event in ("call", "c_call") and len(taken) > looks:
            calls += 1
            assert calls < CALLS * COUNT, "the time is over, and the method goes on"

    sys.setprofile(called)
    try:
        found = ORDERS[name](problem)
    except LimitReached:
        assert name == "exhaustive"  # it alone has no plan before its end
        return
    finally:
        sys.setprofile(None)
    verify_steps(problem.predecessors, found.solution)
    assert found.bound >= problem.floor_bytes
