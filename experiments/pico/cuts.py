"""Periods of the exact planner on three chains of cuts of the same network: blocks, PICO's pieces, any downset.

    python -m experiments.pico.cuts [--quick] [--seconds 20]

Blocks: cuts where one tensor crosses. Pieces: Algorithm 1, each piece reading only the one before it. Downsets: every
cut of the pieces, and cuts inside them that relay what is read further on, charged with all bytes that cross (at most
`--most` in addition to those of the chain of pieces). All on the same cost model and cluster; analytic.
"""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections.abc import Iterator

from downset import load_cluster
from downset.budget import Budget
from downset.errors import InfeasibleError
from downset.pipelines.cuts import refined_cuts, thinned
from downset.pipelines.network import block_units, split_problem
from downset.pipelines.pieces import piece_problem, pieces
from downset.pipelines.plan import plan_pipeline
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from zoo import graph

CLUSTERS = (
    ("pico_1mac", "paper"),
    ("pico_1mac", "resources"),
    ("pico_4mac", "resources"),
    ("pico_1mac_cell", "resources"),
)

OPTIONS: dict[str, dict[str, int]] = {"yolov8n": {"image": 320}, "unet": {"image": 112}}
"""Networks with skips, of about one and two thousand million MACs."""


def chains(name: str, most: int, seconds: float) -> dict[str, tuple[tuple[int, ...], ...]]:
    network = graph(name, weights=False, **OPTIONS.get(name, {}))
    problem = piece_problem(network, halos_required=False)
    units = {"blocks": block_units(network)}
    parts = None
    with contextlib.suppress(InfeasibleError):  # networks with skips have no chain of pieces
        chain = pieces(problem, clock=Budget(seconds).start())
        units["pieces"], parts = chain.operators(problem), chain.pieces
    thin = thinned(problem, refined_cuts(problem, parts, state_limit=5000), most)
    return units | {"downsets": thin.units(problem)}


def rows_of(name: str, most: int, seconds: float) -> Iterator[Row]:
    network = graph(name, weights=False, **OPTIONS.get(name, {}))
    for chain, units in chains(name, most, seconds).items():
        problem = split_problem(network, units, halos_required=False)
        for where, comm in CLUSTERS:
            cluster = load_cluster(where)
            began = time.perf_counter()
            plan = plan_pipeline(problem, cluster, comm=comm, time_limit_s=seconds)
            yield {
                "network": name,
                "chain": chain,
                "units": len(units),
                "cluster": where,
                "comm": comm,
                "period_s": plan.period_s,
                "latency_s": plan.latency_s,
                "bound_s": plan.evidence.bound,
                "proven": plan.evidence.proven,
                "seconds": round(time.perf_counter() - began, 2),
            }


def rows(options: Namespace) -> Iterator[Row]:
    for name in () if options.quick else ("inception_v3", "nasnet_a_large", *OPTIONS):
        yield from rows_of(name, options.most, options.seconds)


EXPERIMENT = Experiment(
    "pico_cuts",
    rows,
    (
        *fields("network"),
        ("cluster", "{cluster}, {comm}"),
        *fields("chain", "units"),
        *fields("period_s", "bound_s", spec=".4f"),
        *fields("proven"),
        *fields("latency_s", spec=".3f"),
        ("planning s", "{seconds}"),
    ),
    key=("network", "chain", "cluster", "comm"),
    quick="print the recorded rows",
    options={
        "--seconds": {"type": float, "default": 20.0, "help": "limit for each search"},
        "--most": {"type": int, "default": 30, "help": "cuts in addition to those of the chain of pieces"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
