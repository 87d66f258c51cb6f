"""Every planner of stages, against all schedules there are."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.errors import UsageError
from downset.lattice import bits
from downset.stages.endings import ENDINGS
from downset.stages.ios import nanoseconds, strategies_of
from downset.stages.planners import STAGERS
from downset.stages.price import SimulatedDevice, simulated
from downset.stages.problem import Stage, StageProblem, groups_of
from tests.stages.oracles.lattice import StageLattice
from tests.stages.test_stage_lattice import endings_of, one_root
from tests.strategies import precedences

ios = STAGERS["ios"]
lazy = STAGERS["lazy"]


@st.composite
def problems(draw, most=6):
    predecessors = draw(precedences(most, 1))
    family = sum(1 << unit for unit, before in enumerate(predecessors) if before == 0)
    return StageProblem(predecessors, (family,) if family & (family - 1) and draw(st.booleans()) else ())


def arbitrary(seed):
    """Prices without rhyme or reason, in whole nanoseconds."""

    def price(stage):
        named = f"Stage(groups={stage.groups}, merged={stage.merged})"
        digest = hashlib.sha256(f"{seed} {named}".encode()).digest()
        return (int.from_bytes(digest[:2], "big") + 1) / 1e9

    return price


def check_schedule(problem, stages):
    done = 0
    for stage in stages:
        units = stage.units
        mask = sum(1 << unit for unit in units)
        assert mask.bit_count() == len(units)
        assert mask & done == 0
        for group in stage.groups:
            inside = 0
            for unit in group:
                assert problem.predecessors[unit] & ~(done | inside) == 0
                inside |= 1 << unit
        if stage.merged:
            assert problem.can_merge(mask)
        done |= mask
    assert done == (1 << len(problem.predecessors)) - 1


def least(problem, price, max_ops, max_groups, strategy):
    """The cheapest schedule, by all chains of endings."""
    best = {0: 0.0}
    everything = (1 << len(problem.predecessors)) - 1
    for downset in range(1, everything + 1):
        if any(problem.predecessors[unit] & ~downset for unit in bits(downset)):
            continue
        for ending in endings_of(problem.predecessors, downset):
            groups = groups_of(problem.predecessors, ending)
            if len(groups) > max_groups or max(map(len, groups)) > max_ops or downset & ~ending not in best:
                continue
            for stage in strategies_of(problem, ending, strategy):
                cost = best[downset & ~ending] + price(stage)
                best[downset] = min(best.get(downset, cost), cost)
    return best[everything]


def written_out(problem, price, max_ops, max_groups, strategy, endings):
    """The cost of the cheapest chain of the oracle's endings."""
    lattice = StageLattice(problem.predecessors, max_ops=max_ops, max_groups=max_groups, endings=endings)
    ways = [strategies_of(problem, units, strategy) for units in lattice.stages()]
    prices = [min((nanoseconds(price(stage)) for stage in stages), default=-1) for stages in ways]
    return lattice.solve(prices)[1] / 1e9


@given(problems(), st.integers(0, 1000), st.sampled_from(sorted(STAGERS)))
def test_every_plan_is_a_schedule_and_costs_what_it_says(problem, seed, method):
    price = arbitrary(seed)
    found = STAGERS[method](problem, price)
    check_schedule(problem, found.stages)
    assert found.cost_s == pytest.approx(sum(map(price, found.stages)), rel=1e-9)
    assert found.bound_s <= found.cost_s


LIMITS = st.integers(1, 4)
WAYS = st.sampled_from(["both", "parallel", "merge"])


@given(problems(), st.integers(0, 1000), LIMITS, LIMITS, WAYS)
def test_ios_is_the_best_schedule_there_is(problem, seed, max_ops, max_groups, strategy):
    price = arbitrary(seed)
    found = ios(problem, price, max_ops=max_ops, max_groups=max_groups, strategy=strategy)
    assert found.proven
    assert found.cost_s == pytest.approx(least(problem, price, max_ops, max_groups, strategy), rel=1e-9)
    narrow = ios(problem, price, max_ops=max_ops, max_groups=max_groups, strategy=strategy, endings="ios")
    assert found.cost_s <= narrow.cost_s
    for result, endings in ((found, "all"), (narrow, "ios")):
        written = written_out(problem, price, max_ops, max_groups, strategy, endings)
        assert written == pytest.approx(result.cost_s, rel=1e-12)


