"""What "Ordering Chaos" prints and can be derived: the count behind algorithm 1's complexity, and SwiftNet's figures.

SwiftNet is the zoo's, in float32: four times the bytes of the published file, the same graph.
"""

import math

import pytest

from downset.budget import Budget
from downset.memory.liveness import OrderProblem, Storage, order_problem
from downset.orders.plan import plan_order
from downset.orders.planners import ORDERS
from downset.orders.search_space import SearchSpace
from experiments.serenity.figure3 import orders_by_peak
from experiments.serenity.swiftnet import part
from experiments.serenity.table2 import as_problem, divided_nodes, partial_convolutions
from zoo import graph

serenity = ORDERS["serenity"]


def figure_16(nodes):
    """One entry, one exit, all others independent between them; sizes such that no way is above another's budget."""
    branches = range(1, nodes - 1)
    middle = tuple(branches)
    storages = (Storage(1, (0,), middle), *(Storage(1, (v,), (nodes - 1,)) for v in branches))
    return OrderProblem(((), *((0,) for _ in branches), middle), (*storages, Storage(1, (nodes - 1,), (), kept=True)))


@pytest.mark.parametrize("nodes", [4, 5, 7, 10, 12])
def test_algorithm_1_takes_as_many_steps_on_figure_16_as_the_paper_counts(nodes, monkeypatch):
    problem = figure_16(nodes)
    steps = 0
    take = SearchSpace.step

    def counted(space, downset, live, operator):
        nonlocal steps
        steps += 1
        return take(space, downset, live, operator)

    monkeypatch.setattr(SearchSpace, "step", counted)
    assert serenity(problem, divided=False, soft_budget=False).proven
    # besides the search, Kahn's order is run once for the hard budget
    assert steps - nodes == 2 + (nodes - 2) * 2 ** (nodes - 3) <= nodes * 2**nodes


@pytest.mark.parametrize("nodes", [4, 7, 10])
def test_figure_16_has_as_many_orders_as_the_paper_counts(nodes):
    assert sum(orders_by_peak(figure_16(nodes)).values()) == math.factorial(nodes - 2)


@pytest.mark.parametrize(
    ("cell", "memory", "file_order", "optimum"),
    [
        ("a", "serenity", 275_968, 200_704),  # 200.7 KB, figure 12(b)
        ("b", "serenity", 119_168, 81_536),
        ("c", "serenity", 35_084, 32_536),
        ("a", "live", 351_232, 275_968),
        ("b", "live", 147_392, 122_304),
        ("c", "live", 53_900, 53_900),
    ],
)
def test_swiftnets_cells(cell, memory, file_order, optimum):
    network = graph(f"swiftnet_cell_{cell}", weights=False, fused=True)
    assert plan_order(network, memory=memory, method="file").peak_bytes == 4 * file_order
    for method in ("serenity", "optimal"):
        order = plan_order(network, memory=memory, method=method, time_limit_s=600.0)
        assert order.evidence.proven
        assert order.peak_bytes == 4 * optimum


def test_table_2_counts_nodes_without_concatenations_and_divides_in_front_of_the_cells():
    network = graph("swiftnet_hpd", weights=False, fused=True)
    pools = [index for index, op in enumerate(network.ops) if op.kind == "MaxPool"]
    last = max(index for index, op in enumerate(network.ops) if op.name.startswith("cell_c/"))
    assert divided_nodes(as_problem(part(network, pools[0], last))) == "62={21,19,22}"


@pytest.mark.parametrize(("cell", "nodes", "rewritten"), [("a", 21, 33), ("b", 19, 28), ("c", 22, 29)])
def test_rewritten_nodes_are_those_of_the_rule_that_fits(cell, nodes, rewritten):
    network = graph(f"swiftnet_cell_{cell}", weights=False, fused=True)
    assert len(as_problem(network).predecessors) + 1 == nodes
    assert nodes + partial_convolutions(network) - 1 == rewritten


def test_the_order_of_least_peak_need_not_be_the_one_of_least_arena():
    """Figure 12: the orders of cell A with one peak need different arenas, so no tie decides the paper's 250.9 KB."""
    from downset.arenas.plan import plan_arena
    from downset.memory.liveness import lifetimes
    from downset.orders.alternatives import alternatives

    network = graph("swiftnet_cell_a", weights=False, fused=True)
    order = plan_order(network, memory="serenity")
    problem = order_problem(network, "serenity")
    clock = Budget(60.0, seed=1).start()
    others = alternatives(problem, order.steps, order.peak_bytes, clock=clock, count=40)
    arenas = {
        plan_arena(lifetimes(network, steps, "serenity").records, method="greedy_in_order").arena_bytes
        for steps in others
    }
    assert {4 * 200_704, 4 * 250_880} <= arenas
