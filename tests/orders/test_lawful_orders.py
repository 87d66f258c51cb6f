"""Orders, problems and memory models that a caller brings along: what breaks a law is refused where it enters."""

import math
import time
from dataclasses import replace

import pytest

import downset as ds
from downset.budget import Budget
from downset.errors import InvalidPlan, UsageError
from downset.orders.planners import ORDERS
from downset.orders.problem import _AT_ONCE, check_problem
from downset.results.plans import Found

pytestmark = pytest.mark.native

CHAIN = ds.OrderProblem(
    ((), (0,), (1,), (2,)),
    (ds.Storage(8, (0,), (1,)), ds.Storage(4, (1,), (2,)), ds.Storage(2, (2,), (3,)), ds.Storage(1, (3,), (3,))),
)
OWN = replace(ds.MEMORY_MODELS["live"], name="mine", alignment=128)


def graph():
    tensors = tuple(ds.Tensor(name, (10,), "uint8", 10) for name in "xyz")
    ops = (ds.Op("A", "Relu", (0,), (1,)), ds.Op("B", "Relu", (1,), (2,)))
    return ds.Graph("chain", tensors, ops, (0,), (2,)).check()


@pytest.mark.parametrize("method", ORDERS)
def test_a_reader_waits_for_a_producer(method):
    unlawful = ds.OrderProblem(((), ()), (ds.Storage(5, (0,), (1,)),))
    with pytest.raises(UsageError, match="storage 0 is read by operator 1, which does not wait for its producer 0;"):
        ds.plan_order(unlawful, method=method)


@pytest.mark.parametrize(
    ("predecessors", "storage", "lawful"),
    [
        (((), (0,), (1,)), ds.Storage(5, (0,), (2,)), True),  # through operator 1
        (((), (), (1,)), ds.Storage(5, (0,), (2,)), False),
        (((), (), (0,)), ds.Storage(5, (0, 1), (2,)), True),  # parts of one result: one of its producers
        (((), (), (), (2,)), ds.Storage(5, (0, 1), (3,)), False),
        (((), ()), ds.Storage(5, (0, 1), (1,)), True),  # it makes a part itself
        (((), ()), ds.Storage(5, (), (0, 1)), True),  # there from the start
        (((), ()), ds.Storage(5, (0,), (1,), kept=True), False),
        (((), ()), ds.Storage(5, (1,), (0,)), False),  # before its producer
    ],
)
def test_which_producers_a_reader_waits_for(predecessors, storage, lawful):
    problem = ds.OrderProblem(predecessors, (storage,))
    if lawful:
        check_problem(problem)
    else:
        with pytest.raises(UsageError, match=r"storage 0 is read by operator \d, which does not wait for"):
            check_problem(problem)


def test_readers_that_wait_through_others_are_followed_in_more_than_one_pass():
    count = 2 * _AT_ONCE + 10
    before = tuple((v - 1,) if v else () for v in range(count))
    storages = tuple(ds.Storage(1, (v,), (v + 2,)) for v in range(count - 2))
    check_problem(ds.OrderProblem(before, storages))
    cut = (*before[:-4], (), *before[-3:])  # the last four wait for none of the others
    with pytest.raises(UsageError, match=f"storage {count - 6} is read by operator {count - 4}, "):
        check_problem(ds.OrderProblem(cut, storages))


def test_an_order_of_a_bare_problem_is_verified():
    order = ds.plan_order(CHAIN)
    ds.verify(CHAIN, order)
    with pytest.raises(InvalidPlan, match="step 0: operator 3 runs before operator 2"):
        ds.verify(CHAIN, replace(order, steps=(3, 2, 1, 0)))
    with pytest.raises(InvalidPlan, match="states a peak of 3"):
        ds.verify(CHAIN, replace(order, evidence=replace(order.evidence, value=3)))
    with pytest.raises(UsageError, match="with its order alone"):
        ds.verify(CHAIN, order, ds.plan_arena([]))
    unlawful = ds.OrderProblem(((), ()), (ds.Storage(5, (0,), (1,)),))
    with pytest.raises(UsageError, match="does not wait for its producer"):
        ds.verify(unlawful, ds.Order((0, 1), "", order.evidence))


