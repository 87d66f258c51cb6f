"""Laws of every planner of records: each is held to the checker, the bounds, brute force, and to its own kind."""

import random
from collections import Counter
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.arenas.best import OBJECT_MEMBERS, OFFSET_MEMBERS
from downset.arenas.breadth_order import breadth_order
from downset.arenas.check_records import check_objects, check_placement
from downset.arenas.constrained.spread import spill, split
from downset.arenas.gaps import height, place_in_order
from downset.arenas.objects_fit import assign_in_order, total_bytes
from downset.arenas.plan import plan_arena, plan_shared
from downset.arenas.planners import ARENAS, SHARED
from downset.arenas.strip_packing import strip_packing
from downset.errors import InvalidPlan, UnsupportedError
from downset.memory.bounds import breadths, objects_bound, offsets_bound, positional_maxima
from downset.memory.records import Record, collisions, live_pieces
from tests.arenas.oracles import gaps, objects, spread, strip, sweeps
from tests.clocks import unlimited
from tests.effort import cases
from tests.oracles_arena import least_height, least_total, meet
from tests.strategies import record_sets

pytestmark = pytest.mark.native

OFFSETS = pytest.mark.parametrize("method", ARENAS)
OBJECTS = pytest.mark.parametrize("method", SHARED)
TIES = st.sampled_from(["paper", "tflite"])
quick = settings(max_examples=cases(60), deadline=None)


TIMED = {name for name, method in ARENAS.items() if method.takes("time_limit_s")}  # offsets by search


def run(planner, records, ties="tflite"):
    return planner(records, **planner.taken(ties=ties, time_limit_s=0.02))


@OFFSETS
@quick
@given(records=record_sets(most=12), ties=TIES)
def test_every_placement_passes_the_checker_and_keeps_its_bound(method, records, ties):
    found = run(ARENAS[method], records, ties)
    check_placement(records, found.solution)
    assert found.bound <= height(records, found.solution)
    assert not found.proven or found.bound == height(records, found.solution)
    if method not in TIMED:
        assert found == run(ARENAS[method], records, ties), "the same records, another answer"


@OBJECTS
@quick
@given(records=record_sets(most=12, pins=False), ties=TIES)
def test_every_assignment_passes_the_checker_and_keeps_its_bound(method, records, ties):
    found = run(SHARED[method], records, ties)
    check_objects(records, found.solution)
    assert sorted(set(found.solution)) == list(range(max(found.solution, default=-1) + 1)), "an object number is unused"
    assert found.bound <= total_bytes(records, found.solution)
    assert not found.proven or found.bound == total_bytes(records, found.solution)
    assert found == run(SHARED[method], records, ties), "the same records, another answer"


@quick
@given(records=record_sets(most=6))
def test_no_bound_of_offsets_is_above_the_least_height(records):
    least = least_height(records)
    assert offsets_bound(records) <= least
    for method, planner in ARENAS.items():
        found = run(planner, records)
        assert found.bound <= least <= height(records, found.solution), method
        assert not found.proven or height(records, found.solution) == least, method


@settings(max_examples=cases(150), deadline=None)
@given(records=record_sets(most=6), unit=st.sampled_from([2, 4, 8]))
def test_what_a_shared_alignment_leaves_unused_is_in_the_bound(records, unit):
    aligned = [
        replace(r, alignment=unit * r.alignment, offset=None if r.offset is None else unit * r.offset) for r in records
    ]
    least = least_height(aligned)
    assert offsets_bound(records) <= offsets_bound(aligned) <= least
    odd = [replace(r, nbytes=unit * r.nbytes - 1) for r in aligned if r.offset is None]
    whole = [replace(r, nbytes=r.nbytes + 1) for r in odd]
    # One byte less each: the topmost ends one byte earlier, and nothing else changes.
    assert offsets_bound(odd) == max(offsets_bound(whole) - 1, 0)


