"""Figure 10: the last Inception block at batch 1 and 32, and the merge of its 3x1 and 1x3 convolutions.

    python -m experiments.ios.fig10 [--quick]

Simulated device. The paper (V100): two stages at batch 1, four at batch 32, where two convolutions of one input are
merged; the plan of batch 1 is 28 % faster than the other at batch 1, that of batch 32 8 % faster at batch 32. Merging a
1x3 and a 3x1 kernel into 3x3 triples the multiply-adds: what may pay are the input, read once, and launches.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from downset.rewrites.merge.convolutions import merged_macs
from downset.rewrites.rebatch import rebatch
from downset.stages.planners import STAGERS
from downset.stages.problem import Stage
from downset.tuning.timer import block_problem, merge_families
from experiments.frame import Experiment, printed, run
from experiments.ios.against import against
from experiments.ios.networks import blocks_of, network, paper_units
from experiments.ios.simulated import price_of
from experiments.rows import Row

ios = STAGERS["ios"]

PAPER = printed("ios_figure10")


def label(graph: Any, units: Any, block: tuple[int, ...], unit: int) -> str:
    op = graph.ops[units.units[block[unit]][0]]
    shape = op.attrs.get("kernel_shape")
    kernel = "x".join(map(str, shape)) if shape else ""
    outputs = graph.tensors[op.outputs[0]].shape[1]
    return f"{op.kind.lower()}{kernel}:{outputs}"


def local_price(batch: int) -> tuple[Any, Any, tuple[int, ...], Any]:
    graph = rebatch(network("inception_v3"), batch)
    units = paper_units(graph)
    block = blocks_of(graph, units)[11]
    price = price_of(graph, units)

    def local(stage: Stage) -> float:
        return price(Stage(tuple(tuple(block[unit] for unit in group) for group in stage.groups), stage.merged))

    return graph, units, block, local


def cost_at(batch: int, stages: tuple[Stage, ...]) -> float:
    *_, local = local_price(batch)
    return sum(local(stage) for stage in stages)


def row_of(batch: int) -> tuple[Row, tuple[Stage, ...]]:
    graph, units, block, local = local_price(batch)
    problem = block_problem(units, merge_families(graph, units), block)
    result = ios(problem, local)
    alone = sum(local(Stage(((unit,),))) for unit in range(len(block)))
    shown = [
        ("merged " if stage.merged else "")
        + " || ".join(" > ".join(label(graph, units, block, unit) for unit in group) for group in stage.groups)
        for stage in result.stages
    ]
    return {"batch": batch, "sequential_s": alone, "cost_s": result.cost_s, "stages": shown}, result.stages


def rows(_options: Namespace) -> Iterator[Row]:
    plans = {batch: row_of(batch) for batch in (1, 32)}
    for batch, other in ((1, 32), (32, 1)):
        yield plans[batch][0] | {"other_plan_s": cost_at(batch, plans[other][1])}


def lines(row: Row, mark: str) -> Iterator[str]:
    batch, gain = row["batch"], row["sequential_s"] / row["cost_s"]
    yield f"\nbatch {batch} (simulated){mark}: {row['cost_s'] * 1e6:.1f} us, {gain:.2f}x of sequential"
    yield from (f"  stage {number}: {stage}" for number, stage in enumerate(row["stages"]))
    computing = [stage for stage in row["stages"] if not stage.startswith("concat")]  # free in the paper
    what = "stages without the concatenation's"
    yield "  " + against(what, PAPER.figure("stages", batch=batch), len(computing), "simulated", spec=",")
    own = row["other_plan_s"] / row["cost_s"]
    paper = PAPER.figure("own_over_other", batch=batch)
    yield "  " + against("own plan over the other batch's, times faster", paper, own, "simulated")


def merge(_rows: Sequence[Row]) -> None:
    graph = network("inception_v3")
    units = paper_units(graph)
    pair = [
        index
        for unit in blocks_of(graph, units)[11]
        for index in units.units[unit]
        if graph.ops[index].kind == "Conv" and sorted(graph.ops[index].attrs["kernel_shape"]) == [1, 3]
    ]
    same = [index for index in pair if graph.ops[index].inputs[0] == graph.ops[pair[0]].inputs[0]]
    before, after = merged_macs(graph, same)
    print(f"\n1x3 and 3x1 on one input: {before:,} multiply-adds apart, {after:,} merged into 3x3")


EXPERIMENT = Experiment("ios_fig10", rows, lines=lines, after=merge)

if __name__ == "__main__":
    run(EXPERIMENT)
