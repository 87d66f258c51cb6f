"""SERENITY's SwiftNet figures without the allocator, from the real file: paper | ours | ratio.

    python -m experiments.serenity.swiftnet [--quick]

SwiftNet HPD is ../shared/models/swiftnet_hpd_vwwc224_uint8.tflite, beside the checkout; without that file the recorded
rows are printed. Cell A is its operators 5 to 32. Two memory models, never mixed: `serenity` (a concatenation is a
view, partial sums accumulate in place: what the paper counts) and `live` (concatenations are materialised: what TFLite
executes).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from downset import load, plan_order
from downset.graph.core import Graph, Source
from downset.rewrites.concat.partition import concat_partition, partition_sites
from experiments.frame import Experiment, beside, fields, printed, run
from experiments.rows import Row

MODEL = Path(__file__).resolve().parents[3] / "shared" / "models" / "swiftnet_hpd_vwwc224_uint8.tflite"
CELLS = {"A": (5, 32), "B": (34, 56), "C": (58, 81)}
PAPER = printed("serenity_swiftnet")


def part(graph: Graph, first: int, last: int) -> Graph:
    """Operators first to last as a graph: what they read from before is its inputs, what is read later its outputs."""
    ops = graph.ops[first : last + 1]
    produced = {tensor for op in ops for tensor in op.outputs}
    read = {tensor for op in ops for tensor in op.inputs if tensor >= 0}
    later = {tensor for op in graph.ops[last + 1 :] for tensor in op.inputs} | set(graph.outputs)
    inputs = sorted(tensor for tensor in read - produced if graph.tensors[tensor].role == "activation")
    source = Source("built")
    return Graph(
        "cell", graph.tensors, ops, tuple(inputs), tuple(sorted(produced & later)), graph.constants, source
    ).check()


def rows(_options: Namespace) -> Iterator[Row]:
    if not MODEL.exists():
        return
    network = load(MODEL)
    cells = {name: part(network, *span) for name, span in CELLS.items()}
    for name, graph in {**cells, "whole": network}.items():
        rewritten = concat_partition(graph, partition_sites(graph, inexact=True), accumulate="sum", inexact=True)
        for memory in ("serenity", "live"):
            for method, what, subject in (
                ("file", "file order", graph),
                ("optimal", "order", graph),
                ("optimal", "order + rewriting", rewritten),
            ):
                order = plan_order(subject, method=method, memory=memory)
                yield {
                    "part": name,
                    "memory": memory,
                    "what": what,
                    "operators": len(subject.ops),
                    "paper": PAPER.figure(part=name, memory=memory, what=what),
                    "ours": order.peak_bytes,
                    "proven": order.evidence.proven,
                }


EXPERIMENT = Experiment(
    "serenity_swiftnet",
    rows,
    (
        *fields("part", "memory", "what", "operators"),
        *beside(itemgetter("paper"), itemgetter("ours")),
        *fields("proven"),
    ),
)

if __name__ == "__main__":
    run(EXPERIMENT)
