"""How many stages must be timed: IOS's way, each different stage once, and `lazy`; and Figure 9, the limits r and s.

    python -m experiments.ios.search [--quick] [--networks A,B]

Simulated device (experiments/ios/simulated.py): counts do not depend on it for IOS's way; the others' do, a little.
IOS's way times every stage of every state again in each block, up to the limits; `once`: stages that are equal up to
names once in the network; `lazy`: the default budget of 200. Cost: the simulated latency of the whole, in ms. Of Figure
9 the paper's text gives two speed-ups and two search costs (r = 1, s = 8); its curves have no figures. IOS there is
IOS-Both: where nothing merges, as in RandWire and NASNet-A, that is the same search as without merging.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import cache

from downset.stages.planners import STAGERS
from downset.stages.price import signature
from downset.stages.problem import FoundStages, Stage
from downset.stages.unit_graph import UnitGraph
from downset.tuning.timer import block_problem, merge_families, renamed
from experiments.frame import NO_FIGURE, Experiment, fields, names_of, printed, run
from experiments.ios.against import against
from experiments.ios.networks import NETWORKS, blocks_of, network, paper_units
from experiments.ios.simulated import price_of
from experiments.rows import Row

ios = STAGERS["ios"]
lazy = STAGERS["lazy"]

PAPER = printed("ios_figure9")
LIMITS = ((1, 8), (2, 8), (3, 8), (1, 3), (2, 3), (3, 3))
"""r and s, the six pairs of Figure 9."""
BUDGET = 200


class Priced:
    """Prices of one network's stages, by signature; counts how many different ones were asked for."""

    def __init__(self, name: str) -> None:
        self.graph = network(name)
        self.units: UnitGraph = paper_units(self.graph)
        self.blocks = blocks_of(self.graph, self.units)
        self.families = merge_families(self.graph, self.units)
        self._price = price_of(self.graph, self.units)
        self.seconds_of: dict[str, float] = {}
        self._names: dict[tuple[int, ...] | Stage, str] = {}

    def name_of(self, stage: Stage) -> str:
        """The name by which `signature` tells stages apart, group by group: groups are few, stages made of them
        many."""
        if stage.merged:
            return self._name(stage, stage)
        return " ".join(sorted(self._name(group, Stage((group,))) for group in stage.groups))

    def _name(self, key: tuple[int, ...] | Stage, stage: Stage) -> str:
        if key not in self._names:
            self._names[key] = signature(self.graph, self.units, stage)
        return self._names[key]

    def alone(self, unit: int) -> float:
        return self(Stage(((unit,),)))

    def __call__(self, stage: Stage) -> float:
        name = self.name_of(stage)
        if name not in self.seconds_of:
            self.seconds_of[name] = self._price(stage)
        return self.seconds_of[name]


@cache
def full(name: str, max_ops: int, max_groups: int, strategy: str) -> tuple[float, int, int, float]:
    """(cost, stages that IOS times, different stages, seconds) by the whole dynamic programming."""
    begin = time.perf_counter()
    priced = Priced(name)
    if not priced.families and strategy == "both":  # nothing merges: the same search
        return full(name, max_ops, max_groups, "parallel")
    cost, asked = 0.0, 0
    for block in priced.blocks:
        problem = block_problem(priced.units, priced.families, block)
        result = ios(
            problem,
            lambda stage, block=block: priced(renamed([stage], block)[0]),
            max_ops=max_ops,
            max_groups=max_groups,
            strategy=strategy,
        )
        cost += result.cost_s
        asked += result.timings
    return cost, asked, len(priced.seconds_of), time.perf_counter() - begin


