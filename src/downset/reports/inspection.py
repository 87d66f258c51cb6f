"""A network's operators and tensors, and the memory that each operator needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from downset.errors import LimitReached
from downset.graph.core import Graph
from downset.graph.width import width
from downset.lattice import count_downsets, divided, estimate_downsets, masks
from downset.memory.liveness import check_graph, order_problem, profile
from downset.memory.models import MemoryModel, memory_model
from downset.reports.document import JSON_ONLY, TERMINAL, Column, Document, Section, Table, Value, Verdict, named
from downset.reports.naming import kind_name
from downset.results.inspections import Inspection, StepNeed
from downset.text import counted, format_bytes, printable, shortened

__all__ = ["inspect", "inspection_document"]

_DOWNSET_LIMIT = 100_000
"""Downsets are counted exactly up to here (about a second); beyond it the number is estimated."""
_COUNTED_OPERATORS = 4_000
"""The most operators in a part of the network whose downsets are counted. In larger parts each takes too many bits."""
_WALKED = 100_000
"""Operators that the random walks of the estimate add in all (a second or two)."""
_MEMORY = {"tflite": "tflm", "onnx": "ort", "torch": "torch"}
"""The memory model of a file's usual runtime, by its format."""


def inspect(graph: Graph, *, memory: str | MemoryModel | None = None) -> Inspection:
    """Operators, tensors, bytes, width and number of downsets of a network, and the live bytes in the order of its
    file.

    `memory`: a memory model; default tflm for a .tflite file, ort for .onnx, torch for .pt2, else live. Up to 100,000
    downsets are counted; beyond, their number is estimated from seeded random walks. Raises UsageError for an unknown
    memory model.
    """
    check_graph(graph)
    model = memory_model(_MEMORY.get(graph.source.format, "live") if memory is None else memory)
    problem = order_problem(graph, model)
    downsets, exact = _count(problem.predecessors)
    needs = profile(problem, range(len(graph.ops)))
    activations = [tensor for tensor in graph.tensors if tensor.role == "activation"]
    constants = [tensor for tensor in graph.tensors if tensor.role == "constant"]
    return Inspection(
        model=graph.source.path or graph.name,
        format=graph.source.format,
        memory=model.name,
        operators=len(graph.ops),
        tensors=len(activations),
        activation_bytes=sum(tensor.nbytes for tensor in activations),
        weight_bytes=sum(tensor.nbytes for tensor in constants),
        width=width(problem.predecessors),
        downsets=downsets if exact else min(downsets, int(sys.float_info.max)),
        downsets_log10=math.log10(downsets),
        downsets_exact=exact,
        peak_bytes=max([problem.floor_bytes, *needs]),
        inputs=tuple(graph.tensors[tensor] for tensor in graph.inputs),
        outputs=tuple(graph.tensors[tensor] for tensor in graph.outputs),
        steps=tuple(
            StepNeed(step, kind_name(graph, op), op.name, live)
            for step, (op, live) in enumerate(zip(graph.ops, needs, strict=True))
        ),
    )


_BAR = 20
"""Characters of the bar of the peak."""
_SHOWN = 1_000
"""Operators on a terminal. Drawing a longer table takes longer than inspecting the network."""


def inspection_document(inspection: Inspection) -> Document:
    """The result of `inspect`; docs/schemas/inspect.json has its keys."""
    peak = max(inspection.peak_bytes, 1)
    estimate = f"about 10^{inspection.downsets_log10:.0f}"
    figures = (
        Value("weights", inspection.weight_bytes, lambda nbytes: f"{format_bytes(nbytes)} B", key="weight_bytes"),
        Value("width", inspection.width, key="width"),
        Value(
            "downsets",
            inspection.downsets,
            lambda count: f"{count:,}" if inspection.downsets_exact else estimate,
            key="downsets",
        ),
    )
    columns = (
        Column("step", "step", key="step"),
        Column("live bytes", "live_bytes", format_bytes, key="live_bytes"),
        Column("", lambda row: "█" * round(_BAR * row.live_bytes / peak), left=True),
        Column("kind", "kind", lambda kind: shortened(printable(kind), 24), key="kind", left=True),
        Column("name", "name", key="name", left=True, shrinks=True),
    )
    shown = _around_peak(inspection.steps)
    more = len(inspection.steps) - len(shown)
    at_peak = (place for place, row in enumerate(shown) if row.live_bytes == inspection.peak_bytes)
    legend = "*: the peak" + (f"; {more:,} more operators are not shown, and JSON has them" if more else "")
    table = Table(columns, shown, legend=legend, marked=frozenset(at_peak), on=TERMINAL)
    every_step = Table(columns, inspection.steps, key="steps", on=JSON_ONLY)
    names = ("model", "format", "memory", "operators", "tensors", "activation_bytes", "downsets_log10")
    return Document(
        inspection.model,
        f"{counted(inspection.operators, 'operator')}, {counted(inspection.tensors, 'activation tensor')}",
        Verdict(
            "plain",
            f"peak in file order {format_bytes(inspection.peak_bytes)} B (memory model {inspection.memory})",
        ),
        (Section("Operators", (table, every_step)),),
        figures,
        data={
            **named(inspection, *names, "downsets_exact", "peak_bytes"),
            "inputs": [named(tensor, "name", "shape") for tensor in inspection.inputs],
            "outputs": [named(tensor, "name", "shape") for tensor in inspection.outputs],
        },
    )


def _around_peak(steps: Sequence[StepNeed]) -> Sequence[StepNeed]:
    """The operators to show, with the first of the most live bytes in the middle."""
    peak = max(range(len(steps)), key=lambda step: steps[step].live_bytes, default=0)
    low = max(min(peak - _SHOWN // 2, len(steps) - _SHOWN), 0)
    return steps[low : low + _SHOWN]


def _count(predecessors: Sequence[Sequence[int]]) -> tuple[int, bool]:
    """The number of downsets, and whether all of it was counted. It is the sum over the parts of the network; in parts
    with too many operators or downsets it is estimated."""
    total, exact = 1, True
    for part in divided(predecessors):
        try:
            if len(part) > _COUNTED_OPERATORS:
                raise LimitReached(f"{len(part)} operators")
            total += count_downsets(masks(part), limit=_DOWNSET_LIMIT) - 1
        except LimitReached:
            exact = False
            samples = min(max(_WALKED // len(part), 10), 200)
            total += max(estimate_downsets(part, samples=samples, seed=0) - 1, len(part))
    return total, exact
