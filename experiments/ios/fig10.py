"""Figure 10: the last Inception block at batch 1 and 32, and the merge of its 3x1 and 1x3 convolutions.

    python -m experiments.ios.fig10 [--quick]

Simulated device. The paper (V100): two stages at batch 1, four at batch 32, where two convolutions of one input are
merged; the plan of batch 1 is 28 % faster than the other at batch 1, that of batch 32 8 % faster at batch 32. Merging a
1x3 and a 3x1 kernel into 3x3 triples the multiply-adds: what may pay are the input, read once, and launches.
"""

from __future__ import annotations

import argparse
from typing import Any

from downset.rewrites.merge.convolutions import merged_macs
from downset.rewrites.rebatch import rebatch
from downset.stages.ios import ios
from downset.stages.problem import Stage
from downset.tuning.timer import block_problem, merge_families
from experiments.ios.against import against
from experiments.ios.networks import blocks_of, network, paper_units
from experiments.ios.simulated import price_of
from experiments.rows import save_rows

PAPER_STAGES = {1: 2, 32: 4}
PAPER_OWN_OVER_OTHER = {1: 1.28, 32: 1.08}
"""By batch: stages, and how much faster the plan made for it is there than the other batch's."""


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


def row_of(batch: int) -> dict[str, Any]:
    graph, units, block, local = local_price(batch)
    problem = block_problem(units, merge_families(graph, units), block)
    found = ios(problem, local)
    alone = sum(local(Stage(((unit,),))) for unit in range(len(block)))
    row_stages = found.stages
    shown = [
        ("merged " if stage.merged else "")
        + " || ".join(" > ".join(label(graph, units, block, unit) for unit in group) for group in stage.groups)
        for stage in found.stages
    ]
    return {"batch": batch, "sequential_s": alone, "cost_s": found.cost_s, "stages": shown, "plan": row_stages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same, in seconds; nothing is written")
    quick = parser.parse_args().quick
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
    print(f"1x3 and 3x1 on one input: {before:,} multiply-adds apart, {after:,} merged into 3x3")
    rows = []
    for batch in (1, 32):
        row = row_of(batch)
        rows.append(row)
        gain = row["sequential_s"] / row["cost_s"]
        print(f"\nbatch {batch} (simulated): {row['cost_s'] * 1e6:.1f} us, {gain:.2f}x of sequential")
        for number, stage in enumerate(row["stages"]):
            print(f"  stage {number}: {stage}")
        computing = [stage for stage in row["stages"] if not stage.startswith("concat")]  # free in the paper
        what = "stages without the concatenation's"
        print("  " + against(what, PAPER_STAGES[batch], len(computing), "simulated"))
    for row, other in ((rows[0], rows[1]), (rows[1], rows[0])):
        batch, taken = row["batch"], cost_at(row["batch"], other["plan"])
        what = f"at batch {batch}, own plan over the other batch's, times faster"
        print(against(what, PAPER_OWN_OVER_OTHER[batch], taken / row["cost_s"], "simulated"))
        row["other_plan_s"] = taken
    if not quick:
        save_rows("ios_fig10", [{key: value for key, value in row.items() if key != "plan"} for row in rows])


if __name__ == "__main__":
    main()
