"""The rest of the paper: Figures 2, 8 and 14 on simulated devices, the greedy row on SqueezeNet, the gains at r = 1,
and NASNet-A's 13 blocks. Figures 12 and 15 are named, not made.

    python -m experiments.ios.figures [--quick]

Everything here is simulated or counted, nothing is measured; each line says which. The figures beside ours are the
paper's, or those of its authors' read-me, which has the milliseconds behind Figures 6 and 9. Figure 12 compares with
TVM's auto-tuner and Figure 15 with five frameworks on an RTX 2080Ti: these are measurements of other programs' kernels,
for which no device model stands. Figure 8's active warps are replaced by the share of the simulated device's threads
that are in use; in this model the work of a schedule in threads and seconds is constant, so their ratio is no more than
that of the latencies.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from downset import Graph, Op, Tensor
from downset.stages.greedy import greedy
from downset.stages.planners import STAGERS
from downset.stages.problem import Price, Stage, StageProblem
from downset.stages.unit_graph import UnitGraph
from downset.tuning.timer import block_problem, renamed
from experiments.frame import Experiment, printed, run
from experiments.ios.against import BOTH_OVER_SEQUENTIAL, RTX_2080TI, V100, against, agreement
from experiments.ios.networks import NETWORKS, blocks_of, network, paper_units
from experiments.ios.search import Priced
from experiments.ios.simulated import Gpu, device_of, price_of
from experiments.rows import Row

README = printed("ios_readme")
ios = STAGERS["ios"]
PEAK = 15.7e12
TURING = Gpu(flops=13.4e12 * 0.6, bytes_per_s=616e9 * 0.7, threads=68 * 1024)
"""Round figures of an RTX 2080Ti, of which kernels reach the same shares as of the V100."""
JOINS_US = (2, 5, 10, 14, 20)
"""Seconds of a synchronisation, in microseconds: the simulated V100's, and slower ones."""


def sample() -> Graph:
    """The network of Figures 2 and 8, as the authors' read-me builds it: convolutions a, b behind it, c and d."""
    tensors, ops = [Tensor("x", (1, 375, 15, 15), "float32", 4 * 375 * 225)], []

    def convolution(name: str, source: int, out: int) -> int:
        inside = tensors[source].shape[1]
        tensors.append(Tensor(f"{name}/w", (out, inside, 3, 3), "float32", 4 * out * inside * 9, "constant"))
        tensors.append(Tensor(name, (1, out, 15, 15), "float32", 4 * out * 225))
        window = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1}
        ops.append(Op(name, "Conv", (source, len(tensors) - 2), (len(tensors) - 1,), window))
        return len(tensors) - 1

    first = convolution("a", 0, 375)
    ends = [convolution("b", first, 750), convolution("c", 0, 375), convolution("d", 0, 750)]
    return Graph("sample", tuple(tensors), tuple(ops), (0,), tuple(ends), {}).check()


def sample_rows() -> Iterator[Row]:
    """Figures 2 and 8: latency, utilisation, and the mean share of threads in use."""
    graph = sample()
    units = UnitGraph(tuple((index,) for index in range(len(graph.ops))), (0, 1, 0, 0))
    price, device = price_of(graph, units), device_of(graph, units)
    problem = StageProblem(units.predecessors)
    schedules = {
        "sequential": tuple(Stage(((unit,),)) for unit in range(len(graph.ops))),
        "greedy": greedy(problem, price).stages,
        "IOS": ios(problem, price, max_ops=3, max_groups=8, strategy="parallel").stages,
    }
    flops = 2 * sum(375 * 9 * 225 * graph.tensors[op.outputs[0]].shape[1] for op in graph.ops)
    in_use = sum(seconds * share for seconds, share in zip(device.seconds, device.occupancy, strict=True))
    for name, stages in schedules.items():
        seconds = sum(map(price, stages))
        yield {
            "part": "Figures 2 and 8",
            "name": name,
            "simulated_s": seconds,
            "utilisation": flops / seconds / PEAK,
            "threads_share": min(1.0, in_use / seconds),
            "stages": ["|".join(" ".join("abcd"[unit] for unit in group) for group in s.groups) for s in stages],
        }


class OnGpu(Priced):
    """Prices of a network's stages on another device."""

    def __init__(self, name: str, gpu: Gpu) -> None:
        super().__init__(name)
        self._price: Price = price_of(self.graph, self.units, gpu)


@cache
def cost_of(name: str, gpu: Gpu, method: str, max_ops: int = 3) -> float:
    """The simulated seconds of a schedule; s = 8."""
    priced = OnGpu(name, gpu)
    if method == "sequential":
        return sum(priced.alone(unit) for unit in range(len(priced.units.units)))
    if not priced.families and method == "both":
        return cost_of(name, gpu, "parallel", max_ops)
    total = 0.0
    for block in priced.blocks:
        problem = block_problem(priced.units, priced.families, block)

        def price(stage: Stage, block: tuple[int, ...] = block) -> float:
            return priced(renamed([stage], block)[0])

        if method == "greedy":
            total += greedy(problem, price).cost_s
        else:
            total += ios(problem, price, max_ops=max_ops, max_groups=8, strategy=method).cost_s
    return total


METHODS = ("sequential", "greedy", "merge", "parallel", "both")


def turing_row(name: str) -> Row:
    costs = {method: cost_of(name, TURING, method) for method in METHODS}
    return {"part": "Figure 14", "name": name, "simulated_s": costs}


def greedy_row(name: str) -> Row:
    """Greedy over sequential by the time of a synchronisation."""
    over = {}
    for join in JOINS_US:
        gpu = Gpu(fork_join_s=join * 1e-6)
        over[str(join)] = cost_of(name, gpu, "greedy") / cost_of(name, gpu, "sequential")
    return {"part": "greedy", "name": name, "over_sequential": over}


