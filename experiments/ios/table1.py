"""IOS's Table 1: how many schedules there are of each network's widest block, with the endings of the published code
(restricted) and of the paper's definition (all). Concurrent stages only, no limits.

    python -m experiments.ios.table1 [--quick]

Everything is counted. The paper's figures are those of the published code, restricted; for all endings it has none.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from downset.graph.width import width
from downset.lattice import lists
from downset.stages.endings import stage_lattice
from experiments.ios.networks import NETWORKS, block_predecessors, blocks_of, network, paper_units
from experiments.rows import save_rows

BLOCKS = {"inception_v3": (10, 11), "randwire_large": (3,), "nasnet_large": (3, 10, 17), "squeezenet": (1, 3, 6, 8)}
PAPER = {
    "inception_v3": (11, 6, "2.6e4", "4.9e3", "3.8e6"),
    "randwire_large": (33, 8, "3.7e9", "1.2e6", "9.2e22"),
    "nasnet_large": (18, 8, "5.2e6", "3.1e5", "7.2e12"),
    "squeezenet": (6, 3, "2.2e2", "51", "1.3e2"),
}


def bound(count: int, wide: int) -> float:
    """C(n/d + 2, 2)^d, for n/d that need not be whole."""
    share = count / wide
    return ((share + 2) * (share + 1) / 2) ** wide


def schedules(lattice: Any) -> int:
    high, low = lattice.schedules()
    return int((high << 64) + low)


def row_of(name: str, block: int) -> dict[str, Any]:
    graph = network(name)
    units = paper_units(graph)
    predecessors = block_predecessors(units, blocks_of(graph, units)[block])
    row: dict[str, Any] = {"network": name, "block": block, "n": len(predecessors), "width": width(lists(predecessors))}
    row["bound"] = bound(row["n"], row["width"])
    for endings in ("ios", "all"):
        begin = time.perf_counter()
        lattice = stage_lattice(predecessors, endings=endings)
        row[f"pairs_{endings}"], row[f"schedules_{endings}"] = lattice.pairs(), schedules(lattice)
        row[f"seconds_{endings}"] = time.perf_counter() - begin
    begin = time.perf_counter()
    stage_lattice(predecessors, max_ops=1)
    row["seconds_r1"] = time.perf_counter() - begin
    return row


def shown(count: int) -> str:
    return f"{count:,}" if count < 4_000_000 else f"{count:.3e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet and Inception; the table is left alone")
    quick = parser.parse_args().quick
    columns = [f"{what}: paper | ours | ratio" for what in ("n", "width", "bound", "pairs", "schedules")]
    print("| network | " + " | ".join(columns) + " | pairs all | schedules all | s |")
    print("|" + "---|" * 19)
    rows = []
    for name, blocks in BLOCKS.items():
        if quick and name in ("randwire_large", "nasnet_large"):
            continue
        for block in blocks:
            row = row_of(name, block)
            rows.append(row)
            ours = (row["n"], row["width"], row["bound"], row["pairs_ios"], row["schedules_ios"])
            cells = [
                f"{paper} | {figure if isinstance(figure, str) else shown(figure)} | {count / float(paper):.2f}"
                for paper, figure, count in zip(
                    PAPER[name], (*ours[:2], f"{ours[2]:.4g}", *ours[3:]), ours, strict=True
                )
            ]
            print(
                f"| {NETWORKS[name]} [{block}] | " + " | ".join(cells) + f" | {row['pairs_all']:,} "
                f"| {shown(row['schedules_all'])} | {row['seconds_all']:.2f} (r=1: {row['seconds_r1']:.2f}) |",
                flush=True,
            )
    if not quick:
        save_rows("ios_table1", rows)


if __name__ == "__main__":
    main()
