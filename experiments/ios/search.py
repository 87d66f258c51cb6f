"""How many stages must be timed: IOS's way, each different stage once, and `lazy`; and Figure 9, the limits r and s.

    python -m experiments.ios.search [--quick]

Simulated device (experiments/ios/simulated.py): counts do not depend on it for IOS's way; the others' do, a little.
IOS's way times every stage of every state anew in each block, up to the limits; `once`: stages that are equal up to
names once in the network; `lazy`: the default budget of 200. Cost: the simulated latency of the whole, in ms.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from downset.errors import LimitReached
from downset.stage_timer import block_problem, merge_families, renamed
from downset.stages.ios import ios
from downset.stages.lazy import lazy
from downset.stages.price import signature
from downset.stages.problem import Stage
from downset.stages.unit_graph import UnitGraph
from experiments.ios.against import against
from experiments.ios.networks import NETWORKS, blocks_of, network, paper_units
from experiments.ios.simulated import price_of
from experiments.rows import save_rows

PAPER_GAIN = {("inception_v3", 1, 8): 1.59, ("nasnet_large", 1, 8): 1.37}
"""By network, r and s."""


class Priced:
    """Prices of one network's stages, by signature; counts how many different ones were asked for."""

    def __init__(self, name: str) -> None:
        self.graph = network(name)
        self.units: UnitGraph = paper_units(self.graph)
        self.blocks = blocks_of(self.graph, self.units)
        self.families = merge_families(self.graph, self.units)
        self._price = price_of(self.graph, self.units)
        self.known: dict[str, float] = {}
        self._names: dict[Stage, str] = {}

    def name_of(self, stage: Stage) -> str:
        if stage not in self._names:
            self._names[stage] = signature(self.graph, self.units, stage)
        return self._names[stage]

    def alone(self, unit: int) -> float:
        return self(Stage(((unit,),)))

    def __call__(self, stage: Stage) -> float:
        name = self.name_of(stage)
        if name not in self.known:
            self.known[name] = self._price(stage)
        return self.known[name]


def full(name: str, max_ops: int, max_groups: int, strategy: str) -> tuple[float, int, int]:
    """(cost, stages that IOS times, different stages) by the whole dynamic programming."""
    priced = Priced(name)
    cost, asked = 0.0, 0
    for block in priced.blocks:
        problem = block_problem(priced.units, priced.families, block)
        found = ios(
            problem,
            lambda stage, block=block: priced(renamed([stage], block)[0]),
            max_ops=max_ops,
            max_groups=max_groups,
            strategy=strategy,
        )
        cost += found.cost_s
        asked += found.timings
    return cost, asked, len(priced.known)


def few(name: str, max_ops: int, max_groups: int, strategy: str, budget: int) -> tuple[float, float, int]:
    """(cost, bound, stages timed) by `lazy`, with one budget for the network."""
    priced = Priced(name)
    for unit in range(len(priced.units.units)):
        priced(Stage(((unit,),)))
    cost, bound = 0.0, 0.0
    wide = sum(len(block) > 1 for block in priced.blocks)
    for block in priced.blocks:
        left = max(0, budget - len(priced.known))
        found = lazy(
            block_problem(priced.units, priced.families, block),
            lambda stage, block=block: priced(renamed([stage], block)[0]),
            max_ops=max_ops,
            max_groups=max_groups,
            strategy=strategy,
            budget=-(-left // max(wide, 1)),
            free=lambda stage, block=block: priced.name_of(renamed([stage], block)[0]) in priced.known,
        )
        wide -= len(block) > 1
        cost += found.cost_s
        bound += found.bound_s
    return cost, bound, len(priced.known)


def sequential(name: str) -> float:
    priced = Priced(name)
    return sum(priced.alone(unit) for unit in range(len(priced.units.units)))


def row_of(name: str, max_ops: int, max_groups: int, strategy: str, *, whole: bool) -> dict[str, Any]:
    begin = time.perf_counter()
    row: dict[str, Any] = {"network": name, "max_ops": max_ops, "max_groups": max_groups, "strategy": strategy}
    cost, bound, used = few(name, max_ops, max_groups, strategy, 200)
    row["sequential_s"] = sequential(name)
    row |= {"lazy_cost_s": cost, "lazy_bound_s": bound, "lazy_timings": used, "lazy_s": time.perf_counter() - begin}
    if whole:
        try:
            begin = time.perf_counter()
            cost, asked, different = full(name, max_ops, max_groups, strategy)
            row |= {"full_cost_s": cost, "ios_timings": asked, "once": different, "full_s": time.perf_counter() - begin}
        except LimitReached as error:
            row["full"] = str(error)
    return row


def show(row: dict[str, Any], mark: str = "") -> None:
    whole = (
        f"{row['full_cost_s'] * 1e3:.3f} | {row['ios_timings']:,} | {row['once']:,} "
        f"| {row['lazy_cost_s'] / row['full_cost_s']:.4f}"
        if "full_cost_s" in row
        else "- | - | - | -"
    )
    print(
        f"| {NETWORKS[row['network']]}{mark} | {row['max_ops']} | {row['max_groups']} | {row['strategy']} | {whole} "
        f"| {row['lazy_cost_s'] * 1e3:.3f} | {row['lazy_bound_s'] * 1e3:.3f} | {row['lazy_timings']} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet and Inception at r = 1 and 3")
    quick = parser.parse_args().quick
    print("Simulated device; timings are counted.")
    print("| network | r | s | strategy | full cost, ms | IOS's timings | once | lazy / full | lazy | bound | timed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for name in NETWORKS:
        if quick and name not in ("squeezenet", "inception_v3"):
            continue
        for max_ops, max_groups in ((1, 8), (3, 8)) if quick else ((1, 8), (2, 8), (3, 8), (3, 3)):
            whole = not (name == "randwire_large" and max_ops > 1)
            rows.append(row_of(name, max_ops, max_groups, "parallel", whole=whole))
            show(rows[-1])
        rows.append(row_of(name, 3, 8, "both", whole=name != "randwire_large"))
        show(rows[-1])
    for row in rows:
        paper = PAPER_GAIN.get((row["network"], row["max_ops"], row["max_groups"]))
        if paper is not None:
            what = (
                f"Figure 9, {NETWORKS[row['network']]}, r = {row['max_ops']}, s = {row['max_groups']}, over sequential"
            )
            print(against(what, paper, row["sequential_s"] / row["lazy_cost_s"], "simulated"))
    if not quick:
        save_rows("ios_search", rows)


if __name__ == "__main__":
    main()
