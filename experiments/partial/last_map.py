"""Measures what networks gain where the map before a global pool is added up strip by strip and need not lie whole.

    python -m experiments.partial.last_map [--quick] [--only TEXT] [--work-limit CHOICES]

`least_bytes`: the least peak of a network in strips, as planned. `free_bytes`: the same where the pool is replaced by
a convolution to one channel. Then the last map never lies whole, and what stands for the sum takes less than any sum:
so no plan that adds the map up is lower, but for the limits of the search. Where that is lower than the least peak,
the pool is spelled in stock operators (`accumulate`) in files of the second search's plans. Their least head and
least total are *measured* in TFLite Micro, next to those of the first search's plans and of the file as it is. All
are placed by TFLite Micro's planner. `equal`: outputs are equal bit for bit. DS-CNN is the keyword spotter of MLPerf
Tiny with weights drawn from seed 0; its last map is as large as any other. Other models come from ../shared/models.
"""

from __future__ import annotations

import math
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from downset import Graph, load
from downset.errors import UnsupportedError
from downset.formats.tflite.write import export_tflite
from downset.graph.core import Op, Tensor
from downset.graph.cost import row_form
from downset.memory.liveness import order_problem, profile
from downset.partial.memory_form import tflm_persistent
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.search import PartialFront, PartialLimits, partial_front
from downset.rewrites.tflite_form import tflite_forms, writable_rows
from downset.runtimes import tflm
from experiments.frame import Experiment, fields, run
from experiments.partial import accumulate
from experiments.partial.micro import MODELS
from experiments.rows import Row

FILES = (
    "mobilenet_v2_1.0_224_rand_int8",
    "mobilenet_v2_0.35_160_rand_int8",
    "vww_96_int8",
    "swiftnet_hpd_vwwc224_uint8",
    "mobilenet_v1_0.25_128_quant",
    "pretrainedResnet_quant",
)
DS_CNN = "DS-CNN, built here"
MOST_PLANS = 12


def ds_cnn(path: Path) -> Path:
    """A convolution of 10 x 4 with a stride of 2, four blocks of a depthwise and a pointwise one, and a pool."""
    from tests.strip_networks import SAME, StripNet

    net, options = StripNet(0, dtype="int8"), {"padding": SAME, "dilationHFactor": 1, "dilationWFactor": 1}
    options["fusedActivationFunction"] = 1
    x, shape = net.start(49, 10, 1), (1, 25, 5, 64)
    first = net._weights(x, (64, 10, 4, 1), 0)
    x = net.add_op("CONV_2D", (x, *first), shape, "Conv2DOptions", strideH=2, strideW=2, **options)
    for _ in range(4):
        own = {**options, "strideH": 1, "strideW": 1}
        deep = net._weights(x, (1, 3, 3, 64), 3)
        x = net.add_op("DEPTHWISE_CONV_2D", (x, *deep), shape, "DepthwiseConv2DOptions", depthMultiplier=1, **own)
        x = net.add_op("CONV_2D", (x, *net._weights(x, (64, 1, 1, 64), 0)), shape, "Conv2DOptions", **own)
    return net.save(path, [accumulate.pool(net, x)])


def last_pool(graph: Graph) -> int:
    """The last operator that makes one pixel of a map."""
    return max(
        index
        for index, op in enumerate(graph.ops)
        if op.kind in ("AveragePool", "ReduceMean")
        and math.prod(graph.tensors[op.outputs[0]].shape) == graph.tensors[op.inputs[0]].shape[-1]
    )


