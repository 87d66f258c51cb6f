"""Figure 10, measured: the last block of Inception V3 scheduled for batch 1 and for 32, each schedule at both; and the
merge of its 1x3 and 3x1 convolutions. On a simulated device: fig10.py.

    python -m experiments.ios.fig10_measured [--quick] [--device cpu|cuda] [--threads N]

The paper (V100): the schedule found for batch 1 has 2 stages, that for 32 has 4 and merges a 1x3 and a 3x1 (f and g)
into a 3x3 of 3 times the multiply-adds, for memory traffic counts more there. Each is the faster one at its own batch.
A load of the machine above the number of threads falsifies what kernels of several threads take, so it is printed. The
concatenation is a stage of ours; in the paper it is free.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from downset import DownsetError, TorchDevice, open_device
from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.lane_program import lower
from downset.graph.core import ABSENT, Graph, Source
from downset.lattice import bits
from downset.rewrites.rebatch import rebatch
from downset.stages.planners import STAGERS
from downset.stages.prepared import prepare
from downset.stages.problem import FoundStages, Stage, StageProblem
from downset.stages.unit_graph import UnitGraph
from downset.tuning.timer import StageTimer, merge_families
from experiments.frame import Experiment, printed, run
from experiments.ios.against import against
from experiments.ios.networks import paper_units
from experiments.rows import Row
from zoo import graph as zoo_graph

lazy = STAGERS["lazy"]

PAPER = printed("ios_figure10")
WAYS = ("one after the other", "side by side", "merged")

Times = Callable[[Graph, UnitGraph, Mapping[str, Sequence[Stage]]], dict[str, float]]
Search = Callable[[Graph, UnitGraph], FoundStages]


def last_block() -> Graph:
    """The last module of Inception V3 as a network of its own."""
    graph = zoo_graph("inception_v3")
    blocks = sorted({op.name.split("/")[0] for op in graph.ops}, key=lambda block: int(block[1:]))
    ops = tuple(op for op in graph.ops if op.name.startswith(f"{blocks[-2]}/"))  # behind it comes the head
    produced = {tensor for op in ops for tensor in op.outputs}
    read = {tensor for op in ops for tensor in op.inputs if tensor != ABSENT and tensor not in graph.constants}
    outside = {tensor for op in graph.ops if op not in ops for tensor in op.inputs}
    return replace(
        graph,
        name="inception_v3_last_block",
        ops=ops,
        inputs=tuple(sorted(read - produced)),
        outputs=tuple(sorted(produced & (outside | set(graph.outputs)))),
        source=Source("built"),
    ).check()


def described(graph: Graph, units: UnitGraph, stages: Sequence[Stage]) -> str:
    """Units by kernel and channels, P for the pool; | side by side, -> one after the other, + merged."""

    def name(unit: int) -> str:
        op = graph.ops[units.units[unit][0]]
        if op.kind != "Conv":
            return "P" if op.kind == "AveragePool" else op.kind.lower()
        return "x".join(map(str, op.attrs["kernel_shape"])) + f":{graph.tensors[op.outputs[0]].shape[1]}"

    groups = [(stage, [" -> ".join(map(name, group)) for group in stage.groups]) for stage in stages]
    return " ".join(f"[{(' + ' if stage.merged else ' | ').join(parts)}]" for stage, parts in groups)


def forks(graph: Graph, units: UnitGraph) -> list[int]:
    """The masks of the pairs of a 1x3 and a 3x1 convolution that read one tensor."""
    return [family for family in merge_families(graph, units) if family.bit_count() == 2]


def with_forks(units: UnitGraph, pairs: Sequence[int], way: str) -> tuple[Stage, ...]:
    """One unit after another, but the pairs in this way."""
    stages: list[Stage] = []
    for unit in range(len(units.units)):
        pair = next((pair for pair in pairs if pair >> unit & 1), None)
        if pair is None or way == WAYS[0]:
            stages.append(Stage(((unit,),)))
        elif unit == max(bits(pair)):  # what both read has been made by then
            stages.append(Stage(tuple((member,) for member in bits(pair)), merged=way == "merged"))
    return tuple(stages)


def rows_of(block: Graph, batches: Sequence[int], search: Search, times: Times, about: str) -> list[dict[str, Any]]:
    graphs = {batch: rebatch(block, batch) for batch in batches}
    units = paper_units(block)
    results = {batch: search(graph, units) for batch, graph in graphs.items()}
    schedules = {f"found for {batch}": result.stages for batch, result in results.items()}
    schedules |= {way: with_forks(units, forks(block, units), way) for way in WAYS}
    return [
        {
            "batch": batch,
            "about": about,
            "load_average": os.getloadavg()[0],
            "stages": len(results[batch].stages),
            "schedule": described(graph, units, results[batch].stages),
            "seconds": times(graph, units, schedules),
        }
        for batch, graph in graphs.items()
    ]


def measured_rows(device: TorchDevice, batches: Sequence[int], timings: int, runs: int) -> list[dict[str, Any]]:
    def search(graph: Graph, units: UnitGraph) -> FoundStages:
        binder = Binder(graph, device=device.kind, dtype=device.dtype)
        timer = StageTimer(graph, units, device, binder, None)
        problem = StageProblem(units.predecessors, merge_families(graph, units))
        return lazy(problem, timer, budget=timings, free=timer.is_free)

    def times(graph: Graph, units: UnitGraph, schedules: Mapping[str, Sequence[Stage]]) -> dict[str, float]:
        """Medians, with barriers as IOS has them, in rounds that take turns."""
        binder = Binder(graph, device=device.kind, dtype=device.dtype)
        values = seeded_inputs(graph)
        engines: dict[str, Any] = {}
        try:
            for name, stages in schedules.items():
                program = lower(units, stages, barriers=True, max_lanes=device.max_lanes)
                engines[name] = device.engine(
                    binder, program, inputs=graph.inputs, outputs=graph.outputs, values=values
                )
            samples = device.time_whole(engines, [binder.place(value) for value in values], runs=runs)
        finally:
            for engine in engines.values():
                getattr(engine, "close", lambda: None)()
        return {name: median(seconds) for name, seconds in samples.items()}

    about = f"{device.name}, {device.versions}"
    return rows_of(prepare(last_block()), batches, search, times, about)


def rows(options: Namespace) -> list[Row]:
    try:
        device = open_device(options.device, threads=options.threads)
    except DownsetError as error:
        print(error)
        return []
    return measured_rows(device, *(((1, 4), 25, 5) if options.quick else ((1, 32), 100, 15)))


def lines(row: Row, mark: str) -> Iterator[str]:
    seconds, batch = row["seconds"], row["batch"]
    yield f"\nbatch {batch}, {row['about']}, machine's load {row['load_average']:.1f}{mark}\n  found: {row['schedule']}"
    yield "  " + against("stages", PAPER.figure("stages", batch=batch), row["stages"], "measured", spec=",")
    yield from (f"  {name:20} {taken * 1e3:10.4f} ms" for name, taken in seconds.items())
    own, paper = f"found for {batch}", PAPER.figure("own_over_other", batch=batch)
    for other in (name for name in seconds if name.startswith("found for ") and name != own):
        yield "  " + against(f"{own} over {other}, times faster", paper, seconds[other] / seconds[own], "measured")
    merged = seconds[WAYS[0]] / seconds["merged"]
    yield "  " + against("1x3 and 3x1 merged over one after the other", None, merged, "measured")


EXPERIMENT = Experiment(
    "ios_fig10_measured",
    rows,
    key=("about", "batch"),
    quick="batch 1 and 4, few timings; the committed rows stay",
    options={"--device": {"default": "cpu"}, "--threads": {"type": int}},
    lines=lines,
)

if __name__ == "__main__":
    run(EXPERIMENT)
