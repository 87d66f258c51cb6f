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

import argparse
from itertools import product
from typing import Any

from downset import load_cluster, plan_pipeline
from downset.pipelines.network import block_units
from downset.pipelines.paper_timing import COMM
from experiments.pico.setups import loads, network
from experiments.rows import save_rows

NAME = "pico_table5"
METHODS = {"coedge": "CE", "early_fused": "EFL", "optimal_fused": "OFL", "pico": "PICO", "exact": "-"}
# Utilisation in %, redundancy in %, memory in MB: of each device, then the average.
PAPER = {
    ("vgg16", "coedge"): (
        (80.87, 82.13, 69.37, 59.97, 57.91, 36.56, 23.11, 17.33, 53.40),
        (2.02, 1.93, 1.29, 2.06, 1.30, 1.41, 1.32, 0.77, 1.51),
        (195.0, 183.0, 162.0, 158.0, 147.0, 149.0, 134.0, 137.0, 158.1),
    ),
    ("vgg16", "early_fused"): (
        (32.43, 39.79, 72.58, 75.08, 94.23, 96.77, 64.09, 64.16, 67.39),
        (11.02, 11.60, 19.08, 19.83, 18.58, 19.22, 12.78, 13.42, 15.69),
        (142.0, 147.0, 169.0, 179.0, 173.0, 183.0, 151.0, 165.0, 163.6),
    ),
    ("vgg16", "optimal_fused"): (
        (38.90, 40.19, 60.87, 61.79, 85.34, 94.15, 76.54, 80.46, 67.28),
        (7.45, 7.67, 11.12, 11.39, 10.33, 10.53, 8.15, 8.31, 9.36),
        (149.0, 149.0, 158.0, 159.0, 154.0, 155.0, 151.0, 152.0, 153.4),
    ),
    ("vgg16", "pico"): (
        (91.21, 93.28, 83.12, 79.40, 47.63, 66.26, 68.17, 90.15, 77.40),
        (11.08, 10.97, 5.82, 3.83, 6.93, 5.55, 0.00, 3.83, 6.00),
        (189.0, 144.0, 121.0, 103.0, 92.0, 121.0, 115.0, 111.0, 124.5),
    ),
    ("yolov2", "coedge"): (
        (76.85, 75.46, 65.81, 66.94, 46.32, 46.77, 22.49, 20.21, 52.61),
        (0.82, 0.76, 0.87, 0.83, 0.79, 0.71, 0.68, 0.61, 0.75),
        (265.0, 260.0, 255.0, 246.0, 245.0, 240.0, 235.0, 239.0, 248.1),
    ),
    ("yolov2", "early_fused"): (
        (37.85, 35.64, 67.24, 67.61, 96.01, 95.28, 75.87, 72.81, 68.54),
        (27.09, 27.09, 45.08, 45.08, 44.68, 44.68, 29.29, 29.29, 36.54),
        (189.0, 178.0, 208.0, 208.0, 208.0, 207.0, 178.0, 178.0, 194.3),
    ),
    ("yolov2", "optimal_fused"): (
        (39.28, 37.03, 69.47, 68.92, 97.02, 95.99, 77.61, 73.94, 69.91),
        (25.98, 25.98, 44.51, 44.51, 44.86, 44.86, 28.12, 28.12, 35.86),
        (193.0, 182.0, 212.0, 212.0, 212.0, 211.0, 182.0, 182.0, 198.3),
    ),
    ("yolov2", "pico"): (
        (89.37, 97.91, 89.96, 97.85, 89.44, 99.40, 91.89, 89.03, 93.11),
        (6.95, 2.27, 1.25, 9.18, 9.18, 5.89, 6.13, 5.05, 5.73),
        (188.0, 135.0, 108.0, 116.0, 113.0, 122.0, 159.0, 157.0, 137.3),
    ),
}
_QUANTITIES = ("utilisation", "redundancy", "memory_bytes")


def rows(*, quick: bool) -> list[dict[str, Any]]:
    found = []
    cluster = load_cluster("pico_1mac")
    for name, comm in product(("vgg16",) if quick else ("vgg16", "yolov2"), COMM):
        model = network(name)
        for method in METHODS:
            plan = plan_pipeline(model, cluster, method=method, comm=comm, units=block_units(model))
            by_device = loads(plan)
            for quantity, factor in (("utilisation", 100.0), ("redundancy", 100.0), ("memory_bytes", 1e-6)):
                values = [round(device[quantity] * factor, 2) for device in by_device]
                row = {"network": name, "comm": comm, "method": method, "quantity": quantity, "ours": values}
                row["ours_average"] = round(sum(values) / len(values), 2)
                paper = PAPER.get((name, method))
                if paper is not None:
                    *row["paper"], row["paper_average"] = paper[_QUANTITIES.index(quantity)]
                found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="VGG16 only, nothing written")
    options = parser.parse_args()
    table = rows(quick=options.quick)
    print(
        "| network | times | method (paper) | quantity | by device, ours | by device, paper | average: paper | ours "
        "| ratio |"
    )
    print("|" + "---|" * 9)
    for row in table:
        paper = row.get("paper_average")
        ratio = f"{row['ours_average'] / paper:.2f}" if paper else ""
        unit = {"utilisation": "utilisation %", "redundancy": "redundancy %", "memory_bytes": "memory MB"}[
            row["quantity"]
        ]
        print(
            f"| {row['network']} | {row['comm']} | {row['method']} ({METHODS[row['method']]}) | {unit} | {row['ours']} "
            f"| {row.get('paper', '')} | {paper or ''} | {row['ours_average']} | {ratio} |"
        )
    if not options.quick:
        print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
