"""IOS's Table 1: how many schedules there are of each network's widest block, with the endings of the published code
(restricted) and of the paper's definition (all). Concurrent stages only, no limits.

    python -m experiments.ios.table1 [--quick]

Everything is counted. The paper's figures are those of the published code, restricted; for all endings it has none.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from downset.budget import Budget
from downset.graph.width import width
from downset.lattice import lists
from downset.stages.endings import stage_lattice
from experiments.frame import Experiment, beside, fields, printed, run
from experiments.ios.networks import NETWORKS, block_predecessors, blocks_of, network, paper_units
from experiments.rows import Row

BLOCKS = {"inception_v3": (10, 11), "randwire_large": (3,), "nasnet_large": (3, 10, 17), "squeezenet": (1, 3, 6, 8)}
PAPER = printed("ios_table1")
SHOWN = {
    "n": ("n", ","),
    "width": ("width", ","),
    "bound": ("bound", ",.4g"),
    "pairs": ("pairs_ios", ",.7g"),
    "schedules": ("schedules_ios", ",.7g"),
}
"""By column of the paper: ours, and its format."""


def bound(count: int, wide: int) -> float:
    """C(n/d + 2, 2)^d, for n/d that need not be whole."""
    share = count / wide
    return ((share + 2) * (share + 1) / 2) ** wide


def schedules(lattice: Any) -> int:
    high, low = lattice.schedules()
    return int((high << 64) + low)


def row_of(name: str, block: int) -> Row:
    graph = network(name)
    units = paper_units(graph)
    predecessors = block_predecessors(units, blocks_of(graph, units)[block])
    row: Row = {"network": name, "block": block, "n": len(predecessors), "width": width(lists(predecessors))}
    row["bound"] = bound(row["n"], row["width"])
    for endings in ("ios", "all"):
        begin = time.perf_counter()
        lattice = stage_lattice(predecessors, clock=Budget(60.0).start(), endings=endings)
        row[f"pairs_{endings}"], row[f"schedules_{endings}"] = lattice.pairs(), schedules(lattice)
        row[f"seconds_{endings}"] = time.perf_counter() - begin
    begin = time.perf_counter()
    stage_lattice(predecessors, clock=Budget(60.0).start(), max_ops=1)
    row["seconds_r1"] = time.perf_counter() - begin
    return row


def rows(options: Namespace) -> Iterator[Row]:
    for name, blocks in BLOCKS.items():
        if not options.quick or name in ("inception_v3", "squeezenet"):
            yield from (row_of(name, block) for block in blocks)


EXPERIMENT = Experiment(
    "ios_table1",
    rows,
    (
        ("network", lambda row: f"{NETWORKS[row['network']]} [{row['block']}]"),
        *(
            column
            for paper, (ours, spec) in SHOWN.items()
            for column in beside(PAPER.of(paper, "network"), itemgetter(ours), spec, of=paper)
        ),
        *fields("pairs_all", "schedules_all", spec=",.7g"),
        ("s", "{seconds_all:.2f} (r=1: {seconds_r1:.2f})"),
    ),
    quick="SqueezeNet and Inception; the table is left alone",
)

if __name__ == "__main__":
    run(EXPERIMENT)