@pytest.mark.parametrize(
    "steps", [(3, 2, 1, 0), (0, 1, 2, 2), (), (0, 1, 2, 9), (0, 1, 2, 3, 4), "0123", (0, 1, 2, "3")]
)
def test_a_peak_is_that_of_a_lawful_order(steps):
    with pytest.raises(InvalidPlan):
        ds.peak_bytes(CHAIN, steps)
    with pytest.raises(InvalidPlan):
        ds.verify(CHAIN, replace(ds.plan_order(CHAIN), steps=steps))


def test_a_peak_and_lifetimes_are_those_of_lawful_arguments():
    assert ds.peak_bytes(CHAIN, [0, 1, 2, 3]) == 12
    with pytest.raises(UsageError, match="a sequence of operators"):
        ds.peak_bytes(CHAIN, None)
    with pytest.raises(UsageError, match="does not wait for its producer"):
        ds.peak_bytes(ds.OrderProblem(((), ()), (ds.Storage(5, (0,), (1,)),)), (1, 0))
    with pytest.raises(UsageError, match="order_problem"):
        ds.peak_bytes(graph(), (0, 1))
    with pytest.raises(InvalidPlan, match="operator 1 runs before operator 0"):
        ds.lifetimes(graph(), [1, 0])
    assert len(ds.lifetimes(graph(), [0, 1]).records) == 3
    for given in (CHAIN, None):
        with pytest.raises(UsageError, match="Graph"):
            ds.lifetimes(given, [0, 1])
        with pytest.raises(UsageError, match="Graph"):
            ds.order_problem(given)


def test_a_memory_model_of_ones_own_is_kept_by_passing_it_on():
    order = ds.plan_order(graph(), memory=OWN)
    for lost in (
        lambda: ds.plan_arena(graph(), order),
        lambda: ds.verify(graph(), order),
        lambda: ds.report(graph(), order),
    ):
        with pytest.raises(UsageError, match="under memory model 'mine', which is not built in: pass memory="):
            lost()
    arena = ds.plan_arena(graph(), order, memory=OWN)
    assert (order.peak_bytes, arena.arena_bytes, arena.memory) == (256, 256, "mine")
    ds.verify(graph(), order, memory=OWN)
    ds.verify(graph(), order, arena, memory=OWN)
    assert "memory model mine" in ds.report(graph(), order, arena, memory=OWN)
    together = ds.plan_together(graph(), memory=OWN)
    ds.verify(graph(), together, memory=OWN)
    assert "256" in ds.report(graph(), together, memory=OWN)
    built_in = ds.plan_arena(graph(), order, memory="tflm")  # one of them by another model
    ds.verify(graph(), order, built_in, memory=OWN)
    least = ds.plan_recompute(graph(), 256, memory=OWN)
    assert ds.report(least, memory=OWN)


def test_pages_draw_an_order_under_a_memory_model_of_ones_own():
    pytest.importorskip("jinja2")
    order = ds.plan_order(graph(), memory=OWN)
    arena = ds.plan_arena(graph(), order, memory=OWN)
    for page in (
        ds.report(graph(), order, memory=OWN),
        ds.report(graph(), order, arena, memory=OWN),
        ds.report(ds.plan_recompute(graph(), 256, memory=OWN), memory=OWN),
    ):
        assert "mine" in page.page()


def test_a_memory_model_that_is_not_the_plans_is_refused():
    order, other = ds.plan_order(graph(), memory=OWN), replace(OWN, name="other")
    for wrong in (ds.verify, ds.report):
        with pytest.raises(UsageError, match="'other'"):
            wrong(graph(), order, memory=other)
        with pytest.raises(UsageError, match="that of an order of a graph"):
            wrong(ds.plan_arena([ds.Record("a", 0, 1, 8)]), memory=OWN)
        with pytest.raises(UsageError, match="memory="):
            wrong(CHAIN, ds.plan_order(CHAIN), memory=OWN)
    for model in (replace(OWN, name="live"), replace(OWN, name="")):
        for plan in (ds.plan_order, ds.plan_together, ds.order_problem):
            with pytest.raises(UsageError, match=r"another name|no name"):
                plan(graph(), memory=model)
    assert ds.plan_order(graph(), memory=replace(ds.MEMORY_MODELS["live"])).memory == "live"


