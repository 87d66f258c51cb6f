"""Endings and the chains over them: compiled, written out, and by brute force."""

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.budget import Budget
from downset.errors import LimitReached, UsageError
from downset.graph.width import width
from downset.lattice import bits, count_downsets, lists
from downset.stages.endings import ENDINGS, stage_lattice
from downset.stages.problem import groups_of
from tests.stages.oracles.lattice import StageLattice
from tests.strategies import precedences

pytestmark = pytest.mark.native


def endings_of(predecessors, downset):
    """All of them, by trying every subset."""
    units = list(bits(downset))
    for size in range(1, len(units) + 1):
        for chosen in combinations(units, size):
            mask = sum(1 << unit for unit in chosen)
            rest = downset & ~mask
            if not any(predecessors[unit] & mask for unit in bits(rest)):
                yield mask


def one_root(predecessors, group):
    """Do all of the group's units come after one of them, inside it?"""
    for root in group:
        reached = {root}
        for unit in group:
            if any(earlier in reached for earlier in bits(predecessors[unit])):
                reached.add(unit)
        if reached == set(group):
            return True
    return False


@given(precedences(7, 1), st.integers(1, 4), st.integers(1, 4), st.sampled_from(ENDINGS), st.data())
def test_compiled_written_and_brute_force_agree(predecessors, max_ops, max_groups, endings, data):
    limits = {"max_ops": max_ops, "max_groups": max_groups, "endings": endings}
    native = stage_lattice(predecessors, clock=Budget().start(), **limits)
    written = StageLattice(predecessors, **limits)
    assert native.complete()
    assert native.states() == written.states() == count_downsets(predecessors)
    everything = (1 << len(predecessors)) - 1
    pairs = []
    for downset in range(1, everything + 1):
        if any(predecessors[unit] & ~downset for unit in bits(downset)):
            continue
        for ending in endings_of(predecessors, downset):
            groups = groups_of(predecessors, ending)
            if len(groups) > max_groups or max(map(len, groups)) > max_ops:
                continue
            if endings == "all" or all(one_root(predecessors, group) for group in groups):
                pairs.append((downset, ending))
    assert native.pairs() == written.pairs() == len(pairs)
    stages = {ending for _, ending in pairs}
    assert set(native.stages()) == set(written.stages()) == stages
    assert native.schedules() == written.schedules()
    costs = {stage: data.draw(st.integers(-1, 20), label=f"price of {stage:b}") for stage in sorted(stages)}
    best = {0: 0}
    for downset, ending in sorted(pairs):
        before = best.get(downset & ~ending)
        if costs[ending] >= 0 and before is not None:
            best[downset] = min(best.get(downset, 1 << 40), before + costs[ending])
    for lattice in (native, written):
        chain, cost = lattice.solve([costs[stage] for stage in lattice.stages()])
        assert cost == best.get(everything, -1)
        chosen = [lattice.stages()[index] for index in chain]
        assert sum(costs[stage] for stage in chosen) == max(cost, 0)
        if cost >= 0:
            assert sum(chosen) == everything
    times = [unit + 1 for unit in range(len(predecessors))]
    for lattice in (native, written):
        for stage, longest, total, count in zip(lattice.stages(), *lattice.weigh(times), strict=True):
            sums = [sum(times[unit] for unit in group) for group in groups_of(predecessors, stage)]
            assert (longest, total, count) == (max(sums), sum(sums), len(sums))


@pytest.mark.parametrize(("paths", "length"), [(1, 5), (2, 3), (3, 2), (4, 3)])
def test_independent_paths_reach_the_bound(paths, length):
    """Figure 13: d paths of c operators have C(c + 2, 2)^d pairs, the empty ending of each downset counted."""
    predecessors = tuple(0 if unit % length == 0 else 1 << (unit - 1) for unit in range(paths * length))
    assert width(lists(predecessors)) == paths
    for lattice in (
        stage_lattice(predecessors, clock=Budget().start()),
        StageLattice(predecessors, max_ops=64, max_groups=64, endings="all"),
    ):
        assert lattice.pairs() + lattice.states() == comb(length + 2, 2) ** paths


def test_the_published_code_misses_an_ending():
    # a and b feed c: {a, b, c} is an ending with one group and two roots
    predecessors = (0, 0, 0b011)
    assert 0b111 in stage_lattice(predecessors, clock=Budget().start()).stages()
    assert 0b111 not in stage_lattice(predecessors, clock=Budget().start(), endings="ios").stages()


def test_limits_of_nonsense_are_refused():
    for wrong in ({"max_ops": 0}, {"max_groups": -1}, {"endings": "some"}):
        with pytest.raises(UsageError):
            stage_lattice((0, 1), clock=Budget().start(), **wrong)
    with pytest.raises(UsageError, match="65 units"):
        stage_lattice((0,) * 65, clock=Budget().start())


def test_a_limit_ends_the_enumeration_and_says_so():
    with pytest.raises(LimitReached, match="the endings of 40 units could not be enumerated"):
        stage_lattice((0,) * 40, clock=Budget(0.05).start())
