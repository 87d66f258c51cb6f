"""Figure 16: Inception V3 block by block, the chosen stages against sequential.

    python -m experiments.ios.fig16 [--quick]

Measured on this machine's CPU and, apart, simulated. The paper (V100): up to 2.3x for a block, 1.6x end to end, more in
the later, wider blocks.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from statistics import median

from downset import open_device
from downset.executor.binder import Binder
from downset.executor.lane_program import lower
from downset.stages.planners import STAGERS
from downset.stages.prepared import prepare
from downset.stages.problem import Stage
from downset.tuning.timer import StageTimer, block_problem, merge_families, renamed
from experiments.frame import Experiment, fields, run
from experiments.ios.against import SPEEDUPS, against, agreement
from experiments.ios.networks import blocks_of, paper_units
from experiments.ios.search import Priced
from experiments.rows import Row
from zoo import graph as zoo_graph

ios = STAGERS["ios"]
lazy = STAGERS["lazy"]


def measured(rounds: int, timings: int, wanted: int | None) -> list[Row]:
    graph = prepare(zoo_graph("inception_v3"))
    units = paper_units(graph)
    device = open_device("cpu")
    binder = Binder(graph)
    timer = StageTimer(graph, units, device, binder, None)
    families = merge_families(graph, units)
    rows = []
    blocks = list(enumerate(blocks_of(graph, units)))[1:-1]  # the paper's eleven: without stem and head
    for number, block in blocks[:wanted]:
        problem = block_problem(units, families, block)
        result = lazy(problem, lambda stage, block=block: timer(renamed([stage], block)[0]), budget=timings)
        plans = {
            "sequential": [Stage(((unit,),)) for unit in block],
            "stages": renamed(result.stages, block),
        }
        inside = {op for unit in block for op in units.units[unit]}
        produced = {tensor for op in inside for tensor in graph.ops[op].outputs}
        inputs = sorted(
            {t for op in inside for t in graph.ops[op].inputs if t not in produced and t not in graph.constants}
        )
        readers = graph.consumers()
        outputs = sorted(t for t in produced if t in graph.outputs or any(op not in inside for op in readers[t]))
        values = [device.random(binder, tensor) for tensor in inputs]
        engines = {
            name: device.engine(
                binder,
                lower(units, stages, barriers=False, max_lanes=device.max_lanes),
                inputs=inputs,
                outputs=outputs,
                values=values,
            )
            for name, stages in plans.items()
        }
        samples = device.time_whole(engines, [binder.place(value) for value in values], runs=rounds)
        for engine in engines.values():
            engine.close()
        times = {name: sorted(seconds)[len(seconds) // 2] for name, seconds in samples.items()}
        rows.append({"block": number, "units": len(block), "measured_s": times})
    return rows


def rows(options: Namespace) -> list[Row]:
    measured_rows = measured(*((3, 5, 1) if options.quick else (15, 40, None)))
    priced = Priced("inception_v3")
    for row in measured_rows:
        block = priced.blocks[row["block"]]
        problem = block_problem(priced.units, priced.families, block)
        planned = ios(problem, lambda stage, block=block: priced(renamed([stage], block)[0]))
        alone = sum(priced.alone(unit) for unit in block)
        row["simulated_s"] = {"sequential": alone, "stages": planned.cost_s}
    return measured_rows


def gain(row: Row, how: str) -> float:
    return float(row[f"{how}_s"]["sequential"] / row[f"{how}_s"]["stages"])


def said(rows: Sequence[Row]) -> None:
    for how, device in (("measured", "measured, CPU"), ("simulated", "simulated")):
        every = [gain(row, how) for row in rows]
        print(against("the block that gains most", SPEEDUPS.figure(of="Figure 16, a block"), max(every), device))
        print(agreement("every block is faster than sequential", min(every) > 1.0, device))
        half = len(every) // 2
        later = median(every[half:]) > median(every[:half]) if half else None
        print(agreement("later blocks gain more", later, device))


EXPERIMENT = Experiment(
    "ios_fig16",
    rows,
    (
        *fields("block", "units"),
        ("measured: sequential, ms", "{measured_s[sequential]!m:.2f}"),
        ("stages, ms", "{measured_s[stages]!m:.2f}"),
        ("speed-up", lambda row: f"{gain(row, 'measured'):.2f}"),
        ("simulated speed-up", lambda row: f"{gain(row, 'simulated'):.2f}"),
    ),
    quick="one block, few rounds; nothing is written",
    after=said,
)

if __name__ == "__main__":
    run(EXPERIMENT)