@settings(max_examples=cases(300), deadline=None)
@given(records=record_sets(most=7, pins=False))
def test_exact_objects_equal_the_least_of_all_partitions(records):
    least = least_total(records)
    assert objects_bound(records) <= least
    found = SHARED["exact"](records)
    assert found.proven
    assert found.bound == least == total_bytes(records, found.solution)


@quick
@given(records=record_sets(most=14, pins=False))
def test_exact_and_best_objects_are_above_nobody(records):
    totals = {method: total_bytes(records, run(planner, records).solution) for method, planner in SHARED.items()}
    assert totals["exact"] == min(totals.values())
    members = [
        total_bytes(records, planner(records, ties=ties).solution)
        for planner, ties, most in OBJECT_MEMBERS
        if most is None or len(records) <= most
    ]
    assert totals["best"] == min(members)


def test_the_portfolios_are_of_methods():
    assert {planner.plan for planner, _, _ in OFFSET_MEMBERS} <= {method.plan for method in ARENAS.values()}
    assert {planner.plan for planner, _, _ in OBJECT_MEMBERS} <= {method.plan for method in SHARED.values()}


@quick
@given(records=record_sets(most=14))
def test_best_offsets_are_above_no_member(records):
    heights = [height(records, planner(records, ties=ties).solution) for planner, ties, _ in OFFSET_MEMBERS]
    assert height(records, ARENAS["best"](records).solution) <= min(heights)


@quick
@given(records=record_sets(most=9), factor=st.integers(2, 9))
def test_exact_offsets_are_above_nobody_and_scale(records, factor):
    found = ARENAS["exact"](records)
    assert found.proven
    assert height(records, found.solution) == found.bound
    for method in set(ARENAS) - {"exact"}:
        assert found.bound <= height(records, run(ARENAS[method], records).solution), method
    plain = [replace(record, alignment=1, offset=None) for record in records]
    scaled = [replace(record, nbytes=factor * record.nbytes) for record in plain]
    assert ARENAS["exact"](scaled).bound == factor * ARENAS["exact"](plain).bound


@quick
@given(records=record_sets(most=12, pins=False), factor=st.integers(2, 9))
def test_scaling_sizes_scales_every_plan(records, factor):
    plain = [replace(record, alignment=1) for record in records]
    scaled = [replace(record, nbytes=factor * record.nbytes) for record in plain]
    for method in set(ARENAS) - TIMED:
        assert height(scaled, ARENAS[method](scaled).solution) == factor * height(plain, ARENAS[method](plain).solution)
    for method, planner in SHARED.items():
        assert total_bytes(scaled, planner(scaled).solution) == factor * total_bytes(plain, planner(plain).solution), (
            method
        )


@quick
@given(records=record_sets(most=10, pins=False), more=record_sets(most=1, pins=False))
def test_another_record_never_lowers_the_exact_total(records, more):
    wider = [*records, *(replace(record, id="another") for record in more)]
    assert SHARED["exact"](wider).bound >= SHARED["exact"](records).bound
    assert objects_bound(wider) >= objects_bound(records)
    assert offsets_bound(wider) >= offsets_bound(records)


@quick
@given(records=record_sets(most=10, pins=False))
def test_reversing_time_changes_no_exact_value(records):
    back = [
        replace(r, start=-r.stop, stop=-r.start, gaps=tuple((-high, -low) for low, high in r.gaps)) for r in records
    ]
    assert SHARED["exact"](back).bound == SHARED["exact"](records).bound
    assert positional_maxima(back) == positional_maxima(records)
    assert offsets_bound(back) == offsets_bound(records)


@quick
@given(records=record_sets(most=12, pins=False))
def test_positional_maxima_equal_their_oracle(records):
    assert positional_maxima(records) == objects.positional_maxima(records)


