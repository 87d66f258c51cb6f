"""Laws of the time limit: when it is over, every method ends with a plan and its bound, for any number of records.

No test measures time: a clock is over from some look at it on, and what a method does after that is counted."""

import importlib
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset import native
from downset.arenas.check_records import check_objects, check_placement
from downset.arenas.gaps import height
from downset.arenas.native_form import native_records
from downset.arenas.planners import ARENAS, SHARED
from downset.memory.bounds import objects_bound, offsets_bound
from downset.memory.records import Record
from tests.arenas.oracles import skyline
from tests.clocks import few_calls_after, over_after, unlimited, watch_compiled
from tests.effort import cases
from tests.strategies import record_sets

pytestmark = pytest.mark.native
best = importlib.import_module("downset.arenas.best")
quick = settings(max_examples=cases(60), deadline=None)

COUNT = 2_000
CALLS = 250
"""The most calls for each record after the end: passes over all records, and sorting them."""
METHODS = [(methods, name) for methods in (ARENAS, SHARED) for name in methods]


def wide(count, largest=1 << 20):
    """Records that live long, in all sizes: many at once, so that strategies take quadratic time."""
    draw = random.Random(count)
    records = []
    for index in range(count):
        start = draw.randrange(count)
        records.append(Record(str(index), start, start + draw.randint(1, count), draw.randint(1, largest)))
    return records


@pytest.mark.parametrize(
    ("methods", "name", "looks"),
    [(*method, looks) for method in METHODS for looks in (0, 1, 5)] + [(SHARED, "greedy_by_size_improved", COUNT - 1)],
)
def test_when_the_time_is_over_a_method_ends(methods, name, looks, monkeypatch):
    records = wide(COUNT, 1 << 20 if looks < COUNT - 1 else 1)
    taken = over_after(monkeypatch, looks)
    watch_compiled(monkeypatch)
    with few_calls_after(taken, looks, CALLS * COUNT):
        found = methods[name](records)
    check, bound = (check_placement, offsets_bound) if methods is ARENAS else (check_objects, objects_bound)
    check(records, found.solution)
    assert found.bound >= bound(records)
    assert found.proven or found.stopped_by or len(taken) <= looks


@pytest.mark.parametrize("gap", range(3))
def test_compiled_strategies_stop_when_the_time_is_over(gap):
    records = wide(2_000)
    found = native_records(records)
    for placed in (
        native.compiled.place_in_order(found, range(len(records)), gap, 0.0),
        native.compiled.assign_in_order(found, range(len(records)), gap > 0, 0.0),
        native.compiled.fill_strip(found, 0.0),
    ):
        assert sum(place >= 0 for place in placed) < 64


@quick
@given(records=record_sets(most=10), data=st.data())
def test_the_rest_lies_above_what_it_meets(records, data):
    """As its oracle places it; what was placed stays."""
    sequence = data.draw(st.permutations(range(len(records))))
    placed = ARENAS["greedy_in_order"](records).solution
    left = data.draw(st.sets(st.sampled_from(range(len(records))))) if records else set()
    offsets = [-1 if index in left and records[index].offset is None else offset for index, offset in enumerate(placed)]
    above = native.compiled.place_above(native_records(records), sequence, offsets)
    assert above == skyline.place_above(records, sequence, offsets)
    check_placement(records, above)


@pytest.mark.parametrize("lives", [lambda start: 50, lambda start: 1 << start % 8, lambda start: COUNT - start])
@pytest.mark.parametrize("name", [name for name in ARENAS if name != "naive"])
def test_without_time_an_arena_does_not_grow_with_the_records(lives, name, monkeypatch):
    """Records of which each meets the next, in the order of their starts: one above the other they would take up to
    the sum of their bytes."""
    records = [Record(str(start), start, start + lives(start), 64) for start in range(COUNT)]
    over_after(monkeypatch, 0)
    assert height(records, ARENAS[name](records).solution) <= 2 * offsets_bound(records)


def test_the_portfolio_without_time_is_not_above_the_strategies_that_it_reaches(monkeypatch):
    records = wide(400)
    whole = [ARENAS[name].plan(records, **ARENAS[name].taken(clock=unlimited())) for name in ("best", "naive")]
    over_after(monkeypatch, 0)
    cut = ARENAS["best"](records)
    heights = [
        max(o + r.nbytes for o, r in zip(found.solution, records, strict=True)) for found in (whole[0], cut, whole[1])
    ]
    assert heights == sorted(heights)


@pytest.mark.parametrize("whole", [True, False])
def test_above_some_records_no_member_follows_a_whole_strip_packing_when_the_time_is_up(whole, monkeypatch):
    """Where it was cut short, members that take O(n log n) do: they may need less."""
    records, followed = wide(400), []
    packed = best.strip_packing(records, clock=unlimited())
    assert height(records, packed.solution) > packed.bound
    monkeypatch.setattr(best, "_MANY", 0)
    monkeypatch.setattr(best, "_NEAR", 0)
    monkeypatch.setattr(best, "strip_packing", lambda *_, **__: replace(packed, stopped_by="" if whole else "time"))
    first_best = best._first_best
    monkeypatch.setattr(best, "_first_best", lambda *given: followed.append(1) or first_best(*given))
    over_after(monkeypatch, 0)
    assert best.best(records, clock=unlimited()).stopped_by == "time"
    assert bool(followed) is not whole
