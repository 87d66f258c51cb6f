"""What users ask of arena planners beyond one arena and intervals, each held to brute force."""

from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.arenas.check_records import check_placement
from downset.arenas.constrained.aliases import merge_aliases, plan_aliases
from downset.arenas.constrained.conflicts import any_order_conflicts, check_conflicts, records_of_conflicts
from downset.arenas.constrained.largest_block import plan_blocks
from downset.arenas.constrained.textures import TEXTURES, Texture
from downset.arenas.constrained.waves import place_wave, plan_waves
from downset.arenas.gaps import height
from downset.arenas.plan import plan_arena, plan_shared
from downset.arenas.planners import ARENAS
from downset.errors import InfeasibleError, InvalidPlan, LimitReached, UsageError
from downset.memory.bounds import breadth_bound, check_capacity
from downset.memory.liveness import lifetimes, order_problem
from downset.memory.records import Record
from tests.effort import cases
from tests.oracles_arena import least_height, meet, partitions
from tests.strategies import graphs, orders_of, record_sets

exact = ARENAS["exact"]

pytestmark = pytest.mark.native

quick = settings(max_examples=cases(60), deadline=None)


@quick
@given(records=record_sets(most=5, pins=False), largest=st.integers(16, 30))
def test_blocks_stay_below_the_limit_and_above_the_least(records, largest):
    plan = plan_blocks(records, largest)
    for block, size in enumerate(plan.block_bytes):
        members = [i for i, held in enumerate(plan.block_of) if held == block]
        check_placement([records[i] for i in members], [plan.offsets[i] for i in members], capacity=size)
        assert 0 < size <= largest
    sums = []
    for groups in partitions(list(range(len(records)))):
        heights = [least_height([records[i] for i in group]) for group in groups]
        if all(top <= largest for top in heights):
            sums.append(sum(heights))
    assert plan.evidence.bound <= min(sums) <= plan.evidence.value == sum(plan.block_bytes)
    assert not plan.evidence.proven or plan.evidence.value == min(sums)


def test_a_record_larger_than_every_block_is_named():
    with pytest.raises(InfeasibleError, match="'big' of 9 bytes"):
        plan_blocks([Record("big", 0, 1, 9)], 8)
    pair = [Record("a", 0, 1, 5), Record("b", 0, 1, 5)]
    assert plan_blocks(pair, 8).block_bytes == (5, 5)
    assert plan_blocks(pair, 10).block_bytes == (10,)


@quick
@given(data=st.data(), count=st.integers(0, 6))
def test_conflict_graphs_become_records_that_meet_exactly_there(data, count):
    sizes = [data.draw(st.integers(1, 9)) for _ in range(count)]
    pairs = list(combinations(range(count), 2))
    conflicts = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    records = records_of_conflicts(sizes, conflicts)
    for one, other in pairs:
        assert meet(records[one], records[other]) == ((one, other) in conflicts)
    least = least_height(records, conflicts=lambda i, j: (min(i, j), max(i, j)) in conflicts)
    for method in ("greedy_by_size", "greedy_by_breadth", "best"):
        found = ARENAS[method](records)
        check_conflicts(sizes, conflicts, found.solution)
        assert found.bound <= least <= height(records, found.solution)
    assert height(records, exact(records, time_limit_s=1.0).solution) == least


@quick
@given(graph=graphs(most_ops=5), data=st.data())
def test_plans_for_any_order_hold_in_every_order(graph, data):
    problem = order_problem(graph, "live")
    conflicts = any_order_conflicts(problem)
    sizes = [storage.nbytes for storage in problem.storages]
    offsets = ARENAS["best"](records_of_conflicts(sizes, conflicts)).solution
    check_conflicts(sizes, conflicts, offsets)
    # Under a drawn order, records that live at the same time must conflict.
    steps = data.draw(orders_of(graph.predecessors()))
    at = {operator: step for step, operator in enumerate(steps)}
    spans = []
    for storage in problem.storages:
        made = [at[v] for v in storage.producers] or [-1]
        used = [at[v] for v in storage.consumers] or made
        spans.append((min(made), len(steps) if storage.kept else max([*used, *made])))
    for one, other in combinations(range(len(spans)), 2):
        if spans[one][0] <= spans[other][1] and spans[other][0] <= spans[one][1]:
            assert (one, other) in conflicts
    assert len(lifetimes(graph, steps, "live").records) <= len(sizes) + len(graph.inputs)


