"""Work limits of placements: the same limit gives the same plan, a larger one never a worse, and it is told."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.arenas.plan import plan_arena, plan_shared
from downset.errors import InfeasibleError, LimitReached
from tests.arenas.test_arena_capacity import cut
from tests.strategies import record_sets

pytestmark = pytest.mark.native
LIMITS = st.sampled_from([0, 1, 3, 10, 50, 400, 3000])


def placed(records, method, limit, **options):
    return plan_arena(records, method=method, time_limit_s=math.inf, work_limit=limit, **options)


@pytest.mark.parametrize("method", ["exact", "local_search"])
@given(records=record_sets(), limits=st.tuples(LIMITS, LIMITS).map(sorted))
def test_more_work_never_gives_a_larger_arena(method, records, limits):
    less, further = (placed(records, method, limit) for limit in limits)
    assert further.arena_bytes <= less.arena_bytes
    assert further.evidence.bound >= less.evidence.bound
    assert less.evidence.proven <= further.evidence.proven


@given(records=record_sets(pins=False), limits=st.tuples(LIMITS, LIMITS).map(sorted))
def test_more_work_never_gives_larger_objects(records, limits):
    less, further = (plan_shared(records, method="exact", time_limit_s=math.inf, work_limit=limit) for limit in limits)
    assert further.total_bytes <= less.total_bytes
    assert further.evidence.bound >= less.evidence.bound


@pytest.mark.parametrize("seed", range(4))
def test_the_clock_has_no_part_in_it_where_the_search_is_long(seed):
    records = cut(seed, 60)
    plain = placed(records, "exact", 2000)
    with pytest.MonkeyPatch.context() as patch:
        clock = iter(range(0, 10**9, 1000))
        for name in ("perf_counter", "monotonic", "process_time"):
            patch.setattr(time, name, lambda: float(next(clock)))
        slow = placed(records, "exact", 2000)
    assert (plain.offsets, plain.evidence.bound, plain.evidence.states) == (
        slow.offsets,
        slow.evidence.bound,
        slow.evidence.states,
    )
    further = placed(records, "exact", 20_000)
    assert further.arena_bytes <= plain.arena_bytes


@pytest.mark.parametrize("seed", range(4))
def test_what_fits_under_a_limit_fits_under_a_larger_one(seed):
    records, fitted = cut(seed, 40), False
    for limit in (0, 20, 200, 2000, 20_000, 200_000):
        try:
            fits = placed(records, "exact", limit, capacity_bytes=64).arena_bytes <= 64
        except LimitReached as error:
            fits = False
            assert error.figures["best_bytes"] > 64
        assert fits >= fitted
        fitted = fits
    assert fitted
    with pytest.raises(InfeasibleError):
        placed(records, "exact", 10**6, capacity_bytes=63)


def test_a_limit_that_ended_the_search_is_told():
    records = cut(7, 200)
    stopped = placed(records, "exact", 10).evidence
    assert stopped.stopped_by == "work" and not stopped.proven
    assert "stopped by the work limit" in stopped.in_bytes()
    assert plan_arena(records, method="exact", time_limit_s=0, work_limit=10**30).evidence.stopped_by == "time"