def pruned_row(name: str) -> Row:
    """Both over sequential at r = 1 and r = 3, by the time of a synchronisation."""
    gains = {}
    for join in (JOINS_US[0], 14):
        gpu = Gpu(fork_join_s=join * 1e-6)
        alone = cost_of(name, gpu, "sequential")
        gains[str(join)] = {str(r): alone / cost_of(name, gpu, "both", r) for r in (1, 3)}
    return {"part": "r", "name": name, "gains": gains}


def blocks_row() -> Row:
    """NASNet-A's parts: how many are cells, and how many of these differ."""
    graph = network("nasnet_large")
    units = paper_units(graph)
    blocks = blocks_of(graph, units)
    cells = [block for block in blocks if len(block) > 1]
    different = {form_of(graph, units, block) for block in cells}
    return {
        "part": "blocks",
        "name": "nasnet_large",
        "parts": len(blocks),
        "cells": len(cells),
        "different": len(different),
    }


def form_of(graph: Graph, units: UnitGraph, block: tuple[int, ...]) -> tuple[Any, ...]:
    """Everything about a block but names: kinds, settings, shapes and edges inside."""
    results: dict[int, tuple[int, int]] = {}
    form = []
    for place, index in enumerate(sorted(op for unit in block for op in units.units[unit])):
        op = graph.ops[index]
        reads = tuple(results.get(tensor, graph.tensors[tensor].shape if tensor >= 0 else ()) for tensor in op.inputs)
        results |= {tensor: (place, number) for number, tensor in enumerate(op.outputs)}
        form.append((op.kind, reads, repr(sorted(op.attrs.items()))))
    return tuple(form)


def rows(options: Namespace) -> Iterator[Row]:
    yield from sample_rows()
    yield blocks_row()
    names = ("squeezenet",) if options.quick else tuple(NETWORKS)
    for name in names:
        yield greedy_row(name)
    for name in ("inception_v3",) if options.quick else ("inception_v3", "nasnet_large"):
        yield pruned_row(name)
    for name in names:
        yield turing_row(name)


def said(rows: Sequence[Row]) -> None:
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append(row)
    for row in parts.get("Figures 2 and 8", ()):
        line = f"Figure 2, {row['name']} ({' then '.join(row['stages'])}): {row['simulated_s'] * 1e3:.3f} ms, "
        print(f"{line}{row['utilisation']:.0%} of the peak, {row['threads_share']:.0%} of the threads (simulated)")
    sample_s = {row["name"]: row["simulated_s"] for row in parts.get("Figures 2 and 8", ())}
    if sample_s:
        paper = README.figure("sequential", network="sample") / README.figure("both", network="sample")
        print(against("Figure 2, IOS over sequential", paper, sample_s["sequential"] / sample_s["IOS"], "simulated"))
        shares = {row["name"]: row["threads_share"] for row in parts["Figures 2 and 8"]}
        print(
            against("Figure 8, active warps over sequential's", 1.58, shares["IOS"] / shares["sequential"], "simulated")
        )
    for row in parts.get("blocks", ()):
        print(
            f"Table 2, NASNet-A: paper 13 blocks | counted: {row['parts']} parts, {row['cells']} cells, of which "
            f"{row['different']} differ; 13 is 3 stacks of 3 cells and 4 reductions, and the 374 operators are of 3 "
            "stacks of 6"
        )
    for row in parts.get("greedy", ()):
        title, over = NETWORKS[row["name"]], row["over_sequential"]
        listed = ", ".join(f"{join} us {ratio:.2f}" for join, ratio in over.items())
        print(f"Figure 6, {title}: greedy over sequential by the time of a synchronisation: {listed} (simulated)")
        paper = readme(row["name"], "greedy") / readme(row["name"], "sequential")
        print("  " + against("greedy over sequential, 14 us", paper, over["14"], "simulated"))
        print(
            "  "
            + agreement(
                "greedy is slower" if paper > 1 else "greedy is faster",
                (over["14"] > 1) == (paper > 1),
                "simulated, 14 us",
            )
        )
    for row in parts.get("r", ()):
        for join, gains in row["gains"].items():
            paper = [
                readme(row["name"], "sequential") / README.figure("both", network=row["name"], max_ops=r)
                for r in (1, 3)
            ]
            print(against(f"Figure 9, {NETWORKS[row['name']]}, r = 1, {join} us", paper[0], gains["1"], "simulated"))
            print(
                "  "
                + against(
                    "what r = 3 gains over r = 1", paper[1] / paper[0], gains["3"] / gains["1"], "simulated", spec=".3f"
                )
            )
    for row in parts.get("Figure 14", ()):
        costs = row["simulated_s"]
        listed = ", ".join(f"{method} {min(costs.values()) / cost:.2f}" for method, cost in costs.items())
        print(f"Figure 14, {NETWORKS[row['name']]}, throughput over the best: {listed} (simulated RTX 2080Ti)")
        gain = costs["sequential"] / costs["both"]
        print("  " + against("both over sequential", BOTH_OVER_SEQUENTIAL, gain, "simulated", where=RTX_2080TI))
    print(
        f"Figure 12 (TVM's auto-tuner, {V100}) and Figure 15 (five frameworks, {RTX_2080TI}): not made, as no device "
        "model stands for other programs' kernels"
    )


def readme(name: str, method: str) -> float:
    """Milliseconds of a schedule in the authors' read-me."""
    return float(next(row[method] for row in README.rows if row["network"] == name and "max_ops" not in row))


EXPERIMENT = Experiment("ios_figures", rows, quick="SqueezeNet and r on Inception V3; nothing is written", after=said)

if __name__ == "__main__":
    run(EXPERIMENT)
