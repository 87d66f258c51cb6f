"""PICO's Table IV, partition into pieces: paper | ours.

    python -m experiments.pico.table4 [--quick] [--seconds 240]

n counts convolutions and pools, w is the most of them that are pairwise unordered (Dilworth): the paper's Definition 6.
Two counts of pieces: by the paper's rule for ties (the first minimum, small pieces first), and ours
(least sum of redundant work, then most pieces). C for two strips. Times: wall clock and CPU of one run; the paper's on
an i9-10940X.

Other readings are printed below the table. SqueezeNet: 30 layers of no redundancy each are 30 pieces; 29, where the
pool to 1x1, which has one row and cannot be cut, has none of its own: ResNet34 then has 21 by either rule for ties,
but MobileNetV3 30 (the paper: 31). Widths: MobileNetV3's 3 is the most edges side by side (the block, its squeeze-
and-excitation, its shortcut), where Inception V3 has 6; Inception V3's 4 is the most edges that leave one vertex,
where MobileNetV3 has 2. No reading tried gives both. MobileNetV3's n: 71 as torchvision builds it. Inception V3: 38
(the table) and 40 (the text) pieces cannot be reached under the paper's own chain constraint: where a block's input
goes through one 1x1 convolution into the Concat, the three lie in neighbouring pieces, so no block has more than two:
7 + 11 · 2 + 1 = 30; the three pieces of its Figure 11b need a tensor relayed past a piece. Its n of 99 is
torchvision's modules: 94 convolutions, 2 of the auxiliary head, and 3 pools; the pools inside the blocks are
functions.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import itemgetter, or_

from downset.budget import Budget
from downset.graph.width import width
from downset.lattice import bits, lists
from downset.pipelines.pieces import PieceProblem, Ties, piece_problem, pieces
from experiments.frame import Experiment, beside, fields, printed, run
from experiments.pico.algorithm_1 import divided_pieces
from experiments.rows import Row
from experiments.serenity.swiftnet import part
from zoo import graph

PAPER = printed("pico_table4")


def layer_width(problem: PieceProblem) -> int:
    """The most layers that are pairwise unordered: Dilworth on the order of the layers alone."""
    number = {v: place for place, v in enumerate(v for v, layer in enumerate(problem.layers) if layer)}
    before: list[int] = []  # by vertex: the layers before it
    for mask in problem.predecessors:
        ancestors = 0
        for earlier in bits(mask):
            ancestors |= before[earlier] | (1 << number[earlier] if earlier in number else 0)
        before.append(ancestors)
    return width(lists([before[v] for v in number]))


def readings(name: str) -> dict[str, int]:
    """Other readings of w and of the pieces: the most edges that are pairwise unordered, the most that leave one
    vertex, and the pieces by either rule for ties of the network in front of its last pool."""
    network = graph(name, weights=False)
    problem = piece_problem(network)
    predecessors = lists(problem.predecessors)
    edges = sorted((earlier, later) for later, before in enumerate(predecessors) for earlier in before)
    place = {edge: number for number, edge in enumerate(edges)}
    ancestors: list[int] = []  # by edge: the edges before it
    for earlier, _ in edges:
        into = [place[before, earlier] for before in predecessors[earlier]]
        ancestors.append(reduce(or_, (ancestors[edge] | 1 << edge for edge in into), 0))
    leaving = Counter(earlier for earlier, _ in edges)
    counts = {"edges": width(lists(ancestors)), "leaving": max(leaving.values())}
    if name.startswith("nasnet"):
        return counts
    last = max(index for index, op in enumerate(network.ops) if "Pool" in op.kind)
    before_pool = piece_problem(part(network, 0, last - 1))
    ties: tuple[Ties, Ties] = ("first", "sum")
    return counts | {
        f"pieces_{rule}": len(pieces(before_pool, clock=Budget(60).start(), ties=rule).pieces) for rule in ties
    }


def said(rows: Sequence[Row]) -> None:
    print("\nOther readings: edges side by side | edges that leave one vertex | pieces in front of the last pool.")
    for row in rows:
        if " " not in row["network"]:
            print(f"{row['network']}: " + " | ".join(map(str, readings(row["network"]).values())))


def row_of(name: str, seconds: float) -> Row:
    base, _, rest = name.partition(" ")
    problem = piece_problem(graph(base, weights=False))
    cpu = time.process_time()
    result = divided_pieces(problem, seconds=seconds) if rest else pieces(problem, clock=Budget(seconds).start())
    cpu = time.process_time() - cpu
    first = (
        result
        if rest
        else pieces(problem, clock=Budget(seconds).start(), ties="first")
        if len(problem.vertices) < 500
        else None
    )
    return {
        "network": name,
        "n": problem.layer_count,
        "w": layer_width(problem),
        "pieces_first": len(first.pieces) if first and first.refined else None,
        "pieces": len(result.pieces),
        "max_macs": result.max_macs,
        "bound_macs": result.bound_macs,
        "proven": result.proven,
        "ties_settled": result.refined,
        "states": result.states,
        "seconds": round(result.seconds, 4),
        "cpu_seconds": round(cpu, 4),
    }


def rows(options: Namespace) -> Iterator[Row]:
    for name in (paper["network"] for paper in PAPER.rows):
        if not options.quick or not name.startswith("nasnet"):
            yield row_of(name, options.seconds)


EXPERIMENT = Experiment(
    "pico_table4",
    rows,
    (
        *fields("network"),
        *beside(PAPER.of("n", "network"), itemgetter("n"), of="n"),
        *beside(PAPER.of("w", "network"), itemgetter("w"), of="w"),
        *beside(PAPER.of("pieces", "network"), itemgetter("pieces_first"), of="pieces by its ties"),
        *fields("pieces"),
        ("max C, bound (MMACs)", lambda row: f"{row['max_macs'] / 1e6:.3f}, {row['bound_macs'] / 1e6:.3f}"),
        ("proven", lambda row: ("yes" if row["proven"] else "no") + ("" if row["ties_settled"] else ", ties open")),
        ("time, paper", PAPER.of("time", "network")),
        ("ours (CPU)", "{seconds:.4f} s ({cpu_seconds:.4f} s)"),
        *fields("states"),
    ),
    key=("network",),
    quick="the small networks; the others as recorded",
    after=said,
    options={"--seconds": {"type": float, "default": 240.0, "help": "limit for each network"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