def test_bare_problems_and_records_take_no_memory_model():
    records = [ds.Record("a", 0, 1, 8)]
    for given in ("tflm", "live", OWN):
        with pytest.raises(UsageError, match="leave memory= out"):
            ds.plan_order(CHAIN, memory=given)
        with pytest.raises(UsageError, match="leave memory= out"):
            ds.plan_arena(records, memory=given)
    for order in ([0], ds.plan_order(CHAIN)):
        with pytest.raises(UsageError, match="leave the order out"):
            ds.plan_arena(records, order)
    assert ds.plan_order(CHAIN).memory == ""
    assert "memory" not in repr(ds.plan_order(CHAIN)) + ds.report(CHAIN, ds.plan_order(CHAIN))
    bare = ds.plan_order(ds.order_problem(graph(), "tflm"))
    for unknown in (ds.plan_arena, ds.verify, ds.report):
        with pytest.raises(UsageError, match="states no memory model: pass memory="):
            unknown(graph(), bare)
        unknown(graph(), bare, memory="tflm")


def test_exhaustive_looks_at_the_clock_for_each_operator(monkeypatch):
    """Counted: added bytes, each of which takes O(storages)."""
    from downset.orders import exhaustive

    wide = ds.OrderProblem(((),) * 40, tuple(ds.Storage(1, (v,), (v,)) for v in range(40)))
    now, computed = [0.0], []
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    def added(problem, downset, operator):
        computed.append(operator)
        now[0] += 1.0
        return 1

    monkeypatch.setattr(exhaustive, "added_bytes", added)
    with pytest.raises(ds.LimitReached, match="stopped after"):
        exhaustive.exhaustive(wide, clock=Budget(5.0).start())
    assert len(computed) == 5


@pytest.mark.parametrize(
    "problem",
    [
        replace(CHAIN, floor_bytes=-4),
        replace(CHAIN, floor_bytes=1.5),
        replace(CHAIN, floor_bytes=1 << 70),
        replace(CHAIN, floor_bytes=True),
        replace(CHAIN, predecessors=None),
        replace(CHAIN, storages=(1,)),
        replace(CHAIN, in_place=(1, 2, 3, 4)),
        replace(CHAIN, in_place=((), ("a",), (), ())),
        None,
        7,
        "a",
        replace(CHAIN, storages=(ds.Storage(True, (0,), (1,)),)),
        [ds.Record("a", 0, 1, 8)],
    ],
)
def test_values_that_are_not_problems_are_usage_errors(problem):
    with pytest.raises(UsageError):
        ds.plan_order(problem)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "beam", "width": 0},
        {"method": "beam", "width": "4"},
        {"method": "beam", "width": 1 << 80},
        {"time_limit_s": "3s"},
        {"time_limit_s": None},
        {"time_limit_s": True},
        {"work_limit": "9"},
        {"work_limit": True},
        {"method": "serenity", "step_limit_s": "1"},
        {"method": "serenity", "step_limit_s": math.nan},
        {"engine": None},
    ],
)
def test_wrong_options_of_orders_are_usage_errors(options):
    with pytest.raises(UsageError):
        ds.plan_order(CHAIN, **options)


@pytest.mark.parametrize("given", [None, CHAIN, [ds.Record("a", 0, 1, 8)]])
def test_plans_of_networks_take_a_graph(given):
    with pytest.raises(UsageError, match="give a Graph"):
        ds.plan_together(given, memory="live")
    for plan in (ds.inspect, lambda value: ds.plan_recompute(value, 8)):
        with pytest.raises(UsageError, match="give a Graph"):
            plan(given)
    with pytest.raises(UsageError, match="seed"):
        ds.plan_together(graph(), memory="live", seed="1")


def test_steps_of_a_callable_are_checked():
    for solution in ((3, 2, 1, 0), (0,), "abcd", (0, 1, 2, "3")):
        with pytest.raises(InvalidPlan):
            ds.plan_order(CHAIN, method=lambda problem, solution=solution: Found(solution, 0))
    assert ds.plan_order(CHAIN, method=lambda problem: Found([0, 1, 2, 3], 0)).steps == (0, 1, 2, 3)
