"""Laws of the time limit of orders, as tests/arenas/test_time_limit.py holds those of arenas."""

import pytest

from downset.errors import LimitReached
from downset.orders.check import verify_steps
from downset.orders.planners import ORDERS
from experiments.speed.order import random_problem
from tests.clocks import few_calls_after, over_after, watch_compiled

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
    try:
        with few_calls_after(taken, looks, CALLS * COUNT):
            found = ORDERS[name](problem)
    except LimitReached:
        assert name == "exhaustive"  # it alone has no plan before its end
        return
    verify_steps(problem.predecessors, found.solution)
    assert found.bound >= problem.floor_bytes
