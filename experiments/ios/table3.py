"""Table 3: plans specialised to a batch size and to a device, each also run on the others.

    python -m experiments.ios.table3 [--quick] [--network inception_v3]

Measured on this machine's CPU: batch 1, 8 and 32, and 1 and 2 threads in place of the paper's two GPUs; each row is one
setting in which all plans take turns. The paper's statement, for batch 1, 32 and 128 and for a K80 and a V100: the plan
made for a batch or device is the fastest there (its figures are in an image that the text does not repeat). Batch 128
is simulated in table3_simulated.py beside this, and measured by gpu.py where there is a GPU (`--batches 128`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from downset import StageLimits, StagePlan, open_device, tune_stages
from downset.executor.arena import seeded_inputs
from downset.executor.staged import stage_engine
from downset.stages.prepared import prepare
from experiments.ios.against import agreement
from experiments.rows import save_rows
from zoo import graph as zoo_graph

NAME = "ios_table3"
KEY = ("network", "on")


def plan_of(graph: Any, threads: int, timings: int, runs: int) -> StagePlan:
    return tune_stages(graph, open_device("cpu", threads=threads), limits=StageLimits(timings=timings), runs=runs).plan


def run_all(graph: Any, plans: dict[str, StagePlan], threads: int, rounds: int) -> dict[str, float]:
    """Median seconds of each plan on this graph and device, taking turns: whatever it was made for."""
    device = open_device("cpu", threads=threads)
    values = seeded_inputs(graph)
    engines = {name: stage_engine(graph, plan, device, values) for name, plan in plans.items()}
    samples: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            samples[name] += engine.time(1)
    for engine in engines.values():
        engine.close()
    return {name: median(found) for name, found in samples.items()}


def rows_of(name: str, graphs: dict[str, tuple[Any, int]], timings: int, rounds: int) -> list[dict[str, Any]]:
    """One row a setting (graph and threads): a plan is made in each, then all are run in each. `chosen`: the method of
    each plan; `plans`: how many of them differ as schedules."""
    plans = {on: plan_of(graph, threads, timings, rounds) for on, (graph, threads) in graphs.items()}
    different = {(plan.variant, plan.barriers, plan.stages) for plan in plans.values()}
    return [
        {
            "network": name,
            "on": on,
            "p50_s": run_all(graph, plans, threads, rounds),
            "chosen": {of: plan.evidence.method for of, plan in plans.items()},
            "plans": len(different),
        }
        for on, (graph, threads) in graphs.items()
    ]


def table(title: str, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0]["p50_s"])
    print(f"\n{title} (measured, ms; row: where it runs, column: what it was made for)")
    print("| runs on | " + " | ".join(names) + " | best | the others' over its own |")
    print("|" + "---|" * (len(names) + 3))
    for row in rows:
        times = row["p50_s"]
        best = min(times, key=times.__getitem__)
        over = ", ".join(f"{times[name] / times[row['on']]:.2f}" for name in names if name != row["on"])
        cells = " | ".join(f"{times[name] * 1e3:.2f}" for name in names)
        print(f"| {row['on']} | {cells} | {best} | {over} |")
    if "chosen" in rows[0]:
        print("chosen: " + "; ".join(f"for {of} {method}" for of, method in rows[0]["chosen"].items()))
    print(agreement("the plan made for a setting is the fastest there", own_is_best(rows), "measured, CPU"))


def own_is_best(rows: Sequence[dict[str, Any]]) -> bool | None:
    """Whether each setting's own plan is the fastest there; None where all plans are one schedule, whose times differ
    by the machine's spread alone, or where rows do not say."""
    if any(row.get("plans", 1) == 1 for row in rows):
        return None
    return all(row["p50_s"][row["on"]] == min(row["p50_s"].values()) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="SqueezeNet, small images, batches 1 and 4; nothing is written"
    )
    parser.add_argument("--network", default="inception_v3")
    arguments = parser.parse_args()
    name, options = ("squeezenet", {"image": 96}) if arguments.quick else (arguments.network, {})
    batches, rounds, timings = ((1, 4), 3, 60) if arguments.quick else ((1, 8, 32), 9, 150)
    whole = zoo_graph(name, **options)
    graphs = {batch: prepare(whole, batch=batch) for batch in batches}
    rows = rows_of(name, {f"batch {batch}": (graph, 2) for batch, graph in graphs.items()}, timings, rounds)
    table(f"{name}, 2 threads", rows)
    devices = rows_of(name, {f"{threads} thread(s)": (graphs[1], threads) for threads in (1, 2)}, timings, rounds)
    table(f"{name}, batch 1", devices)
    if not arguments.quick:
        save_rows(NAME, rows + devices, by=KEY)


if __name__ == "__main__":
    main()
