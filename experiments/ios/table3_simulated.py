"""Table 3's batches 1, 32 and 128 of Inception V3, simulated: plans specialised to a batch, each priced at the others.

    python -m experiments.ios.table3_simulated [--quick]

Simulated device (experiments/ios/simulated.py), nothing measured: batch 128 is out of a small machine's reach. The
paper (V100, measured): the plan made for a batch is the fastest there; its figures are in an image that the text does
not repeat. Measured on this machine: table3.py beside this.
"""

from __future__ import annotations

import argparse
from typing import Any

from downset.rewrites.rebatch import rebatch
from downset.stages.ios import ios
from downset.stages.problem import Price, Stage
from downset.tuning.timer import block_problem, merge_families, renamed
from experiments.ios.against import agreement
from experiments.ios.networks import NETWORKS, blocks_of, network, paper_units
from experiments.ios.simulated import price_of
from experiments.rows import save_rows

NAME = "ios_table3_simulated"


def plan_and_price(name: str, batch: int) -> tuple[list[Stage], Price]:
    """The cheapest stages of all blocks at this batch (r = 3, s = 8), and the price of any stage there."""
    graph = rebatch(network(name), batch)
    units = paper_units(graph)
    price = price_of(graph, units)
    families = merge_families(graph, units)
    stages: list[Stage] = []
    for block in blocks_of(graph, units):
        found = ios(block_problem(units, families, block), lambda stage, block=block: price(renamed([stage], block)[0]))
        stages += renamed(found.stages, block)
    return stages, price


def rows_of(name: str, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    made = {batch: plan_and_price(name, batch) for batch in batches}
    return [
        {
            "network": name,
            "on": f"batch {here}",
            "simulated_s": {f"batch {of}": sum(map(made[here][1], stages)) for of, (stages, _) in made.items()},
        }
        for here in batches
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet; the committed table is left alone")
    quick = parser.parse_args().quick
    rows = rows_of("squeezenet" if quick else "inception_v3", (1, 32, 128))
    names = list(rows[0]["simulated_s"])
    print(f"{NETWORKS[rows[0]['network']]} (simulated, ms; row: where it runs, column: what it was made for)")
    print("| runs on | " + " | ".join(names) + " | best | the paper's best | agrees | the others' over its own |")
    print("|" + "---|" * (len(names) + 5))
    own_best = []
    for row in rows:
        times = {name: round(seconds * 1e9) for name, seconds in row["simulated_s"].items()}
        best = min(times, key=lambda name, times=times, here=row["on"]: (times[name], name != here))
        cells = [f"{nanoseconds / 1e6:.3f}" for nanoseconds in times.values()]
        own = row["simulated_s"][row["on"]]
        over = ", ".join(f"{taken / own:.3f}" for of, taken in row["simulated_s"].items() if of != row["on"])
        agrees = "yes" if best == row["on"] else "no"
        print("| " + " | ".join([row["on"], *cells, best, row["on"], agrees, over]) + " |")
        own_best.append(best == row["on"])
    print(agreement("the plan made for a batch is the fastest there, or as fast", all(own_best), "simulated"))
    if not quick:
        save_rows(NAME, rows)


if __name__ == "__main__":
    main()
