"""Records and options that a caller brings along: what cannot be used is refused where it enters, with one line."""

import math

import numpy as np
import pytest

import downset as ds
from downset.arenas import exact as exact_search
from downset.arenas.gaps import height
from downset.arenas.planners import ARENAS
from downset.errors import InvalidPlan, UsageError
from downset.results.plans import Found

exact = ARENAS["exact"]

pytestmark = pytest.mark.native

RECORDS = (ds.Record("a", 0, 2, 8), ds.Record("b", 1, 3, 4), ds.Record("c", 2, 4, 8))
BOTH = pytest.mark.parametrize("plan", [ds.plan_arena, ds.plan_shared])


@BOTH
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id": 1}, "the id 1 is not a text"),
        ({"id": None}, "the id None is not a text"),
        ({"nbytes": True}, "True as nbytes of 'a' is not a whole number"),
        ({"nbytes": "8"}, "'8' as nbytes of 'a' is not a whole number"),
        ({"start": None}, "None as start of 'a' is not a whole number"),
        ({"offset": 0.5}, "0.5 as offset of 'a' is not a whole number, or None"),
        ({"hint": "h"}, "'h' as hint of 'a' is not a whole number, or None"),
        ({"gaps": (1, 4)}, r"the gaps \(1, 4\) of 'a' are not intervals"),
        ({"gaps": None}, "the gaps None of 'a' are not intervals"),
        ({"gaps": ((1, 2.5),)}, ".* of 'a' are not intervals"),
        ({"gaps": ((1, 2, 3),)}, ".* of 'a' are not intervals"),
        ({"nbytes": 0}, "the size 0 of 'a' is not positive"),
    ],
)
def test_a_wrong_field_of_a_record_is_named(plan, fields, says):
    with pytest.raises(UsageError, match=rf"record 1: {says}"):
        plan([ds.Record("z", 0, 1, 8), ds.Record(**{"id": "a", "start": 0, "stop": 5, "nbytes": 8, **fields})])


@BOTH
@pytest.mark.parametrize("records", [None, 7, "abc", b"abc", [None], [(0, 1, 8)], ds.OrderProblem((), ())])
def test_values_that_are_not_records_are_usage_errors(plan, records):
    with pytest.raises(UsageError, match="give"):
        plan(records)


@pytest.mark.parametrize(
    "options",
    [
        {"capacity_bytes": "1MB"},
        {"capacity_bytes": 1.5},
        {"capacity_bytes": -1},
        {"capacity_bytes": True},
        {"time_limit_s": "3s"},
        {"time_limit_s": None},
        {"work_limit": 1.0},
        {"ties": None},
        {"ties": 3},
        {"method": "local_search", "seed": -1},
        {"method": "local_search", "seed": 1 << 64},
        {"method": "local_search", "seed": "1"},
        {"method": "local_search", "rounds": -1},
        {"method": "local_search", "rounds": 1 << 70},
        {"method": "local_search", "rounds": 1.5},
        {"method": "exact", "capacity": "8"},
        {"method": "tflm_greedy", "rank": (0,)},
        {"method": "tflm_greedy", "rank": ("a", "b", "c")},
        {"method": "tflm_greedy", "rank": 3},
    ],
)
def test_wrong_options_of_arenas_are_usage_errors(options):
    with pytest.raises(UsageError):
        ds.plan_arena(RECORDS, **options)
    if options.get("method", "exact") == "exact":
        with pytest.raises(UsageError):
            ds.plan_shared(RECORDS, **options)


def test_whole_numbers_of_numpy_are_planned_and_written(tmp_path):
    arena = ds.plan_arena([ds.Record("a", np.int64(0), np.int64(2), np.int32(5), gaps=((np.int64(0), np.int64(1)),))])
    order = ds.plan_order(
        ds.OrderProblem(((),), (ds.Storage(4, (0,), (0,)),)), method=lambda problem: Found(tuple(np.arange(1)), 0)
    )
    for plan in (arena, order):
        ds.write_plan(tmp_path / "plan.json", plan)
        assert ds.read_plan(tmp_path / "plan.json") == plan


@BOTH
@pytest.mark.parametrize("solution", [None, 3, "abc", (0, 8), (0, 8, 16.5), (0, 8, None), (0, 8, -1), (0, 0, 0)])
def test_what_a_callable_returns_is_checked(plan, solution):
    with pytest.raises(InvalidPlan):
        plan(RECORDS, method=lambda records: Found(solution, 0))


def crowded(count):
    """Records whose portfolio is above the bound, which a short search meets."""
    random = np.random.default_rng(5)
    starts, lengths, sizes = (
        random.integers(0, 60, count),
        random.integers(1, 30, count),
        random.integers(1, 1000, count),
    )
    return tuple(
        ds.Record(f"r{i}", int(a), int(a + n), 16 * int(size))
        for i, (a, n, size) in enumerate(zip(starts, lengths, sizes, strict=True))
    )


def test_the_bound_is_tried_before_the_slower_strategies(monkeypatch):
    """A search that meets it needs no portfolio."""
    records = crowded(120)
    assert not ds.plan_arena(records).evidence.proven
    monkeypatch.setattr(exact_search, "best", lambda records, *, ties: pytest.fail("asked the portfolio"))
    result = exact(records, time_limit_s=math.inf)
    assert result.proven and height(records, result.solution) == result.bound and result.states > 0


@pytest.mark.parametrize("work", [0, 1, 50, 400, 961, 3000])
def test_trying_the_bound_first_is_no_worse_than_the_portfolio_and_counts_its_work(work):
    for count in (20, 60, 121):
        records = crowded(count)
        one = exact(records, time_limit_s=math.inf, work_limit=work)
        more = exact(records, time_limit_s=math.inf, work_limit=2 * work)
        assert height(records, one.solution) <= ds.plan_arena(records).arena_bytes
        assert height(records, more.solution) <= height(records, one.solution)
        assert one.states <= work + 1 and one.bound <= height(records, one.solution)
