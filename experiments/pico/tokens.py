"""A vision transformer over devices: rows of tokens, by the row rule that strips have. Planned, and nothing is timed.

    python -m experiments.pico.tokens [--quick]

The network is that of `experiments.partial.tokens` (784 tokens, exported by PyTorch), the cluster eight Raspberry Pis
(`rpi_8`). A stage on several devices gives each of them rows of queries; keys and values need all rows, so each device
computes those of its stage for all tokens: that is what is redundant.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from downset import load, load_cluster, plan_pipeline
from experiments.frame import Experiment, fields, run
from experiments.partial.networks import export_network
from experiments.rows import Row


def rows(options: Namespace) -> Iterator[Row]:
    cluster = load_cluster("rpi_8")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vit.onnx"
        export_network("vision transformer", path)
        graph = load(path, folded=True)
        for method in ("single", "layerwise", "exact")[: 1 if options.quick else None]:
            plan = plan_pipeline(graph, cluster, method=method, work_limit=options.states)
            strips = [strip for stage in plan.stages for block in stage.blocks for strip in block.strips]
            yield {
                "method": method,
                "period_ms": round(1000 * plan.period_s, 1),
                "devices": [
                    len({strip.device for block in stage.blocks for strip in block.strips}) for stage in plan.stages
                ],
                "redundant": round(sum(one.redundant_macs for one in strips) / sum(one.macs for one in strips), 3),
                "memory_bytes": max(held.total_bytes for held in plan.memory),
                "proven": plan.evidence.proven,
            }


EXPERIMENT = Experiment(
    "pico_tokens",
    rows,
    (
        *fields("method"),
        ("period, ms", "{period_ms:.1f}"),
        ("devices of each stage", lambda row: ", ".join(map(str, row["devices"]))),
        ("redundant", "{redundant:.1%}"),
        ("most memory of a device, B", "{memory_bytes:,}"),
        *fields("proven"),
    ),
    key=("method",),
    quick="one device, nothing written",
    options={"--states": {"type": int, "default": 200_000, "help": "states that each search may look at"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