@quick
@given(records=record_sets(most=10), data=st.data())
def test_native_placements_equal_their_oracles(records, data):
    sequence = data.draw(st.permutations(range(len(records))))
    for gap in get_args(gaps.Gap):
        expected = gaps.place_in_order(records, sequence, gap=gap)
        assert place_in_order(records, sequence, clock=unlimited(), gap=gap).solution == expected
    assert strip_packing(records, clock=unlimited()).solution == strip.fill_strip(records)
    for first in (False, True):
        expected = objects.assign_in_order(records, sequence, first=first)
        assert assign_in_order(records, sequence, clock=unlimited(), first=first).solution == expected


@quick
@given(
    records=record_sets(most=10, pins=False),
    capacities=st.lists(st.integers(0, 40), max_size=3),
    data=st.data(),
)
def test_spreading_over_several_arenas_equals_its_oracle(records, capacities, data):
    sequence = data.draw(st.permutations(range(len(records))))
    assert spill(records, sequence, capacities) == spread.spill(records, sequence, capacities)
    block = max((record.nbytes for record in records), default=0) + data.draw(st.integers(0, 20))
    assert split(records, sequence, block) == spread.split(records, sequence, block)
    turns = st.permutations(range(len(capacities)))
    choices = [data.draw(turns)[: data.draw(st.integers(0, len(capacities)))] for _ in records]
    expected = spread.spill(records, sequence, capacities, choices=choices)
    assert spill(records, sequence, capacities, choices=choices) == expected


@pytest.mark.parametrize("longest", [4, 40, 900])
def test_native_placements_over_many_steps_equal_their_oracles(longest):
    """Enough steps that they are kept by stretches of time; some records live through all of them, some have gaps."""
    rng = random.Random(longest)
    records = []
    for index in range(400):
        start = rng.randrange(2000)
        stop = start + rng.randrange(1, longest) if index % 40 else 2000
        stop = max(stop, start + 1)
        pauses = ((start + 1, stop - 1),) if stop - start > 2 and index % 3 == 0 else ()
        offset = 8 * index if index % 40 == 1 else None
        records.append(Record(str(index), start, stop, rng.randrange(1, 50), rng.choice((1, 8)), offset, pauses))
    free = [replace(record, offset=None) for record in records]
    sequence = rng.sample(range(len(records)), len(records))
    for gap in get_args(gaps.Gap):
        offsets = place_in_order(records, sequence, clock=unlimited(), gap=gap).solution
        check_placement(records, offsets)
        assert offsets == gaps.place_in_order(records, sequence, gap=gap)
    for first in (False, True):
        held = assign_in_order(free, sequence, clock=unlimited(), first=first).solution
        check_objects(free, held)
        assert held == objects.assign_in_order(free, sequence, first=first)
    assert spill(free, sequence, [100, 300, 9999]) == spread.spill(free, sequence, [100, 300, 9999])
    assert split(free, sequence, 60) == spread.split(free, sequence, 60)


@pytest.mark.parametrize("seed", range(2))
def test_native_placements_equal_their_oracles_beyond_one_block(seed):
    """Enough records at once that the list of placed records splits."""
    rng = random.Random(seed)
    records = []
    for index in range(1500):
        start = rng.randrange(60)
        records.append(
            Record(str(index), start, start + rng.randrange(1, 60), rng.randrange(1, 50), rng.choice((1, 8)))
        )
    sequence = sorted(range(len(records)), key=lambda i: (-records[i].nbytes, i))
    offsets = place_in_order(records, sequence, clock=unlimited()).solution
    check_placement(records, offsets)
    assert offsets == gaps.place_in_order(records, sequence)
    assert strip_packing(records, clock=unlimited()).solution == strip.fill_strip(records)


@quick
@given(records=record_sets(most=8))
def test_bounds_are_what_the_paper_defines(records):
    steps = range(min((r.start for r in records), default=0), max((r.stop for r in records), default=0))
    live = [sorted((r.nbytes for r in records if any(a <= t < b for a, b in r.active())), reverse=True) for t in steps]
    assert max((total for _, total in breadths(records)), default=0) == max(map(sum, live), default=0)
    width = max(map(len, live), default=0)
    assert positional_maxima(records) == tuple(max(p[i] for p in live if len(p) > i) for i in range(width))