@quick
@given(records=record_sets(most=6, pins=False), data=st.data())
def test_waves_keep_what_was_placed_and_are_least_for_what_is_new(records, data):
    cut = data.draw(st.integers(0, len(records)))
    first, second = records[:cut], records[cut:]

    def search(these, **_):
        return exact(these, time_limit_s=1.0)

    early = search(first)
    late = place_wave(first, early.solution, second, method=search)
    both = plan_waves([first, second], method=search)
    assert both.solution == early.solution + late.solution
    check_placement(records, both.solution)
    pinned = [replace(record, offset=at) for record, at in zip(first, early.solution, strict=True)]
    assert height(records, both.solution) == least_height([*pinned, *second])
    assert height(records, both.solution) >= least_height(records)
    assert both.bound <= height(records, both.solution)
    check_placement(records, plan_waves([[record] for record in records]).solution)


@quick
@given(records=record_sets(most=6, pins=False, gaps=False), data=st.data())
def test_in_place_results_are_least_over_all_choices(records, data):
    lawful = [
        (i, j)
        for i, j in permutations(range(len(records)), 2)
        if records[i].stop - 1 == records[j].start and records[j].nbytes <= records[i].nbytes
    ]
    may = data.draw(st.lists(st.sampled_from(lawful), unique=True, max_size=3)) if lawful else []

    def search(these, **_):
        return exact(these, time_limit_s=1.0)

    found = plan_aliases(records, may=may, method=search)
    least = min(
        least_height(merge_aliases(records, chosen)[0])
        for count in range(len(may) + 1)
        for chosen in combinations(may, count)
        if len({i for i, _ in chosen}) == len({j for _, j in chosen}) == count
        and all(records[i].stop - records[i].start > 1 for i in {i for i, _ in chosen} & {j for _, j in chosen})
    )
    assert height(records, found.solution) == least
    for one, other in combinations(range(len(records)), 2):
        if found.solution[one] != found.solution[other] or not {(one, other), (other, one)} & set(may):
            pair = [records[one], records[other]]
            check_placement(pair, [found.solution[one], found.solution[other]])
    many = plan_aliases(records, may=may * 4, method=search)  # repeated until the subsets are too many to try
    assert many.bound <= least <= height(records, many.solution)


