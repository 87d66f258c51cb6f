"""The optimum against dynamic programming over all downsets, on thousands of small graphs under every memory model."""

import random
from dataclasses import replace

import pytest

from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.models import MEMORY_MODELS
from downset.orders.check import verify_steps
from downset.orders.exhaustive import exhaustive
from downset.orders.optimal import optimal
from downset.orders.serenity import serenity
from tests.plain_graphs import rich_graph

pytestmark = pytest.mark.native

GRAPHS = 400


def graphs_of(memory, count=GRAPHS):
    for seed in range(count):
        generator = random.Random(f"{memory}/{seed}")
        yield rich_graph(generator, generator.randint(4, 9))


@pytest.mark.parametrize("memory", MEMORY_MODELS)
def test_optimal_and_serenity_find_the_least_peak_of_all_orders(memory):
    for number, graph in enumerate(graphs_of(memory)):
        problem = order_problem(graph, memory)
        least = exhaustive(problem).bound
        found = optimal(problem)
        verify_steps(problem.predecessors, found.solution)
        assert found.proven, number
        assert peak_bytes(problem, found.solution) == least == found.bound, number
        paper = serenity(problem, divided=bool(number & 1), soft_budget=bool(number & 2))
        assert paper.proven, number
        assert peak_bytes(problem, paper.solution) == least == paper.bound, number


@pytest.mark.parametrize(
    ("memory", "switched_off"),
    [
        ("ort", {"in_place": frozenset()}),
        ("ort", {"views": frozenset()}),
        ("torch", {"views": frozenset()}),
        ("serenity", {"concat_is_view": False}),
        ("serenity", {"accumulates": False}),
    ],
)
def test_the_graphs_are_such_that_sharing_bytes_changes_the_optimum(memory, switched_off):
    """Else the test above would not see a planner that ignores it."""
    model = MEMORY_MODELS[memory]
    plain = replace(model, **switched_off)
    changed = sum(
        optimal(order_problem(graph, model)).bound != optimal(order_problem(graph, plain)).bound
        for graph in graphs_of(memory, 100)
    )
    assert changed >= 5