@quick
@given(records=record_sets(most=10), ties=st.booleans())
def test_breadth_order_is_the_papers_double_loop(records, ties):
    profile = sorted(breadths(records), key=lambda item: (-item[1], -item[0] if ties else item[0]))
    expected = []
    for step, _ in profile:
        alive = [i for i, r in enumerate(records) if any(a <= step < b for a, b in r.active()) and i not in expected]
        expected += sorted(alive, key=lambda i: (-records[i].nbytes, i))
    assert breadth_order(records, later_step_first=ties) == expected


@quick
@given(records=record_sets(most=8), data=st.data())
def test_the_checker_names_every_collision(records, data):
    """Any offsets at all: the checker objects if and only if two records that meet in time meet in bytes, or a pin or
    an alignment is not kept."""
    offsets = [data.draw(st.integers(-1, 40)) for _ in records]
    wrong = any(
        at < 0 or at % r.alignment or r.offset not in (None, at) for at, r in zip(offsets, records, strict=True)
    )
    for i, one in enumerate(records):
        for j in range(i):
            apart = offsets[i] + one.nbytes <= offsets[j] or offsets[j] + records[j].nbytes <= offsets[i]
            wrong |= not apart and meet(one, records[j])
    if wrong:
        with pytest.raises(InvalidPlan):
            check_placement(records, offsets)
    else:
        check_placement(records, offsets)
    objects = [data.draw(st.integers(0, 3)) for _ in records]
    if any(objects[i] == objects[j] and meet(records[i], records[j]) for i in range(len(records)) for j in range(i)):
        with pytest.raises(InvalidPlan, match="share object"):
            check_objects(records, objects)
    else:
        check_objects(records, objects)


@settings(max_examples=cases(300), deadline=None)
@given(records=record_sets(most=9, pins=False), data=st.data())
def test_collisions_are_those_of_all_pairs(records, data):
    offsets = [data.draw(st.integers(0, 30)) for _ in records]
    pairs = {}
    for i, j in combinations(range(len(records)), 2):
        apart = offsets[i] + records[i].nbytes <= offsets[j] or offsets[j] + records[j].nbytes <= offsets[i]
        if not apart and meet(records[i], records[j]):
            pairs[i, j] = min(
                max(a, c) for a, b in records[i].active() for c, d in records[j].active() if max(a, c) < min(b, d)
            )
    found = list(collisions(records, offsets))
    assert bool(found) == bool(pairs)
    assert {tuple(sorted(pair)) for _, *pair in found} <= set(pairs)
    if found:
        assert found[0][0] == min(pairs.values())
        one, other = (records[at].id for at in sorted(found[0][1:]))
        with pytest.raises(InvalidPlan, match=f"'{one}' and '{other}' overlap in bytes .* from step {found[0][0]}$"):
            check_placement([replace(record, alignment=1) for record in records], offsets)


@settings(max_examples=cases(300), deadline=None)
@given(records=record_sets(most=12, pins=False), unit=st.integers(1, 9), data=st.data())
def test_the_sweeps_are_those_of_the_oracle(records, unit, data):
    assert breadths(records) == sweeps.breadths(records)
    assert live_pieces(records).padded_breadth(unit) == sweeps.padded_breadth(records, unit)
    offsets = [data.draw(st.integers(0, 30)) for _ in records]
    expected = list(sweeps.collisions(records, offsets))
    assert collisions(records, offsets) == expected
    most = data.draw(st.integers(0, 3))
    assert collisions(records, offsets, most=most) == expected[:most]


def test_the_checker_says_what_64_bits_do_not_hold():
    record = Record("a", 0, 1, 4)
    with pytest.raises(InvalidPlan, match="lies at 18446744073709551616, which no arena holds"):
        check_placement([record], [1 << 64])
    for beyond in (replace(record, stop=1 << 64), replace(record, nbytes=1 << 62)):
        with pytest.raises(UnsupportedError, match="fit into 64 bits; check"):
            breadths([beyond])