@quick
@given(records=record_sets(most=6, pins=False), data=st.data())
def test_what_is_written_over_has_no_alias_that_is_still_needed(records, data):
    """Records at one offset that live at one step are aliases that must be, or a pair that may be; and no choice of
    pairs of which that holds gives less."""
    assume(len(records) > 2)
    group = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=3, unique=True))
    pairs = [
        (i, j)
        for i, j in permutations(range(len(records)), 2)
        if records[i].stop - 1 == records[j].start and records[j].nbytes <= records[i].nbytes
    ]
    may = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)) if pairs else []

    def search(these, **_):
        return exact(these, time_limit_s=1.0)

    def apart(offsets, written):
        for one, other in combinations(range(len(records)), 2):
            aliases = {one, other} <= set(group) or {(one, other), (other, one)} & set(written)
            if not (aliases and offsets[one] == offsets[other]):
                check_placement([records[one], records[other]], [offsets[one], offsets[other]])

    def lawful(written):
        merged, place = merge_aliases(records, [group, *written] if group else written)
        far = [sum(record.nbytes + record.alignment for record in records) * index for index in range(len(merged))]
        far = [-(-offset // record.alignment) * record.alignment for offset, record in zip(far, merged, strict=True)]
        try:
            apart([far[at] for at in place], written)
        except InvalidPlan:
            return None
        return least_height(merged)

    found = plan_aliases(records, must=[group] if group else [], may=may, method=search)
    apart(found.solution, may)
    choices = [lawful(chosen) for count in range(len(may) + 1) for chosen in combinations(may, count)]
    assert height(records, found.solution) == min(least for least in choices if least is not None)
    many = plan_aliases(records, must=[group] if group else [], may=may * 4, method=search)
    apart(many.solution, may)
    assert many.bound <= height(records, found.solution) <= height(records, many.solution)


def test_no_result_lies_over_an_alias_that_is_read_later():
    records = [Record("a", 0, 2, 4), Record("b", 1, 3, 4), Record("c", 0, 4, 4)]
    assert height(records, plan_aliases(records, must=[(0, 2)], may=[(0, 1)]).solution) == 8
    assert height(records, plan_aliases(records, must=[(0, 2)], may=[(0, 1)] * 11).solution) == 8


def test_three_that_live_at_one_step_are_not_written_over_one_another():
    records = [Record(name, 0, 1, 1) for name in "abc"]
    for pairs in ([(0, 1), (1, 2)], [(1, 2), (0, 1)], [(0, 1), (1, 2)] * 6):
        assert height(records, plan_aliases(records, may=pairs).solution) == 2


@quick
@given(records=record_sets(most=6, pins=False), data=st.data())
def test_aliases_lie_at_one_offset(records, data):
    assume(len(records) > 1)
    group = data.draw(st.lists(st.integers(0, len(records) - 1), min_size=2, unique=True))
    found = plan_aliases(records, must=[group])
    assert len({found.solution[member] for member in group}) == 1
    merged, place = merge_aliases(records, [group])
    check_placement(merged, [found.solution[place.index(at)] for at in range(len(merged))])
    for member in group:  # active whenever a member is
        for low, high in records[member].active():
            assert any(a <= low and high <= b for a, b in merged[place[member]].active())


@quick
@given(records=record_sets(most=5), slack=st.integers(-3, 3))
def test_a_capacity_is_met_or_refused_with_reason(records, slack):
    least = least_height(records)
    capacity = max(least + slack, 0)
    if capacity >= least:
        assert plan_arena(records, capacity_bytes=capacity, time_limit_s=5.0).arena_bytes <= capacity
    else:
        with pytest.raises(InfeasibleError):
            plan_arena(records, capacity_bytes=capacity, time_limit_s=5.0)


def test_a_capacity_below_the_bound_names_the_step_and_who_lives_there():
    records = [Record("a", 0, 5, 10), Record("b", 3, 6, 20), Record("c", 5, 9, 4)]
    with pytest.raises(InfeasibleError, match=r"30 bytes are live at step 3 \(2 records, the largest 'b', 'a'\)"):
        check_capacity(records, 29)
    with pytest.raises(InfeasibleError, match="ends at 64"):
        check_capacity([Record("p", 0, 1, 4, offset=60)], 63)
    with pytest.raises(InfeasibleError, match="take at least 30 bytes"):
        plan_shared(records, capacity_bytes=29)
    assert plan_shared(records, capacity_bytes=30).total_bytes == breadth_bound(records) == 30


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record("x", 0, 1, 0), "size 0"),
        (Record("x", 0, 1, -4), "size -4"),
        (Record("x", 3, 3, 1), "empty or reversed"),
        (Record("x", 4, 3, 1), "empty or reversed"),
        (Record("x", 0, 1, 1, alignment=0), "alignment 0"),
        (Record("x", 0, 1, 1, alignment=4, offset=6), "pinned at 6"),
        (Record("x", 0, 1, 1, offset=-8), "pinned at -8"),
        (Record("x", 0, 4, 1, gaps=((2, 5),)), "not inside"),
        (Record("x", 0, 4, 1, gaps=((0, 4),)), "leave nothing"),
        (Record("a", 0, 4, 1), "taken"),
        (Record("x", 0, 4, 4, offset=8), "pinned over 'a'"),
    ],
)
def test_records_that_cannot_be_planned_are_named(record, reason):
    for plan in (plan_arena, plan_shared):
        with pytest.raises(UsageError, match=reason):
            plan([Record("a", 0, 9, 8, offset=4), record])