def without_pool(graph: Graph, pool: int) -> Graph:
    """The operators before the pool, and a convolution of its map to one channel."""
    read = graph.tensors[graph.ops[pool].inputs[0]]
    attrs = next(op.attrs for op in graph.ops if op.kind == "Conv" and _is_pointwise(graph, op))
    weights = Tensor("weights of one channel", (1, 1, 1, read.shape[-1]), read.dtype, read.shape[-1], "constant")
    pixels = math.prod(read.shape[:-1])
    one = Tensor("one channel", (*read.shape[:-1], 1), read.dtype, pixels * read.nbytes // math.prod(read.shape))
    place = len(graph.tensors)
    last = Op("one channel", "Conv", (graph.ops[pool].inputs[0], place), (place + 1,), attrs)
    source = replace(graph.source, op_index=(), settings_of=())
    tensors, ops = (*graph.tensors, weights, one), (*graph.ops[:pool], last)
    return replace(graph, tensors=tensors, ops=ops, outputs=(place + 1,), source=source)


def _is_pointwise(graph: Graph, op: Op) -> bool:
    return graph.tensors[op.inputs[1]].shape[1:3] == (1, 1) and not op.attrs.get("depthwise")


def searched(graph: Graph, options: Namespace) -> PartialFront:
    limits = PartialLimits(0.1, work_limit=options.work_limit, time_limit_s=600.0)
    form = writable_rows(graph, row_form(graph, halos_required=False))
    persistent = tflm_persistent(graph)
    return partial_front(graph, memory="tflm", limits=limits, form=form, persistent=persistent)


@dataclass(frozen=True, slots=True)
class Files:
    """Files of plans of one network, in a folder. `pool`: the operator whose map is added up, or is not."""

    graph: Graph
    pool: int
    folder: Path

    def taken(self, front: PartialFront, *, added: bool) -> list[tflm.Measurement]:
        """Measurements of the plans of least peak and of least sum of peak and persistent bytes."""
        by_peak = sorted(front.plans, key=lambda plan: plan.price.peak_bytes)
        by_sum = sorted(front.plans, key=lambda plan: plan.price.peak_bytes + plan.price.persistent_bytes)
        taken = []
        for plan in dict.fromkeys((*by_peak[:MOST_PLANS], *by_sum[:MOST_PLANS])):
            parts = [replace(part, stop=min(part.stop, self.pool)) for part in plan.segments]
            try:
                taken += self.measured(parts if added else list(plan.segments), added=added)
            except UnsupportedError:  # the map has fewer rows than the plan has strips
                continue
        return taken

    def measured(self, parts: list[InStrips], *, added: bool) -> Iterator[tflm.Measurement]:
        """Measurements of a plan in each form that a file can state."""
        form = writable_rows(self.graph, row_form(self.graph, halos_required=False))
        for striped in tflite_forms(in_strips(self.graph, parts, form=form)) if parts else [self.graph]:
            path = self.folder / "strips.tflite"
            export_tflite(path, striped, range(len(striped.ops)))
            if added:
                add_up(path, self.graph.ops[self.pool].name)
            yield tflm.measure(path)


def add_up(path: Path, pool: str) -> None:
    """Replace the joins of the map before an int8 AVERAGE_POOL_2D by sums of their parts, each behind the operator that
    makes the part. Raises UnsupportedError where the pool is not that or the map is not joined."""
    net = _opened(path)
    operators, makers = list(net.main.operators), {}
    for operator in operators:
        makers |= dict.fromkeys(map(int, operator.outputs), operator)
    last = next((one for one in reversed(operators) if net.kind(one) == "AVERAGE_POOL_2D"), None)
    if last is None or net.kind(makers.get(int(last.inputs[0]))) != "CONCATENATION":
        raise UnsupportedError(f"{pool} is not an average pool, or its map is not joined")
    parts, joins = _leaves(net, makers, int(last.inputs[0]))
    net.main.operators = []
    behind: list[tuple[int, list[Any]]] = []
    x, total = int(last.inputs[0]), None
    for part in parts:
        begin = len(net.main.operators)
        total = accumulate.more_int(net, x, part, total)
        behind.append((part, net.main.operators[begin:]))
    ending = len(net.main.operators)
    result = accumulate.quotient(net, x, total)
    ends = net.main.operators[ending:]
    ends[-1].outputs = last.outputs
    assert result not in net.main.outputs
    follows = dict(behind)
    net.main.operators = []
    for operator in operators:
        if any(operator is join for join in joins):
            continue
        behind_it = [more for part in map(int, operator.outputs) for more in follows.get(part, [])]
        net.main.operators += ends if operator is last else [operator, *behind_it]
    for join in joins:  # TFLite Micro places what nothing reads
        net.main.tensors[int(join.outputs[0])].shape = np.ones(4, np.int32)
    net.save(path, net.main.outputs)


def _leaves(net: Any, makers: dict[int, Any], tensor: int) -> tuple[list[int], list[Any]]:
    """(the parts of a joined tensor in their sequence, the joins)."""
    maker = makers.get(tensor)
    if maker is None or net.kind(maker) != "CONCATENATION":
        return [tensor], []
    parts, joins = [], [maker]
    for read in map(int, maker.inputs):
        own, more = _leaves(net, makers, read)
        parts += own
        joins += more
    return parts, joins


def _opened(path: Path) -> Any:
    """The file as a network to which operators are appended."""
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils

    from tests.strip_networks import StripNet

    net = StripNet(0, dtype="int8")
    net.model = flatbuffer_utils.read_model(str(path))
    net.main = net.model.subgraphs[0]
    for code in net.model.operatorCodes:
        code.builtinCode = max(code.builtinCode, code.deprecatedBuiltinCode)
    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    net.kind = lambda operator: operator and names[net.model.operatorCodes[operator.opcodeIndex].builtinCode]
    net.model.metadata, net.model.metadataBuffer = [], None
    return net


def row_of(name: str, path: Path, folder: Path, options: Namespace) -> Row:
    graph = load(path)
    pool = last_pool(graph)
    live = profile(order_problem(graph, "tflm"), range(len(graph.ops)))
    front, free = searched(graph, options), searched(without_pool(graph, pool), options)
    row: dict[str, Any] = {
        "model": name,
        "pool": graph.ops[pool].kind,
        "whole_bytes": max(live),
        "at_pool_bytes": live[pool],
        "least_bytes": front.least.price.peak_bytes,
        "free_bytes": free.least.price.peak_bytes,
    }
    if row["free_bytes"] >= row["least_bytes"]:
        return row
    files = Files(graph, pool, folder)
    original, whole, added = tflm.measure(path), files.taken(front, added=False), files.taken(free, added=True)
    steps = [original], [original, *whole], added
    pairs = (pair for one in added for pair in zip(one.outputs, original.outputs, strict=True))
    return row | {
        "head_bytes": [min(one.head_bytes for one in step) for step in steps],
        "total_bytes": [min(one.total_bytes for one in step) for step in steps],
        "files": len(added),
        "equal": all(np.array_equal(*pair) for pair in pairs),
    }


def rows(options: Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {DS_CNN: ds_cnn(folder / "ds_cnn.tflite"), **{file: MODELS / f"{file}.tflite" for file in FILES}}
        for model, path in paths.items():
            if path.exists() and options.only in model and (not options.quick or model == DS_CNN):
                yield row_of(model, path, folder, options)


def arrows(name: str) -> Callable[[Row], str | None]:
    return lambda row: " -> ".join(f"{nbytes:,}" for nbytes in row[name]) if name in row else None


EXPERIMENT = Experiment(
    "partial_last_map",
    rows,
    (
        *fields("model", "pool"),
        *fields("whole_bytes", "at_pool_bytes", "least_bytes", "free_bytes", spec=","),
        ("head: as it is -> in strips -> added up", arrows("head_bytes")),
        ("total", arrows("total_bytes")),
        *fields("equal"),
    ),
    key=("model",),
    quick="the network that is built here alone, nothing written",
    options={
        "--only": {"default": "", "help": "only models whose name contains this"},
        "--work-limit": {"type": int, "default": 5_000, "help": "choices that each search prices at most"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
