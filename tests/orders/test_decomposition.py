"""Graphs are taken apart only where that loses nothing: against the dynamic programme over all downsets, and Liu's
algorithm on trees."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset import native
from downset.memory.liveness import OrderProblem, Storage, order_problem, peak_bytes
from downset.memory.models import MEMORY_MODELS
from downset.orders.check import verify_steps
from downset.orders.liu import liu
from downset.orders.native_form import native_problem
from downset.orders.plan import plan_order
from downset.orders.planners import ORDERS
from downset.orders.problem import check_problem
from tests.effort import cases
from tests.orders.compiled_bounds import closure_bound, pair_bound
from tests.orders.nested_problems import in_tree, nested_problem, step_problem
from tests.strategies import generators, graphs, orders_of

exhaustive = ORDERS["exhaustive"]
optimal = ORDERS["optimal"]

pytestmark = pytest.mark.native

RANDOM = generators()


def decompose(problem):
    reduced, members, _ = native.compiled.decompose(native_problem(problem), relaxed=False)
    return reduced, members


def precedences_of(problem, members):
    part_of = {v: part for part, operators in enumerate(members) for v in operators}
    return tuple(
        tuple(sorted({part_of[u] for v in operators for u in problem.predecessors[v]} - {part}))
        for part, operators in enumerate(members)
    )


@given(random=RANDOM)
@settings(max_examples=cases(2500))
def test_optimal_is_the_least_peak_of_nested_problems(random):
    problem = nested_problem(random)
    check_problem(problem)
    least = exhaustive(problem, time_limit_s=60).bound
    found = optimal(problem)
    verify_steps(problem.predecessors, found.solution)
    assert peak_bytes(problem, found.solution) == least == found.bound


@given(random=RANDOM, step=st.booleans(), backward=st.booleans())
@settings(max_examples=cases(2500))
def test_the_search_alone_finds_the_least_peak_of_problems_not_taken_apart(random, step, backward):
    """Branches of a downset merge as chains do, and only where what they take is fixed: without a bound or a better
    order, on problems that are full of them."""
    problem = step_problem(random) if step else nested_problem(random)
    check_problem(problem)
    space = native_problem(problem)
    search = native.compiled.BestFirst(space.reversed() if backward else space, 1 << 30)
    assert search.advance(0, 1 << 40, 10.0, 1 << 40).name == "SOLVED"
    verify_steps(problem.predecessors, search.steps)
    assert peak_bytes(problem, search.steps) == search.bound == exhaustive(problem, time_limit_s=60).bound


def kept_branches(count):
    """A chain up and back, and next to each step back a branch of two operators that keeps more than it frees."""
    before = [(), *((v,) for v in range(count - 1))]
    way_back = count - 1
    for layer in reversed(range(count)):
        before += [(layer, way_back) if layer != way_back else (layer,), (len(before),), (len(before) + 1,)]
        way_back = len(before) - 3
    readers = [[w for w, listed in enumerate(before) if v in listed] for v in range(len(before))]
    sizes = [4 + 7 * v % 5 for v in range(len(before))]
    storages = [
        Storage(sizes[v] + 8 * (not readers[v]), (v,), tuple(readers[v]) or (v,), not readers[v])
        for v in range(len(before))
    ]
    return OrderProblem(tuple(before), tuple(storages))


@pytest.mark.parametrize("backward", [False, True])
def test_branches_that_nothing_reads_are_not_tried_in_all_their_orders(backward):
    """Twice the layers take a few times the states, not the square of them."""

    def states(count):
        space = native_problem(kept_branches(count))
        search = native.compiled.BestFirst(space.reversed() if backward else space, 1 << 30)
        assert search.advance(0, 1 << 40, 60.0, 1 << 22).name == "SOLVED"
        return search.expanded

    assert states(48) < 10 * states(24)


@given(random=RANDOM)
@settings(max_examples=cases(1000))
def test_bounds_hold_on_nested_problems(random):
    problem = nested_problem(random)
    least = exhaustive(problem, time_limit_s=60).bound
    assert closure_bound(problem) <= pair_bound(problem) <= least


@given(random=RANDOM, data=st.data())
@settings(max_examples=cases(500))
def test_an_order_of_segments_costs_what_its_operators_cost(random, data):
    problem = nested_problem(random)
    reduced, members = decompose(problem)
    assert sorted(v for operators in members for v in operators) == list(range(len(problem.predecessors)))
    parts = data.draw(orders_of(precedences_of(problem, members)))
    steps = [v for part in parts for v in members[part]]
    verify_steps(problem.predecessors, steps)
    assert native.compiled.order_peak(reduced, parts) == peak_bytes(problem, steps)


@pytest.mark.parametrize("memory", MEMORY_MODELS)
@given(data=st.data())
@settings(max_examples=cases(100))
def test_segments_cost_what_their_operators_cost_under_every_memory_model(memory, data):
    problem = order_problem(data.draw(graphs()), memory)
    reduced, members = decompose(problem)
    parts = data.draw(orders_of(precedences_of(problem, members)))
    assert native.compiled.order_peak(reduced, parts) == peak_bytes(
        problem, [v for part in parts for v in members[part]]
    )


@given(random=RANDOM, operators=st.integers(1, 14), children=st.integers(1, 4))
@settings(max_examples=cases(500))
def test_liu_is_optimal_on_trees(random, operators, children):
    problem = in_tree(random, operators, children, random.choice((3, 20, 1000)))
    assert peak_bytes(problem, liu(problem).solution) == exhaustive(problem, time_limit_s=60).bound


@pytest.mark.parametrize("seed", range(cases(10)))
def test_a_large_tree_is_one_segment_and_equals_liu(seed):
    problem = in_tree(Random(seed), 3000, 3)
    order = plan_order(problem)
    assert order.evidence.proven
    assert order.peak_bytes == peak_bytes(problem, liu(problem).solution)


def test_a_result_with_two_readers_is_not_one_segment_a_branch():
    """Two chains 3 -> 8 -> 1 read a tensor of 10: a segment each peaks at 21, and 16 is possible."""
    predecessors = ((), (0,), (1,), (2,), (0,), (4,), (5,))
    storages = [Storage(10, (0,), (1, 4))]
    for first in (1, 4):
        storages += [Storage(3, (first,), (first + 1,)), Storage(8, (first + 1,), (first + 2,))]
        storages.append(Storage(1, (first + 2,), (first + 2,), kept=True))
    found = optimal(OrderProblem(predecessors, tuple(storages)))
    assert peak_bytes(OrderProblem(predecessors, tuple(storages)), found.solution) == 16 == found.bound


def test_one_tensor_at_a_cut_is_not_enough():
    """x -> x50; x -> a1; x -> t50; a -> m60 -> out1; t -> u1 -> out2: 101 in all, 111 where t alone divides it."""
    x, a, t, m, out, u, other = range(7)
    predecessors = ((), (x,), (x,), (a,), (m,), (t,), (u,))
    sizes = {x: 50, a: 1, t: 50, m: 60, out: 1, u: 1, other: 1}
    readers = {x: (a, t), a: (m,), t: (u,), m: (out,), u: (other,), out: (out,), other: (other,)}
    storages = tuple(Storage(sizes[v], (v,), readers[v], kept=v in (out, other)) for v in range(7))
    problem = OrderProblem(predecessors, storages)
    assert optimal(problem).bound == exhaustive(problem).bound


def test_parts_side_by_side_are_solved_apart():
    """Without that, the search has to interleave them."""
    random = Random(7)
    before = [()]
    exits = []
    for _ in range(12):
        entry = len(before)
        before.append((0,))
        inner = range(entry + 1, entry + 12)
        before += [tuple(sorted(random.sample(range(max(entry, v - 4), v), min(v - entry, 2)))) for v in inner]
        unread = [v for v in range(entry, len(before)) if not any(v in later for later in before[v:])]
        before.append(tuple(unread))
        exits.append(len(before) - 1)
    before.append(tuple(exits))
    sizes = [random.randint(1, 99) for _ in before]
    readers = [[w for w, listed in enumerate(before) if v in listed] for v in range(len(before))]
    readers[0] = readers[0][:1]  # a result that only one part reads
    storages = tuple(Storage(sizes[v], (v,), tuple(readers[v]) or (v,), not readers[v]) for v in range(len(before)))
    _, members = decompose(OrderProblem(tuple(before), storages))
    assert len(members) < 20


def test_parts_of_a_result_are_allocated_once_where_their_makers_become_a_chain():
    """Two makers in any order, in a part that becomes one segment: the first of them allocates, in every order."""
    predecessors = ((), (), (1,), (1,), (3,), (), (2, 4))
    storages = (
        Storage(2, (2, 3), (), kept=True),
        Storage(1, (4,), (6,)),
        Storage(0, (1, 5), (), kept=True),
        Storage(1, (0,), (), kept=True),
    )
    problem = OrderProblem(predecessors, storages)
    found = optimal(problem)
    assert peak_bytes(problem, found.solution) == found.bound == exhaustive(problem, time_limit_s=60).bound == 3
