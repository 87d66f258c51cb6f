"""IOS's Table 2: blocks and operators of each network, and how many units the general patterns find in it.

    python -m experiments.ios.table2 [--quick]

Counted. The paper says 11, 3, 13 and 10 blocks; it counts what its code cuts apart, without stem and head.
"""

from __future__ import annotations

import argparse

from downset.stages.unit_graph import group_units
from experiments.ios.networks import NETWORKS, blocks_of, network, paper_units
from experiments.rows import save_rows

PAPER = {
    "inception_v3": (11, 119, "11 and stem and head"),
    "randwire_large": (3, 120, "3 of 32 nodes, one of 16, and stem and head"),
    "nasnet_large": (13, 374, "stem, 2 reducing stems, 18 cells, 3 reductions, head: 13 does not follow from it"),
    "squeezenet": (10, 50, "10 and stem and head"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same, in a second; nothing is written")
    quick = parser.parse_args().quick
    print(
        "| network | blocks: paper | ours | ratio | operators: paper | ours | ratio | units by patterns | blocks are |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for name, (blocks, operators, what) in PAPER.items():
        graph = network(name)
        units = paper_units(graph)
        ours, found = len(blocks_of(graph, units)), len(group_units(graph).units)
        print(
            f"| {NETWORKS[name]} | {blocks} | {ours} | {ours / blocks:.2f} | {operators} | {len(units.units)} "
            f"| {len(units.units) / operators:.2f} | {found} | {what} |"
        )
        rows.append({"network": name, "blocks": ours, "operators": len(units.units), "units_by_patterns": found})
    if not quick:
        save_rows("ios_table2", rows)


if __name__ == "__main__":
    main()
