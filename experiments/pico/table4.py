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

import argparse
import time
from typing import Any

from downset.graph.width import width
from downset.lattice import bits, lists
from downset.pipelines.pieces.divided import divided_pieces
from downset.pipelines.pieces.problem import PieceProblem, piece_problem
from downset.pipelines.pieces.search import pieces
from experiments.rows import load_rows, save_rows
from zoo import graph

NAME = "pico_table4"
PAPER = {
    "vgg16": (19, 1, 19, "0.10 s"), "squeezenet1_0": (30, 2, 29, "0.14 s"), "resnet34": (38, 2, 21, "0.28 s"),
    "mobilenet_v3_large": (96, 3, 31, "0.79 s"), "inception_v3": (99, 4, 38, "3.01 s"),
    "nasnet_a_large": (570, 8, None, "> 5 h"), "nasnet_a_large in 8 parts": (570, 8, 34, "1.9 h"),
}  # fmt: skip


def layer_width(problem: PieceProblem) -> int:
    """The most layers that are pairwise unordered: Dilworth on the order of the layers alone."""
    number = {v: place for place, v in enumerate(v for v, layer in enumerate(problem.layers) if layer)}
    before: list[int] = []  # by vertex: the layers before it
    for mask in problem.predecessors:
        found = 0
        for earlier in bits(mask):
            found |= before[earlier] | (1 << number[earlier] if earlier in number else 0)
        before.append(found)
    return width(lists([before[v] for v in number]))


def row(name: str, seconds: float) -> dict[str, Any]:
    base, _, rest = name.partition(" ")
    problem = piece_problem(graph(base, weights=False))
    cpu = time.process_time()
    found = divided_pieces(problem, seconds=seconds) if rest else pieces(problem, seconds=seconds)
    cpu = time.process_time() - cpu
    first = found if rest else pieces(problem, seconds=seconds, ties="first") if len(problem.vertices) < 500 else None
    return {
        "network": name, "n": problem.layer_count, "w": layer_width(problem),
        "pieces_first": len(first.pieces) if first and first.refined else None, "pieces": len(found.pieces),
        "max_macs": found.max_macs, "bound_macs": found.bound_macs, "proven": found.proven,
        "ties_settled": found.refined, "states": found.states,
        "seconds": round(found.seconds, 4), "cpu_seconds": round(cpu, 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small networks; the others as recorded")
    parser.add_argument("--seconds", type=float, default=240.0, help="limit for each network")
    arguments = parser.parse_args()
    recorded = {found["network"]: found for found in load_rows(NAME)}
    print("| network | n paper, ours | w paper, ours | pieces paper, its ties, ours | max C, bound (MMACs) | proven "
          "| time paper, ours (CPU) | states |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    table = []
    for name, (layers, wide, count, duration) in PAPER.items():
        old = arguments.quick and name.startswith("nasnet")
        if old and name not in recorded:
            continue
        found = recorded[name] if old else row(name, arguments.seconds)
        table.append(found)
        print(
            f"| {name}{' (recorded)' if old else ''} | {layers}, {found['n']} | {wide}, {found['w']} "
            f"| {count or 'NaN'}, {found['pieces_first'] or '-'}, {found['pieces']} "
            f"| {found['max_macs'] / 1e6:.3f}, {found['bound_macs'] / 1e6:.3f} "
            f"| {'yes' if found['proven'] else 'no'}{'' if found['ties_settled'] else ', ties open'} "
            f"| {duration}, {found['seconds']:.4f} s ({found['cpu_seconds']:.4f} s) | {found['states']} |",
            flush=True,
        )
    if not arguments.quick:
        print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
