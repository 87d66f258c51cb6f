"""The exact search against brute force over every sequence of placement."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.arenas.check_records import check_placement
from downset.arenas.gaps import height
from downset.arenas.planners import ARENAS
from downset.errors import InfeasibleError
from downset.memory.records import Record
from tests.effort import cases
from tests.oracles_arena import least_height
from tests.strategies import record_sets

exact = ARENAS["exact"]

pytestmark = pytest.mark.native


@given(found=record_sets(most=6))
@settings(max_examples=cases(150))
def test_the_height_is_the_least_and_the_proof_is_finished(found):
    answer = exact(found)
    check_placement(found, answer.solution)
    assert answer.proven
    assert height(found, answer.solution) == answer.bound == least_height(found)


def test_the_proof_takes_no_step_for_every_byte_of_the_gap():
    records = (
        Record("a", -7, -5, 181208948158677327),
        Record("b", -6, -4, 265274016572015060, 6),
        Record("c", -7, -4, 148866029941607555, gaps=((-6, -5),)),
    )
    answer = exact(records, work_limit=2_000, time_limit_s=60.0)
    assert answer.proven
    assert answer.bound == least_height(records)


@given(found=record_sets(most=6), short=st.integers(1, 20))
@settings(max_examples=cases(100))
def test_a_capacity_is_met_or_proven_impossible(found, short):
    assume(found)
    least = least_height(found)
    answer = exact(found, capacity=least)
    check_placement(found, answer.solution, capacity=least)
    with pytest.raises(InfeasibleError):
        exact(found, capacity=max(least - short, 0))


@given(found=record_sets(most=8, pins=False))
@settings(max_examples=cases(60))
def test_turning_time_round_changes_no_least_height(found):
    turned = [
        replace(r, start=-r.stop, stop=-r.start, gaps=tuple((-high, -low) for low, high in r.gaps)) for r in found
    ]
    one, other = exact(found), exact(turned)
    assert one.proven and other.proven
    assert one.bound == other.bound


@given(found=record_sets(most=8, pins=False), extra=record_sets(most=1, pins=False))
@settings(max_examples=cases(60))
def test_one_more_record_never_lowers_the_least_height(found, extra):
    assert exact((*found, *extra)).bound >= exact(found).bound


@given(found=record_sets(most=9))
@settings(max_examples=cases(40))
def test_a_stopped_search_keeps_a_true_bound(found):
    stopped = exact(found, work_limit=3)
    check_placement(found, stopped.solution)
    assert stopped.bound <= exact(found).bound <= height(found, stopped.solution)
