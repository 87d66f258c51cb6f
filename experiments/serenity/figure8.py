"""Figure 8(b): how many schedules algorithm 1 explores under a soft budget, on SwiftNet's cell A.

    python -m experiments.serenity.figure8 [--quick]

The paper draws the curve without numbers; what it says of it is checked: below the least peak there is no solution,
from there on every budget has one of that peak, and the schedules explored grow with the budget up to the hard one,
what Kahn's order needs. Explored are the entries of the memo that algorithm 1 expands, counted in states; no step has a
limit of time, so that nothing depends on the machine. Where the paper's curve ends in 'timeout', ours goes on.
"""

from __future__ import annotations

import argparse
from typing import Any

from downset import Graph, OrderProblem, order_problem, peak_bytes
from downset.orders.kahn import kahn
from downset.orders.optimal import optimal
from downset.orders.search_space import SearchSpace
from downset.orders.serenity import explored
from experiments.rows import load_rows, save_rows
from experiments.serenity.subjects import CELLS_OF_THE_PAPER, rewritten, without_concats
from experiments.serenity.swiftnet import MODEL

NAME = "serenity_figure8"


def curve(problem: OrderProblem, points: int) -> list[dict[str, Any]]:
    """States and the peak found, at budgets from below the least peak up to the hard one."""
    hard = peak_bytes(problem, kahn(problem).solution)
    least = optimal(problem).bound
    budgets = {least - 1, least, *(least + (hard - least) * step // points for step in range(points + 1))}
    space = SearchSpace(problem)
    found = []
    for budget in sorted(budgets):
        peak, states = explored(space, budget)
        found.append({"budget": budget, "of_hard": budget / hard, "states": states, "peak": peak})
    return found


def rows(points: int) -> list[dict[str, Any]]:
    cell: Graph = CELLS_OF_THE_PAPER["SwiftNet cell A"]()
    found = []
    for split, graph in ((False, cell), (True, rewritten(cell, "serenity"))):
        problem = without_concats(graph, order_problem(graph, "serenity"))
        found += [{"rewritten": split, "nodes": len(problem.predecessors), **row} for row in curve(problem, points)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer budgets, nothing written")
    quick = parser.parse_args().quick
    fresh = MODEL.exists()
    table = rows(3 if quick else 12) if fresh else load_rows(NAME)
    print(f"| cell A | nodes | budget | of the hard budget | explored | peak |{'' if fresh else ' recorded'}")
    print("|" + "---|" * 6)
    for row in table:
        peak = f"{row['peak']:,}" if row["peak"] is not None else "no solution"
        what = "rewritten" if row["rewritten"] else "as it is"
        print(f"| {what} | {row['nodes']} | {row['budget']:,} | {row['of_hard']:.3f} | {row['states']:,} | {peak} |")
    if fresh and not quick:
        print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
