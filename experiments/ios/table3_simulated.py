"""Table 3's batches 1, 32 and 128 of Inception V3, simulated: plans specialised to a batch, each priced at the others.

    python -m experiments.ios.table3_simulated [--quick]

Simulated device (experiments/ios/simulated.py), nothing measured: batch 128 is out of a small machine's reach. The
paper (V100, measured): the plan made for a batch is the fastest there; its figures are in an image that the text does
not repeat. Measured on this machine: table3.py beside this.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence

from downset.rewrites.rebatch import rebatch
from downset.stages.planners import STAGERS
from downset.stages.problem import Price, Stage
from downset.tuning.timer import block_problem, merge_families, renamed
from experiments.frame import Experiment, run
from experiments.ios.against import agreement
from experiments.ios.networks import NETWORKS, blocks_of, network, paper_units
from experiments.ios.simulated import price_of
from experiments.rows import Row

ios = STAGERS["ios"]

BATCHES = (1, 32, 128)


def plan_and_price(name: str, batch: int) -> tuple[list[Stage], Price]:
    """The cheapest stages of all blocks at this batch (r = 3, s = 8), and the price of any stage there."""
    graph = rebatch(network(name), batch)
    units = paper_units(graph)
    price = price_of(graph, units)
    families = merge_families(graph, units)
    stages: list[Stage] = []
    for block in blocks_of(graph, units):
        result = ios(
            block_problem(units, families, block), lambda stage, block=block: price(renamed([stage], block)[0])
        )
        stages += renamed(result.stages, block)
    return stages, price


def rows_of(name: str, batches: tuple[int, ...]) -> Iterator[Row]:
    plans = {batch: plan_and_price(name, batch) for batch in batches}
    for here in batches:
        seconds = {f"batch {of}": sum(map(plans[here][1], stages)) for of, (stages, _) in plans.items()}
        yield {"network": name, "on": f"batch {here}", "simulated_s": seconds}


def rows(options: Namespace) -> Iterator[Row]:
    return rows_of("squeezenet" if options.quick else "inception_v3", BATCHES)


def best(row: Row) -> str:
    """By the nanosecond; where others are as fast, the plan made for this batch."""
    return min(row["simulated_s"], key=lambda of: (round(row["simulated_s"][of] * 1e9), of != row["on"]))


def agrees(row: Row) -> str:
    return "yes" if best(row) == row["on"] else "no"


def others(row: Row) -> str:
    times = row["simulated_s"]
    return ", ".join(f"{taken / times[row['on']]:.3f}" for of, taken in times.items() if of != row["on"])


def said(rows: Sequence[Row]) -> None:
    print(f"{NETWORKS[rows[0]['network']]} (simulated, ms; row: where it runs, column: what it was made for)")
    every = all(agrees(row) == "yes" for row in rows)
    print(agreement("the plan made for a batch is the fastest there, or as fast", every, "simulated"))


EXPERIMENT = Experiment(
    "ios_table3_simulated",
    rows,
    (
        ("runs on", "{on}"),
        *((f"batch {of}", f"{{simulated_s[batch {of}]!m:.3f}}") for of in BATCHES),
        ("best", best),
        ("the paper's best", "{on}"),
        ("agrees", agrees),
        ("the others' over its own", others),
    ),
    quick="SqueezeNet; the committed table is left alone",
    after=said,
)

if __name__ == "__main__":
    run(EXPERIMENT)