def few(name: str, max_ops: int, max_groups: int, strategy: str, budget: int = BUDGET) -> tuple[float, float, int]:
    """(cost, bound, stages timed) by `lazy`, with one budget for the network: shared evenly, and what blocks leave of
    their shares is shared again among those that are not proven."""
    priced = Priced(name)
    for unit in range(len(priced.units.units)):
        priced.alone(unit)
    best: dict[tuple[int, ...], FoundStages] = {}
    todo = list(priced.blocks)
    while todo:
        before = len(priced.seconds_of)
        for place, block in enumerate(todo):
            wide = sum(len(later) > 1 for later in todo[place:])
            result = lazy(
                block_problem(priced.units, priced.families, block),
                lambda stage, block=block: priced(renamed([stage], block)[0]),
                max_ops=max_ops,
                max_groups=max_groups,
                strategy=strategy,
                budget=-(-max(0, budget - len(priced.seconds_of)) // max(wide, 1)),
                free=lambda stage, block=block: priced.name_of(renamed([stage], block)[0]) in priced.seconds_of,
            )
            if block not in best or (result.cost_s, -result.bound_s) < (best[block].cost_s, -best[block].bound_s):
                best[block] = result
        spent = len(priced.seconds_of)
        todo = [block for block in todo if not best[block].proven] if before < spent < budget else []
    return (
        sum(one.cost_s for one in best.values()),
        sum(one.bound_s for one in best.values()),
        len(priced.seconds_of),
    )


def sequential(name: str) -> float:
    priced = Priced(name)
    return sum(priced.alone(unit) for unit in range(len(priced.units.units)))


def row_of(name: str, max_ops: int, max_groups: int, strategy: str) -> Row:
    row: Row = {"network": name, "max_ops": max_ops, "max_groups": max_groups, "strategy": strategy}
    row["sequential_s"] = sequential(name)
    begin = time.perf_counter()
    cost, bound, used = few(name, max_ops, max_groups, strategy)
    row |= {"lazy_cost_s": cost, "lazy_bound_s": bound, "lazy_timings": used, "lazy_s": time.perf_counter() - begin}
    cost, asked, different, seconds = full(name, max_ops, max_groups, strategy)
    return row | {"full_cost_s": cost, "ios_timings": asked, "once": different, "full_s": seconds}


def rows(options: Namespace) -> Iterator[Row]:
    for name in ("squeezenet", "inception_v3") if options.quick else options.networks:
        merges = bool(Priced(name).families)
        for max_ops, max_groups in ((1, 8), (3, 8)) if options.quick else LIMITS:
            for strategy in ("parallel", "both") if merges or (max_ops, max_groups) == (3, 8) else ("parallel",):
                yield row_of(name, max_ops, max_groups, strategy)


def beside_paper(rows: Sequence[Row]) -> None:
    """Figure 9: the paper's figures beside ours. Its search costs are of timing, ours of simulating."""
    print("\nSimulated device; timings are counted.")
    by_limits = {(row["network"], row["max_ops"], row["max_groups"]): row for row in rows}
    for (name, max_ops, max_groups), row in by_limits.items():  # IOS-Both where it is apart
        limits = {"network": name, "max_ops": max_ops, "max_groups": max_groups}
        what = f"{NETWORKS[name]}, r = {max_ops}, s = {max_groups}"
        gain, searched = PAPER.figure("gain", **limits), PAPER.figure("search_s", **limits)
        print(against(f"{what}, over sequential", gain, row["sequential_s"] / row["full_cost_s"], "simulated"))
        said = f"paper (V100, measured) within {searched:.0f} s" if searched else NO_FIGURE
        ours = f"ours (stages simulated, none timed) {row['full_s']:.1f} s | no ratio: other work"
        print(f"{what}, search: {said} | {ours}")


EXPERIMENT = Experiment(
    "ios_search",
    rows,
    (
        ("network", lambda row: NETWORKS[row["network"]]),
        ("r", "{max_ops}"),
        ("s", "{max_groups}"),
        *fields("strategy"),
        ("full cost, ms", "{full_cost_s!m:.3f}"),
        ("IOS's timings", "{ios_timings:,}"),
        *fields("once", spec=","),
        ("lazy / full", lambda row: f"{row['lazy_cost_s'] / row['full_cost_s']:.4f}"),
        ("lazy", "{lazy_cost_s!m:.3f}"),
        ("bound", "{lazy_bound_s!m:.3f}"),
        ("timed", "{lazy_timings}"),
    ),
    key=("network", "max_ops", "max_groups", "strategy"),
    quick="SqueezeNet and Inception at r = 1 and 3; nothing is written",
    options={"--networks": {"type": names_of(NETWORKS), "default": list(NETWORKS)}},
    after=beside_paper,
)

if __name__ == "__main__":
    run(EXPERIMENT)