def device_of(problem, data):
    count = len(problem.predecessors)
    seconds = data.draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    shares = data.draw(st.lists(st.integers(1, 10), min_size=count, max_size=count))
    return SimulatedDevice([value / 1e7 for value in seconds], [share / 10 for share in shares])


@given(problems(), st.data(), st.sampled_from(["both", "parallel", "merge"]))
def test_lazy_is_optimal_where_its_bound_holds(problem, data, strategy):
    """On the simulated device a stage costs at least its longest group."""
    price = simulated(device_of(problem, data))
    full = ios(problem, price, strategy=strategy)
    few = lazy(problem, price, strategy=strategy, budget=10_000)
    assert few.proven
    assert few.cost_s == pytest.approx(full.cost_s, abs=1e-9 * len(problem.predecessors))
    assert few.timings <= full.timings + len(problem.predecessors)


@given(problems(), st.data(), LIMITS, LIMITS, WAYS, st.sampled_from(ENDINGS))
def test_lazy_searches_what_ios_does_under_every_limit(problem, data, max_ops, max_groups, strategy, endings):
    price = simulated(device_of(problem, data))
    options = {"max_ops": max_ops, "max_groups": max_groups, "strategy": strategy, "endings": endings}
    few = lazy(problem, price, budget=10_000, **options)
    assert few.proven
    full = written_out(problem, price, **options)
    assert few.cost_s == pytest.approx(full, abs=1e-9 * len(problem.predecessors))
    check_schedule(problem, few.stages)
    for stage in few.stages:
        assert len(stage.groups) <= max_groups
        assert max(map(len, stage.groups)) <= max_ops
        if endings == "ios" and not stage.merged:
            assert all(one_root(problem.predecessors, group) for group in stage.groups)


@given(problems(), st.data(), st.integers(0, 4))
def test_lazy_keeps_its_budget_and_its_bound(problem, data, budget):
    asked = []
    price = simulated(device_of(problem, data))

    def counted(stage):
        asked.append(stage)
        return price(stage)

    found = lazy(problem, counted, budget=budget)
    check_schedule(problem, found.stages)
    assert len(asked) <= len(problem.predecessors) + budget
    assert len(set(asked)) == len(asked)
    best = ios(problem, price)
    assert found.bound_s <= best.cost_s + 1e-9 * len(problem.predecessors)
    assert best.cost_s <= found.cost_s + 1e-9 * len(problem.predecessors)


@given(problems(), st.data())
def test_a_simulated_stage_is_between_its_work_and_its_sum(problem, data):
    device = device_of(problem, data)
    price = simulated(device)
    for stage in ios(problem, price).stages:
        if stage.merged:
            continue
        longest = max(sum(device.seconds[unit] for unit in group) for group in stage.groups)
        work = sum(device.seconds[unit] * device.occupancy[unit] for unit in stage.units)
        several = device.fork_join_s if len(stage.groups) > 1 else 0.0
        whole = sum(device.seconds[unit] for unit in stage.units)
        assert max(longest, work) - 1e-12 <= price(stage) - several <= whole + 1e-12


def test_few_timings_on_a_wide_block():
    """Two layers of six side by side: the whole search prices every stage, the lazy one a few."""
    predecessors = (*[0] * 6, *[1 << unit for unit in range(6)])
    price = simulated(SimulatedDevice([1e-5 * (1 + unit % 3) for unit in range(12)], [0.3] * 12))
    problem = StageProblem(predecessors)
    full, few = ios(problem, price), lazy(problem, price, budget=200)
    assert few.cost_s == pytest.approx(full.cost_s, rel=1e-6)
    assert few.timings < full.timings / 5


def test_unknown_strategies_are_refused():
    for planner in (ios, lazy):
        with pytest.raises(UsageError, match="sideways"):
            planner(StageProblem((0,)), lambda _: 1.0, strategy="sideways")


def test_merging_is_chosen_where_it_is_cheaper():
    problem = StageProblem((0, 0, 0b11), (0b11,))
    cheap = {Stage(((0,), (1,)), merged=True): 1e-6}
    found = ios(problem, lambda stage: cheap.get(stage, 5e-6), max_ops=1)
    assert found.stages[0] == Stage(((0,), (1,)), merged=True)
    without = ios(problem, lambda stage: cheap.get(stage, 5e-6), strategy="parallel")
    assert not any(stage.merged for stage in without.stages)
