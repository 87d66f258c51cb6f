"""A network's operators and tensors, and the memory that each operator needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

from downset.errors import LimitReached
from downset.graph.core import Graph
from downset.graph.width import width
from downset.lattice import count_downsets, divided, estimate_downsets, masks
from downset.memory.liveness import check_graph, order_problem, profile
from downset.memory.models import MemoryModel, memory_model
from downset.reports.document import JSON_ONLY, TERMINAL, Column, Document, Section, Table, Value, Verdict, named
from downset.reports.naming import kind_name
from downset.results.inspections import Inspection, StepNeed
from downset.results.sizes import OpenSize, OpenTensor
from downset.text import counted, format_bytes, printable, shortened

__all__ = ["inspect", "inspect_open", "inspection_document"]

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
    model = _model(graph, memory)
    problem = order_problem(graph, model)
    needs = profile(problem, range(len(graph.ops)))
    return replace(
        _without_sizes(graph, model, problem.predecessors),
        activation_bytes=sum(tensor.nbytes for tensor in graph.tensors if tensor.role == "activation"),
        peak_bytes=max([problem.floor_bytes, *needs]),
        inputs=tuple(graph.tensors[tensor] for tensor in graph.inputs),
        outputs=tuple(graph.tensors[tensor] for tensor in graph.outputs),
        steps=_steps(graph, needs),
        note=graph.source.note,
    )


def inspect_open(
    network: tuple[Graph, tuple[OpenTensor, ...], tuple[OpenTensor, ...]],
    sizes: Sequence[OpenSize],
    *,
    missing: str,
    memory: str | MemoryModel | None = None,
) -> Inspection:
    """`inspect` of the network in a file that leaves `sizes` open, of which at least one is not known. `network`: its
    graph, in which what has an open size has no bytes, and its inputs and outputs. `missing`: what is not known."""
    graph, inputs, outputs = network
    inspection = _without_sizes(graph, _model(graph, memory), graph.predecessors())
    return replace(inspection, inputs=inputs, outputs=outputs, open_sizes=tuple(sizes), missing=missing)


def _model(graph: Graph, memory: str | MemoryModel | None) -> MemoryModel:
    return memory_model(_MEMORY.get(graph.source.format, "live") if memory is None else memory)


def _without_sizes(graph: Graph, model: MemoryModel, predecessors: Sequence[Sequence[int]]) -> Inspection:
    """An inspection without the figures that depend on the sizes of activations."""
    downsets, exact = _count(predecessors)
    return Inspection(
        model=graph.source.path or graph.name,
        format=graph.source.format,
        memory=model.name,
        operators=len(graph.ops),
        tensors=sum(tensor.role == "activation" for tensor in graph.tensors),
        activation_bytes=None,
        weight_bytes=sum(tensor.nbytes for tensor in graph.tensors if tensor.role == "constant"),
        width=width(predecessors),
        downsets=downsets if exact else min(downsets, int(sys.float_info.max)),
        downsets_log10=math.log10(downsets),
        downsets_exact=exact,
        peak_bytes=None,
        inputs=(),
        outputs=(),
        steps=_steps(graph, [None] * len(graph.ops)),
    )


def _steps(graph: Graph, needs: Sequence[int | None]) -> tuple[StepNeed, ...]:
    return tuple(
        StepNeed(step, kind_name(graph, op), op.name, live)
        for step, (op, live) in enumerate(zip(graph.ops, needs, strict=True))
    )


_BAR = 20
"""Characters of the bar of the peak."""
_SHOWN = 1_000
"""Operators on a terminal. Drawing a longer table takes longer than inspecting the network."""


def inspection_document(inspection: Inspection) -> Document:
    """The result of `inspect`; docs/schemas/inspect.json has its keys."""
    peak = max(inspection.peak_bytes or 1, 1)
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
        Column("", lambda row: "█" * round(_BAR * (row.live_bytes or 0) / peak), left=True),
        Column("kind", "kind", lambda kind: shortened(printable(kind), 24), key="kind", left=True),
        Column("name", "name", key="name", left=True, shrinks=True),
    )
    shown = _around_peak(inspection.steps)
    more = len(inspection.steps) - len(shown)
    sized = inspection.peak_bytes is not None
    at_peak = (place for place, row in enumerate(shown) if sized and row.live_bytes == inspection.peak_bytes)
    legend = "*: the peak" * sized + (f"; {more:,} more operators are not shown, and JSON has them" if more else "")
    legend = legend.removeprefix("; ")
    present = columns if sized else tuple(one for one in columns if one.title not in ("live bytes", ""))
    table = Table(present, shown, legend=legend, marked=frozenset(at_peak), on=TERMINAL)
    every_step = Table(columns, inspection.steps, key="steps", on=JSON_ONLY)
    names = ("model", "format", "memory", "operators", "tensors", "activation_bytes", "downsets_log10")
    return Document(
        inspection.model,
        f"{counted(inspection.operators, 'operator')}, {counted(inspection.tensors, 'activation tensor')}",
        Verdict("plain", _headline(inspection)),
        (*_open_sections(inspection), Section("Operators", (table, every_step))),
        figures,
        data={
            **named(inspection, *names, "downsets_exact", "peak_bytes"),
            "inputs": [named(tensor, "name", "shape") for tensor in inspection.inputs],
            "outputs": [named(tensor, "name", "shape") for tensor in inspection.outputs],
            "open_sizes": [_open_size(one) for one in inspection.open_sizes],
            "note": inspection.note,
        },
    )


def _headline(inspection: Inspection) -> str:
    if inspection.peak_bytes is None:
        return inspection.missing
    return f"peak in file order {format_bytes(inspection.peak_bytes)} B (memory model {inspection.memory})"


def _open_sections(inspection: Inspection) -> tuple[Section, ...]:
    """The inputs and outputs of a network some of whose sizes are not known."""
    if inspection.peak_bytes is not None:
        return ()
    rows = [(one, role) for role in ("input", "output") for one in getattr(inspection, f"{role}s")]
    columns = (
        Column("role", lambda row: row[1], left=True),
        Column("tensor", lambda row: shortened(printable(row[0].name), 60), left=True, shrinks=True),
        Column("shape", lambda row: _shape(row[0].shape), left=True),
    )
    return (Section("Inputs and outputs", (Table(columns, rows, on=TERMINAL),)),)


def _shape(shape: Sequence[int | str] | None) -> str:
    return "any" if shape is None else f"[{', '.join(shortened(printable(str(size)), 40) for size in shape)}]"


def _open_size(size: OpenSize) -> dict[str, object]:
    places = [{"input": name, "axis": axis} for name, axis in size.places]
    return {"name": size.name, "size": size.size, "places": places}


def _around_peak(steps: Sequence[StepNeed]) -> Sequence[StepNeed]:
    """The operators to show, with the first of the most live bytes in the middle."""
    peak = max(range(len(steps)), key=lambda step: steps[step].live_bytes or 0, default=0)
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
