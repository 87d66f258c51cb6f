"""Every order planner against the dynamic programme over all downsets, under every memory model."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset import lattice, native
from downset.budget import Budget
from downset.errors import LimitReached, UsageError
from downset.memory.liveness import OrderProblem, Storage, order_problem, peak_bytes
from downset.memory.models import MEMORY_MODELS
from downset.orders.alternatives import alternatives
from downset.orders.check import verify_order, verify_steps
from downset.orders.greedy import greedy_steps
from downset.orders.native_form import native_problem
from downset.orders.plan import plan_order
from downset.orders.planners import ORDERS
from downset.orders.search_space import SearchSpace
from downset.orders.searches import MANY, OrderSearches
from tests.effort import cases
from tests.orders.compiled_bounds import closure_bound, pair_bound
from tests.orders.oracles import beam as beam_oracle
from tests.orders.oracles import bounds as bound_oracle
from tests.orders.oracles.best_first import BestFirst
from tests.strategies import graphs, orders_of, wide_problems

exhaustive = ORDERS["exhaustive"]
greedy = ORDERS["greedy"]
optimal = ORDERS["optimal"]
serenity = ORDERS["serenity"]

pytestmark = pytest.mark.native

MODELS = pytest.mark.parametrize("memory", MEMORY_MODELS)


@MODELS
@given(data=st.data())
@settings(max_examples=cases(300))
def test_optimal_is_the_least_peak_of_all_orders(memory, data):
    problem = order_problem(data.draw(graphs()), memory)
    least = exhaustive(problem)
    found = optimal(problem)
    verify_steps(problem.predecessors, found.solution)
    assert peak_bytes(problem, found.solution) == least.bound == found.bound
    assert found.proven


@given(problem=wide_problems())
@settings(max_examples=cases(1000))
def test_optimal_is_the_least_peak_on_wide_problems_with_accumulation(problem):
    least = exhaustive(problem)
    assert peak_bytes(problem, least.solution) == least.bound
    found = optimal(problem)
    assert peak_bytes(problem, found.solution) == least.bound == found.bound


@MODELS
@given(data=st.data())
def test_every_planner_gives_a_lawful_order_and_a_true_bound(memory, data):
    graph = data.draw(graphs())
    least = exhaustive(order_problem(graph, memory)).bound
    for method in ORDERS:
        order = plan_order(graph, method=method, memory=memory)
        verify_order(graph, order)
        assert order.evidence.bound <= least <= order.peak_bytes
        assert not order.evidence.proven or order.peak_bytes == least


@given(data=st.data())
def test_search_space_steps_are_what_liveness_defines(data):
    from downset.memory.liveness import live_bytes, transient_bytes

    memory = data.draw(st.sampled_from(list(MEMORY_MODELS)))
    problem = order_problem(data.draw(graphs()), memory)
    space = SearchSpace(problem)
    downset, live = 0, space.start_bytes
    for operator in data.draw(orders_of(problem.predecessors)):
        transient, after = space.step(downset, live, operator)
        assert transient == transient_bytes(problem, downset, operator)
        downset |= 1 << operator
        live = after
        assert live == live_bytes(problem, downset)


@MODELS
@given(data=st.data())
def test_orders_read_from_their_ends_need_the_same(memory, data):
    problem = order_problem(data.draw(graphs()), memory)
    forward, backward = SearchSpace(problem), SearchSpace(problem, backward=True)
    steps = data.draw(orders_of(problem.predecessors))
    turned = [len(steps) - 1 - operator for operator in reversed(steps)]
    assert backward.peak(turned) == forward.peak(steps)
    assert backward.given_order(turned) == tuple(steps)


def compiled(problem, backward=False):
    """The problem of the compiled steps, not taken apart."""
    space = native_problem(problem)
    return space.reversed() if backward else space


@MODELS
@given(data=st.data())
def test_each_search_alone_proves_the_optimum_in_slices(memory, data):
    problem = data.draw(st.one_of(wide_problems(), graphs().map(lambda graph: order_problem(graph, memory))))
    least = exhaustive(problem).bound
    total = sum(storage.nbytes for storage in problem.storages) + problem.floor_bytes + 1
    for backward in (False, True):
        for fresh in (
            lambda backward=backward: OrderSearches(problem).best_first(backward=backward),
            lambda backward=backward: BestFirst(SearchSpace(problem, backward=backward)),
        ):
            search = fresh()
            known = data.draw(st.integers(0, least))  # any bound that holds may be given, at any time
            while (outcome := search.advance(known, total, 10.0, 2)) == "LIMIT":
                assert search.bound <= least
            assert outcome == "SOLVED"
            assert peak_bytes(problem, search.steps) == search.bound == least
            assert fresh().advance(0, least, 10.0, 10**9) == "IMPOSSIBLE"


@given(problem=wide_problems(operators=14), backward=st.booleans())
def test_the_compiled_greedy_is_that_of_its_oracle(problem, backward):
    steps = native.compiled.greedy(compiled(problem, backward), 10.0, MANY)
    space = SearchSpace(problem, backward=backward)
    assert tuple(steps) == space.given_order(greedy_steps(space, Budget(math.inf).start()))
    assert backward or tuple(steps) == greedy(problem).solution
    verify_steps(problem.predecessors, steps)


@given(problem=wide_problems(), width=st.integers(1, 40), backward=st.booleans(), data=st.data())
def test_a_beam_told_a_bound_and_an_answer_keeps_below_the_answer(problem, width, backward, data):
    least = exhaustive(problem).bound
    bound, incumbent = data.draw(st.integers(0, least)), data.draw(st.integers(least, 2 * least + 1))
    space = compiled(problem, backward)
    steps, states = native.compiled.beam(space, width, bound, incumbent, 10.0, MANY)
    oracle = beam_oracle.beam(SearchSpace(problem, backward=backward), width, bound, incumbent, float("inf"), MANY)
    assert (tuple(steps) or None, states) == (oracle[0] or None, oracle[1])
    if steps:
        verify_steps(problem.predecessors, steps)
        assert least <= peak_bytes(problem, steps) < incumbent
    every, _ = native.compiled.beam(space, 10_000, bound, least + 1, 10.0, MANY)
    assert peak_bytes(problem, every) == least  # as wide as the lattice, it is exact


@MODELS
@given(data=st.data())
def test_bounds_hold_and_are_the_enumerated_ones(memory, data):
    problem = data.draw(st.one_of(wide_problems(), graphs().map(lambda graph: order_problem(graph, memory))))
    of_one, of_two = (bound(problem) for bound in (closure_bound, pair_bound))
    assert of_one <= of_two <= exhaustive(problem).bound
    assert of_one == bound_oracle.closure_bound(problem)
    assert of_two == bound_oracle.pair_bound(problem)


def test_of_alike_operators_one_is_the_second():
    """Each of several branches keeps what it made while the last of them runs: a bound of single operators cannot see
    it, one of pairs does, and the search has nothing left to do."""
    branches = 9
    predecessors = (*((),) * branches, tuple(range(branches)))
    storages = tuple(Storage(5, (v,), (branches,)) for v in range(branches))
    transient = tuple(Storage(40, (v,), (v,)) for v in range(branches))
    problem = OrderProblem(predecessors, storages + transient)
    assert closure_bound(problem) == 5 * branches
    assert pair_bound(problem) == 50
    assert exhaustive(problem).bound == 5 * branches + 40


@given(data=st.data())
def test_relabelling_operators_changes_no_optimum(data):
    problem = data.draw(wide_problems(operators=8))
    # a problem's operators come in a topological order, so the new labels are places in another one
    steps = data.draw(orders_of(problem.predecessors))
    label = {operator: place for place, operator in enumerate(steps)}

    def moved(operators):
        return tuple(sorted(label[operator] for operator in operators))

    predecessors = [()] * len(label)
    for operator, before in enumerate(problem.predecessors):
        predecessors[label[operator]] = moved(before)
    storages = tuple(
        replace(storage, producers=moved(storage.producers), consumers=moved(storage.consumers))
        for storage in problem.storages
    )
    assert optimal(OrderProblem(tuple(predecessors), storages)).bound == optimal(problem).bound


@given(problem=wide_problems(operators=9), divided=st.booleans(), soft_budget=st.booleans())
def test_every_part_of_serenity_finds_the_optimum(problem, divided, soft_budget):
    least = exhaustive(problem).bound
    found = serenity(problem, divided=divided, soft_budget=soft_budget)
    assert found.proven
    assert peak_bytes(problem, found.solution) == found.bound == least


def test_serenity_out_of_time_keeps_a_true_bound():
    problem = OrderProblem(((),) * 18, tuple(Storage(v + 1, (v,), (v,)) for v in range(18)))
    found = serenity(problem, time_limit_s=0.02)
    assert found.bound <= 18
    verify_steps(problem.predecessors, found.solution)


def test_algorithm_1_visits_every_downset_of_independent_chains_once():
    """Figure 16's kind of graph: between one source and one sink, operators in no order with one another. Its downsets
    are counted in closed form: 2^n between source and sink, and three more."""
    for branches in (1, 3, 6):
        count = branches + 2
        middle = tuple(range(1, branches + 1))
        predecessors = ((), *((0,) for _ in middle), middle)
        storages = (Storage(5, (0,), middle), *(Storage(v, (v,), (count - 1,)) for v in middle))
        problem = OrderProblem(predecessors, storages)
        found = serenity(problem, divided=False, soft_budget=False)
        # one entry of the memo for every downset but the last: |V| levels of together 2^n + 1 zero-indegree sets
        assert found.states == lattice.count_downsets(lattice.masks(predecessors)) - 1 == 2**branches + 1


@given(problem=wide_problems(operators=12), states=st.integers(0, 6))
def test_a_search_that_is_stopped_keeps_a_true_bound_and_an_order_no_worse_than_the_files(problem, states):
    least = exhaustive(problem).bound
    space = SearchSpace(problem)
    found = optimal(problem, work_limit=states)
    value = space.peak(found.solution)
    assert found.bound <= least <= value <= space.peak(range(len(problem.predecessors)))
    assert found.proven == (found.bound == value)


@given(data=st.data())
def test_alternatives_are_other_orders_within_the_budget(data):
    problem = data.draw(wide_problems())
    start = optimal(problem).solution
    budget = SearchSpace(problem).peak(start) + data.draw(st.integers(0, 5))
    clock = Budget(seed=data.draw(st.integers(0, 3))).start()
    found = alternatives(problem, start, budget, clock=clock, count=5)
    assert len(set(found)) == len(found)
    for steps in found:
        verify_steps(problem.predecessors, steps)
        assert steps != start
        assert peak_bytes(problem, steps) <= budget


def test_the_oracle_stops_rather_than_guesses():
    problem = OrderProblem(((),) * 30, tuple(Storage(1, (v,), (v,)) for v in range(30)))
    with pytest.raises(LimitReached, match="use method 'optimal'"):
        exhaustive(problem, time_limit_s=0.05)


def test_unknown_names_list_the_known_ones():
    problem = OrderProblem(((),), (Storage(1, (0,), (0,)),))
    with pytest.raises(UsageError, match="choose one of file"):
        plan_order(problem, method="magic")
    with pytest.raises(UsageError, match="takes no option 'engine'"):
        plan_order(problem, engine="python")
