"""Plans for two memories against a machine that shares no code with the planners."""

import random
from dataclasses import replace
from itertools import islice, pairwise, permutations

import pytest

from downset import native
from downset.budget import Budget
from downset.errors import InfeasibleError, InvalidPlan, UsageError
from downset.memories.bound import order_free_bound
from downset.memories.check import check_memories
from downset.memories.of_graph import MemoriesForm
from downset.memories.plan import plan_memories_problem
from downset.memories.planners import MEMORIES
from downset.memories.problem import check_problem
from downset.memories.residency import exact_residency, quick_residency
from downset.orders.check import verify_steps
from tests.effort import LONG, cases
from tests.memories.oracles.machine import least_cost
from tests.memories.random_problems import random_problem

pytestmark = pytest.mark.native

SEEDS = range(cases(60))
SMALL_GRAPHS = range(500 if LONG else 12)
"""Those with one price, and as many with prices of their own: with LONG=1 a thousand."""


def form_of(problem):
    return MemoriesForm(problem, (), 1)


def orders(problem):
    for steps in permutations(range(len(problem.predecessors))):
        place = {v: at for at, v in enumerate(steps)}
        if all(place[u] < place[v] for v in place for u in problem.predecessors[v]):
            yield steps


@pytest.mark.parametrize("uniform", [False, True])
def test_the_residency_of_an_order_costs_what_the_machine_needs(uniform):
    for seed in SEEDS:
        problem = random_problem(random.Random(seed), uniform=uniform)
        for order in islice(orders(problem), 2):
            found = exact_residency(problem, order, clock=Budget(10.0).start())
            assert found.cost == found.bound == least_cost(problem, order), (seed, order)
            assert quick_residency(problem, order).cost >= found.cost


@pytest.mark.parametrize("uniform", [False, True])
def test_no_bound_is_above_the_least_cost_and_no_plan_below(uniform):
    for seed in SMALL_GRAPHS:
        problem = random_problem(random.Random(10_000 + seed), uniform=uniform)
        least = least_cost(problem)
        assert order_free_bound(problem, 1 << 40, clock=Budget(5.0).start()) <= least, seed
        for name, method in MEMORIES.items():
            found = method(problem, clock=Budget(10.0, 20_000).start()) if method.takes("clock") else method(problem)
            assert found.bound <= least <= found.cost, (seed, name)
            assert found.order_bound <= found.cost
            if name == "joint":
                assert found.cost == least, seed


def test_every_plan_runs_and_states_what_it_takes():
    for seed in SEEDS:
        problem = random_problem(random.Random(2000 + seed), operators=8)
        file = plan_memories_problem(form_of(problem), method="file_order", budget=Budget(10.0, 10_000))
        for name in ("belady", "least_peak", "searched", "joint"):
            plan = plan_memories_problem(form_of(problem), method=name, budget=Budget(10.0, 10_000))
            check_memories(problem, plan)
            assert plan.evidence.bound <= plan.evidence.value
            assert plan.cost_without_offsets <= plan.evidence.value
            if name in ("searched", "joint"):
                assert plan.evidence.value <= file.evidence.value, seed


def test_more_fast_memory_never_costs_more():
    for seed in SEEDS:
        problem = random_problem(random.Random(3000 + seed), operators=7)
        exact, known = None, None
        for more in (0, 2, 5, 9):
            larger = problem.within(problem.fast_bytes + more)
            order = tuple(range(7))
            cost = exact_residency(larger, order, clock=Budget(10.0).start()).cost
            assert exact is None or cost <= exact, seed
            exact = cost
            for method, states in (("searched", 5_000), ("belady", 1), ("searched", 1)):
                plan = plan_memories_problem(
                    form_of(larger), method=method, incumbent=known, budget=Budget(10.0, states)
                )
                assert known is None or plan.evidence.value <= known.evidence.value, seed
                assert plan.order_bound <= plan.cost_without_offsets <= plan.evidence.value
                assert plan.order_bound <= exact_residency(larger, plan.order, clock=Budget(10.0).start()).cost
                known = plan


def test_the_same_work_limit_gives_the_same_plan_and_a_larger_one_none_that_costs_more():
    for seed in SEEDS[:10]:
        problem = random_problem(random.Random(4000 + seed), operators=16)
        costs = []
        for states in (1_000, 10_000, 40_000):
            one, other = (MEMORIES["searched"](problem, clock=Budget(60.0, states).start()) for _ in range(2))
            assert one == other
            costs.append(one.cost)
        assert costs == sorted(costs, reverse=True)


def test_a_check_finds_what_is_wrong():
    """Each residence, move and figure that is left out or changed is an error."""
    faults, seeds = 0, SEEDS[:20]
    for seed in seeds:
        problem = random_problem(random.Random(5000 + seed), operators=8)
        plan = plan_memories_problem(form_of(problem), method="file_order", budget=Budget(10.0, 10_000))
        wrong = [replace(plan, moved_bytes=plan.moved_bytes + 1), replace(plan, direct_bytes=plan.direct_bytes + 1)]
        wrong += [replace(plan, moves=plan.moves[:i] + plan.moves[i + 1 :]) for i in range(len(plan.moves))]
        wrong += [
            replace(plan, residences=tuple(replace(one, offset=0) for one in plan.residences))
            for _ in range(1)
            if any(
                one.start < other.stop and other.start < one.stop
                for i, one in enumerate(plan.residences)
                for other in plan.residences[:i]
            )
        ]
        for one in wrong:
            with pytest.raises(InvalidPlan):
                check_memories(problem, one)
            faults += 1
    assert faults > 2 * len(seeds), "plans have moves and places, too"


def test_an_operator_that_does_not_fit_is_named():
    problem = random_problem(random.Random(1), uniform=False)
    least = max(problem.need_bytes(v) for v in range(len(problem.predecessors)))
    with pytest.raises(InfeasibleError, match=f"needs {least} bytes of fast memory"):
        check_problem(problem.within(least - 1), [f"operator 'op{v}'" for v in range(5)])
    with pytest.raises(UsageError, match="smaller prices"):
        check_problem(problem.within(1 << 50))


def test_a_search_moves_operators_of_a_group_together_and_states_the_quick_cost():
    for seed in SEEDS[:20]:
        draws = random.Random(6000 + seed)
        problem = random_problem(draws, operators=10)
        bounds = sorted({0, 10, *draws.sample(range(1, 10), 4)})
        groups = [list(range(*pair)) for pair in pairwise(bounds)]
        given = list(range(len(groups)))
        ranked, tried = native.compiled.memories_orders(problem.compiled, groups, given, seed, 5, 10.0, 500, 500)
        assert tried <= 500
        costs = [cost for cost, _ in ranked]
        assert costs == sorted(costs) and costs[0] <= quick_residency(problem, range(10)).cost
        for cost, order in ranked:
            assert sorted(order) == given
            steps = [operator for group in order for operator in groups[group]]
            verify_steps(problem.predecessors, steps)
            assert cost == quick_residency(problem, steps).cost
