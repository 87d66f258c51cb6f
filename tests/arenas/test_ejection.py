"""Laws of the search that lowers a placement: held to the checker, to brute force, and to what it starts from."""

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset import native
from downset.arenas.best import OFFSET_MEMBERS, best
from downset.arenas.check_records import check_placement
from downset.arenas.gaps import height
from downset.arenas.naive import naive
from downset.arenas.native_form import native_records
from downset.arenas.planners import ARENAS
from downset.memory.bounds import offsets_bound
from downset.memory.records import Record
from tests.clocks import unlimited
from tests.effort import cases
from tests.oracles_arena import least_height
from tests.strategies import record_sets

pytestmark = pytest.mark.native
quick = settings(max_examples=cases(60), deadline=None)


def lowered(records, start, placements=1 << 60, visits=1 << 60, seed=0):
    """(offsets, height, placements tried)."""
    limits = math.inf, placements, visits
    return native.compiled.arena_lower(native_records(records), start, offsets_bound(records), *limits, seed)


def lives(kind, count, seed=0):
    """Records of which few sizes differ, so that many lie at the same offset; some have gaps, pins or alignments."""
    rng = random.Random(f"{kind}/{seed}")
    records = []
    for index in range(count):
        start = rng.randrange(count)
        length = rng.randint(1, {"narrow": 20, "wide": count, "mixed": rng.choice([3, 40, count])}[kind])
        gaps = ((start + 1, start + 2),) if length > 3 and rng.random() < 0.1 else ()
        nbytes = rng.choice([8, 16, 24, 64, 200])
        records.append(Record(str(index), start, start + length, nbytes, rng.choice([1, 1, 8, 16]), gaps=gaps))
    return [Record("pin", 0, 2 * count, 16, offset=48), *records]


@quick
@given(records=record_sets(most=12), placements=st.sampled_from([0, 1, 7, 60, 800]), seed=st.integers(0, 3))
def test_a_lowered_placement_is_one_and_is_never_above_its_start(records, placements, seed):
    start = naive(records).solution
    offsets, value, tried = lowered(records, start, placements, seed=seed)
    check_placement(records, offsets)
    assert offsets_bound(records) <= height(records, offsets) == value <= height(records, start)
    assert tried <= placements


@quick
@given(records=record_sets(most=6))
def test_small_placements_are_never_below_the_least_height_and_mostly_reach_it(records):
    least = least_height(records)
    _, value, _ = lowered(records, naive(records).solution, 3000)
    assert value >= least
    if not any(record.alignment > 1 or record.gaps or record.offset is not None for record in records):
        assert value <= 1.2 * least


@pytest.mark.parametrize("kind", ["narrow", "wide", "mixed"])
def test_many_records_at_equal_offsets_stay_apart_and_more_work_never_gives_more_bytes(kind):
    records = lives(kind, 1500)
    start = ARENAS["greedy_in_order"](records).solution
    heights = [height(records, start)]
    for visits in (10**4, 10**5, 10**6):
        offsets, value, _ = lowered(records, start, visits=visits)
        check_placement(records, offsets)
        assert (offsets, value) == lowered(records, start, visits=visits)[:2], "the same work, another answer"
        heights.append(value)
    assert heights == sorted(heights, reverse=True)
    assert kind == "wide" or heights[-1] < heights[0]  # where all live together, a placement takes many visits


@pytest.mark.parametrize("kind", ["narrow", "wide", "mixed"])
@pytest.mark.parametrize("count", [300, 5200])
def test_best_is_not_above_any_strategy_where_it_runs_few_of_them(kind, count):
    """Among many records the search stands in for them; where it is within one percent of the bound, up to that."""
    records = lives(kind, count)
    value, near = height(records, best(records, clock=unlimited()).solution), 1.01 * offsets_bound(records)
    for planner, ties, _ in OFFSET_MEMBERS:
        assert value <= max(near, height(records, planner(records, ties=ties).solution)), planner.__name__


def test_short_lifetimes_are_placed_within_one_percent_of_the_bound():
    rng = random.Random(0)
    records = [
        Record(str(i), start, start + rng.randint(1, 50), 64 * rng.randint(1, 1000))
        for i, start in enumerate(sorted(rng.randrange(20_000) for _ in range(20_000)))
    ]
    found = best(records, clock=unlimited())
    check_placement(records, found.solution)
    assert height(records, found.solution) <= 1.01 * offsets_bound(records)


PINNED_ON_TOP = """
import math
from downset import _native
records = _native.Records([10, 4], [1, 1], [100, -1], [[(0, 2)], [(1, 3)]])
offsets, height, _ = _native.arena_lower(records, [100, 110], 0, math.inf, 1 << 40, 1 << 40, 0)
assert (offsets[0], height) == (100, 110) and offsets[1] <= 96
"""


def test_the_end_of_a_pinned_record_ends_the_search():
    """No placement is lower, whatever the bound and the limits; the search went on for ever."""
    subprocess.run([sys.executable, "-c", PINNED_ON_TOP], check=True, timeout=60)
