"""Periods with leaders and by direct hand-over, on six networks and every built-in cluster.

    python -m experiments.pico.hand_over [--quick] [--seconds 60] [--networks vgg16,…] [--clusters pico_1mac,…]

Both by `exact`, by resources, in the same run and with the same time limit; analytic. `least baseline`: the least
period of the other methods on the same cluster. `--quick`: one network on one cluster, with the recorded rows of the
rest. Planning seconds are CPU seconds of one process.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator

from downset import load_cluster, plan_pipeline
from downset.clusters.model import Cluster
from downset.errors import DownsetError
from downset.graph.core import Graph
from downset.pipelines.check import verify_pipeline
from downset.pipelines.planners import PIPELINERS
from experiments.frame import Experiment, fields, names_of, run
from experiments.pico.compare import CLUSTERS, NETWORKS
from experiments.rows import Row
from zoo import graph


def row_of(name: str, where: str, seconds: float) -> Row:
    network, cluster = graph(name, weights=False, **NETWORKS[name]), load_cluster(where)
    result: Row = {"network": name, "cluster": where, "limit_s": seconds}
    for topology in ("leader", "direct"):
        began = time.process_time()
        plan = plan_pipeline(network, cluster, topology=topology, time_limit_s=seconds)
        took = time.process_time() - began
        verify_pipeline(network, plan)
        result |= {
            f"{topology}_s": plan.period_s,
            f"{topology}_bound_s": plan.evidence.bound,
            f"{topology}_proven": plan.evidence.proven,
            f"{topology}_cpu_s": round(took, 2),
            f"{topology}_stopped": plan.stopped,
        }
    result["least_baseline_s"] = min(baseline_periods(network, cluster))
    return result


def baseline_periods(network: Graph, cluster: Cluster) -> list[float]:
    """Periods of the methods that have a plan; `exhaustive` would use any limit up."""
    periods = []
    for method in PIPELINERS:
        if method != "exact":
            limit_s = 1.0 if method == "exhaustive" else 10.0
            try:
                periods.append(plan_pipeline(network, cluster, method=method, time_limit_s=limit_s).period_s)
            except DownsetError:
                continue
    return periods


def rows(options: Namespace) -> Iterator[Row]:
    pairs = [(name, where) for name in options.networks for where in options.clusters]
    for name, where in [("squeezenet", "pico_1mac")] if options.quick else pairs:
        yield row_of(name, where, options.seconds)


EXPERIMENT = Experiment(
    "pico_hand_over",
    rows,
    (
        *fields("network", "cluster"),
        *fields("least_baseline_s", "leader_s", "direct_s", spec=".4f"),
        ("leader / direct", lambda row: f"{row['leader_s'] / row['direct_s']:.2f}x"),
        ("gap", lambda row: "proven" if row["direct_proven"] else f"{row['direct_s'] / row['direct_bound_s'] - 1:.0%}"),
        ("CPU s", "{leader_cpu_s}"),
        ("CPU s direct", "{direct_cpu_s}"),
    ),
    key=("network", "cluster"),
    quick="one row now, the rest as recorded",
    options={
        "--seconds": {"type": float, "default": 60.0, "help": "limit for each search"},
        "--networks": {"type": names_of(NETWORKS), "default": list(NETWORKS)},
        "--clusters": {"type": names_of(CLUSTERS), "default": CLUSTERS},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
