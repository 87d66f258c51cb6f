"""Figure 8(b): how many schedules algorithm 1 explores under a soft budget, on SwiftNet's cell A.

    python -m experiments.serenity.figure8 [--quick]

The paper draws the curve without numbers; what it says of it is checked: below the least peak there is no solution,
from there on every budget has one of that peak, and the schedules explored grow with the budget up to the hard one,
what Kahn's order needs. Explored are the entries of the memo that algorithm 1 expands, counted in states; no step has a
limit of time, so that nothing depends on the machine. Where the paper's curve ends in 'timeout', ours goes on.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from downset import Graph, OrderProblem, order_problem, peak_bytes
from downset.orders.kahn import kahn
from downset.orders.planners import ORDERS
from downset.orders.search_space import SearchSpace
from downset.orders.serenity import explored
from experiments.frame import Experiment, run
from experiments.rows import Row
from experiments.serenity.subjects import CELLS_OF_THE_PAPER, rewritten, without_concats
from experiments.serenity.swiftnet import MODEL

optimal = ORDERS["optimal"]


def curve(problem: OrderProblem, points: int) -> list[Row]:
    """States and the peak found, at budgets from below the least peak up to the hard one."""
    hard = peak_bytes(problem, kahn(problem).solution)
    least = optimal(problem).bound
    budgets = {least - 1, least, *(least + (hard - least) * step // points for step in range(points + 1))}
    space = SearchSpace(problem)
    rows = []
    for budget in sorted(budgets):
        peak, states = explored(space, budget)
        rows.append({"budget": budget, "of_hard": budget / hard, "states": states, "peak": peak})
    return rows


def rows(options: Namespace) -> Iterator[Row]:
    if not MODEL.exists():
        return
    cell: Graph = CELLS_OF_THE_PAPER["SwiftNet cell A"]()
    for split, graph in ((False, cell), (True, rewritten(cell, "serenity"))):
        problem = without_concats(graph, order_problem(graph, "serenity"))
        for row in curve(problem, 3 if options.quick else 12):
            yield {"rewritten": split, "nodes": len(problem.predecessors), **row}


EXPERIMENT = Experiment(
    "serenity_figure8",
    rows,
    (
        ("cell A", lambda row: "rewritten" if row["rewritten"] else "as it is"),
        ("nodes", "{nodes}"),
        ("budget", "{budget:,}"),
        ("of the hard budget", "{of_hard:.3f}"),
        ("explored", "{states:,}"),
        ("peak", lambda row: "no solution" if row["peak"] is None else f"{row['peak']:,}"),
    ),
    quick="fewer budgets, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
