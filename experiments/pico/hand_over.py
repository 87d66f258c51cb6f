"""Periods with leaders and by direct hand-over, on six networks and every cluster that comes along.

    python -m experiments.pico.hand_over [--quick] [--seconds 60] [--networks vgg16 ...] [--clusters pico_1mac ...]

Both by `exact`, by resources, in the same run and with the same time limit; analytic. `least baseline`: the least
period of the other methods on the same cluster. `--quick`: one network on one cluster, with the recorded rows of the
rest. Planning seconds are CPU seconds of one process. Recorded rows with a column `leaders` are from before plans with
leaders were searched by loads.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from downset import load_cluster, plan_pipeline
from downset.clusters.model import Cluster
from downset.errors import DownsetError
from downset.graph.core import Graph
from downset.pipelines.check import verify_pipeline
from downset.pipelines.planners import PIPELINERS
from experiments.rows import rest_of_rows, save_rows
from zoo import graph

NAME = "pico_hand_over"
NETWORKS: dict[str, dict[str, Any]] = {
    "vgg16": {"classifier": False},
    "yolov2": {"passthrough": False},
    "resnet34": {},
    "inception_v3": {},
    "squeezenet": {},
    "mobilenet_v3_large": {},
}
CLUSTERS = (
    "pico_1mac", "pico_2mac", "pico_4mac", "pico_1mac_cell", "pico_2mac_cell", "pico_4mac_cell", "rpi_8",
)  # fmt: skip
BY = ("network", "cluster")


def row(name: str, where: str, seconds: float) -> dict[str, Any]:
    network, cluster = graph(name, weights=False, **NETWORKS[name]), load_cluster(where)
    found: dict[str, Any] = {"network": name, "cluster": where, "limit_s": seconds}
    for topology in ("leader", "direct"):
        began = time.process_time()
        plan = plan_pipeline(network, cluster, topology=topology, time_limit_s=seconds)
        took = time.process_time() - began
        verify_pipeline(network, plan)
        found |= {
            f"{topology}_s": plan.period_s, f"{topology}_bound_s": plan.evidence.bound,
            f"{topology}_proven": plan.evidence.proven, f"{topology}_cpu_s": round(took, 2),
            f"{topology}_stopped": plan.stopped,
        }  # fmt: skip
    found["least_baseline_s"] = min(baseline_periods(network, cluster))
    return found


def baseline_periods(network: Graph, cluster: Cluster) -> list[float]:
    """Of the methods that have a plan."""
    found = []
    for method in PIPELINERS:
        if method != "exact":
            try:
                found.append(plan_pipeline(network, cluster, method=method, time_limit_s=10.0).period_s)
            except DownsetError:
                continue
    return found


def shown(row: dict[str, Any]) -> str:
    gap = row["direct_s"] / row["direct_bound_s"] - 1
    return (
        f"| {row['network']} | {row['cluster']} | {row['least_baseline_s']:.4f} | {row['leader_s']:.4f} "
        f"| {row['direct_s']:.4f} | {row['leader_s'] / row['direct_s']:.2f}x "
        f"| {'proven' if row['direct_proven'] else f'{gap:.0%}'} | {row['leader_cpu_s']} | {row['direct_cpu_s']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one row now, the rest as recorded")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each search")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=list(CLUSTERS))
    arguments = parser.parse_args()
    print(
        "| network | cluster | least baseline s | leader s | direct s | leader / direct | gap | CPU s | CPU s direct |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    pairs = [(name, where) for name in arguments.networks for where in arguments.clusters]
    rows = []
    for name, where in [("squeezenet", "pico_1mac")] if arguments.quick else pairs:
        rows.append(row(name, where, arguments.seconds))
        print(shown(rows[-1]), flush=True)
        if not arguments.quick:
            save_rows(NAME, rows, by=BY)
    if arguments.quick:
        print("\n".join(shown(one) for one in rest_of_rows(NAME, rows, by=BY)), "\nrecorded")


if __name__ == "__main__":
    main()
