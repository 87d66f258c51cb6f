"""How long exact planning takes: networks of up to 40 cuts, eight and sixteen devices, every kind of network.

    python -m experiments.pico.speed [--quick] [--networks vgg16,…]

CPU seconds of this machine, measured, once each; periods are analytic. `search` is the compiled search for the least
load, prices of strips included where no earlier search of the network has made them, `plan` all of `exact` under its
usual limit of 10 s: also the other methods' plans that it compares itself with, on fewer devices for up to a second,
and schedules. Goal of the search: a second for at most eight devices at 40 cuts, five for sixteen of four types.
`pairs`: links whose rates differ from pair to pair, half to twice the cluster's, with eight distinct devices only.
`chain of 40` is synthetic: layers of 1 to 6 MMAC a row, kernels of 1, 3 and 5, 224 rows. `searched_s` is the least
load of one fused block a stage, which the search has proven; a plan below it has several blocks a stage, halo exchange
or tiles.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

from downset import load_cluster
from downset.budget import Budget
from downset.clusters.model import Cluster, Device, Link
from downset.pipelines.accounting import Accounting
from downset.pipelines.network import block_units, pipeline_units, split_problem
from downset.pipelines.planners import exact as plan_exact
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import SplitProblem, chain_problem
from downset.pipelines.set_search import ExactRequest, search_by_loads
from experiments.frame import Experiment, fields, names_of, run
from experiments.pico.setups import network
from experiments.rows import Row
from zoo import graph

CHAIN = "chain of 40"
NETWORKS = ("vgg16", "yolov2", "resnet34", "inception_v3", "mobilenet_v3_large", CHAIN)
SPEEDS = (2.2e9, 1.5e9, 1.2e9, 0.8e9)
KINDS = {
    "links": {"kind": "links", "overlap": False},
    "links, overlapping": {"kind": "links", "overlap": True},
    "links, full duplex": {"kind": "links", "overlap": True, "duplex": "full"},
    "pairs": {"kind": "links", "overlap": False},
    "pairs, overlapping": {"kind": "links", "overlap": True},
    "shared": {"kind": "shared", "overlap": True},
    "shared, no overlap": {"kind": "shared", "overlap": False},
}


def problem_of(name: str) -> SplitProblem:
    if name in ("vgg16", "yolov2"):
        built = network(name)
        return split_problem(built, block_units(built))
    if name != CHAIN:
        built = graph(name, weights=False)
        return split_problem(built, pipeline_units(built))
    random = Random(1)
    layers = [
        (
            random.randint(1, 6) * 10**6,
            random.choice([1, 3, 3, 5]),
            2 if unit in (5, 12, 20, 28) else 1,
            random.randint(4, 64) * 1000,
        )
        for unit in range(40)
    ]
    return chain_problem(layers, rows=224, row_bytes=2688)


def devices(name: str) -> tuple[Device, ...]:
    if name == "8 of 4 types":
        return tuple(Device(f"d{k}", SPEEDS[k // 2]) for k in range(8))
    if name == "8 distinct":
        return tuple(Device(f"d{k}", (0.8 + 0.2 * k) * 1e9) for k in range(8))
    return tuple(Device(f"d{k:02}", SPEEDS[k // 4]) for k in range(16))


def row_of(name: str, problem: SplitProblem, members: str, kind: str) -> Row:
    network = replace(load_cluster("pico_1mac").network, **KINDS[kind])
    if kind.startswith("pairs"):
        random = Random(5)
        pairs = list(combinations(range(len(devices(members))), 2))
        rates = [network.bytes_per_s * random.uniform(0.5, 2) for _ in pairs]
        network = replace(network, links=tuple(Link(p, rate, 0.0) for p, rate in zip(pairs, rates, strict=True)))
    cluster = Cluster(devices(members), network)
    begin = time.process_time()
    chain = PricedChain(problem)
    least = search_by_loads(ExactRequest(chain, cluster, Accounting()), Budget(60.0).start())
    assert least.finished
    searched = time.process_time()
    result = plan_exact(chain, cluster, clock=Budget().start())
    planned = time.process_time()
    assert result.judged is not None
    period = result.judged.period_s
    return {
        "network": name,
        "cuts": problem.cuts,
        "devices": members,
        "comm": "resources",
        "kind": kind,
        "period_s": period,
        "searched_s": least.period_s,
        "bound_s": result.bound_s,
        "proven": result.proven,
        "search_cpu_s": round(searched - begin, 3),
        "plan_cpu_s": round(planned - searched, 3),
    }


def rows(options: Namespace) -> Iterator[Row]:
    for name in ("vgg16",) if options.quick else options.networks:
        problem = problem_of(name)
        for members in ("8 of 4 types",) if options.quick else ("8 of 4 types", "8 distinct", "16 of 4 types"):
            for kind in KINDS:
                if not kind.startswith("pairs") or members == "8 distinct":
                    yield row_of(name, problem, members, kind)


def proof(row: Row) -> str:
    if row["proven"]:
        return "proven"
    gap = f"within {math.ceil((1 - row['bound_s'] / row['period_s']) * 1000) / 10} %"
    alone = row["period_s"] < row["searched_s"]
    return gap + (f" (one block a stage: {row['searched_s']:.4f}, proven)" if alone else "")


EXPERIMENT = Experiment(
    "pico_speed",
    rows,
    (
        *fields("network", "cuts", "devices", "kind"),
        *fields("period_s", spec=".4f"),
        ("proof", proof),
        *fields("search_cpu_s", "plan_cpu_s", spec=".2f"),
    ),
    key=("network", "devices", "kind"),
    quick="VGG16 on eight devices, nothing written",
    options={"--networks": {"type": names_of(NETWORKS), "default": NETWORKS}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
