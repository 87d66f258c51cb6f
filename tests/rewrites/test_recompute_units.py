"""Operators that repeat each other, held to their definition, and plans of repeated blocks, held to every set."""

import random
from itertools import combinations

import pytest

from downset.integrations.recompute_plan import plan_again
from downset.integrations.training_graph import TrainingGraph, priced
from downset.rewrites import recompute_search
from downset.rewrites.recompute_units import units_of

ROUNDS, CHOICES = 3, 24


def repeated(blocks):
    """Blocks of four operators with a shortcut, the loss, and for every operator one that passes its gradient on."""
    early = 4 * blocks + 1
    sizes, costs = (7, 40, 25, 12), (1.0, 9.0, 2.0, 1.0)
    reads = [()]
    for v in range(1, early):
        place = (v - 1) % 4
        reads.append((v - 1,) if place < 3 else (v - 4, v - 1))
    for v in range(early - 1, -1, -1):
        reads.append(tuple(sorted({*reads[v], len(reads) - 1})))
    count = len(reads)
    return TrainingGraph(
        reads=tuple(reads),
        waits=((),) * count,
        nbytes=(10, *sizes * blocks, *(5,) * early),
        loops=(0,) * count,
        costs=(1.0, *costs * blocks, *(1.0,) * early),
        may=tuple(v < early - 1 for v in range(count)),
        kept=frozenset({count - 1}),
        late=frozenset(range(early, count)),
        apart=False,
    )


def seen_from(operator, edges, reads, facts):
    """All that lies up to so many edges around an operator."""
    if not edges:
        return facts[operator]
    readers = [v for v, sources in enumerate(reads) if operator in sources]
    sides = [sorted(repr(seen_from(v, edges - 1, reads, facts)) for v in side) for side in (reads[operator], readers)]
    return facts[operator], sides


@pytest.mark.parametrize("seed", range(6))
def test_operators_are_one_unit_where_all_around_them_is_equal(seed):
    """In random blocks, of which each repeats the one before."""
    generator = random.Random(f"units/{seed}")
    back = [sorted({1, *generator.sample(range(2, 6), seed % 3)}) for _ in range(6)]
    reads = [tuple(v - step for step in back[v % 6] if v >= step) for v in range(36)]
    facts = [v % 2 if seed % 2 else 0 for v in range(36)]
    views = [repr(seen_from(v, ROUNDS, reads, facts)) for v in range(36)]
    units = units_of(reads, facts)
    assert units == [tuple(u for u in range(36) if views[u] == views[v]) for v in range(36)]
    assert len(set(units)) < 36


def test_more_blocks_are_no_more_units():
    counts = set()
    for blocks in (12, 24, 80):
        graph = repeated(blocks)
        counts.add(len(set(units_of(graph.reads, [*zip(graph.nbytes, graph.costs, graph.may, strict=True)]))))
    assert len(counts) == 1


@pytest.mark.parametrize("alone", [False, True])
def test_the_least_peak_of_a_small_network_is_that_of_all_its_sets(alone, monkeypatch):
    """Whether operators that repeat each other are decided together or not."""
    if alone:
        monkeypatch.setattr(recompute_search, "units_of", each_alone)
    graph = repeated(2)
    may = [v for v, of in enumerate(graph.may) if of]
    every = (again for size in range(len(may) + 1) for again in combinations(may, size))
    least = min(priced(graph, again).peak_bytes for again in every)
    plan = plan_again(graph, 1, choices=CHOICES)
    assert plan.chosen.judged.peak_bytes == least < plan.none.peak_bytes


def test_blocks_that_repeat_each_other_need_few_choices(monkeypatch):
    """Where each operator is decided by itself, as many choices do not come to all blocks."""
    graph = repeated(12)
    limit = 0.2 * sum(graph.costs)

    def reached():
        return min(
            of.judged.peak_bytes for of in plan_again(graph, 1, choices=CHOICES).front if of.judged.cost <= limit
        )

    together = reached()
    monkeypatch.setattr(recompute_search, "units_of", each_alone)
    assert together < reached()


def each_alone(reads, facts):
    return [(v,) for v in range(len(reads))]
