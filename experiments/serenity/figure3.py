"""Figure 3(b): how the peak is distributed over the orders of SwiftNet's cell A: paper | ours | ratio.

    python -m experiments.serenity.figure3 [--quick]

Not sampled: all orders are counted, each once, by a dynamic programme over downsets that carries a histogram of peaks.
Beside it, because the paper does not say how it drew its schedules, what a walk that takes any ready operator finds.
The limit of 250 KB is read both ways, as 250,000 and as 256,000 bytes: elsewhere the paper's KB are 1,000, a device's
are 1,024. The paper's cell runs with zero-copy concatenations, which its graph does not have as nodes.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from random import Random

from downset import OrderProblem, order_problem
from downset.lattice import bits
from downset.orders.search_space import SearchSpace
from experiments.frame import Experiment, fields, line_of, printed, ratio, run
from experiments.rows import Row
from experiments.serenity.subjects import CELLS_OF_THE_PAPER, without_concats
from experiments.serenity.swiftnet import MODEL

LIMITS_BYTES = {"under": 250_000, "under_1024": 250 * 1024}
PAPER = printed("serenity_figure3")
SHARES = {
    "under": ("at most 250,000 B", "at most 250 KB"),
    "under_1024": ("at most 256,000 B", "at most 250 KB"),
    "optimal": ("optimal", "optimal"),
}
"""Label of each share, and its name in the paper."""
COLUMNS = (
    *fields("memory", "nodes", "drawn"),
    *fields("orders", "least", "most", spec=","),
    *fields("what"),
    ("paper", "{paper:.2%}"),
    ("ours", "{share:.4%}"),
    ("ratio", lambda row: ratio(row["paper"], row["share"])),
)


def orders_by_peak(problem: OrderProblem) -> dict[int, int]:
    """How many orders have which peak. O(downsets · ready · different peaks)."""
    space = SearchSpace(problem)
    level = {0: (space.start_ready, space.start_bytes, Counter({problem.floor_bytes: 1}))}
    for _ in range(space.count):
        following: dict[int, tuple[int, int, Counter[int]]] = {}
        for downset, (ready, live, peaks) in level.items():
            for operator in bits(ready):
                transient, left = space.step(downset, live, operator)
                larger = downset | 1 << operator
                if larger not in following:
                    following[larger] = (space.open(larger, ready, operator), left, Counter())
                counted = following[larger][2]
                for peak, orders in peaks.items():
                    counted[max(peak, transient)] += orders
        level = following
    ((_, _, peaks),) = level.values()
    return dict(sorted(peaks.items()))


def walked_peaks(problem: OrderProblem, walks: int, seed: int = 0) -> dict[int, int]:
    """Peaks of walks that take any ready operator, each with the same chance."""
    space, random = SearchSpace(problem), Random(seed)
    counts: Counter[int] = Counter()
    for _ in range(walks):
        downset, ready, live, peak = 0, space.start_ready, space.start_bytes, problem.floor_bytes
        while ready:
            operator = random.choice(list(bits(ready)))
            transient, live = space.step(downset, live, operator)
            peak = max(peak, transient)
            downset |= 1 << operator
            ready = space.open(downset, ready, operator)
        counts[peak] += 1
    return dict(sorted(counts.items()))


def rows(options: Namespace) -> Iterator[Row]:
    if not MODEL.exists():
        return
    cell = CELLS_OF_THE_PAPER["SwiftNet cell A"]()
    views = order_problem(cell, "serenity")
    for memory, nodes, problem in (
        ("serenity", "without concatenations", without_concats(cell, views)),
        ("serenity", "all operators", views),
        ("live", "all operators", order_problem(cell, "live")),
    ):
        counted = orders_by_peak(problem)
        least = min(counted)
        for drawn, peaks in (
            ("all orders", counted),
            ("random walks", walked_peaks(problem, 500 if options.quick else 20_000)),
        ):
            total = sum(peaks.values())
            yield {
                "memory": memory,
                "nodes": f"{len(problem.predecessors)}, {nodes}",
                "drawn": drawn,
                "orders": total,
                "least": least,
                "most": max(peaks),
                "optimal": peaks.get(least, 0) / total,
                **{key: _share(peaks, limit) for key, limit in LIMITS_BYTES.items()},
                "cdf": _cdf(peaks),
            }


def _share(peaks: dict[int, int], limit_bytes: int) -> float:
    """The share of the orders that need no more than the limit."""
    return sum(count for peak, count in peaks.items() if peak <= limit_bytes) / sum(peaks.values())


def _cdf(peaks: dict[int, int]) -> list[tuple[int, float]]:
    """(peak, share of orders up to it) at every peak where the share has grown by a hundredth."""
    total, below, points = sum(peaks.values()), 0, []
    for peak, count in peaks.items():
        below += count
        if not points or below / total - points[-1][1] >= 0.01 or below == total:
            points.append((peak, round(below / total, 5)))
    return points


def lines(row: Row, mark: str) -> Iterator[str]:
    for key, (what, printed_as) in SHARES.items():
        paper = PAPER.figure(what=printed_as) if row["memory"] == "serenity" else None
        yield line_of(COLUMNS, {**row, "what": what, "paper": paper, "share": row[key]}, mark)


EXPERIMENT = Experiment("serenity_figure3", rows, COLUMNS, lines=lines, quick="fewer walks, nothing written")

if __name__ == "__main__":
    run(EXPERIMENT)
