"""Figure 6: the schedules side by side, throughput normalised to the best of each network.

    python -m experiments.ios.fig6 [--quick]

Simulated device here, schedules by the whole dynamic programming at r = 3 and s = 8; the measured figure is
`python -m experiments.ios.cpu` (and `gpu` where there is one). Of Figure 6 (V100, batch 1) the paper's text has
orderings only: IOS-Both is the fastest on every network, greedy degrades SqueezeNet. Its 1.1x to 1.5x over sequential
are of Figure 14, the same on an RTX 2080Ti.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from downset.stages.greedy import greedy
from downset.tuning.timer import block_problem, renamed
from experiments.ios.against import BOTH_OVER_SEQUENTIAL, RTX_2080TI, against, agreement
from experiments.ios.networks import NETWORKS
from experiments.ios.search import Priced, full, sequential
from experiments.rows import save_rows

EQUAL = 1e-4
"""Costs are rounded to the nanosecond stage by stage: equal schedules differ by less than this share."""
MEASURED = {
    "sequential": ("sequential",),
    "greedy": ("greedy",),
    "merge": ("merge",),
    "parallel": ("parallel, barriers", "parallel"),
    "both": ("both, barriers", "both"),
}
"""The paper's schedules among ours: with its barriers where the same was timed with and without."""
Statement = tuple[str, bool | None]


def statements(name: str, costs: Mapping[str, float]) -> list[Statement]:
    """What the paper's text says of Figure 6 for this network, and whether these costs agree; None where a schedule
    that the statement is about is not among them."""

    def holds(wanted: Sequence[str], told: Callable[..., bool]) -> bool | None:
        return told(*(costs[method] for method in wanted)) if all(method in costs for method in wanted) else None

    found: list[Statement] = [
        (
            "IOS-Both is the fastest of the five schedules, or as fast",
            holds(
                ("both", "sequential", "greedy", "merge", "parallel"),
                lambda both, *others: both <= min(others) * (1 + EQUAL),
            ),
        )
    ]
    if name == "squeezenet":
        found.append(
            ("greedy is slower than sequential", holds(("greedy", "sequential"), lambda greedy, alone: greedy > alone))
        )
    if name in ("randwire_large", "nasnet_large"):
        found += [
            ("greedy does well (faster than sequential)", holds(("greedy", "sequential"), lambda g, alone: g < alone)),
            ("IOS-Merge is sequential", holds(("merge", "sequential"), _equal)),
            ("IOS-Both is IOS-Parallel", holds(("both", "parallel"), _equal)),
        ]
    return found


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= EQUAL * other


def show_against(row: dict[str, Any], gain: float, how: str) -> None:
    """The paper's figures and orderings beside measured candidates, at batch 1. `gain`: chosen over sequential."""
    name = row["network"]
    if name not in NETWORKS or row["batch"] != 1:
        return
    seconds = {candidate["name"]: candidate["p50_s"] for candidate in row["candidates"]}
    known = {
        method: next(seconds[ours] for ours in names if ours in seconds)
        for method, names in MEASURED.items()
        if any(ours in seconds for ours in names)
    }
    print("  " + against("Figure 6, chosen over sequential", None, gain, how))
    print("  " + against("Figure 14, the same", BOTH_OVER_SEQUENTIAL, gain, how, where=RTX_2080TI))
    if name == "inception_v3":
        print("  " + against("Appendix C, the same", 1.6, gain, how))
    for statement, ours in statements(name, known):
        print("  " + agreement(statement, ours, how))


def cost_of(name: str, method: str) -> float:
    if method == "sequential":
        return sequential(name)
    if method != "greedy":
        return full(name, 3, 8, method)[0]
    priced = Priced(name)
    total = 0.0
    for block in priced.blocks:
        problem = block_problem(priced.units, priced.families, block)
        total += greedy(problem, lambda stage, block=block: priced(renamed([stage], block)[0])).cost_s
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet and Inception; nothing is written")
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
        costs, title = row["simulated_s"], NETWORKS[row["network"]]
        gain = costs["sequential"] / costs["both"]
        print(against(f"Figure 6, {title}, both over sequential", None, gain, "simulated"))
        print(against(f"Figure 14, {title}, the same", BOTH_OVER_SEQUENTIAL, gain, "simulated V100", where=RTX_2080TI))
        if row["network"] == "inception_v3":
            print(against(f"Appendix C, {title}, end to end", 1.6, gain, "simulated"))
        for statement, ours in statements(row["network"], costs):
            print(f"{title}, " + agreement(statement, ours, "simulated"))
    if not quick:
        save_rows("ios_fig6", rows)


if __name__ == "__main__":
    main()
