"""Table 3: plans specialised to a batch size and to a device, each also run on the others.

    python -m experiments.ios.table3 [--quick] [--network inception_v3]

Measured on this machine's CPU: batch 1, 8 and 32, and 1 and 2 threads in place of the paper's two GPUs; each row is one
setting in which all plans take turns. The paper's statement, for batch 1, 32 and 128 and for a K80 and a V100: the plan
made for a batch or device is the fastest there (its figures are in an image that the text does not repeat). Batch 128
is simulated in table3_simulated.py beside this, and measured by gpu.py where there is a GPU (`--batches 128`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from downset import StageLimits, StagePlan, open_device, tune_stages
from downset.executor.arena import seeded_inputs
from downset.executor.stage_engine import stage_engine
from downset.stages.prepared import prepare
from experiments.frame import Experiment, fields, run
from experiments.ios.against import agreement
from experiments.rows import Row
from zoo import graph as zoo_graph


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
    return {name: median(times) for name, times in samples.items()}


def rows_of(name: str, graphs: dict[str, tuple[Any, int]], timings: int, rounds: int) -> Iterator[Row]:
    """One row a setting (graph and threads): a plan is made in each, then all are run in each. `chosen`: the method of
    each plan; `plans`: how many of them differ as schedules."""
    plans = {on: plan_of(graph, threads, timings, rounds) for on, (graph, threads) in graphs.items()}
    different = {(plan.variant, plan.barriers, plan.stages) for plan in plans.values()}
    for on, (graph, threads) in graphs.items():
        yield {
            "network": name,
            "on": on,
            "p50_s": run_all(graph, plans, threads, rounds),
            "chosen": {of: plan.evidence.method for of, plan in plans.items()},
            "plans": len(different),
        }


def rows(options: Namespace) -> Iterator[Row]:
    name, image = ("squeezenet", {"image": 96}) if options.quick else (options.network, {})
    batches, rounds, timings = ((1, 4), 3, 60) if options.quick else ((1, 8, 32), 9, 150)
    whole = zoo_graph(name, **image)
    graphs = {batch: prepare(whole, batch=batch) for batch in batches}
    yield from rows_of(name, {f"batch {batch}": (graph, 2) for batch, graph in graphs.items()}, timings, rounds)
    yield from rows_of(name, {f"{threads} thread(s)": (graphs[1], threads) for threads in (1, 2)}, timings, rounds)


def best(row: Row) -> str:
    return min(row["p50_s"], key=row["p50_s"].__getitem__)


def others(row: Row) -> str:
    times = row["p50_s"]
    return ", ".join(f"{taken / times[row['on']]:.2f}" for of, taken in times.items() if of != row["on"])


def times(row: Row) -> str:
    return ", ".join(f"{of} {taken * 1e3:.2f}" for of, taken in row["p50_s"].items())


def said(rows: Sequence[Row]) -> None:
    """Print a line for each network and each setting that is varied: batches with 2 threads, and threads at batch 1."""
    print("\nMeasured; a row says where all plans run, and what each was made for.")
    for network, settings in dict.fromkeys((row["network"], tuple(row["p50_s"])) for row in rows):
        of = [row for row in rows if (row["network"], tuple(row["p50_s"])) == (network, settings)]
        if "chosen" in of[0]:
            print("chosen: " + "; ".join(f"for {what} {method}" for what, method in of[0]["chosen"].items()))
        print(agreement("the plan made for a setting is the fastest there", own_is_best(of), "measured, CPU"))


def own_is_best(rows: Sequence[Row]) -> bool | None:
    """Whether each setting's own plan is the fastest there; None where all plans are one schedule, whose times differ
    by the machine's spread alone, or where rows do not say."""
    if any(row.get("plans", 1) == 1 for row in rows):
        return None
    return all(row["p50_s"][row["on"]] == min(row["p50_s"].values()) for row in rows)


EXPERIMENT = Experiment(
    "ios_table3",
    rows,
    (
        *fields("network"),
        ("runs on", "{on}"),
        ("made for, ms", times),
        ("best", best),
        ("the others' over its own", others),
    ),
    key=("network", "on"),
    quick="SqueezeNet, small images, batches 1 and 4; nothing is written",
    options={"--network": {"default": "inception_v3"}},
    after=said,
)

if __name__ == "__main__":
    run(EXPERIMENT)
