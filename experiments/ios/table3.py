"""Table 3: plans specialised to a batch size and to a device, each also run on the others.

    python -m experiments.ios.table3 [--quick] [--network inception_v3]

Measured on this machine's CPU: batch 1, 8 and 32, and 1 and 2 threads in place of the paper's two GPUs; each column is
one setting in which all plans take turns. The paper's statement, for batch 1, 32 and 128 and for a K80 and a V100: the
plan made for a batch or device is the fastest there. Batch 128 is simulated in table3_simulated.py beside this, and
measured by gpu.py where there is a GPU (`--batches 128`).
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from downset.plans import StagePlan
from downset.run.arena import seeded_inputs
from downset.run.device import open_device
from downset.stage import Limits, stage
from downset.staged import prepare, stage_engine
from experiments.rows import save_rows
from experiments.zoo import graph as zoo_graph

NAME = "ios_table3"


def plan_of(graph: Any, threads: int, timings: int, runs: int) -> StagePlan:
    return stage(graph, open_device("cpu", threads=threads), limits=Limits(timings=timings), runs=runs).plan


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


def table(title: str, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0]["p50_s"])
    print(f"\n{title} (measured, ms; row: where it runs, column: what it was made for)")
    print("| runs on | " + " | ".join(names) + " | best |")
    print("|" + "---|" * (len(names) + 2))
    for row in rows:
        times = row["p50_s"]
        best = min(times, key=times.__getitem__)
        print(f"| {row['on']} | " + " | ".join(f"{times[name] * 1e3:.2f}" for name in names) + f" | {best} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet, small images, batches 1 and 4")
    parser.add_argument("--network", default="inception_v3")
    arguments = parser.parse_args()
    name, options = ("squeezenet", {"image": 96}) if arguments.quick else (arguments.network, {})
    batches, rounds, timings = ((1, 4), 3, 60) if arguments.quick else ((1, 8, 32), 9, 150)
    whole = zoo_graph(name, **options)
    graphs = {batch: prepare(whole, batch=batch) for batch in batches}
    rows: list[dict[str, Any]] = []
    plans = {f"batch {batch}": plan_of(graph, 2, timings, rounds) for batch, graph in graphs.items()}
    for batch, graph in graphs.items():
        rows.append({"network": name, "on": f"batch {batch}", "p50_s": run_all(graph, plans, 2, rounds)})
    table(f"{name}, 2 threads", rows)
    plans = {f"{threads} thread(s)": plan_of(graphs[1], threads, timings, rounds) for threads in (1, 2)}
    devices = [{"network": name, "on": f"{t} thread(s)", "p50_s": run_all(graphs[1], plans, t, rounds)} for t in (1, 2)]
    table(f"{name}, batch 1", devices)
    if not arguments.quick:
        save_rows(NAME, rows + devices, by=("network", "on"))


if __name__ == "__main__":
    main()
