"""Segments in strips compared with msf-CNN on the network whose figures it prints in full: bytes by share of
arithmetic.

    python -m experiments.partial.peers [--quick] [--work-limit CHOICES]

The network is msf-CNN's own MobileNet v2 0.35 at 144 x 144: a chain of 53 convolutions, no shortcuts, widths rounded
down. Bytes are *planned* and counted as it counts them: int8, no alignment, without the network's input and output.
Each row is the least peak of our front with at most as many more multiply-adds as its plan needs. Two things differ.
Its plans recompute rows and keep columns in a cache of its own runtime; ours keep or recompute rows, and cut rows of
the input out into a tensor that counts. Its persistent bytes are code; ours, which no row counts, are operators of the
file.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from downset.graph.core import Graph, Op, Tensor
from downset.graph.cost import macs
from downset.memory.liveness import order_problem, profile
from downset.partial.search import PartialLimits, partial_front
from experiments.frame import Experiment, printed, run
from experiments.rows import Row

PAPER = printed("msf_cnn_mobilenet_v2")
WIDTH = 0.35
BLOCKS = (
    (32, 16, 1, 1),
    (16, 24, 6, 2),
    (24, 24, 6, 1),
    (24, 32, 6, 2),
    (32, 32, 6, 1),
    (32, 32, 6, 1),
    (32, 64, 6, 2),
    (64, 64, 6, 1),
    (64, 64, 6, 1),
    (64, 64, 6, 1),
    (64, 96, 6, 1),
    (96, 96, 6, 1),
    (96, 96, 6, 1),
    (96, 160, 6, 2),
    (160, 160, 6, 1),
    (160, 160, 6, 1),
    (160, 320, 6, 1),
)
"""Channels in and out before the width is applied, expansion, stride: three convolutions each."""


def chain(image: int) -> Graph:
    """The network without values: it is planned only."""
    tensors = [Tensor("input", (1, 3, image, image), "int8", 3 * image * image)]
    ops: list[Op] = []

    def convolution(x: int, channels: int, reach: int, stride: int, group: int = 1) -> int:
        _, read, size, _ = tensors[x].shape
        output_size = (size + 2 * (reach // 2) - reach) // stride + 1
        weights = (channels, read // group, reach, reach)
        tensors.append(Tensor(f"w{len(ops)}", weights, "int8", channels * read // group * reach**2, "constant"))
        tensors.append(
            Tensor(
                f"t{len(ops)}", (1, channels, output_size, output_size), "int8", channels * output_size * output_size
            )
        )
        attrs = {"kernel_shape": [reach] * 2, "strides": [stride] * 2, "pads": [reach // 2] * 4, "group": group}
        ops.append(Op(f"conv{len(ops)}", "Conv", (x, len(tensors) - 2), (len(tensors) - 1,), attrs))
        return len(tensors) - 1

    x = convolution(0, int(32 * WIDTH), 3, 2)
    for read, width, expansion, stride in BLOCKS:
        wide = int(read * WIDTH) * expansion
        x = convolution(x, wide, 1, 1)
        x = convolution(x, wide, 3, stride, group=wide)
        x = convolution(x, int(width * WIDTH), 1, 1)
    x = convolution(x, int(1280 * WIDTH), 1, 1)
    return Graph("MobileNet v2 0.35", tuple(tensors), tuple(ops), (0,), (x,)).check()


def rows(options: Namespace) -> Iterator[Row]:
    graph = chain(48 if options.quick else 144)
    work_limit = min(options.work_limit, 500) if options.quick else options.work_limit
    limits = PartialLimits(1.0, work_limit=work_limit, time_limit_s=1200.0)
    front = partial_front(graph, memory="paper", limits=limits)
    whole = max(profile(order_problem(graph, "paper"), range(len(graph.ops))))
    for theirs in PAPER.rows:
        most = theirs["more_macs"] * macs(graph)
        plans = [plan for plan in front.plans if plan.price.extra_macs <= most]
        best = min(plans, key=lambda plan: (plan.price.peak_bytes, plan.cost))
        yield {
            "more_macs": theirs["more_macs"],
            "macs": macs(graph),
            "whole_bytes": whole,
            "planned_bytes": best.price.peak_bytes,
            "bound_bytes": front.bound_bytes,
            "our_more_macs": round(best.price.extra_macs / macs(graph), 4),
            "segments": [[part.first, part.stop, part.strips, len(part.recomputed)] for part in best.segments],
            "theirs_bytes": theirs["nbytes"],
            "theirs_measured_bytes": theirs["measured"],
        }


EXPERIMENT = Experiment(
    "partial_peers",
    rows,
    (
        ("more MACs at most", "{more_macs:.2%}"),
        ("ours, planned B", "{planned_bytes:,}"),
        ("lower bound", "{bound_bytes:,}"),
        ("more MACs", "{our_more_macs:.2%}"),
        ("msf-CNN, its analysis B", "{theirs_bytes:,}"),
        ("msf-CNN, measured B", "{theirs_measured_bytes:,}"),
    ),
    key=("more_macs",),
    quick="at 48 x 48 and 500 choices, nothing written",
    options={"--work-limit": {"type": int, "default": 80_000, "help": "choices that are priced at most"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