def test_unknown_names_list_the_known_ones():
    for plan in (plan_arena, plan_shared):
        with pytest.raises(UsageError, match="greedy_by_size"):
            plan([Record("a", 0, 1, 1)], method="greedy")
        with pytest.raises(UsageError, match="tflite"):
            plan([Record("a", 0, 1, 1)], ties="mine")
    with pytest.raises(UsageError, match="no offsets"):
        plan_shared([Record("a", 0, 1, 1, offset=0)])


def test_a_search_that_ends_early_says_so(monkeypatch):
    records = [Record("a", 0, 2, 4), Record("b", 1, 3, 4), Record("c", 2, 4, 4)]
    monkeypatch.setattr("downset.arenas.capacity.exact", lambda records, **_: ARENAS["naive"](records))
    with pytest.raises(LimitReached, match="best 12, bound 8"):
        plan_arena(records, method="naive", capacity_bytes=8)


def test_what_the_planners_beside_plan_arena_refuse():
    good, twin = Record("a", 0, 2, 8), Record("a", 1, 3, 8)
    late = Record("b", 1, 3, 8)
    refused = {
        "taken by record 0": lambda: plan_blocks([good, twin], 100),
        "is pinned": lambda: plan_blocks([replace(good, offset=0)], 100),
        "'b' is pinned over 'a'": lambda: place_wave([good, late], [0, 4], []),
        "id 'a' is taken": lambda: plan_waves([[good], [twin]]),
        "no record 7": lambda: plan_aliases([good], must=[(0, 7)]),
        "'a' cannot be written over 'a'": lambda: plan_aliases([replace(good, stop=1)], may=[(0, 0)]),
        "not a pair of different records": lambda: records_of_conflicts([1, 2], [(1, 1)]),
        "the size 0 of record 1": lambda: records_of_conflicts([1, 0], []),
        "1 ids for 2 sizes": lambda: records_of_conflicts([1, 1], [], ids=["a"]),
    }
    for reason, plan in refused.items():
        with pytest.raises(UsageError, match=reason):
            plan()
    for plan in TEXTURES.values():
        for texture, reason in (
            (Texture("t", 3, 3, (4, 4)), "empty or reversed"),
            (Texture("t", 0, 1, (4, 0)), "not positive"),
            (Texture("t", 0, 1, (4, 4, 4)), "3 dimensions"),
        ):
            with pytest.raises(UsageError, match=reason):
                plan([Texture("s", 0, 1, (4, 4)), texture])


@pytest.mark.parametrize("window", [3, 600])
def test_many_records_take_no_deep_recursion(window):
    records = [Record(str(i), i % 600, i % 600 + 1 + i * 7 % window, 1 + i * 13 % 50) for i in range(1500)]
    blocks = plan_blocks(records, 60)
    for block, nbytes in enumerate(blocks.block_bytes):
        inside = [i for i, held in enumerate(blocks.block_of) if held == block]
        check_placement([records[i] for i in inside], [blocks.offsets[i] for i in inside], capacity=nbytes)
        assert nbytes <= 60


def test_what_is_no_record_is_told():
    with pytest.raises(UsageError, match=r"record 1 is \('b', 1, 3, 50\); give a ds\.Record\(id, start"):
        plan_arena([Record("a", 0, 2, 100), ("b", 1, 3, 50)])