def test_every_method_refuses_what_64_bits_do_not_hold():
    """All of them in the same way, also those that are not compiled."""
    fits = [Record(str(i), i % 7, i % 7 + 1 + i % 5, (1 << 61) // 8 - 3 * i) for i in range(8)]
    beyond = {
        "bytes": [replace(record, nbytes=2 * record.nbytes) for record in fits],
        "alignments": [replace(record, nbytes=1, alignment=1 << 59) for record in fits],
        "an offset": [replace(fits[0], offset=1 << 61), *fits[1:]],
        "a step": [replace(fits[0], stop=1 << 61), *fits[1:]],
        "a step before": [replace(fits[0], start=-(1 << 61)), *fits[1:]],
    }
    for plan, methods in ((plan_arena, ARENAS), (plan_shared, SHARED)):
        for method in methods:
            evidence = plan(fits, method=method, time_limit_s=1.0).evidence
            assert evidence.value >= evidence.bound > 1 << 59
            for records in beyond.values():
                with pytest.raises(UnsupportedError, match="64 bits"):
                    plan(records, method=method)
    for records in beyond.values():
        with pytest.raises(UnsupportedError, match="64 bits"):
            place_in_order(records, range(8), clock=unlimited())


@pytest.mark.parametrize("method", ["local_search", "exact"])
def test_searches_answer_for_more_records_than_they_search(method, monkeypatch):
    monkeypatch.setattr(import_module("downset.arenas.exact"), "MOST_RECORDS", 50)  # the package has its function
    rng = random.Random(5)
    records = [
        Record(str(i), s := rng.randrange(60), s + rng.randrange(1, 20), rng.randrange(1, 99)) for i in range(90)
    ]
    arena = plan_arena(records, method=method)
    assert arena.arena_bytes <= plan_arena(records, method="tflm_greedy").arena_bytes


def test_steps_and_sizes_of_any_magnitude():
    far = 10**9 << 29
    records = [Record("a", 0, far, 5), Record("b", far - 1, 2 * far, 6), Record("c", far, far + 1, 7)]
    assert plan_arena(records).arena_bytes == 13
    assert plan_shared(records, method="exact").total_bytes == 13
    huge = [replace(record, nbytes=record.nbytes << 56) for record in records]
    assert plan_arena(huge).arena_bytes == 13 << 56
    assert plan_shared(huge, method="exact").total_bytes == 13 << 56


def test_no_records_take_no_bytes():
    for method in ARENAS:
        assert plan_arena([], method=method).arena_bytes == 0
    for method in SHARED:
        assert plan_shared([], method=method).total_bytes == 0


def test_the_page_says_how_often_greedy_by_size_improved_is_worse():
    """The paper's "better or the same" holds for its networks only."""
    counts = Counter()
    for seed in range(1500):
        draw = random.Random(f"improved/{seed}")
        count = draw.randint(2, 40)
        sizes = [draw.randint(1, 64) for _ in range(draw.choice([3, 12, 40]))]
        starts = []
        for _ in range(count):
            start = draw.randint(0, count)
            starts.append((start, start + draw.randint(1, 8), draw.choice(sizes)))
        records = [Record(str(index), *span) for index, span in enumerate(starts)]
        plain = plan_shared(records, method="greedy_by_size").total_bytes
        for ties in ("tflite", "paper"):
            improved = plan_shared(records, method="greedy_by_size_improved", ties=ties).total_bytes
            counts[ties, "worse"] += improved > plain
            counts[ties, "better"] += improved < plain
    said = " ".join((Path(__file__).parents[2] / "docs" / "arenas.md").read_text().split())
    assert f"worse in {counts['tflite', 'worse']} (" in said
    assert f'better in {counts["tflite", "better"]} with `ties="tflite"`' in said
    assert f'with `ties="paper"` worse in {counts["paper", "worse"]} (' in said
    assert f"better in {counts['paper', 'better']}. `best`" in said
