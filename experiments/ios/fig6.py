"""Figure 6: the schedules side by side, throughput normalised to the best of each network.

    python -m experiments.ios.fig6 [--quick]

Simulated device here; the measured figure is `python -m experiments.ios.cpu` (and `gpu` where there is one). From the
paper's text, V100, batch 1: IOS-Both 1.1x to 1.5x over sequential on the four networks; greedy degrades SqueezeNet.
"""

from __future__ import annotations

import argparse
from typing import Any

from downset.stage_timer import block_problem, renamed
from downset.stages.greedy import greedy
from downset.stages.lazy import lazy
from experiments.ios.against import against
from experiments.ios.networks import NETWORKS
from experiments.ios.search import Priced
from experiments.rows import save_rows


def cost_of(name: str, method: str) -> float:
    priced = Priced(name)
    total = 0.0
    for block in priced.blocks:
        problem = block_problem(priced.units, priced.families, block)

        def price(stage: Any, block: tuple[int, ...] = block) -> float:
            return priced(renamed([stage], block)[0])

        if method == "sequential":
            # The same kernels one after another: no fork, no join.
            total += sum(priced.alone(unit) for unit in block)
        elif method == "greedy":
            total += greedy(problem, price).cost_s
        else:
            total += lazy(problem, price, strategy=method, budget=400).cost_s
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet and Inception")
    quick = parser.parse_args().quick
    methods = {
        "sequential": "sequential",
        "greedy": "greedy",
        "merge": "IOS-Merge",
        "parallel": "IOS-Parallel",
        "both": "IOS-Both",
    }
    print("Simulated device: throughput over the best, and latency in ms.")
    print("| network | " + " | ".join(methods.values()) + " | both over sequential |")
    print("|" + "---|" * (len(methods) + 2))
    rows = []
    for name in ("inception_v3", "squeezenet") if quick else NETWORKS:
        costs = {method: cost_of(name, method) for method in methods}
        best = min(costs.values())
        cells = [f"{best / cost:.2f} ({cost * 1e3:.3f})" for cost in costs.values()]
        print(
            f"| {NETWORKS[name]} | " + " | ".join(cells) + f" | {costs['sequential'] / costs['both']:.2f}x |",
            flush=True,
        )
        rows.append({"network": name, "simulated_s": costs})
    for row in rows:
        costs = row["simulated_s"]
        gain = costs["sequential"] / costs["both"]
        print(against(f"{NETWORKS[row['network']]}, both over sequential", (1.1, 1.5), gain, "simulated"))
    if not quick:
        save_rows("ios_fig6", rows)


if __name__ == "__main__":
    main()
