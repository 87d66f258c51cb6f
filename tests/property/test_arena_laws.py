"""Every planner of offsets against the checker, the bound and brute force."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.arenas import ARENAS
from downset.errors import InvalidPlan
from downset.plan import plan_arena
from downset.records import Record, breadth_bound
from downset.verify_records import check_objects, check_placement

METHODS = pytest.mark.parametrize("method", ARENAS)


@st.composite
def records(draw, most=7, pins=True):
    found = []
    for index in range(draw(st.integers(0, most))):
        start = draw(st.integers(-1, 8)) * draw(st.sampled_from([1, 10**9]))
        stop = start + draw(st.integers(1, 6))
        alignment = draw(st.sampled_from([1, 1, 4, 16]))
        gaps = ((start + 1, stop - 1),) if stop - start > 3 and draw(st.integers(0, 3)) == 0 else ()
        found.append(Record(f"r{index}", start, stop, draw(st.integers(1, 40)), alignment, None, gaps))
    if pins and found and draw(st.integers(0, 3)) == 0:
        found[0] = replace(found[0], offset=found[0].alignment * draw(st.integers(0, 3)))
    return tuple(found)


def height(found, offsets):
    return max((at + record.nbytes for at, record in zip(offsets, found, strict=True)), default=0)


def least_height(found):
    """Brute force: every placement that cannot be lowered comes from first fit in some sequence."""
    best = None
    for sequence in permutations(range(len(found))):
        placed = {i: r.offset for i, r in enumerate(found) if r.offset is not None}
        for index in sequence:
            if index in placed:
                continue
            record = found[index]
            candidates = [0] + [placed[i] + found[i].nbytes for i in placed]
            for at in sorted(-(-c // record.alignment) * record.alignment for c in candidates):
                trial = [found[i] for i in placed] + [record]
                try:
                    check_placement(trial, [*placed.values(), at])
                except InvalidPlan:
                    continue
                placed[index] = at
                break
        top = height(found, [placed[i] for i in range(len(found))])
        best = top if best is None else min(best, top)
    return best or 0


@METHODS
@given(found=records(most=12))
def test_every_placement_passes_the_checker_and_its_bound_is_true(method, found):
    for ties in ("paper", "tflite"):
        arena = plan_arena(found, method=method, ties=ties, time_limit_s=0.2)
        check_placement(found, arena.offsets)
        assert arena.evidence.bound <= arena.arena_bytes
        assert not arena.evidence.proven or arena.arena_bytes == arena.evidence.bound


@given(found=records(most=5))
@settings(max_examples=60, deadline=None)
def test_local_search_finds_the_least_height_of_small_instances(found):
    least = least_height(found)
    arena = plan_arena(found, method="local_search", time_limit_s=0.2)
    assert arena.evidence.bound <= least <= arena.arena_bytes
    assert arena.arena_bytes == least


@given(found=records(most=12, pins=False))
def test_best_is_never_above_a_member_of_the_portfolio(found):
    best = plan_arena(found, method="best").arena_bytes
    for member in ("naive", "greedy_by_size", "greedy_by_breadth"):
        assert best <= plan_arena(found, method=member).arena_bytes


@given(found=records(most=10), factor=st.integers(2, 1000))
def test_scaling_bytes_scales_the_bound(found, factor):
    scaled = [replace(record, nbytes=record.nbytes * factor) for record in found]
    assert breadth_bound(scaled) == factor * breadth_bound(found)


@given(found=records(most=10), seed=st.integers(0, 3))
def test_the_same_input_gives_the_same_answer(found, seed):
    first = ARENAS["local_search"](found, rounds=300, seed=seed)
    assert ARENAS["local_search"](found, rounds=300, seed=seed) == first


@given(data=st.data())
def test_the_checker_names_two_records_that_collide(data):
    found = data.draw(records(most=8, pins=False))
    arena = plan_arena(found, method="naive")
    pairs = [
        (i, j)
        for i, a in enumerate(found)
        for j, b in enumerate(found)
        if i < j and any(x < t and s < y for x, y in a.active() for s, t in b.active())
    ]
    for i, j in pairs:
        offsets = list(arena.offsets)
        offsets[j] = offsets[i]
        if offsets[j] % found[j].alignment == 0:
            with pytest.raises(InvalidPlan, match="overlap"):
                check_placement(found, offsets)
        with pytest.raises(InvalidPlan, match="share object 0"):
            check_objects(found, [0 if k in (i, j) else k + 1 for k in range(len(found))])


def test_what_the_checker_refuses():
    record = Record("a", 0, 2, 8, 16)
    with pytest.raises(InvalidPlan, match="multiple of 16"):
        check_placement([record], [8])
    with pytest.raises(InvalidPlan, match="above the capacity"):
        check_placement([record], [16], capacity=20)
    with pytest.raises(InvalidPlan, match="pinned at 32"):
        check_placement([replace(record, offset=32)], [16])
    with pytest.raises(InvalidPlan, match="0 offsets for 1"):
        check_placement([record], [])
