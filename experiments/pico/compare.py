"""Every method on six networks and all built-in clusters, by resources: nothing is below `exact`.

    python -m experiments.pico.compare [--quick] [--networks vgg16,…] [--clusters pico_1mac,…]

Analytic periods in seconds, what `downset split MODEL --cluster CLUSTER --compare` prints; each plan's schedule has
that period. `bound` holds for the plans that `exact` searches. A run writes its own rows and keeps the others; `before`
is the period of `exact` in the row that was recorded first. Networks with skips have more columns: `exact` with direct
hand-over, at the cluster's prices and at those of connections between the devices (`setups.connected`).
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import median
from typing import Any

from downset import load_cluster, plan_pipeline
from downset.graph.core import Graph
from downset.pipelines.check import verify_pipeline
from downset.pipelines.planners import PIPELINERS
from experiments.frame import Experiment, fields, names_of, run
from experiments.pico.setups import connected
from experiments.rows import Row, load_rows
from zoo import graph

NETWORKS: dict[str, dict[str, Any]] = {
    "vgg16": {"classifier": False},
    "yolov2": {"passthrough": False},
    "resnet34": {},
    "squeezenet": {},
    "mobilenet_v3_large": {},
    "inception_v3": {},
}
SKIPS: dict[str, dict[str, Any]] = {
    "yolov8n": {"image": 320},
    "yolov8n_linear": {"image": 320, "silu": False},
    "unet": {"image": 112},
    "unet_centres": {"image": 112, "corners": False},
}
"""Networks of about one and two thousand million MACs without a chain of pieces. The second U-Net enlarges its maps
from the centres of pixels, not from their corners: a row then needs some rows of the map before, and not all. The
second YOLOv8n is without its activations: the network that the goals were set by."""
_VARIANTS = {"unet_centres": "unet", "yolov8n_linear": "yolov8n"}
LARGE: dict[str, dict[str, Any]] = {"pnasnet_large": {}, "nasnet_large": {}}
"""Networks whose chain takes minutes to find: only with `--networks`."""
EXHAUSTIVE_S = 1.0
"""It would use any limit up."""
CLUSTERS = ("pico_1mac", "pico_2mac", "pico_4mac", "pico_1mac_cell", "pico_2mac_cell", "pico_4mac_cell", "rpi_8")


def row_of(network: str, cluster: str, seconds: float) -> Row:
    model = graph(_VARIANTS.get(network, network), weights=False, **(NETWORKS | SKIPS | LARGE)[network])
    before = next(
        (row for row in load_rows("pico_compare") if (row["network"], row["cluster"]) == (network, cluster)), {}
    )
    plans = {}
    for method in PIPELINERS:
        limit_s = min(seconds, EXHAUSTIVE_S) if method == "exhaustive" else seconds
        plans[method] = plan_pipeline(model, load_cluster(cluster), method=method, time_limit_s=limit_s)
    periods, exact = {method: plan.period_s for method, plan in plans.items()}, plans["exact"]
    assert min(periods.values()) >= exact.period_s * (1 - 1e-9), (network, cluster, periods)
    return {
        "network": network,
        "cluster": cluster,
        "time_limit_s": seconds,
        "bound_s": exact.evidence.bound,
        "proven": exact.evidence.proven,
        "over_pico": round(periods["pico"] / exact.period_s, 3),
        "over_single": round(periods["single"] / exact.period_s, 3),
        **{method: round(period, 5) for method, period in periods.items()},
        "before": before.get("before", before.get("exact")),
        **{key: before[key] for key in ("direct_before",) if key in before},
        **(direct_of(model, cluster, seconds) if network in SKIPS else {}),
    }


def direct_of(model: Graph, cluster: str, seconds: float) -> Row:
    """Periods with direct hand-over, with bound, gain over one device and CPU seconds."""
    row: Row = {}
    for prices, priced in (("direct", load_cluster(cluster)), ("connected", connected(load_cluster(cluster)))):
        began = time.process_time()
        plan = plan_pipeline(model, priced, topology="direct", time_limit_s=seconds)
        took = time.process_time() - began
        alone = plan_pipeline(model, priced, method="single")
        verify_pipeline(model, plan)
        row |= {
            prices: round(plan.period_s, 5),
            f"{prices}_bound_s": plan.evidence.bound,
            f"{prices}_over_single": round(alone.period_s / plan.period_s, 3),
            f"{prices}_cpu_s": round(took, 1),
        }
    return row


def medians(rows: Sequence[Row]) -> None:
    """Ratios by cluster, with the median over networks."""
    networks = [name for name in NETWORKS | SKIPS | LARGE if any(row["network"] == name for row in rows)]
    print("\n| cluster | " + " | ".join(networks) + " | median |\n|" + "---|" * (len(networks) + 2))
    for cluster in CLUSTERS:
        own = {row["network"]: row for row in rows if row["cluster"] == cluster}
        if own:
            cells = [f"{own[n]['over_pico']:.2f} / {own[n]['over_single']:.2f}" if n in own else "" for n in networks]
            both = [median(row[key] for row in own.values()) for key in ("over_pico", "over_single")]
            print(f"| {cluster} | " + " | ".join(cells) + f" | {both[0]:.2f} / {both[1]:.2f} |")
    print("\nPeriods of `pico` and of the fastest device alone over `exact`'s.")


def rows(options: Namespace) -> Iterator[Row]:
    networks = ["squeezenet"] if options.quick else options.networks
    clusters = CLUSTERS[:4:3] if options.quick else options.clusters
    return (row_of(network, cluster, options.limit) for network, cluster in product(networks, clusters))


EXPERIMENT = Experiment(
    "pico_compare",
    rows,
    (
        *fields("network", "cluster", "proven"),
        *fields("bound_s", spec=".5f"),
        *fields(*PIPELINERS, "before", "direct", "connected"),
    ),
    key=("network", "cluster"),
    quick="one network on two clusters, nothing written",
    options={
        "--networks": {"type": names_of(NETWORKS | SKIPS | LARGE), "default": list(NETWORKS)},
        "--clusters": {"type": names_of(CLUSTERS), "default": CLUSTERS},
        "--limit": {"type": float, "default": 10.0, "help": "seconds for each search"},
    },
    after=medians,
)

if __name__ == "__main__":
    run(EXPERIMENT)
