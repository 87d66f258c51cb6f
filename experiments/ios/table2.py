"""IOS's Table 2: blocks and operators of each network, and how many units the general patterns find in it.

    python -m experiments.ios.table2 [--quick]

Counted. The paper says 11, 3, 13 and 10 blocks; it counts what its code cuts apart, without stem and head.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from operator import itemgetter

from downset.stages.unit_graph import group_units
from experiments.frame import Experiment, beside, fields, printed, run
from experiments.ios.networks import NETWORKS, blocks_of, network, paper_units
from experiments.rows import Row

PAPER = printed("ios_table2")


def rows(_options: Namespace) -> Iterator[Row]:
    for name in NETWORKS:
        graph = network(name)
        units = paper_units(graph)
        row: Row = {"network": name, "blocks": len(blocks_of(graph, units)), "operators": len(units.units)}
        yield row | {"units_by_patterns": len(group_units(graph).units)}


EXPERIMENT = Experiment(
    "ios_table2",
    rows,
    (
        ("network", lambda row: NETWORKS[row["network"]]),
        *beside(PAPER.of("blocks", "network"), itemgetter("blocks"), of="blocks"),
        *beside(PAPER.of("operators", "network"), itemgetter("operators"), of="operators"),
        *fields("units_by_patterns"),
        ("our blocks are", PAPER.of("ours", "network")),
    ),
)

if __name__ == "__main__":
    run(EXPERIMENT)
