"""Segments in strips compared with MCUNetV2's patches on MobileNet v2 1.0 at 224 x 224, int8: bytes counted as it
counts them.

    python -m experiments.partial.mcunet [--quick] [--work-limit CHOICES]

Bytes are *planned*: int8, no alignment, without the network's input and output, persistent bytes not counted. One row
for each share of arithmetic. Two things differ. Its depthwise convolutions run in place (1,372 kB are the input and the
output of the second expansion alone); ours do not. Its patches come decoded one by one; ours cut rows of the input out
into a tensor that counts. The model comes from ../shared/models; without it the recorded rows are printed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from downset import load
from downset.graph.cost import macs
from downset.memory.liveness import order_problem, profile
from downset.partial.search import PartialLimits, partial_front
from experiments.frame import Experiment, printed, run
from experiments.partial.micro import MODELS
from experiments.rows import Row

PAPER = printed("mcunetv2_mobilenet_v2")
MODEL = MODELS / "mobilenet_v2_1.0_224_rand_int8.tflite"
SHARES = (0.0, 0.1)


def rows(options: Namespace) -> Iterator[Row]:
    if not MODEL.exists():
        return
    graph = load(MODEL)
    limits = PartialLimits(max(SHARES), work_limit=500 if options.quick else options.work_limit, time_limit_s=1200.0)
    front = partial_front(graph, memory="paper", limits=limits)
    (theirs,) = PAPER.rows
    for share in SHARES:
        plans = [plan for plan in front.plans if plan.price.extra_macs <= share * macs(graph)]
        best = min(plans, key=lambda plan: (plan.price.peak_bytes, plan.cost))
        yield {
            "more_macs": share,
            "macs": macs(graph),
            "whole_bytes": max(profile(order_problem(graph, "paper"), range(len(graph.ops)))),
            "planned_bytes": best.price.peak_bytes,
            "bound_bytes": front.bound_bytes,
            "our_more_macs": round(best.price.extra_macs / macs(graph), 4),
            "segments": [[part.first, part.stop, part.strips, len(part.recomputed)] for part in best.segments],
            "theirs_whole_bytes": 1024 * theirs["whole"],
            "theirs_bytes": 1024 * theirs["patches"],
        }


EXPERIMENT = Experiment(
    "partial_mcunet",
    rows,
    (
        ("more MACs at most", "{more_macs:.2%}"),
        ("ours as it is, B", "{whole_bytes:,}"),
        ("ours, planned B", "{planned_bytes:,}"),
        ("lower bound", "{bound_bytes:,}"),
        ("more MACs", "{our_more_macs:.2%}"),
        ("MCUNetV2 layer by layer, B", "{theirs_whole_bytes:,}"),
        ("MCUNetV2 by patches, B", "{theirs_bytes:,}"),
    ),
    key=("more_macs",),
    quick="500 choices, nothing written",
    options={"--work-limit": {"type": int, "default": 5_000, "help": "choices that are priced at most"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
