"""The networks on this machine's CPU: every schedule against sequential execution of the same kernels (goal: >= 0.98x),
and with it Figure 6, the schedules side by side, and the paper's ResNet-50 (2-5 %).

    python -m experiments.ios.cpu [--quick] [--networks A,B] [--threads N]

Measured: interleaved rounds, medians. The paper's Figure 6 is of a V100: IOS 1.1x to 1.5x over sequential there.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from downset.run.device import open_device
from downset.stage import Limits, stage
from downset.staged import prepare
from experiments.ios.against import against
from experiments.rows import save_rows
from experiments.zoo import graph as zoo_graph

NAME = "ios_cpu"
ALL = ("squeezenet", "inception_v3", "randwire_large", "nasnet_large", "resnet50")
GOAL = 0.98
ROUNDS = 21


def row_of(name: str, threads: int | None, *, rounds: int, timings: int) -> dict[str, Any]:
    device = open_device("cpu", threads=threads)
    graph = prepare(zoo_graph(name))
    begin = time.perf_counter()
    result = stage(graph, device, limits=Limits(timings=timings), runs=rounds)
    return {
        "network": name,
        "device": device.name,
        "versions": device.versions,
        "batch": 1,
        "chosen": result.plan.evidence.method,
        "speedup": result.speedup,
        "why": result.why,
        "timings_used": result.timings_used,
        "bound_s": result.bound_s,
        "search_s": time.perf_counter() - begin,
        "candidates": [
            {
                "name": c.name,
                "p10_s": c.percentile(0.1),
                "p50_s": c.percentile(0.5),
                "p90_s": c.percentile(0.9),
                "stages": len(c.stages),
            }
            for c in result.candidates
        ],
    }


def show(row: dict[str, Any]) -> None:
    base = next(c["p50_s"] for c in row["candidates"] if c["name"] == "sequential")
    best = min(c["p50_s"] for c in row["candidates"])
    print(f"\n{row['network']} on {row['device']}: {row['timings_used']} stages timed in {row['search_s']:.0f} s")
    print("  schedule               p10      p50      p90 ms   speed-up  of the best (Figure 6)")
    for c in row["candidates"]:
        mark = " <- chosen" if c["name"] == row["chosen"] else ""
        print(
            f"  {c['name']:19} {c['p10_s'] * 1e3:8.2f} {c['p50_s'] * 1e3:8.2f} {c['p90_s'] * 1e3:8.2f}    "
            f"{base / c['p50_s']:5.2f}x     {best / c['p50_s']:.2f}{mark}"
        )
    if row["network"] == "resnet50":
        print("  " + against("ResNet-50 over sequential", (1.02, 1.05), row["speedup"], "measured, CPU"))
    met = "met" if row["speedup"] >= GOAL else "missed"
    print(f"  chosen {row['chosen']}: {row['speedup']:.2f}x of sequential, goal {GOAL}x {met}; {row['why']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="SqueezeNet, few rounds; the committed table is left alone"
    )
    parser.add_argument("--networks", default=",".join(ALL))
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    names = ["squeezenet"] if arguments.quick else arguments.networks.split(",")
    rows = []
    for name in names:
        rounds, timings = (5, 60) if arguments.quick else (ROUNDS, 200)
        rows.append(row_of(name, arguments.threads, rounds=rounds, timings=timings))
        show(rows[-1])
    if not arguments.quick:
        save_rows(NAME, rows, by=("network", "device", "batch"))


if __name__ == "__main__":
    main()
