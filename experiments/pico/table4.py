"""PICO's Table IV, partition into pieces: paper | ours.

    python -m experiments.pico.table4 [--quick] [--seconds 240]

n counts convolutions and pools, w is the most of them that are pairwise unordered (Dilworth); the paper's w looks
counted by hand. Two counts of pieces: by the paper's rule for ties (the first minimum, small pieces first), and ours
(least sum of redundant work, then most pieces). C for two strips. Times: wall clock and CPU of one run; the paper's on
an i9-10940X.

Known differences. SqueezeNet: 30 layers of no redundancy each are 30 pieces; how the paper got 29 is not said.
MobileNetV3: the squeeze-and-excitation layers are counted here as torchvision builds them (71). Inception V3: 38 (the
table) and 40 (the text) pieces cannot be reached under the paper's own chain constraint: where a block's input goes
through one 1x1 convolution into the Concat, the three lie in neighbouring pieces, so no block has more than two:
7 + 11 · 2 + 1 = 30; the three pieces of its Figure 11b need a tensor relayed past a piece. Its n leaves out the pools
inside the blocks, which are functions and not modules in torchvision.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from operator import itemgetter

from downset.graph.width import width
from downset.lattice import bits, lists
from downset.pipelines.pieces.divided import divided_pieces
from downset.pipelines.pieces.problem import PieceProblem, piece_problem
from downset.pipelines.pieces.search import pieces
from experiments.frame import Experiment, beside, fields, printed, run
from experiments.rows import Row
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


def row_of(name: str, seconds: float) -> Row:
    base, _, rest = name.partition(" ")
    problem = piece_problem(graph(base, weights=False))
    cpu = time.process_time()
    result = divided_pieces(problem, seconds=seconds) if rest else pieces(problem, seconds=seconds)
    cpu = time.process_time() - cpu
    first = result if rest else pieces(problem, seconds=seconds, ties="first") if len(problem.vertices) < 500 else None
    return {
        "network": name, "n": problem.layer_count, "w": layer_width(problem),
        "pieces_first": len(first.pieces) if first and first.refined else None, "pieces": len(result.pieces),
        "max_macs": result.max_macs, "bound_macs": result.bound_macs, "proven": result.proven,
        "ties_settled": result.refined, "states": result.states,
        "seconds": round(result.seconds, 4), "cpu_seconds": round(cpu, 4),
    }  # fmt: skip


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
    options={"--seconds": {"type": float, "default": 240.0, "help": "limit for each network"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
