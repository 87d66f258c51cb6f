"""PICO's Table V: utilisation, redundancy and memory of each device of its heterogeneous cluster, by method.

    python -m experiments.pico.table5 [--quick]

Ours is analytic (computing time over the period; weights and activations in our own arena), by the paper's equations
and by resources; the paper's is measured on Raspberry Pis with PyTorch, whose memory includes its libraries: only the
order of methods can be compared there. Why the redundancy of EFL and OFL differs: `python -m
experiments.pico.redundancy`. Misprints of the paper's table: the second row called EFL of YOLOv2 is OFL; the text says
46.54, 12.08 and 7.64 % where the table has 36.54, 9.36 and 6.00, and 82.61 and 22.64 % for the fastest and slowest
device of CE on VGG16 where it has 82.13 and 17.33; "244 x 244" is 224. `exact` is ours.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import product

from downset import load_cluster, plan_pipeline
from downset.pipelines.accounting import COMM
from downset.pipelines.network import block_units
from experiments.frame import Experiment, fields, printed, ratio, run
from experiments.pico.setups import loads, network
from experiments.rows import Row

METHODS = {"coedge": "CE", "early_fused": "EFL", "optimal_fused": "OFL", "pico": "PICO", "exact": "-"}
PAPER = printed("pico_table5")
QUANTITIES = {
    "utilisation": ("utilisation %", 100.0),
    "redundancy": ("redundancy %", 100.0),
    "memory_bytes": ("memory MB", 1e-6),
}
"""Label, and factor of ours."""


def rows(options: Namespace) -> Iterator[Row]:
    cluster = load_cluster("pico_1mac")
    for name, comm in product(("vgg16",) if options.quick else ("vgg16", "yolov2"), COMM):
        model = network(name)
        for method in METHODS:
            plan = plan_pipeline(model, cluster, method=method, comm=comm, units=block_units(model))
            by_device = loads(plan)
            for quantity, (_, factor) in QUANTITIES.items():
                values = [round(device[quantity] * factor, 2) for device in by_device]
                row: Row = {"network": name, "comm": comm, "method": method, "quantity": quantity, "ours": values}
                row["ours_average"] = round(sum(values) / len(values), 2)
                paper = PAPER.figure("by_device", network=name, method=method, quantity=quantity)
                if paper is not None:
                    row["paper"] = paper
                    row["paper_average"] = PAPER.of("average", "network", "method", "quantity")(row)
                yield row


EXPERIMENT = Experiment(
    "pico_table5",
    rows,
    (
        *fields("network"),
        ("times", "{comm}"),
        ("method (paper)", lambda row: f"{row['method']} ({METHODS[row['method']]})"),
        ("quantity", lambda row: QUANTITIES[row["quantity"]][0]),
        ("by device, ours", "{ours}"),
        ("by device, paper", "{paper}"),
        ("average: paper", "{paper_average}"),
        ("ours", "{ours_average}"),
        ("ratio", lambda row: ratio(row.get("paper_average"), row["ours_average"])),
    ),
    key=("network", "comm", "method", "quantity"),
    quick="VGG16 only, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
